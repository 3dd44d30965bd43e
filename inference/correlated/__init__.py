"""Clients with coefficients of their own, coupled by a covariance between clients."""

from fedbayes.inference.correlated.method import CorrelatedClients

__all__ = ["CorrelatedClients"]
