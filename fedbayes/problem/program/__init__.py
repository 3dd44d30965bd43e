"""A NumPyro program: split into a prior and a client's factor, traced, and compared with others."""
