"""The client's half of FA-LD: its local Langevin steps from the server's position, and what it keeps between rounds.

With ``clip`` nothing is computed from the records but clipped gradients, and these go into the steps alone: result
code, diagnostics and message depend on the records through the position where the steps end, in which private noise
hides them (:mod:`fedbayes.inference.fald.released`).
"""

from typing import NamedTuple

import jax
import jax.numpy as jnp
from jax import Array

from fedbayes.contract.algorithm import Reply
from fedbayes.errors import ResultCode
from fedbayes.inference.fald.options import LEAST_STEP, Options, is_private
from fedbayes.inference.local.steps.coordinates import Coordinates, LocalCoordinates, local_coordinates
from fedbayes.inference.local.steps.energy import Energy
from fedbayes.problem.client import Client
from fedbayes.problem.program.prior import Prior
from fedbayes.runtime.wide import told_key


class Shared(NamedTuple):
    """The broadcast, see :class:`~fedbayes.inference.fald.server.FALDState`."""

    position: Array
    coordinates: Coordinates
    step_size: Array
    smoothness: Array
    convexity: Array
    local_steps: Array
    total: Array
    round: Array
    noise: Array


class Private(NamedTuple):
    """What a client keeps: its locals in its own coordinates ``(m,)``, what maps them, its gradient at the anchor."""

    v: Array
    coordinates: LocalCoordinates
    own: Array


class Message(NamedTuple):
    """A client's contribution times its count, and the count: sums over clients make weighted means.

    Attributes
    ----------
    position
        Where its steps ended, shape ``(d,)``.
    slope
        The gradient of its energy where they began.
    own
        The gradient at the anchor.
    weight
        By which the three are multiplied.
    """

    position: Array
    slope: Array
    own: Array
    weight: Array


def locals_of(shared: Shared, private: Private) -> Array:
    """The client's own part of the draw, shape ``(m,)``."""
    return private.coordinates.locals_at(shared.position, private.v)


def init_client(config: Options, prior: Prior, weights: Array, client: Client, shared: Shared, key: Array) -> Private:
    """Private coordinates and the gradient at the anchor, which is the origin of the shared coordinates."""
    own, weight = local_coordinates(client, shared.coordinates), weights[client.index]
    origin, v = jnp.zeros(prior.size), jnp.zeros(client.num_locals)
    if config.clip is not None:  # even whether it is finite would tell of single records
        return Private(v, own, origin)
    slope, _ = Energy(prior, weight, weight, client, shared.coordinates, own).slopes(origin, v, key)
    return Private(jax.random.normal(key, v.shape), own, slope)


def local_update(
    config: Options,
    prior: Prior,
    weights: Array,
    shared: Shared,
    count: Array,
    private: Private,
    client: Client,
    key: Array,
) -> tuple[Reply, Private]:
    """The steps of one round; the reply is the contribution to the server's means."""
    weight, rho, size = weights[client.index], config.noise_correlation, prior.size
    count = count * weight if config.scheme == "full" else count
    energy = Energy(
        prior, weight, weight, client, shared.coordinates, private.coordinates, config.batch_size, config.clip
    )
    common_key = told_key(shared.noise, key)
    correction = jnp.zeros(size)
    if config.control_variate:  # the total is not known before the first round
        correction = jnp.where(shared.round > 0, shared.total - private.own, 0.0)

    def step(k: Array, carry: tuple[Array, Array, Array]) -> tuple[Array, Array, Array]:
        u, v, first = carry
        batch_key, noise_key = jax.random.split(jax.random.fold_in(key, k))
        eta = step_size_at(config, shared, k)
        common = jax.random.fold_in(common_key, k)
        noise, noise_v = _noise(rho, weight, size, client.num_locals, common, noise_key, fine=is_private(config))
        scale = jnp.sqrt(2.0 * eta * config.temperature)
        if config.clip is not None:
            of_data, of_prior = energy.clipped_slopes(u, v, batch_key)
            hidden = scale * noise - eta * of_data  # before all else: what is large would round both away
            if is_private(config):  # in each step: a later one may be so large that its noise is lost beside it
                hidden = _coarser(hidden, scale * jnp.sqrt((1.0 - rho**2) / weight))
                # without noise nothing is hidden: the sign of 0 - 0 * slope is that of the slope
                hidden = jnp.where(eta * min(1.0, config.temperature) >= LEAST_STEP, hidden, 0.0)
            return u + (hidden - eta * of_prior), v, first
        slope, slope_v = energy.slopes(u, v, batch_key)
        u = u - eta * (slope + correction) + scale * noise
        v = v - eta * slope_v + scale * noise_v
        return u, v, jnp.where(k == 0, slope, first)

    begin = (shared.position, private.v, jnp.zeros(size))
    u, v, first = jax.lax.fori_loop(0, shared.local_steps.astype(int), step, begin)
    fine = jnp.all(jnp.isfinite(u)) & jnp.all(jnp.isfinite(v)) & jnp.all(jnp.isfinite(first))
    active = count > 0
    own = private.own
    if config.refresh is not None:
        own = jnp.where(anchor_moves(config.refresh, shared.round), first, own)
    after = private._replace(v=v, own=own)
    after = jax.tree.map(lambda new, old: jnp.where(fine & active, new, old), after, private)
    # a gradient without noise would undo what clipping is for: with it `first` is zero, and its norm not known
    sent = own if config.control_variate else jnp.zeros(size)
    message = Message(count * u, count * first, count * sent, count)
    norm = jnp.sqrt(jnp.sum(first**2)) if config.clip is None else jnp.full((), jnp.nan)
    code = jnp.where(fine, ResultCode.OK, ResultCode.NOT_FINITE)
    code = jnp.where(jnp.all(jnp.isfinite(private.own)), code, ResultCode.NO_GRADIENT)
    info = {
        "gradient_norm": jnp.where(active, norm, 0.0),
        "drift": jnp.where(active, jnp.sqrt(jnp.mean((u - shared.position) ** 2)), 0.0),
        "participation": active.astype(float),
    }
    return Reply(total=message, code=jnp.where(active, code, ResultCode.INACTIVE), info=info), after


def step_size_at(config: Options, shared: Shared, k: Array | float) -> Array:
    """``eta`` of the local step ``k`` of a round."""
    iteration = shared.round * shared.local_steps + k
    if callable(config.step_size):
        return jnp.asarray(config.step_size(iteration), jnp.float64)
    if config.step_size == "decaying":
        return 1.0 / (2.0 * shared.smoothness + shared.convexity * iteration / 12.0)
    return shared.step_size


def _coarser(u: Array, scale: Array) -> Array:
    """``u`` to about a millionth of the noise, for its last bits tell how the noise was computed (Mironov 2012)."""
    grid = jnp.exp2(jnp.floor(jnp.log2(scale)) - 20.0)
    places = u / grid
    rounded = jnp.where(jnp.abs(places) < 2.0**52, jnp.round(places) * grid, u)
    return jnp.where(rounded == 0.0, 0.0, rounded)  # which has one sign


def _noise(
    rho: float, weight: Array, size: int, num_locals: int, common_key: Array, own_key: Array, *, fine: bool
) -> tuple[Array, Array]:
    """``rho xi + sqrt((1 - rho^2) / p_c) xi_c`` and ``zeta_c`` of one step.

    A draw made of 52 bits has few values beyond 6.5 sds, by which what it was added to could be told. That of two draws
    (``fine``) has several for each place to which it is rounded, as far as 11 sds (Holohan and Braghin 2021).
    """
    private_globals = 0 if rho == 1.0 else size
    shape = (private_globals + num_locals,)
    if fine:
        drawn = jnp.sqrt(0.5) * jnp.sum(jax.random.normal(own_key, (2, *shape)), axis=0)
    else:
        drawn = jax.random.normal(own_key, shape)
    noise = jnp.zeros(size) if rho == 0.0 else rho * jax.random.normal(common_key, (size,))
    if private_globals:
        noise = noise + jnp.sqrt((1.0 - rho**2) / weight) * drawn[:size]
    return noise, drawn[private_globals:]


def anchor_moves(refresh: int, round_: Array) -> Array:
    """Whether the gradient where this round begins becomes that at the anchor."""
    return (jnp.mod(round_, refresh) == 0) & (round_ > 0)
