"""Client-side solvers: from a tilted density to a Gaussian site, and to draws."""
