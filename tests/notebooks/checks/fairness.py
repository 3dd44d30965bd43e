assert np.isfinite(gains["together"]).all()
assert len(trade) == 1 + len(FRACTIONS)

gap = [values[1] for values in trade.values()]
mean = [values[0] for values in trade.values()]
assert np.all(np.diff(gap) < 1e-3)
assert mean[0] == min(mean)
assert gap[-1] < 0.75 * gap[0]
