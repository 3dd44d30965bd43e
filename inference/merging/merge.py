"""Merging the clients' subposteriors at the server: the Gaussians, the merged posterior, and what the merge looks like.

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

from fedbayes.algorithm import FederatedAlgorithm, Info
from fedbayes.errors import ResultCode
from fedbayes.gaussian import Gaussian, gaussian_from_moments, where
from fedbayes.inference.local.subposterior import Summary
from fedbayes.inference.merging import combinations as combiners
from fedbayes.problem.clients import Client
from fedbayes.problem.prior import Prior
from fedbayes.problem.problem import Problem

LocalSummary = Callable[[Any, Any, Client, Array], tuple[Summary, Any]]


class MergeMessage(NamedTuple):
    """What a client sends: its subposterior's Gaussian, and draws ``(n, d)`` where the combination needs them."""

    gaussian: Gaussian
    draws: Array


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


Combine = Callable[[Gaussian, Gaussian, Array, Array, Array, Array], tuple[Gaussian, Array]]


def gaussian_product(
    product: Gaussian, clients: Gaussian, draws: Array, heard: Array, shares: Array, key: Array
) -> tuple[Gaussian, Array]:
    """The product of the Gaussians, ``Q = sum Q_k``, ``Q mean = sum Q_k mean_k``; exact for Gaussian clients."""
    return product, jnp.zeros((0, product.size))


def wasserstein(
    product: Gaussian, clients: Gaussian, draws: Array, heard: Array, shares: Array, key: Array
) -> tuple[Gaussian, Array]:
    """The Wasserstein barycentre of the clients' Gaussians ``N(mean_k, share_k Sigma_k)``.

    Shrinking the covariance by the client's share stands for its likelihood raised to the power ``1 / share``
    (Srivastava, Li and Dunson 2018); exact for Gaussian clients of equal ``share_k Sigma_k`` and no others.
    """
    weights = jnp.where(heard > 0, shares, 0.0)
    weights = weights / jnp.sum(weights)
    means, covariances = jax.vmap(Gaussian.moments)(clients)
    there = heard[:, None] > 0
    means = jnp.where(there, means, 0.0)
    covariances = jnp.where(there[..., None], weights[:, None, None] * covariances, jnp.eye(product.size))
    mean, covariance = combiners.wasserstein_barycentre(means, covariances, weights)
    return _with_evidence(mean, covariance, product), jnp.zeros((0, product.size))


def consensus(
    product: Gaussian, clients: Gaussian, draws: Array, heard: Array, shares: Array, key: Array
) -> tuple[Gaussian, Array]:
    """Consensus Monte Carlo: averages of the clients' draws, weighted by their precisions; exact for Gaussian ones.

    Draws of the Gaussian product where a client is missing: its draws would be, and its share of the prior with them.
    """
    merged = combiners.consensus(draws, clients.precision)
    return _of_draws(_if_complete(merged, product, draws, heard, key), product)


def density_product(
    product: Gaussian, clients: Gaussian, draws: Array, heard: Array, shares: Array, key: Array
) -> tuple[Gaussian, Array]:
    """Draws of the product of density estimates; the Gaussian product's own where a client is missing."""
    merged = combiners.density_product(draws, key, draws.shape[1])
    return _of_draws(_if_complete(merged, product, draws, heard, key), product)


def _if_complete(merged: Array, product: Gaussian, draws: Array, heard: Array, key: Array) -> Array:
    """The merged draws where every client has sent some, else the Gaussian product's."""
    complete = jnp.all(heard > 0) & jnp.all(jnp.isfinite(draws))
    return jnp.where(complete, merged, product.sample(key, draws.shape[1]))


def _of_draws(draws: Array, product: Gaussian) -> tuple[Gaussian, Array]:
    mean = jnp.mean(draws, axis=0)
    gap = draws - mean
    return _with_evidence(mean, gap.T @ gap / (len(draws) - 1), product), draws


def _with_evidence(mean: Array, covariance: Array, product: Gaussian) -> Gaussian:
    """The Gaussian with these moments, and the product's integral: the evidence is estimated by the Gaussians."""
    merged = gaussian_from_moments(mean, covariance)
    return Gaussian(merged.shift, merged.precision, merged.log_scale + product.log_integral())


def merging(
    problem: Problem,
    shares: np.ndarray,
    updates: Mapping[str, LocalSummary],
    *,
    name: str,
    combine: Combine,
    num_draws: int,
    init_shared: Callable[[Any], Any],
    init_client: Callable[[Client, Any, Array], Any],
    anchor: Callable[[Any], Array] | None = None,
    retry: str | None = None,
) -> FederatedAlgorithm:
    """One round in which every client sums up its subposterior and the server merges; a second for unreliable ones.

    Parameters
    ----------
    problem
        The split program and its clients.
    shares
        Power of the prior in each client's subposterior, shape ``(K,)``; what they add up to beyond one is divided out,
        which takes a Gaussian prior.
    updates
        Named ways to sum up a subposterior: ``(shared, private, client, key) -> (summary, private)``.
    name
        For progress and reports.
    combine
        One of this module's.
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
    prior, num_clients = problem.prior, len(problem.names)

    def init(key: Array, previous: Any) -> MergeState:
        return _empty(prior, shares, num_draws, init_shared(previous))

    def aggregate(state: MergeState, messages: MergeMessage, used: Array, key: Array) -> tuple[MergeState, Info]:
        clients = where(used, messages.gaussian, state.clients).symmetrised()
        new = state._replace(clients=clients, heard=jnp.where(used, 1.0, state.heard))
        merged, draws = combine(new.product, clients, messages.draws, new.heard, state.shares, key)
        new = new._replace(merged=merged.symmetrised(), draws=draws)
        if prior.gaussian is None:
            new = new._replace(prior=prior.tangent(merged.moments()[0]))
        info = _picture(new) | {"converged": jnp.all(new.heard > 0)}
        if anchor is not None:
            mean, covariance = merged.moments()
            gap = anchor(state.shared) - mean
            info["gap"] = jnp.sqrt(jnp.mean(gap**2 / jnp.diagonal(covariance)))
        return new, info

    return FederatedAlgorithm(
        name=name,
        init=init,
        init_client=init_client,
        broadcast=lambda state: (state.shared, jnp.zeros((num_clients, 0))),
        local_updates={label: partial(_local_update, update) for label, update in updates.items()},
        choose=partial(retry_unreliable, retry),
        aggregate=aggregate,
        posterior=lambda state: state.merged,
        reduction="stack",
        sample=sample_merged,
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


def sample_merged(state: MergeState, key: Array, num: int) -> Array:
    """Draws of the merged posterior: the merged ones where it is not a Gaussian, of which there are so many."""
    if state.draws.shape[0] == 0:
        return state.merged.sample(key, num)
    return jax.random.permutation(key, state.draws)[:num]


def _local_update(
    update: LocalSummary, shared: Any, personal: Array, private: Any, client: Client, key: Array
) -> tuple[MergeMessage, Any, Info]:
    found, after = update(shared, private, client, key)
    finite = jnp.all(jnp.isfinite(found.gaussian.shift)) & jnp.all(jnp.isfinite(found.gaussian.precision))
    proper = found.gaussian.is_proper()
    fine = jnp.where(found.reliable, ResultCode.OK, ResultCode.UNRELIABLE)
    code = jnp.where(finite, jnp.where(proper, fine, ResultCode.IMPROPER), ResultCode.NOT_FINITE)
    after = jax.tree.map(lambda new, old: jnp.where(finite & proper, new, old), after, private)
    info = {"code": code, "k_hat": found.k_hat, "effective_draws": found.effective}
    return MergeMessage(found.gaussian, found.draws), after, info


def _picture(state: MergeState) -> Info:
    """How the clients lie to each other, coordinate by coordinate; all in unconstrained space.

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
