"""P-values of several tests at once.

References
----------
Holm (1979), A simple sequentially rejective multiple test procedure, Scandinavian Journal of Statistics 6(2).
"""

import numpy as np


def holm(p: np.ndarray) -> np.ndarray:
    """P-values adjusted for the number of comparisons (Holm 1979), in the shape of ``p``; NaN does not count."""
    flat = p.ravel()
    order = np.argsort(flat, kind="stable")[: np.count_nonzero(~np.isnan(flat))]
    adjusted = np.full(flat.shape, np.nan)
    steps = flat[order] * np.arange(len(order), 0, -1)
    adjusted[order] = np.minimum(np.maximum.accumulate(steps), 1.0)
    return adjusted.reshape(p.shape)
