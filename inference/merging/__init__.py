"""Merging the clients' own posteriors in one shot."""

from fedbayes.inference.merging.one_shot import OneShot

__all__ = ["OneShot"]
