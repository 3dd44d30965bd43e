"""Federated averaging Langevin dynamics, FA-LD (Deng, Zhang, Ma, Song and Lin, UAI 2024, algorithms 1 to 4).

Clients start each round at the server's position and run K local Langevin steps; the server averages. With the client
energies ``f_c = -log f_c(theta, z) / p_c - log p(theta)``, so that ``sum_c p_c f_c`` is the energy of the joint
posterior with the prior counted once,

    u_c <- u_c - eta (grad_u f_c - own_c + total) + sqrt(2 eta tau) (rho xi + sqrt((1 - rho^2) / p_c) xi_c)
    v_c <- v_c + eta grad_v log f_c               + sqrt(2 eta tau) zeta_c

with noise ``xi`` shared by all clients and ``xi_c``, ``zeta_c`` private. ``u`` are the globals in the federation's
shared coordinates and ``v`` the client's locals in its own (:mod:`fedbayes.inference.coordinates`); ``own_c`` and
``total`` are the control variate: the client's and everybody's gradient at an anchor. A local enters one client's
energy only, so its step is that of the joint target: no ``1 / p_c``, neither in its gradient nor in its noise.
"""

from functools import partial
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array

from fedbayes.algorithm import Algorithm, Info, Replies, Reply, Update
from fedbayes.errors import ResultCode
from fedbayes.inference.curvature import shared_coordinates
from fedbayes.inference.fald.options import Options
from fedbayes.inference.fald.plan import Plan, make_plan, no_plan
from fedbayes.inference.local.coordinates import Coordinates, LocalCoordinates, local_coordinates
from fedbayes.inference.local.energy import Energy
from fedbayes.inference.mode import ModeState
from fedbayes.problem.clients import Client
from fedbayes.problem.prior import Prior
from fedbayes.problem.roster import Roster


class FALDState(NamedTuple):
    """The server's state.

    Attributes
    ----------
    position
        The chain, in the shared coordinates, shape ``(d,)``.
    coordinates
        What maps it to the globals.
    plan
        Step size, local steps, rounds per draw, and what theory says of them.
    total
        Everybody's gradient at the anchor, shape ``(d,)``.
    round
        Rounds done.
    counts
        How often each client counts in the coming round, shape ``(N,)``: its weight, or how often it was drawn.
    noise
        Data of the key of the coming round's shared noise.
    """

    position: Array
    coordinates: Coordinates
    plan: Plan
    total: Array
    round: Array
    counts: Array
    noise: Array


class Shared(NamedTuple):
    """The broadcast, see :class:`FALDState`."""

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


def langevin(config: Options, roster: Roster, weights: np.ndarray) -> Algorithm:
    """The chains, for clients of these weights."""
    prior, size = roster.prior, roster.size
    everybody = jnp.asarray(weights)
    has_locals = bool(np.any(roster.num_locals))

    def init(key: Array, previous: ModeState | None) -> FALDState:
        start_key, noise_key, choose_key = jax.random.split(key, 3)
        coordinates = shared_coordinates(previous, size, config.preconditioner, config.init)
        plan, position = no_plan(config, weights), jnp.zeros(size)
        if previous is not None:
            plan = make_plan(config, previous, coordinates, weights, has_locals=has_locals)
            spread = jax.random.normal(start_key, (size,)) * jnp.sqrt(config.temperature)
            position = coordinates.from_whitened(spread, previous.global_().precision)
        # all clients contribute to the total at the anchor
        counts = everybody if config.control_variate else _counts(config, everybody, choose_key)
        noise = jax.random.key_data(noise_key)
        return FALDState(position, coordinates, plan, jnp.zeros(size), jnp.zeros(()), counts, noise)

    def broadcast(state: FALDState) -> tuple[Shared, Array]:
        plan = state.plan
        shared = Shared(
            position=state.position,
            coordinates=state.coordinates,
            step_size=plan.step_size,
            smoothness=plan.smoothness,
            convexity=plan.convexity,
            local_steps=plan.local_steps,
            total=state.total,
            round=state.round,
            noise=state.noise,
        )
        return shared, state.counts

    return Algorithm(
        name="FALD",
        init=init,
        broadcast=broadcast,
        init_client=partial(_init_client, prior, everybody),
        updates={"langevin": Update(partial(_local_update, config, prior, everybody))},
        aggregate=partial(_aggregate, config, everybody),
        participants=lambda state: state.counts > 0,
    )


def position(state: FALDState) -> Array:
    """The chain's position in the unconstrained globals, shape ``(d,)``."""
    return state.coordinates.globals_at(state.position)


def locals_of(shared: Shared, private: Private) -> Array:
    """The client's own part of the draw, shape ``(m,)``."""
    return private.coordinates.locals_at(shared.position, private.v)


def _init_client(prior: Prior, weights: Array, client: Client, shared: Shared, key: Array) -> Private:
    """Private coordinates and the gradient at the anchor, which is the origin of the shared coordinates."""
    own, weight = local_coordinates(client, shared.coordinates), weights[client.index]
    origin, v = jnp.zeros(prior.size), jnp.zeros(client.num_locals)
    slope, _ = Energy(prior, weight, weight, client, shared.coordinates, own).slopes(origin, v, key)
    return Private(jax.random.normal(key, v.shape), own, slope)


def _step_size(config: Options, shared: Shared, iteration: Array) -> Array:
    """``eta_k`` at the local iteration ``k``."""
    if callable(config.step_size):
        return jnp.asarray(config.step_size(iteration), jnp.float64)
    if config.step_size == "decaying":
        return 1.0 / (2.0 * shared.smoothness + shared.convexity * iteration / 12.0)
    return shared.step_size


def _local_update(
    config: Options,
    prior: Prior,
    weights: Array,
    shared: Shared,
    count: Array,
    private: Private,
    client: Client,
    key: Array,
) -> tuple[Reply, Private]:
    weight, rho, size = weights[client.index], config.noise_correlation, prior.size
    energy = Energy(
        prior, weight, weight, client, shared.coordinates, private.coordinates, config.batch_size, config.clip
    )
    common_key = jax.random.wrap_key_data(shared.noise, impl=jax.random.key_impl(key))
    correction = jnp.zeros(size)
    if config.control_variate:  # the total is not known before the first round
        correction = jnp.where(shared.round > 0, shared.total - private.own, 0.0)

    def step(k: Array, carry: tuple[Array, Array, Array]) -> tuple[Array, Array, Array]:
        u, v, first = carry
        batch_key, noise_key = jax.random.split(jax.random.fold_in(key, k))
        slope, slope_v = energy.slopes(u, v, batch_key)
        eta = _step_size(config, shared, shared.round * shared.local_steps + k)
        noise, noise_v = _noise(rho, weight, size, client.num_locals, jax.random.fold_in(common_key, k), noise_key)
        scale = jnp.sqrt(2.0 * eta * config.temperature)
        u = u - eta * (slope + correction) + scale * noise
        v = v - eta * slope_v + scale * noise_v
        return u, v, jnp.where(k == 0, slope, first)

    begin = (shared.position, private.v, jnp.zeros(size))
    u, v, first = jax.lax.fori_loop(0, shared.local_steps.astype(int), step, begin)
    fine = jnp.all(jnp.isfinite(u)) & jnp.all(jnp.isfinite(v)) & jnp.all(jnp.isfinite(first))
    active = count > 0
    own = private.own
    if config.refresh is not None:
        own = jnp.where(_anchor_moves(config.refresh, shared.round), first, own)
    after = private._replace(v=v, own=own)
    after = jax.tree.map(lambda new, old: jnp.where(fine & active, new, old), after, private)
    # a gradient without noise would undo what clipping is for
    reported = first if config.clip is None else jnp.full_like(first, jnp.nan)
    sent = own if config.control_variate else jnp.zeros(size)
    message = Message(count * u, count * reported, count * sent, count)
    code = jnp.where(fine, ResultCode.OK, ResultCode.NOT_FINITE)
    code = jnp.where(jnp.all(jnp.isfinite(private.own)), code, ResultCode.NO_GRADIENT)
    info = {
        "gradient_norm": jnp.where(active, jnp.sqrt(jnp.sum(reported**2)), 0.0),
        "drift": jnp.where(active, jnp.sqrt(jnp.mean((u - shared.position) ** 2)), 0.0),
        "participation": active.astype(float),
    }
    return Reply(total=message, code=jnp.where(active, code, ResultCode.INACTIVE), info=info), after


def _noise(
    rho: float, weight: Array, size: int, num_locals: int, common_key: Array, own_key: Array
) -> tuple[Array, Array]:
    """``rho xi + sqrt((1 - rho^2) / p_c) xi_c`` and ``zeta_c`` of one step."""
    private_globals = 0 if rho == 1.0 else size
    drawn = jax.random.normal(own_key, (private_globals + num_locals,))
    noise = jnp.zeros(size) if rho == 0.0 else rho * jax.random.normal(common_key, (size,))
    if private_globals:
        noise = noise + jnp.sqrt((1.0 - rho**2) / weight) * drawn[:size]
    return noise, drawn[private_globals:]


def _anchor_moves(refresh: int, round_: Array) -> Array:
    return (jnp.mod(round_, refresh) == 0) & (round_ > 0)


def _aggregate(
    config: Options, weights: Array, state: FALDState, replies: Replies, key: Array
) -> tuple[FALDState, Info]:
    """Weighted means of what the clients sent; the first round only learns the total at the anchor."""
    choose_key, noise_key = jax.random.split(key)
    messages: Message = replies.total
    everything = jax.tree.map(lambda leaf: leaf / messages.weight, messages)
    position, total = everything.position, state.total
    if config.control_variate:
        learns = state.round == 0
        position = jnp.where(learns, state.position, position)
        if config.refresh is not None:
            learns |= _anchor_moves(config.refresh, state.round)
        total = jnp.where(learns, everything.own, total)
    position = jnp.where(messages.weight > 0, position, state.position)
    new = state._replace(
        position=position,
        total=total,
        round=state.round + 1.0,
        counts=_counts(config, weights, choose_key),
        noise=jax.random.key_data(noise_key),
    )
    info = {
        "converged": jnp.array(False),
        "position": state.position,
        "slope": everything.slope,
        "slope_position": state.position * everything.slope / (config.temperature or 1.0),
    }
    return new, info


def _counts(config: Options, weights: Array, key: Array) -> Array:
    """How often each client counts in a round: its weight, or by scheme I or II."""
    num = weights.shape[0]
    active = config.num_active or num
    if config.scheme == "with_replacement":
        drawn = jax.random.choice(key, num, (active,), p=weights)
        return jnp.sum(jax.nn.one_hot(drawn, num, dtype=weights.dtype), axis=0)
    if config.scheme == "without_replacement":
        return (jax.random.permutation(key, num) < active).astype(weights.dtype)
    return weights
