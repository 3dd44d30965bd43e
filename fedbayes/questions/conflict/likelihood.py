"""What a client's own likelihood gains where its Gaussian form says that it disagrees with all the others.

A Gaussian factor that is right at the posterior may rise for a long way where the likelihood itself soon falls, or
rises no further: nine events in ten rows have hardly any curvature at a small probability. Among many clients with few
rows some are always so extreme. So whoever disagrees is asked for its log-likelihood at points on the way from its
cavity's mean to where its Gaussian form is highest, and beyond. Of data that obey the model the likelihood at any one
other value is ``e^g`` times as high with probability at most ``e^-g`` (Markov's inequality). With ``g`` the most nats
that it gains at these points, the p-value is no less than ``e^-g``, and chi-squared no more than ``2 g``, the
likelihood ratio. Where the likelihood gains nine tenths of what its Gaussian form gains, as a Gaussian one does,
nothing changes.
"""

from collections.abc import Callable

import jax
import numpy as np
from scipy import stats

from fedbayes.numerics.gaussian import Gaussian
from fedbayes.numerics.host import whiteners
from fedbayes.questions.conflict.agreement import AWAY, Agreement, Factors, holm, limit_of, moves_on
from fedbayes.questions.conflict.words import LEVEL

Ask = Callable[[int, np.ndarray], np.ndarray]  # place of a client, points (n, d): its log-likelihood there, (n,)

_MOST = 200  # clients, the clearest cases, that are asked
_STEPS = np.concatenate([[0.0], 2.0 ** np.arange(-5.0, 2.25, 0.25)])  # of the way to the Gaussian form's peak
_AGREES = 0.9  # of what the Gaussian form gains, from which the likelihood bears it out


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
    z, chi2 = z.copy(), found.chi2.copy()
    for at, (place, moves) in enumerate(zip(named, moves_on(covariances), strict=True)):
        one = Factors(*(leaf[at] for leaf in factors))
        gains = [_gains(one, moves[:, i], farthest[i], ask, place) for i in np.flatnonzero(single[place])]
        limits = [limit_of(_p_at_least(*each)) for each in gains]
        z[place, single[place]] = np.clip(z[place, single[place]], -np.array(limits), limits)
        if jointly[place]:
            gained, claimed = _gains(one, found.toward[place], np.inf, ask, place)
            gained = max([gained, *(each for each, _ in gains)])
            if (p := _p_at_least(gained, claimed)) > 0.0:
                chi2[place] = min(chi2[place], 2.0 * gained, stats.chi2.isf(p, found.rank[place]))
    return found._replace(chi2=chi2), z


def _clearest(found: Agreement, z: np.ndarray, disagree: np.ndarray) -> np.ndarray:
    """Places of those who disagree and have a proper cavity, those who are farthest off first."""
    disagree = disagree & ~np.isnan(found.share).any(axis=1)
    farthest = np.nanmax(np.abs(np.where(np.isnan(z), 0.0, z)), axis=1)
    order = np.lexsort((-farthest, found.p_overall))
    return order[disagree[order]][:_MOST]


def _gains(one: Factors, way: np.ndarray, farthest: float, ask: Ask, place: int) -> tuple[float, float]:
    """Nats that the likelihood gains along a way from the cavity's mean, and those that its Gaussian form does.

    The way ends where the Gaussian form is highest, or farther off than is believed; infinite if it has no end.
    """
    pull, bend = one.slope @ way, way @ one.curvature @ way
    length = min(abs(pull) / bend if bend > 0.0 else np.inf, farthest)
    if not np.isfinite(length):
        return np.inf, np.inf
    steps = np.minimum(_STEPS * length, farthest)
    values = ask(int(place), one.means + np.sign(pull) * steps[:, None] * way)
    gained = values[1:] - values[0]
    if np.all(np.isnan(gained)):
        return np.inf, np.inf
    return float(max(np.nanmax(gained), 0.0)), float(abs(pull) * length - 0.5 * bend * length**2)


def _p_at_least(gained: float, claimed: float) -> float:
    """What the p-value can't be below; zero where the likelihood bears out its Gaussian form."""
    return 0.0 if gained >= _AGREES * claimed else float(np.exp(-gained))
