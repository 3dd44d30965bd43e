"""Federated averaging Langevin dynamics."""

from fedbayes.inference.fald.method import FALD

__all__ = ["FALD"]
