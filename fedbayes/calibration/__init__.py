"""Simulation-based calibration: how often the posteriors of simulated data hold the truth behind these."""
