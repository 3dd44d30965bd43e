"""The server's half of FA-LD: the chain, its start and its step after a round, and who takes part in the next."""

from functools import partial
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array

from fedbayes.contract.algorithm import Algorithm, Info, Replies, Update
from fedbayes.inference.curvature import shared_coordinates
from fedbayes.inference.fald.client import Message, Shared, anchor_moves, init_client, local_update
from fedbayes.inference.fald.differences import Known, known_of
from fedbayes.inference.fald.options import Options, is_private
from fedbayes.inference.fald.plan import Plan, make_plan, no_plan
from fedbayes.inference.fald.released import released
from fedbayes.inference.local.steps.coordinates import Coordinates
from fedbayes.inference.mode import ModeState
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


def langevin(config: Options, roster: Roster, weights: np.ndarray) -> Algorithm:
    """The chains, for clients of these weights."""
    prior, size = roster.prior, roster.size
    everybody = jnp.asarray(weights)
    has_locals = bool(np.any(roster.num_locals))

    def init(key: Array, previous: ModeState | Known | None) -> FALDState:
        start_key, noise_key, choose_key = jax.random.split(key, 3)
        known = known_of(config, previous, everybody) if isinstance(previous, ModeState) else previous
        if known is None:
            coordinates = shared_coordinates(None, size, config.preconditioner, config.init)
            plan, position = no_plan(config), jnp.zeros(size)
        else:
            coordinates = known.coordinates
            plan = make_plan(config, known, weights, has_locals=has_locals)
            spread = jax.random.normal(start_key, (size,)) * jnp.sqrt(config.temperature)
            position = coordinates.from_whitened(spread, known.mode.global_().precision)
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
        # with all clients taking part each knows its own weight, and all are told the same: the replies are secure sums
        return shared, jnp.ones_like(state.counts) if config.scheme == "full" else state.counts

    return Algorithm(
        name="FALD",
        init=init,
        broadcast=broadcast,
        init_client=partial(init_client, config, prior, everybody),
        updates={"langevin": Update(partial(local_update, config, prior, everybody))},
        aggregate=partial(_aggregate, config, everybody),
        participants=lambda state: state.counts > 0,
        asked_at=_asked_at,
        released=partial(released, config, weights) if is_private(config) else None,
    )


def position(state: FALDState) -> Array:
    """The chain's position in the unconstrained globals, shape ``(d,)``."""
    return state.coordinates.globals_at(state.position)


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
            learns |= anchor_moves(config.refresh, state.round)
        total = jnp.where(learns, everything.own, total)
    position = jnp.where(messages.weight > 0, position, state.position)
    new = state._replace(
        position=position,
        total=total,
        round=state.round + 1.0,
        counts=_counts(config, weights, choose_key),
        noise=jax.random.key_data(noise_key),
    )
    # with clipping the clients don't send it
    slope = everything.slope if config.clip is None else jnp.full_like(position, jnp.nan)
    info = {
        "converged": jnp.array(False),
        "position": state.position,
        "slope": slope,
        "slope_position": state.position * slope / (config.temperature or 1.0),
    }
    return new, info


def _asked_at(shared: Shared) -> Array:
    """The position, and the anchor in the origin of the coordinates."""
    return jnp.stack([shared.coordinates.globals_at(shared.position), shared.coordinates.center])


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
