"""The client's half of FedPA: what it is told, what it sends, and what all its ways to a delta have in common.

Clients draw from their whole subposterior (:mod:`fedbayes.inference.fedpa.drawing`), or take gradient steps from the
server's position (:mod:`fedbayes.inference.fedpa.stepping`).
"""

from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array

from fedbayes.contract.algorithm import Reply, its_key
from fedbayes.errors import ResultCode
from fedbayes.inference.fedpa.shrinkage import shrunk_precision
from fedbayes.inference.local.steps.coordinates import Coordinates
from fedbayes.inference.merging.client import LocalSummary
from fedbayes.numerics.gaussian import Gaussian
from fedbayes.problem.client import Client

Private = Any


class Shared(NamedTuple):
    """The broadcast.

    Attributes
    ----------
    position
        Where the server is, in the shared coordinates, shape ``(d,)``.
    coordinates
        What maps it to the globals.
    step_size
        Of gradient steps.
    """

    position: Array
    coordinates: Coordinates
    step_size: Array


class Delta(NamedTuple):
    """A client's delta and the mean it points away from, both ``(d,)`` in shared coordinates."""

    delta: Array
    mean: Array
    k_hat: Array
    reliable: Array


class Samples(NamedTuple):
    """Samples of the globals in shared coordinates, ``(l, d)``, and what their covariance has to be multiplied by."""

    u: Array
    scale: Array


class Factor(NamedTuple):
    """A client's Gaussian in shared coordinates, its precision ``weight / rho (I - basis' basis)``.

    Attributes
    ----------
    mean, basis
        Shapes ``(d,)`` and ``(l, d)``.
    rho
        Weight of the identity in the shrinkage covariance.
    """

    mean: Array
    basis: Array
    rho: Array


class DeltaMessage(NamedTuple):
    """A client's delta, shape ``(d,)``, times its weight, and the weight: sums make weighted means."""

    delta: Array
    weight: Array


class LocalDelta(NamedTuple):
    """A client's way to its delta: ``run`` is ``(shared, private, client, inputs) -> (delta, private)``."""

    run: Callable[[Shared, Private, Client, Any], tuple[Delta, Private]]
    inputs: Callable[[Array, Any, int], Any] = its_key


LocalFactor = Callable[[Shared, Private, Client, Array], tuple[Factor, Private]]


class Clients(NamedTuple):
    """What clients do.

    Attributes
    ----------
    init
        ``(client, shared, key) -> private``.
    deltas, averages
        Named updates of FedPA's rounds, and of FedAvg's.
    summaries
        Named updates of the last round.
    factor
        The gradient samplers' last round where there are too many globals for a matrix.
    retry
        Name of the update for clients whose draws are unreliable.
    """

    init: Callable[[Client, Shared, Array], Private]
    deltas: Mapping[str, LocalDelta]
    averages: Mapping[str, LocalDelta]
    summaries: Mapping[str, LocalSummary]
    factor: LocalFactor | None
    retry: str | None


def local_update(
    weights: np.ndarray,
    delta: Callable,
    shared: Shared,
    personal: tuple[()],
    private: Private,
    client: Client,
    inputs: Any,
) -> tuple[Reply, Private]:
    """A client's round: its delta by the way ``delta``, times its weight."""
    found, after = delta(shared, private, client, inputs)
    fine = jnp.all(jnp.isfinite(found.delta)) & jnp.all(jnp.isfinite(found.mean))
    code = jnp.where(found.reliable, ResultCode.OK, ResultCode.UNRELIABLE)
    weight = jnp.asarray(weights)[client.index]
    after = jax.tree.map(lambda new, old: jnp.where(fine, new, old), after, private)
    info = {"k_hat": found.k_hat, "drift": jnp.sqrt(jnp.mean((found.mean - shared.position) ** 2))}
    total = DeltaMessage(weight * found.delta, weight)
    return Reply(total=total, code=jnp.where(fine, code, ResultCode.NOT_FINITE), info=info), after


def shrunk_gaussian(rho: float, shared: Shared, weight: Array, samples: Samples) -> Gaussian:
    """A client's own Gaussian over the globals, with the shrinkage precision times its weight."""
    precision = weight * shrunk_precision(samples.u, rho, samples.scale)
    return shared.coordinates.of_whitened(jnp.mean(samples.u, axis=0), precision)
