assert np.isfinite(wide[1]).all()
assert posterior.idata.posterior["noise"].shape == (4, NUM_DRAWS)

toy_errors = [np.sqrt(np.mean((bands[n][0] - s * np.sin(10 * grid)) ** 2)) for n, s in signs.items()]
print("toy:", np.round(toy_errors, 3), "linear:", {k: round(float(v), 3) for k, v in errors.items()})
print("CURRIN:", round(float(currin_error), 3), "mean sd:", wide[1].mean().round(3), narrow[1].mean().round(3))
assert max(toy_errors) < 0.15
assert errors["both levels"] < 0.6
assert errors["both levels"] < errors["the high one alone"]
assert currin_error < 0.5
assert posterior.converged
