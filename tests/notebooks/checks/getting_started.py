assert fit.idata.posterior["beta"].shape == (4, NUM_DRAWS, 13)

assert all(each.converged for each in (fit, early))
assert comparison.rms_difference < 0.05  # posterior sds, of which Monte Carlo makes 0.014
assert comparison.largest_sd_error < 0.05  # of which Monte Carlo makes 0.02, the largest of 14
assert compare(adapted, nuts).rms_difference < 0.1 < compare(early.idata, nuts).rms_difference
assert probability[ill].mean() > probability[~ill].mean() + 0.1
