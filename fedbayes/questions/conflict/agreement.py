"""Each client's cavity against the posterior: how far its data move it, and how far they should."""

from collections.abc import Sequence
from typing import NamedTuple

import jax
import numpy as np
from scipy import stats

from fedbayes.numerics.gaussian import Gaussian
from fedbayes.numerics.host import whiteners
from fedbayes.problem.program.prior import Prior
from fedbayes.problem.roster import Roster

AWAY = 5.0  # prior sds from what all others say: farther away no client is believed to have its likeliest values
_KNOWN = 1e-9  # share of the posterior's precision that the others hold: below it they know nothing of a direction
_SAYS = 1e-6  # share of the cavity's variance that a client removes: below it the client says nothing
_TYPICAL = 0.25  # of the information that a client has on average: a direction with less is left out of the joint test
_ORDINARY = 2.0  # z that needs no limit
_ERRORS = 3.0  # Monte Carlo standard errors by which both must exceed zero


class Agreement(NamedTuple):
    """How far each client's data move the posterior from its cavity, and how far they should.

    Attributes
    ----------
    difference
        ``m - m_k``, shape ``(K, d)``; NaN where nobody but the client knows anything of a global.
    variance
        Its variance under agreement, the diagonal of ``V_k - V``, shape ``(K, d)``.
    share
        ``variance`` over the diagonal of ``V_k``: what the client removes of the others' uncertainty, shape ``(K, d)``.
    limit
        What ``|z|`` can be at most, shape ``(K, d)``, see :func:`_limits`; infinite for most.
    chi2
        ``(m - m_k)' (V_k - V)^+ (m - m_k)`` over the directions in which client and others both know something, shape
        ``(K,)``.
    rank
        Number of these directions, shape ``(K,)``.
    toward
        The way from ``m_k`` to where the client's factor is highest, in these directions, shape ``(K, d)``.
    """

    difference: np.ndarray
    variance: np.ndarray
    share: np.ndarray
    limit: np.ndarray
    chi2: np.ndarray
    rank: np.ndarray
    toward: np.ndarray

    @property
    def z(self) -> np.ndarray:
        """The difference in standard deviations; NaN where the client does not narrow what the others know."""
        informed = self.variance > 0.0
        z = np.where(informed, self.difference / np.sqrt(np.where(informed, self.variance, 1.0)), np.nan)
        return np.clip(z, -self.limit, self.limit)

    @property
    def p_overall(self) -> np.ndarray:
        """Of all directions together, shape ``(K,)``; NaN where there is none."""
        return np.where(self.rank > 0, stats.chi2.sf(self.chi2, np.maximum(self.rank, 1)), np.nan)


def agreement(
    posterior: Gaussian,
    cavities: Gaussian,
    part: np.ndarray | float = 0.0,
    replicates: tuple[Gaussian, Gaussian] | None = None,
    information: np.ndarray | None = None,
    scale: np.ndarray | None = None,
) -> Agreement:
    """Each client's cavity against the posterior.

    The directions are those of the generalised eigenproblem of the cavity's and the posterior's precisions, ``A' Q A =
    I`` and ``A' Q_k A = diag(lambda)``. In direction j the others hold the share ``lambda_j`` of the posterior's
    precision, and ``V_k - V`` is ``(1 - lambda_j) / lambda_j`` without a difference of large numbers.

    Parameters
    ----------
    posterior
        Over the unconstrained globals, shapes ``(d,)`` and ``(d, d)``.
    cavities
        Leading axis of clients.
    part
        What part of all clients' information each one has on average, shape ``(K,)``: from the overall test those
        directions are left out in which it has less than a quarter of that. For Gaussian factors information is a
        matter of design, and to leave some out is a choice of directions and no more. For others it depends on the
        data. Where it is next to nothing by chance, so is ``V_k - V``, and any difference would be taken for a large
        one.
    replicates
        Posteriors and cavities of which these are the means over a leading axis of replicates: a client, or the others,
        know something of a direction where their precision exceeds three Monte Carlo standard errors. ``None``: there
        is no Monte Carlo noise.
    information
        The precision of all clients' sites together, ``(d, d)``; ``None``: as the cavities, of all clients, say.
    scale
        The prior's sds, ``(d,)``; ``None``: of what the posterior has beside that information.
    """
    white = whiteners(np.asarray(posterior.precision)[None])[0]
    precisions = white @ np.asarray(cavities.precision) @ white.T
    share, turn = np.linalg.eigh(0.5 * (precisions + np.swapaxes(precisions, 1, 2)))
    axes = white.T @ turn  # (K, d, d), columns are directions
    noise, own_noise = (0.0, 0.0) if replicates is None else _noises(*replicates, axes)
    known = share > np.maximum(_KNOWN, _ERRORS * noise)
    all_cavities = len(share) * np.asarray(posterior.precision) - np.sum(cavities.precision, axis=0)
    sites = all_cavities if information is None else information
    scale = sds_of(np.asarray(posterior.precision) - sites) if scale is None else scale
    usual = np.reshape(part, (-1, 1)) * np.sum(axes * (sites @ axes), axis=1)
    informed = known & (1.0 - share > np.maximum(np.maximum(_SAYS, _TYPICAL * usual), _ERRORS * own_noise))
    safe = np.where(known, share, 1.0)
    own = np.einsum("kij,i->kj", axes, np.asarray(posterior.shift))
    others = np.einsum("kij,ki->kj", axes, np.asarray(cavities.shift))
    gap, expected = own - others / safe, _expected(safe)
    lost = np.einsum("kij,kj->ki", axes**2, ~known) > 1e-6 * np.einsum("kij->ki", axes**2)
    variance = np.einsum("kij,kj->ki", axes**2, expected)
    return Agreement(
        np.where(lost, np.nan, np.einsum("kij,kj->ki", axes, np.where(known, gap, 0.0))),
        np.where(lost, np.nan, variance),
        np.where(lost, np.nan, variance / np.einsum("kij,kj->ki", axes**2, 1.0 / safe)),
        _limits(posterior, cavities, np.einsum("kij,klj,kj->kil", axes, axes, 1.0 / safe), scale),
        np.sum(np.where(informed, gap**2 / np.where(informed, expected, 1.0), 0.0), axis=1),
        informed.sum(axis=1),
        np.einsum("kij,kj->ki", axes, np.where(informed, gap / np.where(informed, 1.0 - share, 1.0), 0.0)),
    )


def _expected(share: np.ndarray) -> np.ndarray:
    """``V_k - V`` along directions in which the others hold this share of the posterior's precision."""
    return (1.0 - share) / share


class Factors(NamedTuple):
    """Clients' Gaussian factors, seen from the means of their cavities.

    Attributes
    ----------
    means
        Of the cavities, shape ``(K, d)``.
    slope
        The gradient of the log factors there, ``(K, d)``.
    curvature
        Their precision, ``(K, d, d)``.
    """

    means: np.ndarray
    slope: np.ndarray
    curvature: np.ndarray

    @classmethod
    def of(cls, posterior: Gaussian, cavities: Gaussian, covariances: np.ndarray) -> "Factors":
        """What the posterior has beside each cavity, whose covariances are ``(K, d, d)``."""
        own = np.asarray(posterior.precision) - cavities.precision
        means = np.einsum("kij,kj->ki", covariances, np.asarray(cavities.shift))
        return cls(means, np.asarray(posterior.shift) - cavities.shift - np.einsum("kij,kj->ki", own, means), own)

    def along(self, moves: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Slope and curvature along the columns of ``(K, d, n)``, each ``(K, n)``."""
        bend = np.einsum("kji,kjl,kli->ki", moves, self.curvature, moves)
        return np.einsum("kji,kj->ki", moves, self.slope), bend


def other_scale(prior: Prior) -> np.ndarray | None:
    """The sds ``(d,)`` of a proper prior that is not Gaussian; ``None`` for others, whose precision has them."""
    return prior.spread[1] if prior.gaussian is None and prior.spread is not None else None


def prior_scale(prior: Prior) -> np.ndarray | None:
    """The sds ``(d,)`` of a prior, infinite of an improper one; ``None`` where they are not known."""
    return other_scale(prior) if prior.gaussian is None else sds_of(np.asarray(prior.gaussian.precision))


def sds_of(precision: np.ndarray) -> np.ndarray:
    """Sds of a Gaussian, infinite where it is improper."""
    white = whiteners(precision[None])[0]
    return np.where(np.all(np.isfinite(white)), np.sqrt(np.sum(white**2, axis=0)), np.inf)


def _limits(posterior: Gaussian, cavities: Gaussian, covariances: np.ndarray, scale: np.ndarray) -> np.ndarray:
    """How large ``|z|`` can be by what the client's factor gains, shape ``(K, d)``.

    A factor whose curvature is next to nothing by chance, as Laplace's of a scale of locals that are close to each
    other, is highest nowhere that the prior knows, and ``V_k - V`` is next to nothing, too. Of data that obey the
    model, the likelihood at any one other value is ``e^g`` times as high with probability at most ``e^-g`` (Markov's
    inequality). So where a factor is highest beyond five prior sds of a global from the cavity's mean, along the
    cavity's regression on that global, the two-sided p-value is no less than ``e^-g``, with ``g`` the nats that are
    gained on the way to these five, and ``|z|`` up to two is left alone. Elsewhere z is exact for Gaussian factors.

    Parameters
    ----------
    posterior, cavities
        As for :func:`agreement`.
    covariances
        Of the cavities, ``(K, d, d)``.
    scale
        The prior's sds, ``(d,)``; infinite where it knows no bounds.
    """
    farthest = np.where(np.isfinite(scale), AWAY * scale, 0.0)
    pull, curvature = Factors.of(posterior, cavities, covariances).along(moves_on(covariances))
    pull = np.abs(pull)
    limit = limit_of(np.exp(-np.maximum(pull * farthest - 0.5 * curvature * farthest**2, 0.0)))
    return np.where((pull > curvature * farthest) & np.isfinite(scale), limit, np.inf)


def moves_on(covariances: np.ndarray) -> np.ndarray:
    """The cavities' regressions on each global: a column for one that moves by one unit, ``(K, d, d)``."""
    return covariances / np.einsum("kii->ki", covariances)[:, None, :]


def limit_of(p: np.ndarray) -> np.ndarray:
    """What ``|z|`` can be at most where its two-sided p-value is no less; up to two it is left alone."""
    return np.maximum(stats.norm.isf(0.5 * p), _ORDINARY)


def _noises(posterior: Gaussian, cavities: Gaussian, axes: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Monte Carlo standard errors of the others' and the client's own precision along directions, each ``(K, d)``."""
    others = np.asarray(cavities.precision)
    own = np.asarray(posterior.precision)[:, None] - others
    along = [np.sum(axes * (matrices @ axes), axis=-2) for matrices in (others, own)]
    return _standard_error(along[0]), _standard_error(along[1])


def usual_parts(roster: Roster) -> np.ndarray:
    """What part of all clients' information each one has on average, shape ``(K,)``: as its rows are of all rows.

    It is no more than that of one of K clients: with locals, many rows of one client are one observation.
    """
    return np.minimum(roster.rows / np.sum(roster.rows), 1.0 / roster.num_clients)


def compared(
    posterior: Gaussian,
    cavities: Gaussian,
    part: np.ndarray | float,
    information: np.ndarray | None = None,
    scale: np.ndarray | None = None,
) -> tuple[Agreement, np.ndarray, np.ndarray]:
    """:func:`agreement` of the means of replicates' natural parameters, and how far each client pulls each global.

    Parameters
    ----------
    posterior, cavities
        Leading axes replicate, and replicate and client.
    part, information, scale
        As for :func:`agreement`.

    Returns
    -------
    found, z, error
        ``z`` and its Monte Carlo standard error, both ``(K, d)``, are NaN where a client says nothing beyond noise.
    """
    num = len(cavities.shift)
    replicates = [jax.tree.map(lambda leaf, r=r: leaf[r], (posterior, cavities)) for r in range(num)]
    single = [agreement(whole, without, 0.0, None, information, scale) for whole, without in replicates]
    mean, others = averaged(posterior, cavities)
    found = agreement(mean, others, part, (posterior, cavities) if num > 1 else None, information, scale)
    spread = _standard_error([one.share for one in single]) if num > 1 else 0.0
    z = np.where(found.share > np.maximum(_SAYS, _ERRORS * spread), found.z, np.nan)
    error = np.where(np.isnan(z), np.nan, _standard_error([one.z for one in single]) if num > 1 else np.nan)
    return found, z, error


def averaged(posterior: Gaussian, cavities: Gaussian) -> tuple[Gaussian, Gaussian]:
    """Natural parameters, averaged over a leading axis of replicates."""
    mean: tuple[Gaussian, Gaussian] = jax.tree.map(lambda leaf: leaf.mean(axis=0), (posterior, cavities))
    return mean


def _standard_error(values: Sequence[np.ndarray] | np.ndarray) -> np.ndarray:
    """Of the mean over a leading axis of replicates; NaN where one of them has none."""
    return np.std(values, axis=0, ddof=1) / np.sqrt(len(values))
