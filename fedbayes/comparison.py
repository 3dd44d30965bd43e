"""Comparisons of two posteriors under their public name; the code is in :mod:`fedbayes.questions.comparison`."""

from fedbayes.questions.comparison import (
    Comparison,
    Row,
    compare,
    flat_draws,
)

__all__ = [
    "Comparison",
    "Row",
    "compare",
    "flat_draws",
]
