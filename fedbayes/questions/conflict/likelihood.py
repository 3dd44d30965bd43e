"""What a client's own likelihood gains where its Gaussian form says that it disagrees with all the others.

A Gaussian factor that is right at the posterior may rise for a long way where the likelihood itself soon falls, or
rises no further: nine events in ten rows have hardly any curvature at a small probability. Among many clients with few
rows some are always so extreme. So whoever disagrees is asked for its log-likelihood at points on the way from its
cavity's mean to where its Gaussian form is highest, and beyond. Of data that obey the model the likelihood at any one
other value is ``e^g`` times as high with probability at most ``e^-g`` (Markov's inequality). With ``g`` the most nats
that it gains at these points, the p-value is taken to be ``e^-g`` at least, which is cautious, and chi-squared to be
``2 g`` at most, the likelihood ratio.

Nothing changes where the likelihood gains nine tenths of what its Gaussian form gains, as a Gaussian one does; where
the way has no end; where the Gaussian form gains less on it than ``z^2 / 2``, as the evidence then lies elsewhere; and
where the estimate of the likelihood is too imprecise, as by few draws of many locals.
"""

from collections.abc import Callable
from functools import partial
from typing import NamedTuple

import jax
import numpy as np
from scipy import stats

from fedbayes.numerics.gaussian import Gaussian
from fedbayes.numerics.host import whiteners
from fedbayes.numerics.p_values import holm
from fedbayes.questions.conflict.agreement import AWAY, Agreement, Factors, limit_of, moves_on
from fedbayes.questions.conflict.words import LEVEL

# place of a client, points (n, d): its log-likelihood there, and the variance of that, each (n,)
Ask = Callable[[int, np.ndarray], tuple[np.ndarray, np.ndarray]]

_MOST = 200  # questions, one for each way
_STEPS = np.concatenate([[0.0], 2.0 ** np.arange(-5.0, 2.25, 0.25)])  # of the way to the Gaussian form's peak
_AGREES = 0.9  # of what the Gaussian form gains, from which the likelihood confirms it
_NOISE = 0.1  # variance of a log-likelihood, beyond which it says nothing


class _Gain(NamedTuple):
    """Nats that a client's likelihood gains along a way, and that its Gaussian form does; infinite if not known."""

    likelihood: float
    claimed: float

    def falls_short(self, evidence: float) -> bool:
        """Whether the likelihood gains less than the form, and the way is one that carries this evidence."""
        return self.claimed >= 0.99 * evidence and self.likelihood < _AGREES * self.claimed


_UNKNOWN = _Gain(np.inf, np.inf)


def by_likelihood(
    found: Agreement, z: np.ndarray, posterior: Gaussian, cavities: Gaussian, scale: np.ndarray | None, ask: Ask
) -> tuple[Agreement, np.ndarray]:
    """The agreement and z with those who disagree as their likelihood has it, where their Gaussian form says more.

    Parameters
    ----------
    found, z
        By the Gaussian forms, of all clients, z with NaN where nothing is compared.
    posterior, cavities
        Of which these were found.
    scale
        The prior's sds, ``(d,)``, infinite where it knows no bounds; ``None``: not known.
    ask
        Tells a client's log-likelihood.
    """
    single, jointly = holm(2.0 * stats.norm.sf(np.abs(z))) < LEVEL, holm(found.p_overall) < LEVEL
    named = _clearest(found, z, single.any(axis=1) | jointly)
    white = whiteners(cavities.precision[named])
    covariances = np.swapaxes(white, 1, 2) @ white
    factors = Factors.of(posterior, jax.tree.map(lambda leaf: leaf[named], cavities), covariances)
    farthest = np.full(z.shape[1], np.inf) if scale is None else AWAY * scale
    z, chi2, left = z.copy(), found.chi2.copy(), _MOST
    for at, (place, moves) in enumerate(zip(named.tolist(), moves_on(covariances), strict=True)):
        about = np.flatnonzero(single[place])
        left -= len(about) + int(jointly[place])
        if left < 0:
            break
        one, asked = Factors(*(leaf[at] for leaf in factors)), partial(ask, place)
        gains = [_along(one, moves[:, i], farthest[i], asked) for i in about]
        z[place, about] = [_limited(z[place, i], gain) for i, gain in zip(about, gains, strict=True)]
        if jointly[place]:
            whole = _along(one, found.toward[place], np.inf, asked)
            chi2[place] = _limited_jointly(chi2[place], int(found.rank[place]), whole, gains)
    return found._replace(chi2=chi2), z


def _limited(z: float, gain: _Gain) -> float:
    """What z is by the gain of the likelihood, where the Gaussian form claims more."""
    if not gain.falls_short(0.5 * z**2):
        return z
    limit = float(limit_of(np.exp(-gain.likelihood)))
    return float(np.clip(z, -limit, limit))


def _limited_jointly(chi2: float, rank: int, whole: _Gain, gains: list[_Gain]) -> float:
    """What chi-squared is by the largest gain of the likelihood, on the way of all globals together or of one."""
    known = [gain.likelihood for gain in gains if gain is not _UNKNOWN]
    most = max([whole.likelihood, *known])
    if not whole._replace(likelihood=most).falls_short(0.5 * chi2):
        return chi2
    return float(min(chi2, 2.0 * most, stats.chi2.isf(np.exp(-most), rank)))


def _clearest(found: Agreement, z: np.ndarray, disagree: np.ndarray) -> np.ndarray:
    """Places of those who disagree and have a proper cavity, the clearest cases first."""
    disagree = disagree & ~np.isnan(found.share).any(axis=1)
    least = np.fmin(2.0 * stats.norm.sf(np.max(np.abs(np.nan_to_num(z)), axis=1)), found.p_overall)
    order = np.argsort(least, kind="stable")
    return order[disagree[order]]


def _along(
    one: Factors, way: np.ndarray, farthest: float, ask: Callable[[np.ndarray], tuple[np.ndarray, np.ndarray]]
) -> _Gain:
    """What one client gains from its cavity's mean to where its Gaussian form is highest, or as far as is believed."""
    pull, bend = one.slope @ way, way @ one.curvature @ way
    length = min(abs(pull) / bend if bend > 0.0 else np.inf, farthest)
    if not np.isfinite(length):
        return _UNKNOWN
    steps = np.minimum(_STEPS * length, farthest)
    values, noise = ask(one.means + np.sign(pull) * steps[:, None] * way)
    if not np.isfinite(values[0]) or np.any(noise[_STEPS <= 1.0] > _NOISE):
        return _UNKNOWN
    gained = float(np.nanmax(np.where(noise > _NOISE, -np.inf, values) - values[0]))  # at least zero, of no step
    return _Gain(gained, float(abs(pull) * length - 0.5 * bend * length**2))
