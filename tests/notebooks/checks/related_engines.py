assert fit.idata.posterior["noise"].shape == (4, NUM_DRAWS)
assert widths[5] > widths[20]

assert fit.converged
assert 0.88 < np.mean(inside) < 0.99
assert np.mean(errors) < 0.45
assert related.converged
assert rmse(together) < rmse(by_itself)
