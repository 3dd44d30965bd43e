"""``OneShot`` under its public name; the code is in :mod:`fedbayes.inference.merging`."""

from fedbayes.inference.merging.one_shot import OneShot

__all__ = ["OneShot"]
