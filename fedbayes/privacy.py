"""Differential privacy under its public name; the code is in :mod:`fedbayes.inference.fald.privacy`."""

from fedbayes.inference.fald.privacy import (
    Guarantee,
    Mechanism,
    deng_2024,
    gaussian_profile,
    largest_step_size,
    mechanism_of,
    renyi,
)

__all__ = [
    "Guarantee",
    "Mechanism",
    "deng_2024",
    "gaussian_profile",
    "largest_step_size",
    "mechanism_of",
    "renyi",
]
