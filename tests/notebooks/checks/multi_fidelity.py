assert np.isfinite(wide[1]).all()
assert posterior.idata.posterior["noise"].shape == (4, NUM_DRAWS)

assert max(toy_errors.values()) < 0.15
assert errors["both levels"] < 0.6
assert errors["both levels"] < errors["the high one alone"]
assert posterior.converged
