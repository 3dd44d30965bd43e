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
from fedbayes.network.client.session import Session
from fedbayes.network.messages import Message
from fedbayes.numerics.gaussian import Gaussian, packed, unpacked
from fedbayes.numerics.host import normal_from_moments, whiteners
from fedbayes.questions.conflict import LEVEL, compared, usual_parts
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
    found, z, _ = compared(whole, jax.tree.map(lambda leaf: leaf[:, None], others), part, information)
    if np.all(np.isnan(z)) and not found.rank[0]:
        return None
    p = 2.0 * stats.norm.sf(np.abs(z[0])) * num_clients * np.count_nonzero(~np.isnan(z))
    return OwnTest(z[0], np.minimum(p, 1.0), float(np.minimum(found.p_overall[0] * num_clients, 1.0)))


def by_draws(fitted: Fitted) -> bool:
    """Whether clients compare the draws with their own rows: chains that have mixed, of the posterior itself."""
    if not fitted.answer.locals_from.is_sampled or fitted.is_closed or fitted.roster.num_clients == 1:
        return False
    return 0 < fitted.roster.globals.size**2 <= _MOST and verdict(fitted).converged


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
    rows, columns = np.tril_indices(size)
    white = whiteners(np.reshape(np.cov(theta.T), (1, size, size)))[0]
    known = np.all(np.isfinite(white)) and np.all(np.isfinite(values))
    if len(theta) < 2 * (1 + size + len(rows)) or not known:
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

    Parameters
    ----------
    draws
        Of the posterior, shape ``(chain, draw, d)``.
    values
        The client's log-likelihood there.
    """
    size = draws.shape[2]
    site = own_factor(draws.reshape(-1, size), values.reshape(-1))
    if site is None or draws.shape[1] <= 2 * size:
        return None
    covariances = np.stack([np.reshape(np.cov(chain.T), (size, size)) for chain in draws])
    whole = normal_from_moments(draws.mean(axis=1), covariances)
    return whole, replace(whole, shift=whole.shift - site.shift, precision=whole.precision - site.precision)


def asks_for_test(header: Mapping[str, Any], arrays: Mapping[str, Any]) -> bool:
    """Whether the last message of a run has what the test needs."""
    return header.get("by_draws") is True or any(name.startswith("posterior/") for name in arrays)


def told_for_test(fitted: Fitted) -> Mapping[str, Any]:
    """What clients are told beside the draws: the posterior of the rounds, where it is a Gaussian that has cavities."""
    posterior = fitted.posterior
    if not isinstance(posterior, Gaussian) or not fitted.answer.locals_from.has_cavities or fitted.is_closed:
        return {}
    if posterior.precision.size > _MOST or fitted.roster.num_clients == 1:
        return {}
    return {"posterior": jax.tree.map(np.asarray, packed(posterior))}


def agrees(session: Session, message: Message, draws: np.ndarray) -> bool | None:
    """Whether the client's data agree with the posterior that the last message of a run tells of.

    Parameters
    ----------
    session, message
        The client, and that message.
    draws
        Of the posterior, shape ``(chain, draw, d)``.

    Returns
    -------
    bool | None
        ``None``: the server has not told what the test needs, the client's site of this run is lost, or there is
        nothing to compare. The client's log says about what it disagrees.
    """
    arrays, roster = arrays_of(message.body), session.roster
    if not (message.header["begun"] and asks_for_test(message.header, arrays)):
        return None
    known = _compared_with(session, message, draws)
    if known is None:
        return None
    part, mean = usual_parts(roster)[session.place], np.mean(draws, axis=(0, 1))
    found = own_test(*known, mean, part, roster.num_clients, roster.prior.gaussian)
    if found is None:
        return None
    if not found.agrees:
        log.warning(
            "This site's data disagree with what all other sites and the prior say about %s. It tells the server that "
            "they do, and not about what.",
            found.about(roster.globals.labels()),
        )
    return found.agrees


def _compared_with(session: Session, message: Message, draws: np.ndarray) -> tuple[Gaussian, Gaussian] | None:
    """The posterior, and what all others say: from the client's own site, or from its likelihood at the draws."""
    if message.header.get("by_draws") is True:
        return without_factor(draws, session.own_values(message))
    arrays = arrays_of(message.body)
    told: Any = [arrays[f"posterior/{name}"] for name in ("shift", "precision", "log_scale")]
    return unpacked(Gaussian(*told)), session.own_cavity(message)
