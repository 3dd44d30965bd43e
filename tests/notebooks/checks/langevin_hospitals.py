assert fit.idata.posterior["beta"].shape == (4, NUM_DRAWS, 13)
assert renyi.epsilon > 1.0

assert fit.converged  # R-hat below 1.01
assert comparison.rms_difference < 0.1
assert comparison.largest_sd_error < 0.1
assert found[False][-1, 0] > 5 * found[True][-1, 0]
assert np.all(np.abs(found[False][1:, 0] / found[False][1:, 1] - 1.0) < 0.4)  # predicted to first order
