assert len(ends) == 60
assert np.ptp(ends) < 1e-9 * floor  # sixty settings of K, alpha and rho
assert abs(exact(50, 1.0, centred).mean[0] - 0.8) < 1e-12

# the paper's set-up, everybody taking part: the bias of the step size, and nothing else
printed = {1e-7: (1.38e-5, 5e-8), 1e-8: (1.37e-6, 5e-9), 1e-9: (1.4e-7, 5e-9)}  # with half a unit of the last digit
for step, (value, half) in printed.items():
    assert abs(participation.loc["all 50", ("alpha 0, rho 0", f"eta {step:.0e}")] - value) <= half
for found in needed.values():  # one path: so many local steps, cut into rounds
    assert found == [-(-found[0] // k) for k in tried]
for alpha, paper in zip(ALPHAS, (1e8, 4e11, 4e12, 4e13, 4e14), strict=True):
    assert abs(gammas[alpha] / paper - 1) < 0.25  # the paper gives one digit

# what 300 runs see, within five standard errors of these 6,400 estimates
error = seen[300].std() / np.sqrt(seen[300].size)
assert abs(seen[300].mean() - 6.96e-4) < 5 * error
assert abs(np.mean(seen[300] < 1e-3) - 0.81) < 5 * np.sqrt(0.81 * 0.19 / seen[300].size)

# some clients stay away: three standard deviations over seeds, and the rounding
table = {
    "scheme I, S = 40": (5.68e-3, 5.42e-3, 5.39e-3),
    "scheme II, S = 40": (1.38e-3, 1.30e-3, 1.29e-3),
    "scheme I, S = 30": (7.18e-3, 6.86e-3, 6.83e-3),
    "scheme II, S = 30": (3.38e-3, 3.21e-3, 3.19e-3),
}
for row, values in table.items():
    found = participation.loc[row, "alpha 0, rho 0"].to_numpy()
    assert np.all(np.abs(found / values - 1) < (0.05, 0.01, 0.005))

# unequal Hessians: step size, K; stationary mean, variance at rho 0, 0.5 and 1, W2 at rho 0 and 1
golden = [
    (0.01, 1, 0.800000, 0.205128, 0.205128, 0.205128, 0.005697, 0.005697),
    (0.01, 2, 0.792492, 0.208551, 0.208507, 0.208375, 0.012077, 0.011927),
    (0.01, 5, 0.769353, 0.220019, 0.219519, 0.218018, 0.037637, 0.036438),
    (0.01, 10, 0.729205, 0.242219, 0.240045, 0.233522, 0.083856, 0.079435),
    (0.01, 50, 0.430039, 0.415943, 0.391651, 0.318775, 0.419482, 0.388138),
    (0.01, 100, 0.223976, 0.510465, 0.472758, 0.359636, 0.635003, 0.595864),
    (0.01, 1000, 0.000022, 0.560686, 0.515827, 0.381251, 0.854935, 0.817892),
    (0.001, 10, 0.793454, 0.203475, 0.203452, 0.203384, 0.007603, 0.007552),
    (0.001, 100, 0.724152, 0.240522, 0.238216, 0.231298, 0.087296, 0.083006),
]
for step, k, *values in golden:
    laws = [exact(k, rho, step=step) for rho in (0.0, 0.5, 1.0)]
    distances = [theory.w2(laws[0], pair.target), theory.w2(laws[2], pair.target)]
    found = [laws[0].mean[0], *(law.covariance[0, 0] for law in laws), *distances]
    np.testing.assert_allclose(found, values, rtol=0, atol=5.1e-7)
never = np.nan
counts = {
    1e-2: [87, 43, 17, 9, never, never, never, never, never, never],
    1e-3: [884, 442, 176, 88, 44, 18, 9, never, never, never],
    1e-4: [8860, 4429, 1771, 885, 442, 176, 88, 44, 18, 9],
}
for step, values in counts.items():
    np.testing.assert_array_equal([reached[step, k] for k in marks], values)

# the sampler is on the exact law, and the control variate brings its mean to the posterior's but not its variance
assert all("not mixed" not in fit.trouble() for fit in (*fits.values(), corrected))
assert "too wide" in fits[50, 1.0].trouble()
assert np.all(np.abs(overlay[[("mean", "z"), ("variance", "z")]]) < 5)
assert abs(exact(50, 1.0).mean[0] - 0.8) > 0.3
assert np.isclose(exact(50, 1.0, centred).covariance[0, 0], exact(50, 1.0).covariance[0, 0], rtol=1e-12)
