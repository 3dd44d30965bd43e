"""A client's tilted density: its mode, its curvature, and the Gaussian site from its draws."""
