assert chains.posterior["v"].shape == (4, NUM_DRAWS)
assert set(check["client_name"].values) == set(hospitals)

for fit, of, grid, exact in known.values():
    before, after = (distance(of(idata), grid, exact) for idata in (fit.approximate_idata, fit.idata))
    assert fit.error.attrs["correction"] == "applied"
    assert after < 2.3 / np.sqrt(fit.error.attrs["effective_draws"]) + 0.01  # Kolmogorov, in one of 20,000
    assert before > 1.5 * after
assert one_mode.error.attrs["reliable"]
assert 0.3 < np.mean(one_mode.idata.posterior["theta"].values < 0.0) < 0.7
assert steep.error.attrs["correction"] == "unreliable"
assert stuck.posterior.attrs["acceptance_rate"] < 0.25 < chains.posterior.attrs["acceptance_rate"]
assert chains.posterior.attrs["r_hat"] < 1.01
assert distance(chains.posterior["v"], v, exact_v) < 2.3 / np.sqrt(chains.posterior.attrs["effective_draws"]) + 0.01
assert "switzerland" in conflict.attrs["disagreement"]
assert "hungarian" not in repaired.conflict().attrs["disagreement"]
assert repaired.leave_one_out().attrs["elpd"] > heart.leave_one_out().attrs["elpd"]
assert float(calibration.test()["adjusted"].min()) > 0.001
assert float(wrong.test()["adjusted"].min()) < 0.001
