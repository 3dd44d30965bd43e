assert np.all(np.abs(table["mean"] - table["NUTS, mean"]) < 0.1 * table["NUTS, sd"])
assert np.all(np.abs(table["sd"] / table["NUTS, sd"] - 1.0) < 0.1)
assert low > 0.0
