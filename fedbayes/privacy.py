"""Differential privacy under its public name; the code is in :mod:`fedbayes.inference.fald.privacy`.

The paper's own theorem stands there to compare, and is not passed on: it is not sound when only some clients take part.
"""

from fedbayes.inference.fald.mechanism import Mechanism
from fedbayes.inference.fald.privacy import (
    Guarantee,
    gaussian_profile,
    largest_step_size,
    mechanism_of,
    renyi,
)

__all__ = [
    "Guarantee",
    "Mechanism",
    "gaussian_profile",
    "largest_step_size",
    "mechanism_of",
    "renyi",
]
