np.testing.assert_allclose(found_covariance, covariance, rtol=0, atol=1e-8)

# Gaussian clients: FedPA is exact, FedAvg averages optima
np.testing.assert_allclose(found_mean, mean, rtol=0, atol=1e-8)
assert sds_off(paths["FedPA"][-1]) < 1e-6
assert sds_off(paths["FedAvg"][-1]) > 1.0
assert np.linalg.norm(paths["FedAvg"][-1] - optima) < 0.1 * sd.mean()  # 300 local steps don't quite get there
assert steps["sds off"].is_monotonic_increasing
assert steps["rounds"].is_monotonic_decreasing

# the library knows: of FedPA there is nothing to say, of FedAvg there is
assert fedpa.converged
assert not fedpa_says
assert not fedavg.converged
assert fedavg_says

# hospitals: one shot is off, and says so
merged = table.drop(index="wasserstein")
assert merged["true error"].between(0.5, 0.9).all()
assert table.loc["wasserstein", "true error"] > 1.5
assert not table["converged"].any()
assert all(says.values())
sure = table[table["k-hat"] < 0.8]
assert len(sure) >= 2
assert np.all(np.abs(sure["measured error"] - sure["true error"]) < 0.12)  # seen: 0.03
assert ep.converged
assert ep_error.rms_difference < 0.05  # posterior sds, of which NUTS makes 0.01
