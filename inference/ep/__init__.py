"""Expectation propagation."""

from fedbayes.inference.ep.ep import EP

__all__ = ["EP"]
