"""Whether a client's data agree with the posterior that it is told at the end of a run: a test that it makes itself.

The server can't look: with secure sums it sees no client's site, and a client that lies moves the sum unseen. An honest
client can, since it knows its own site. Less that, the posterior is what everybody else says, and the test is that of
:mod:`fedbayes.questions.conflict`: with ``N(m_k, V_k)`` the posterior without the client's site, and ``N(m, V)`` the
posterior, ``m - m_k ~ N(0, V_k - V)`` where the client's data obey the model.

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
from fedbayes.questions.conflict import LEVEL, compared, usual_parts
from fedbayes.results.fitted import Fitted
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
    if not (message.header["begun"] and any(name.startswith("posterior/") for name in arrays)):
        return None
    told: Any = [arrays[f"posterior/{name}"] for name in ("shift", "precision", "log_scale")]
    cavity, part, mean = session.own_cavity(message), usual_parts(roster)[session.place], np.mean(draws, axis=(0, 1))
    found = own_test(unpacked(Gaussian(*told)), cavity, mean, part, roster.num_clients, roster.prior.gaussian)
    if found is None:
        return None
    if not found.agrees:
        log.warning(
            "This site's data disagree with what all other sites and the prior say about %s. It tells the server that "
            "they do, and not about what.",
            found.about(roster.globals.labels()),
        )
    return found.agrees
