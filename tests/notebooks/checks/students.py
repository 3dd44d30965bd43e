assert np.all(np.abs(table["mean"] - table["exact"]) < 0.1 * table["exact sd"])
assert np.all(np.abs(table["sd"] / table["exact sd"] - 1.0) < 0.1)
assert weight[[0, -1]].sum() + weight[:, [0, -1]].sum() + weight[:, :, [0, -1]].sum() < 1e-6  # the grid is wide enough
