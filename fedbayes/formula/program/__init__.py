"""From columns and a family to the text of a NumPyro program, and its priors."""
