"""Merging the clients' own posteriors in one shot."""

from fedbayes.inference.merging.method import OneShot

__all__ = ["OneShot"]
