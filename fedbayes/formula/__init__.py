"""From a formula to a program: grammar, agreement on columns, families, default priors."""
