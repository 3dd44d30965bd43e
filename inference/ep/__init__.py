"""Expectation propagation."""

from fedbayes.inference.ep.method import EP

__all__ = ["EP"]
