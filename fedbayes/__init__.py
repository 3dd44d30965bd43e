"""Federated Bayesian inference for NumPyro programs."""

from fedbayes.sites import local

__all__ = ["local"]
