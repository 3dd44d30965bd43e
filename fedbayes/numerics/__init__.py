"""Numerics that know nothing of federations: Gaussians, importance weights, chains."""
