"""Executors under their public name; the code is in :mod:`fedbayes.rounds.executors`."""

from fedbayes.rounds.executors import (
    Batched,
    Executor,
    Loopback,
    Sequential,
)

__all__ = [
    "Batched",
    "Executor",
    "Loopback",
    "Sequential",
]
