"""FedPA's last round where there are too many globals for a matrix: precisions as identity minus low rank."""

from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax import Array

from fedbayes.contract.algorithm import Algorithm, Info, Replies, Reply, Update
from fedbayes.errors import ResultCode
from fedbayes.inference.fedpa.client import Clients, Factor, LocalFactor, Private, Shared
from fedbayes.numerics.low_rank import LowRankGaussian
from fedbayes.problem.client import Client
from fedbayes.problem.roster import Roster


class LowRankMergeState(NamedTuple):
    """The server's state.

    Attributes
    ----------
    factors
        The clients' Gaussians, leading axis of clients.
    heard
        One for each client whose Gaussian counts, shape ``(K,)``.
    shared
        What the clients are told.
    change
        By how much the last of the rounds before moved the server, in shared coordinates.
    """

    factors: Factor
    heard: Array
    shared: Shared
    change: Array


def low_rank_merging(
    roster: Roster,
    clients: Clients,
    factor: LocalFactor,
    init_shared: Callable[[Any], tuple[Shared, Array]],
    num_samples: int,
    tolerance: float,
) -> Algorithm:
    """The round with a :class:`~fedbayes.numerics.low_rank.LowRankGaussian` as product; ``(l + 1) d`` numbers up.

    Parameters
    ----------
    roster
        Of the clients.
    clients
        Of the rounds before.
    factor
        A client's way to its Gaussian.
    init_shared
        From the state of the phase before, what clients are told, and the last change.
    num_samples
        Samples l of a client.
    tolerance
        Change below which the rounds before have converged.
    """
    num, size = roster.num_clients, roster.size

    def init(key: Array, previous: Any) -> LowRankMergeState:
        shared, change = init_shared(previous)
        empty = Factor(jnp.zeros((num, size)), jnp.zeros((num, num_samples, size)), jnp.ones(num))
        return LowRankMergeState(empty, jnp.zeros(num), shared, change)

    def update(
        shared: Shared, personal: tuple[()], private: Private, client: Client, key: Array
    ) -> tuple[Reply, Private]:
        found, after = factor(shared, private, client, key)
        fine = jnp.all(jnp.isfinite(found.basis)) & jnp.all(jnp.isfinite(found.mean))
        after = jax.tree.map(lambda new, old: jnp.where(fine, new, old), after, private)
        return Reply(each=found, code=jnp.where(fine, ResultCode.OK, ResultCode.NOT_FINITE)), after

    def aggregate(state: LowRankMergeState, replies: Replies, key: Array) -> tuple[LowRankMergeState, Info]:
        def newest(new: Array, old: Array) -> Array:
            return jnp.where(replies.used.reshape((-1,) + (1,) * (new.ndim - 1)), new, old)

        heard = jnp.where(replies.used, 1.0, state.heard)
        new = state._replace(factors=jax.tree.map(newest, replies.each, state.factors), heard=heard)
        done = jnp.all(heard > 0) & (state.change <= tolerance)
        return new, {"converged": done, "proper": jnp.any(heard > 0)}

    return Algorithm(
        name="merge",
        init=init,
        broadcast=lambda state: (state.shared, ()),
        init_client=clients.init,
        updates={"factor": Update(update)},
        aggregate=aggregate,
        asked_at=lambda shared: shared.coordinates.globals_at(shared.position),
    )


@jax.jit
def low_rank_product(state: LowRankMergeState, weights: Array) -> LowRankGaussian:
    """The product of the clients' Gaussians, by replicate."""

    def one(state: LowRankMergeState) -> LowRankGaussian:
        weight, factors, at = weights * state.heard, state.factors, state.shared.coordinates
        return LowRankGaussian.product(
            factors.basis, factors.rho, factors.mean, weight / jnp.sum(weight), at.center, at.white
        )

    return jax.vmap(one)(state)
