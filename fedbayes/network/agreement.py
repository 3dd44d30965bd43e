"""Whether a client's data agree with the posterior that it is told at the end of a run: a test that it makes itself.

The server can't look: with secure sums it sees no client's site, and a client that lies moves the sum unseen. An honest
client can, since it knows its own site. Less that, the posterior is what everybody else says, and the test is that of
:mod:`fedbayes.questions.conflict`: with ``N(m_k, V_k)`` the posterior without the client's site, and ``N(m, V)`` the
posterior, ``m - m_k ~ N(0, V_k - V)`` where the client's data obey the model.

Where the fit ends with Markov chains no client has a site. Its own is then the quadratic nearest to its log-likelihood
over the draws, the locals integrated out: for draws of a Gaussian that one has the mean gradient and the mean curvature
(Stein's identity), and of a Gaussian factor it is the factor. ``N(m, V)`` has the moments of each chain.

``m`` is the mean of the draws that the fit ends with. So the test sees what has moved the Gaussians of the rounds, and
what has moved the log-likelihoods by which their draws are weighed. What a client answers is one bit.
"""

import logging
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any, NamedTuple

import jax
import numpy as np
from scipy import stats

from fedbayes.contract.answer import shortened
from fedbayes.network.client.policy import Policy
from fedbayes.network.client.session import Session
from fedbayes.network.messages import Message
from fedbayes.numerics.chains import worst_mixing
from fedbayes.numerics.gaussian import Gaussian, packed, unpacked
from fedbayes.numerics.host import normal_from_moments, whiteners
from fedbayes.questions.conflict.agreement import compared, other_scale, usual_parts
from fedbayes.questions.conflict.words import LEVEL
from fedbayes.results.fitted import Fitted, verdict
from fedbayes.rounds.wire import arrays_of

log = logging.getLogger(__name__)
_MOST = 1 << 20  # numbers of a posterior that is told for the test alone
_NAMED = 3


class OwnTest(NamedTuple):
    """What a client finds.

    Attributes
    ----------
    z
        How far its data pull each global, in standard deviations, shape ``(d,)``; NaN where nothing can be compared.
    p
        Two-sided, shape ``(d,)``, and times all comparisons of all clients (Bonferroni).
    p_overall
        Of all globals together, times the clients; NaN where there is nothing to compare.
    """

    z: np.ndarray
    p: np.ndarray
    p_overall: float

    @property
    def agrees(self) -> bool:
        """Whether no p-value is below .05: with Gaussian sites each kind raises 5 false alarms in 100 federations."""
        return not (np.any(self.p < LEVEL) or self.p_overall < LEVEL)

    def about(self, labels: Sequence[str]) -> str:
        """About what the client disagrees, the clearest first."""
        places = [at for at in np.argsort(self.p) if self.p[at] < LEVEL]
        named = [f"{labels[at]} (z = {self.z[at]:.1f}, adjusted p = {self.p[at]:.2g})" for at in places]
        return shortened(named or [f"several globals together (adjusted p = {self.p_overall:.2g})"], _NAMED)


def own_test(
    posterior: Gaussian,
    cavity: Gaussian,
    mean: np.ndarray,
    part: float,
    num_clients: int,
    prior: Gaussian | None = None,
    scale: np.ndarray | None = None,
) -> OwnTest | None:
    """One client's comparison of its own site with everybody else's.

    Parameters
    ----------
    posterior, cavity
        With and without its site, leading axis of replicates.
    mean
        Of the draws of the posterior, shape ``(d,)``.
    part
        Of all clients' information, as its rows are of all rows.
    num_clients
        How many clients make this comparison.
    prior
        Of the globals, where it is Gaussian.
    scale
        The prior's sds, ``(d,)``, where it is not.

    Returns
    -------
    OwnTest | None
        ``None``: there is nothing to compare, or a number is not finite.
    """
    whole, others = jax.tree.map(np.asarray, (posterior, cavity))
    # the posterior moves to the mean of its draws, and the cavity with it: the client's site stays
    move = whole.precision @ mean - whole.shift
    whole, others = replace(whole, shift=whole.shift + move), replace(others, shift=others.shift + move)
    if not all(np.all(np.isfinite(leaf)) for leaf in (whole.shift, whole.precision, others.shift, others.precision)):
        return None
    known = 0.0 if prior is None else np.asarray(prior.precision)
    information = np.mean(whole.precision, axis=0) - known
    found, z, _ = compared(whole, jax.tree.map(lambda leaf: leaf[:, None], others), part, information, scale)
    if np.all(np.isnan(z)) and not found.rank[0]:
        return None
    p = 2.0 * stats.norm.sf(np.abs(z[0])) * num_clients * np.count_nonzero(~np.isnan(z))
    return OwnTest(z[0], np.minimum(p, 1.0), float(np.minimum(found.p_overall[0] * num_clients, 1.0)))


def own_factor(theta: np.ndarray, values: np.ndarray) -> Gaussian | None:
    """The Gaussian function of the globals that is nearest to a client's likelihood over draws of the posterior.

    Parameters
    ----------
    theta
        The draws, shape ``(n, d)``.
    values
        The client's log-likelihood there, shape ``(n,)``.

    Returns
    -------
    Gaussian | None
        ``None``: there are fewer than two draws for each coefficient, they don't vary, or a value is not finite.
    """
    size = theta.shape[1]
    if len(theta) < _fewest(size):
        return None
    rows, columns = np.tril_indices(size)
    white = whiteners(np.reshape(np.cov(theta.T), (1, size, size)))[0]
    if not (np.all(np.isfinite(white)) and np.all(np.isfinite(values))):
        return None
    mean = theta.mean(axis=0)
    at = (theta - mean) @ white.T
    design = np.column_stack([np.ones(len(at)), at, at[:, rows] * at[:, columns]])
    _, slope, bend = np.split(np.linalg.lstsq(design, values)[0], [1, 1 + size])
    half = np.zeros((size, size))
    half[rows, columns] = bend
    precision = -white.T @ (half + half.T) @ white
    return Gaussian(white.T @ slope + precision @ mean, precision, np.zeros(()))  # type: ignore[arg-type]


def without_factor(draws: np.ndarray, values: np.ndarray) -> tuple[Gaussian, Gaussian] | None:
    """The chains' Gaussians, and what is left of these without a client's factor; leading axis of chains.

    Each chain shows a factor of its own, so that how far these differ tells their Monte Carlo error.

    Parameters
    ----------
    draws
        Of the posterior, shape ``(chain, draw, d)``.
    values
        The client's log-likelihood there.
    """
    size = draws.shape[2]
    found = (own_factor(*each) for each in zip(draws, values, strict=True))
    sites = [site for site in found if site is not None]
    if len(sites) < len(draws):
        return None
    covariances = np.stack([np.reshape(np.cov(chain.T), (size, size)) for chain in draws])
    whole = normal_from_moments(draws.mean(axis=1), covariances)
    shift, precision = (np.stack([getattr(site, name) for site in sites]) for name in ("shift", "precision"))
    return whole, replace(whole, shift=whole.shift - shift, precision=whole.precision - precision)


def _fewest(size: int) -> int:
    """Draws of so many globals from which a factor is taken: two for each coefficient."""
    return 2 * (1 + size + size * (size + 1) // 2)


def are_enough(draws: np.ndarray) -> bool:
    """Whether each of the chains ``(chain, draw, d)`` has as many effective draws as :func:`own_factor` needs."""
    num_chains, num, size = draws.shape
    fewest = _fewest(size)
    return size > 0 and num >= fewest and worst_mixing(draws)[1] >= num_chains * fewest  # false for NaN


def told_for_test(fitted: Fitted) -> tuple[bool, Mapping[str, Any]]:
    """What clients are told for their test: whether by the draws, and what beside these.

    The draws will do where they are chains that have mixed, of the posterior itself. Else it takes the posterior of the
    rounds, a Gaussian that has cavities.
    """
    if fitted.is_closed or fitted.roster.num_clients == 1:
        return False, {}
    if fitted.method.ends_in_chains:
        return verdict(fitted).converged, {}
    posterior = fitted.posterior
    if not isinstance(posterior, Gaussian) or not fitted.answer.locals_from.has_cavities:
        return False, {}
    if posterior.precision.size > _MOST:
        return False, {}
    return False, {"posterior": jax.tree.map(np.asarray, packed(posterior))}


def asks_for_test(session: Session, message: Message, told: Mapping[str, Any], policy: Policy) -> bool:
    """Whether the last message of a run has what the test needs, and asks where the client answers.

    It is read off the message and the client's own copy of the study, before anything is computed from data. A server
    of a method without chains could else have a client's log-likelihood compared at any points.

    Parameters
    ----------
    session, message
        The client, and that message.
    told
        Its arrays, with the draws.
    policy
        Of the client's owner.
    """
    if not session.study.configured.ends_in_chains:
        return any(name.startswith("posterior/") for name in told)
    draws = told["shared"]
    if message.header.get("by_draws") is not True or np.shape(draws)[2:] != (session.roster.size,):
        return False
    return not session.is_beyond(draws, policy) and are_enough(draws)


def agrees(session: Session, message: Message, draws: np.ndarray, policy: Policy) -> bool | None:
    """Whether the client's data agree with the posterior that the last message of a run tells of.

    Parameters
    ----------
    session, message
        The client, and that message.
    draws
        Of the posterior, shape ``(chain, draw, d)``.
    policy
        Of the client's owner.

    Returns
    -------
    bool | None
        ``None``: the client has taken part in no round, its site of this run is lost, its data find draws of chains
        implausible, or there is nothing to compare. The client's log says about what it disagrees.
    """
    roster = session.roster
    known = _compared_with(session, message, draws, policy) if message.header["begun"] else None
    if known is None:
        return None
    part, mean = usual_parts(roster)[session.place], np.mean(draws, axis=(0, 1))
    prior = roster.prior
    found = own_test(*known, mean, part, roster.num_clients, prior.gaussian, other_scale(prior))
    if found is None:
        return None
    if not found.agrees:
        log.warning(
            "This site's data disagree with what all other sites and the prior say about %s. It tells the server that "
            "they do, and not about what.",
            found.about(roster.globals.labels()),
        )
    return found.agrees


def _compared_with(
    session: Session, message: Message, draws: np.ndarray, policy: Policy
) -> tuple[Gaussian, Gaussian] | None:
    """The posterior, and what all others say: from the client's own site, or from its likelihood at the draws."""
    if session.study.configured.ends_in_chains:
        values = session.own_values(message, policy.points)
        return None if values is None else without_factor(draws, values)
    arrays = arrays_of(message.body)
    told: Any = [arrays[f"posterior/{name}"] for name in ("shift", "precision", "log_scale")]
    return unpacked(Gaussian(*told)), session.own_cavity(message)
