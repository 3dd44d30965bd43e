"""FedPA's last round where there are too many globals for a matrix: precisions as identity minus low rank."""

from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array

from fedbayes.algorithm import FederatedAlgorithm, Info, same_variants
from fedbayes.errors import ResultCode
from fedbayes.inference.fedpa.clients import Clients, Factor, Private, Shared
from fedbayes.low_rank import LowRankGaussian
from fedbayes.problem.clients import Client
from fedbayes.problem.problem import Problem


class SketchState(NamedTuple):
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


def sketching(
    problem: Problem,
    weights: np.ndarray,
    clients: Clients,
    init_shared: Callable[[Any], tuple[Shared, Array]],
    tolerance: float,
) -> FederatedAlgorithm:
    """The round whose answer is a :class:`~fedbayes.low_rank.LowRankGaussian`; messages of ``(l + 1) d`` numbers.

    Parameters
    ----------
    problem
        The split program and its clients.
    weights
        ``p_k``.
    clients
        With a ``factor``.
    init_shared
        From the state of the phase before, what clients are told, and the last change.
    tolerance
        Change below which the rounds before have converged.
    """
    num_clients = len(problem.names)
    factor = clients.factor
    if factor is None:
        raise TypeError("The clients of this sampler make no factors.")

    def init(key: Array, previous: Any) -> SketchState:
        shared, change = init_shared(previous)
        client = jax.tree.map(lambda leaf: leaf[0], problem.buckets[0].clients)
        private = clients.init(client, shared, key)
        shapes, _ = jax.eval_shape(factor, shared, private, client, key)
        empty = jax.tree.map(lambda leaf: jnp.zeros((num_clients, *leaf.shape), leaf.dtype), shapes)
        return SketchState(empty._replace(rho=jnp.ones(num_clients)), jnp.zeros(num_clients), shared, change)

    def local_update(
        shared: Shared, personal: Array, private: Private, client: Client, key: Array
    ) -> tuple[Factor, Private, Info]:
        found, after = factor(shared, private, client, key)
        fine = jnp.all(jnp.isfinite(found.basis)) & jnp.all(jnp.isfinite(found.mean))
        after = jax.tree.map(lambda new, old: jnp.where(fine, new, old), after, private)
        return found, after, {"code": jnp.where(fine, ResultCode.OK, ResultCode.NOT_FINITE)}

    def aggregate(state: SketchState, messages: Factor, used: Array, key: Array) -> tuple[SketchState, Info]:
        def newest(new: Array, old: Array) -> Array:
            return jnp.where(used.reshape((-1,) + (1,) * (new.ndim - 1)), new, old)

        heard = jnp.where(used, 1.0, state.heard)
        new = state._replace(factors=jax.tree.map(newest, messages, state.factors), heard=heard)
        return new, {"converged": jnp.all(heard > 0) & (state.change <= tolerance)}

    def posterior(state: SketchState) -> LowRankGaussian:
        weight, factors = jnp.asarray(weights) * state.heard, state.factors
        at = state.shared.coordinates
        return LowRankGaussian.product(
            factors.basis, factors.rho, factors.mean, weight / jnp.sum(weight), at.center, at.white
        )

    return FederatedAlgorithm(
        name="merge",
        init=init,
        init_client=clients.init,
        broadcast=lambda state: (state.shared, jnp.zeros((num_clients, 0))),
        local_updates={"factor": local_update},
        choose=same_variants,
        aggregate=aggregate,
        posterior=posterior,
        reduction="stack",
        sample=lambda state, key, num: posterior(state).sample(key, num),
    )
