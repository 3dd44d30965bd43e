"""Federated posterior averaging."""

from fedbayes.inference.fedpa.method import FedPA

__all__ = ["FedPA"]
