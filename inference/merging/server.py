"""The server's half of a merge: the clients' Gaussians, the merged posterior, and what the merge looks like.

A client sends its subposterior's Gaussian (:mod:`fedbayes.inference.local.subposterior`) and, where the combination
needs them, draws. All merging happens in unconstrained space, where positions can be averaged whatever the supports
are.
"""

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array

from fedbayes.contract.algorithm import Algorithm, Info, Replies, Update
from fedbayes.errors import ResultCode
from fedbayes.inference.merging.client import LocalSummary, local_update
from fedbayes.inference.merging.combinations import Combination
from fedbayes.numerics.gaussian import Gaussian, unpacked, where
from fedbayes.problem.client import Client
from fedbayes.problem.program.prior import Prior
from fedbayes.problem.roster import Roster


class MergeState(NamedTuple):
    """The server's state.

    Attributes
    ----------
    clients
        The clients' subposteriors, leading axis of clients; flat where nothing was heard.
    heard
        One for each client whose subposterior counts, shape ``(K,)``.
    shares
        Power of the prior in each client's subposterior, shape ``(K,)``.
    prior
        The prior as a Gaussian: exact, or expanded at the merged mean.
    merged
        The merged posterior, or the Gaussian with its moments; its integral is the evidence.
    draws
        Merged draws ``(n, d)`` of a combination that is not Gaussian.
    shared
        What the clients are told.
    error, k_hat
        What the check found, see :func:`checking`; NaN without.
    """

    clients: Gaussian
    heard: Array
    shares: Array
    prior: Gaussian
    merged: Gaussian
    draws: Array
    shared: Any
    error: Array
    k_hat: Array

    @property
    def sites(self) -> Gaussian:
        """The clients' factors: their subposteriors with the shares of the prior divided out."""
        return self.clients - jax.vmap(self.prior.scaled)(self.heard * self.shares)

    @property
    def product(self) -> Gaussian:
        """Prior times factors: the Gaussian product, with the prior counted once whoever was heard."""
        return (self.clients.summed() + self.prior.scaled(1.0 - self.heard @ self.shares)).symmetrised()

    @property
    def best(self) -> Array:
        """The merged mean: where another algorithm starts."""
        return self.merged.moments()[0]


def merging(
    roster: Roster,
    shares: np.ndarray,
    updates: Mapping[str, LocalSummary],
    *,
    name: str,
    combination: Combination,
    num_draws: int,
    init_shared: Callable[[Any], Any],
    init_client: Callable[[Client, Any, Array], Any],
    anchor: Callable[[Any], Array] | None = None,
    retry: str | None = None,
) -> Algorithm:
    """One round in which every client sums up its subposterior and the server merges; a second for unreliable ones.

    Parameters
    ----------
    roster
        Of the clients.
    shares
        Power of the prior in each client's subposterior, shape ``(K,)``; what they add up to beyond one is divided out,
        which takes a Gaussian prior.
    updates
        Named ways to sum up a subposterior.
    name
        For progress and reports.
    combination
        How the server merges.
    num_draws
        Draws in a message; none for combinations of Gaussians.
    init_shared
        From the state of the phase before (or ``None``), what clients are told.
    init_client
        ``(client, shared, key) -> private``.
    anchor
        From what clients are told, where the rounds before ended, shape ``(d,)``.
    retry
        Update for clients whose draws were unreliable.
    """
    prior = roster.prior

    def init(key: Array, previous: Any) -> MergeState:
        return _empty(prior, shares, num_draws, init_shared(previous))

    def aggregate(state: MergeState, replies: Replies, key: Array) -> tuple[MergeState, Info]:
        used, messages = replies.used, replies.each
        clients = where(used, unpacked(messages.gaussian), state.clients)
        new = state._replace(clients=clients, heard=jnp.where(used, 1.0, state.heard))
        merged, draws = combination.merge(new.product, clients, messages.draws, new.heard, state.shares, key)
        new = new._replace(merged=merged.symmetrised(), draws=draws)
        if prior.gaussian is None:
            new = new._replace(prior=prior.tangent(merged.moments()[0]))
        info = _picture(new) | {"converged": jnp.all(new.heard > 0), "proper": merged.is_proper()}
        if anchor is not None:
            mean, covariance = merged.moments()
            gap = anchor(state.shared) - mean
            info["gap"] = jnp.sqrt(jnp.mean(gap**2 / jnp.diagonal(covariance)))
        return new, info

    return Algorithm(
        name=name,
        init=init,
        broadcast=lambda state: (state.shared, ()),
        init_client=init_client,
        updates={label: Update(partial(local_update, each.run), each.inputs) for label, each in updates.items()},
        aggregate=aggregate,
        choose=partial(retry_unreliable, retry),
    )


def retry_unreliable(retry: str | None, variants: Sequence[str], infos: Mapping[str, np.ndarray]) -> list[str]:
    """Another way to sample, by name, for clients whose draws most replicates found unreliable."""
    if retry is None:
        return list(variants)
    codes = np.asarray(infos["code"]).reshape(len(variants), -1)
    failed = ((codes == ResultCode.UNRELIABLE) | (codes == ResultCode.IMPROPER)).mean(axis=1) > 0.5
    return [retry if bad else old for bad, old in zip(failed, variants, strict=True)]


def _empty(prior: Prior, shares: np.ndarray, num_draws: int, shared: Any) -> MergeState:
    flat, unknown = Gaussian.neutral(prior.size), jnp.full((), jnp.nan)
    around = flat if prior.gaussian is None else prior.gaussian
    return MergeState(
        clients=Gaussian.neutral(prior.size, (len(shares),)),
        heard=jnp.zeros(len(shares)),
        shares=jnp.asarray(shares),
        prior=around,
        merged=flat,
        draws=jnp.zeros((num_draws, prior.size)),
        shared=shared,
        error=unknown,
        k_hat=unknown,
    )


def _picture(state: MergeState) -> Info:
    """Where the clients' own posteriors are relative to each other, by coordinate, in unconstrained space.

    ``shift``: a client's mean less that of all others together with the prior, in sds of the merged posterior.
    ``overlap``: Bhattacharyya's coefficient of the client's marginal and the others'. ``distance``: of the merged mean
    from the client's, in the client's own sds (root mean square); about one where clients agree, and far above it the
    merge relies on tails that no draw has seen. ``effective_clients``: ``(sum w_k)^2 / sum w_k^2`` of the shares
    ``w_k = (Q^-1 Q_k)_jj`` in which the clients' factors decide the merged mean of coordinate j.
    """
    product, sites = state.product, state.sites
    means, covariances = jax.vmap(Gaussian.moments)(state.clients)
    others, spreads = jax.vmap(lambda mine: (product - mine).symmetrised().moments())(sites)
    variances, other_variances = (jnp.diagonal(c, axis1=1, axis2=2) for c in (covariances, spreads))
    center, covariance = state.merged.moments()
    mixed = 0.5 * (variances + other_variances)
    gap = jnp.where(state.heard[:, None] > 0, center - means, jnp.nan)
    squared = jnp.einsum("ki,kij,kj->k", gap, state.clients.precision, gap)
    _, spread = product.moments()
    decides = jnp.einsum("ij,kji->ki", spread, sites.precision)
    return {
        "client_mean": means,
        "client_sd": jnp.sqrt(variances),
        "shift": (means - others) / jnp.sqrt(jnp.diagonal(covariance)),
        "overlap": jnp.sqrt(jnp.sqrt(variances * other_variances) / mixed)
        * jnp.exp(-0.125 * (means - others) ** 2 / mixed),
        "distance": jnp.sqrt(squared / product.size),
        "effective_clients": jnp.sum(decides, axis=0) ** 2 / jnp.sum(decides**2, axis=0),
    }
