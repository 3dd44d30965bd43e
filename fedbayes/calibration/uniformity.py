"""Whether ranks are uniform: the simultaneous band of their empirical distribution function, and its p-value.

Where a pipeline is calibrated, the rank of the truth among L posterior draws is uniform on 0, ..., L (Talts,
Betancourt, Simpson, Vehtari and Gelman 2018), so that of N ranks the number below ``j`` is binomial with probability
``z = j / (L + 1)``. Over a grid of ``z`` the statistic is the smallest two-sided binomial tail probability,

    gamma = min_z 2 min(P(B <= n(z)), P(B >= n(z))),      B ~ Binomial(N, z),

and the band of level ``1 - alpha`` holds all counts whose own tail probability is above the ``alpha`` quantile of
``gamma`` under uniform ranks (Säilynoja, Bürkner and Vehtari 2022, Statistics and Computing 32:32). That law is
simulated here, discreteness of ranks included, by 20,000 sets of uniform ranks from a fixed seed; the smallest p-value
is 5e-5.
"""

from functools import lru_cache
from typing import NamedTuple

import numpy as np
from scipy import stats

_MOST = 100  # places at which the distribution function is looked at
_SIMULATED = 20_000


class Band(NamedTuple):
    """A simultaneous band for the empirical distribution function of uniform ranks.

    Attributes
    ----------
    place
        Where it is looked at, ``z`` in ``(0, 1)``, shape ``(places,)``.
    lower, upper
        Shares of the ranks below ``z (L + 1)``, shape ``(places,)``.
    """

    place: np.ndarray
    lower: np.ndarray
    upper: np.ndarray


def uniform_band(num: int, num_draws: int, level: float = 0.95) -> Band:
    """The band that holds the whole function of ``num`` uniform ranks with probability ``level``.

    Parameters
    ----------
    num
        Number N of ranks.
    num_draws
        Number L of draws that a rank counts among.
    level
        Between 0 and 1.
    """
    place = _grid(num_draws) / (num_draws + 1)
    gamma = np.quantile(_null(num, num_draws), 1.0 - level)
    counts = (stats.binom.ppf(tail, num, place) for tail in (0.5 * gamma, 1.0 - 0.5 * gamma))
    return Band(place, *(count / num for count in counts))


def distribution(ranks: np.ndarray, num_draws: int) -> np.ndarray:
    """Share of the ranks ``(n,)`` below each place of the grid of :func:`uniform_band`, shape ``(places,)``."""
    return np.mean(ranks[:, None] < _grid(num_draws), axis=0)


def p_value(ranks: np.ndarray, num_draws: int) -> float:
    """Probability of a statistic at least as extreme for uniform ranks.

    Parameters
    ----------
    ranks
        Of one parameter, whole numbers from 0 to ``num_draws``, shape ``(n,)``.
    num_draws
        Number L of draws.
    """
    counts = np.rint(distribution(ranks, num_draws) * len(ranks)).astype(int)
    own = np.min(_tails(len(ranks), num_draws)[np.arange(len(counts)), counts])
    null = _null(len(ranks), num_draws)
    return float((1 + np.sum(null <= own * (1.0 + 1e-12))) / (1 + len(null)))


def _grid(num_draws: int) -> np.ndarray:
    """Ranks at which the distribution function is looked at, from 1 to L."""
    places = min(_MOST, num_draws + 1)
    return np.unique(np.rint(np.arange(1, places) * (num_draws + 1) / places).astype(int))


@lru_cache(maxsize=16)
def _tails(num: int, num_draws: int) -> np.ndarray:
    """Two-sided tail probability of each count at each place, shape ``(places, num + 1)``."""
    place, counts = _grid(num_draws)[:, None] / (num_draws + 1), np.arange(num + 1)
    below, above = stats.binom.cdf(counts, num, place), stats.binom.sf(counts - 1, num, place)
    return 2.0 * np.minimum(below, above)


@lru_cache(maxsize=16)
def _null(num: int, num_draws: int) -> np.ndarray:
    """The statistic of sets of uniform ranks, shape ``(20_000,)``."""
    edges = np.concatenate([[0], _grid(num_draws), [num_draws + 1]]) / (num_draws + 1)
    cells = np.random.default_rng(0).multinomial(num, np.diff(edges), size=_SIMULATED)
    counts = np.cumsum(cells, axis=1)[:, :-1]
    return np.min(_tails(num, num_draws)[np.arange(counts.shape[1]), counts], axis=1)
