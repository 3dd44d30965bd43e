"""Renyi accounting of Gaussian steps on records: what a run of them tells of one record. Plain NumPy, on the host.

A step moves a number by at most ``s`` when one of ``n`` records is replaced by another, and adds normal noise of
standard deviation ``sigma``. At order alpha the Renyi divergence between what neighbours show is ``alpha r^2 / 2`` with
``r = s / sigma`` (Mironov 2017), and less where the step looks at a batch of the records only (Wang, Balle and
Kasiviswanathan 2019, theorem 27). Divergences of one order add up, and give epsilon at a delta (Canonne, Kamath and
Steinke 2020, proposition 12). Both hold for each order, so the best one may be taken, as long as the steps do not
depend on what earlier ones have shown; where they may, the order has to be fixed beforehand (Feldman and Zrnic 2021).
"""

import math
from functools import lru_cache
from types import ModuleType
from typing import NamedTuple

import numpy as np

# those of dp-accounting, so that its epsilon and ours are the same number
ORDERS = np.concatenate([np.arange(11, 110) / 10.0, np.arange(11.0, 64.0), [128.0, 256.0, 512.0, 1024.0]])
_LEAST_RATIO = 1e-5  # below it dp-accounting loses digits; the bound at a larger ratio is valid, if larger
_LARGEST_RATIO = 1e3  # beyond it a batch hides nothing worth counting

_MISSING = (
    "Renyi accounting of mini-batches needs dp-accounting, which is not installed: `pip install 'fedbayes[privacy]'`."
)


class Release(NamedTuple):
    """Steps that are alike.

    Attributes
    ----------
    ratio
        ``s / sigma`` of one step, whatever the batch hides.
    rows, batch
        Records, and how many of them a step looks at, drawn afresh without replacement.
    steps
        How many.
    """

    ratio: float
    rows: int
    batch: int
    steps: int


def divergences(release: Release) -> np.ndarray:
    """Renyi divergences of all steps together at :data:`ORDERS`.

    Raises
    ------
    ImportError
        The steps look at batches, and dp-accounting is not installed.
    """
    per_step = 0.5 * ORDERS * (release.ratio * release.ratio)
    if release.batch < release.rows and release.ratio < _LARGEST_RATIO:
        _package()  # also where the divergences are at hand: whether it is needed must not depend on that
        per_step = np.minimum(per_step, _of_batch(release.ratio, release.rows, release.batch))
    return release.steps * per_step


def _package() -> ModuleType:
    try:
        import dp_accounting
    except ImportError as error:
        raise ImportError(_MISSING) from error
    return dp_accounting


@lru_cache(maxsize=256)
def _of_batch(ratio: float, rows: int, batch: int) -> np.ndarray:
    """Divergences of one step on a batch.

    The accountant's formulas take noise over *sensitivity*. The documentation of its Gaussian event has noise over
    *norm*, twice that under replacement; code that came to agree with it would make this bound larger, never too small.
    """
    dp_accounting = _package()
    step = dp_accounting.GaussianDpEvent(1.0 / max(ratio, _LEAST_RATIO))
    accountant = dp_accounting.rdp.RdpAccountant(ORDERS, dp_accounting.NeighboringRelation.REPLACE_ONE)
    found = np.array(accountant.compose(dp_accounting.SampledWithoutReplacementDpEvent(rows, batch, step)).rdp)
    found.flags.writeable = False  # it is kept for the next call
    return found


def surcharge(delta: float) -> np.ndarray:
    """What is added to a divergence to give epsilon, at each of :data:`ORDERS`."""
    return np.log1p(-1.0 / ORDERS) - np.log(delta * ORDERS) / (ORDERS - 1.0)


def epsilon_of(spent: np.ndarray, delta: float) -> float:
    """The smallest epsilon at ``delta`` that divergences at :data:`ORDERS` allow.

    Examples
    --------
    >>> from fedbayes.numerics.accounting import Release, divergences, epsilon_of
    >>> round(epsilon_of(divergences(Release(ratio=0.01, rows=100, batch=100, steps=1000)), 1e-5), 3)
    1.308
    """
    if delta**2 + math.expm1(-float(spent[0])) > 0.0:  # delta <= sqrt(1 - exp(-KL)) for epsilon = 0
        return 0.0
    return max(0.0, float(np.min(spent + surcharge(delta))))


def best_order(step: np.ndarray, epsilon: float, delta: float) -> int:
    """The place in :data:`ORDERS` of that order at which a budget suffices for most of such steps."""
    relative = np.maximum(step / np.max(step), 1e-300)  # whatever its size, which may be below that
    return int(np.argmax((epsilon - surcharge(delta)) / relative))
