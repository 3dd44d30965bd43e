assert fit.idata.posterior["noise"].shape == (4, NUM_DRAWS)
assert widths[5] > widths[10] > widths[20]

print(
    "inside:",
    round(float(np.mean(inside)), 3),
    "RMSE:",
    round(float(np.mean(errors)), 3),
    "widths:",
    {k: round(float(v), 3) for k, v in widths.items()},
)
assert fit.converged
assert 0.88 < np.mean(inside) < 0.99
assert np.mean(errors) < 0.45
assert related.converged
assert rmse(together) < rmse(by_itself)
