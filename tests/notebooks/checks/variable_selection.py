assert found["included"].shape == (len(ROWS), len(PREDICTORS))
assert population["population_included"].shape == (len(PREDICTORS),)

assert all(each.converged for each in fits.values())
assert found["included"].sel(predictor=PREDICTORS[:3]).mean() > 0.8
assert np.mean(list(errors["lasso"].values())) < np.mean(list(errors["least squares"].values()))
