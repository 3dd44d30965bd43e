assert curves_of_modes.shape == (NUM_MODES, len(grid))
assert curves.shape == (NUM_RANDOMISED, len(grid))

first = fit.idata.posterior["heights"].values[0]
predicted = np.concatenate([c["phi"] for c in clients.values()]) @ first.T
assert np.abs(predicted - readings[:, None]).max() < 0.05  # they interpolate
assert np.mean(np.abs(curves_of_modes - mean) < 1.88 * sd + 0.05) > 0.8
assert collapsed.rounds.attrs["spread"] < 0.2
assert ratio.min() > 0.7  # five Monte Carlo errors of a standard deviation of 150 draws
assert ratio.max() < 1.3
