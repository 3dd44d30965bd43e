error = exact_sd / np.sqrt(fit.error.attrs["effective_draws"])
assert abs(float(draws["Intercept"].mean()) - exact_mean) < 5 * error
assert abs(float(draws["Intercept"].std()) / exact_sd - 1.0) < 0.05
assert abs(float(draws["1|site_sigma"].mean()) / exact_tau - 1.0) < 0.03
assert protects[1] > 0.95 > protects[0]
