"""The server's half of federated averaging: an optimiser descends along the clients' mean delta."""

from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import optax
from jax import Array

from fedbayes.contract.algorithm import Algorithm, Info, Replies, Update, everybody, its_key, no_inputs
from fedbayes.contract.answer import ERROR_LIMIT
from fedbayes.inference.fedavg.client import (
    Message,
    Own,
    Shared,
    Told,
    is_personalised,
    local_update,
    sends_slope,
    start_own,
    start_personal,
)
from fedbayes.inference.fedavg.fairness import Fairness
from fedbayes.inference.fedavg.options import Options
from fedbayes.inference.options import given_start
from fedbayes.problem.client import Client
from fedbayes.problem.roster import Roster
from fedbayes.runtime.keys import Purpose, key_for

_STEP = 0.5  # of plain gradient steps by default, over the largest curvature at the start
_ROUNDING = 1e-15  # of a position, relative
_SLOWEST = 0.999  # ratio of two rounds' moves that counts as getting nearer


class ProbeState(NamedTuple):
    """The start, ``(d,)``, and the largest curvature of any client there; zero where nothing is known of it."""

    position: Array
    curvature: Array


class FedAvgState(NamedTuple):
    """The server's state.

    Attributes
    ----------
    position
        Unconstrained globals, shape ``(d,)``.
    optimizer
        The server's optimiser's own state.
    step
        Size of the clients' plain gradient steps; one where they have an optimiser of their own.
    round
        Rounds done.
    slope, move
        The gradient that the last round reported, and how far it moved the server, ``(d,)``; empty where gradients are
        not sent, NaN where the next can't be compared with it.
    pull
        How far the clients' steps led in the last round, over the size of their steps: it shrinks as the fixed point
        comes nearer, and not as steps do.
    way
        The clients' mean way in the last round, shape ``(d,)``.
    losses
        Mean losses of the groups, NaN where not known; empty without fairness.
    drawn
        How often each client was drawn for the next round, shape ``(K,)``; empty where all take part.
    """

    position: Array
    optimizer: Any
    step: Array
    round: Array
    slope: Array
    move: Array
    pull: Array
    way: Array
    losses: Array
    drawn: Array


def server_step(
    optimizer: optax.GradientTransformation, state: Any, position: Array, delta: Array, weight: Array
) -> tuple[Array, Any, Array]:
    """The server's position and its optimiser's state after a step along a sum of weighted deltas.

    Where nobody was heard, or the step is not finite, both stay; the third value says whether it was taken.
    """
    moves, after = optimizer.update(delta / jnp.where(weight > 0, weight, 1.0), state, position)
    taken = (weight > 0) & jnp.all(jnp.isfinite(moves))
    kept = jax.tree.map(lambda new, old: jnp.where(taken, new, old), after, state)
    return jnp.where(taken, position + moves, position), kept, taken


def server_optimizer(config: Options) -> optax.GradientTransformation:
    """With steps of one the server moves to the clients' mean."""
    return optax.sgd(1.0) if config.server_optimizer is None else config.server_optimizer


def first_position(config: Options, roster: Roster, key: Array) -> Array:
    """Where the rounds begin."""
    if not isinstance(config.init, str):
        return jnp.asarray(given_start(config.init, roster))
    if config.init == "prior":
        return roster.prior.draw(key)
    if config.init == "random":  # as NumPyro's samplers
        return jax.random.uniform(key, (roster.size,), jnp.float64, -2.0, 2.0)
    return jnp.zeros(roster.size)


def averaging(
    config: Options,
    roster: Roster,
    weights: np.ndarray,
    *,
    init_client: Callable[[Client, Shared, Array], Own] | None = None,
) -> Algorithm:
    """The rounds: clients go down their losses, and the server averages.

    Parameters
    ----------
    config, roster
        Of the fit.
    weights
        Of the clients, shape ``(N,)``.
    init_client
        Makes a client's private state, where its energy is tilted.
    """
    optimizer, known = server_optimizer(config), roster.size if sends_slope(config, roster) else 0
    fairness = None if config.fairness is None else Fairness(config.fairness, roster, weights)
    update = partial(local_update, config, roster, weights, fairness)

    def init(key: Array, previous: ProbeState | None) -> FedAvgState:
        position = first_position(config, roster, key) if previous is None else previous.position
        step, nothing = _first_step(config, previous), jnp.zeros(known)
        losses = jnp.full(0 if fairness is None else fairness.num_groups, jnp.nan)
        zero, way, drawn = jnp.zeros(()), jnp.zeros(roster.size), _drawn(config, weights, key)
        return FedAvgState(position, optimizer.init(position), step, zero, nothing, nothing, zero, way, losses, drawn)

    def broadcast(state: FedAvgState) -> tuple[Shared, Told]:
        factor = () if fairness is None else fairness.factors(state.losses)
        return Shared(state.position, _size(config, state)), Told(factor, state.drawn if state.drawn.size else ())

    def aggregate(state: FedAvgState, replies: Replies, key: Array) -> tuple[FedAvgState, Info]:
        after, info = _averaged(config, roster, fairness, state, replies)
        return after._replace(drawn=_drawn(config, weights, key)), info

    return Algorithm(
        name="FedAvg" if config.proximal == 0.0 else "FedProx",
        init=init,
        broadcast=broadcast,
        init_client=init_client or (start_personal if is_personalised(config) else start_own),
        updates={config.solver: Update(update, no_inputs if config.batch_size is None else its_key)},
        aggregate=aggregate,
        participants=everybody if config.scheme == "full" else lambda state: state.drawn > 0.0,
        asked_at=lambda shared: shared.position,
    )


def _drawn(config: Options, weights: np.ndarray, key: Array) -> Array:
    """How often each client is drawn for a round, by its weight and with replacement; empty where all take part."""
    if config.num_active is None:
        return jnp.zeros(0)
    taken = jax.random.choice(key_for(key, Purpose.TAKEN), len(weights), (config.num_active,), p=jnp.asarray(weights))
    return jnp.zeros(len(weights)).at[taken].add(1.0)


def _size(config: Options, state: FedAvgState) -> Array:
    """Of the clients' steps in this round."""
    return (
        state.step if config.schedule is None else state.step * jnp.asarray(config.schedule(state.round), jnp.float64)
    )


def _averaged(
    config: Options, roster: Roster, fairness: Fairness | None, state: FedAvgState, replies: Replies
) -> tuple[FedAvgState, Info]:
    """The server's step along the clients' mean delta, and what their gradients tell of the way."""
    total: Message = replies.total
    optimizer, num_rows = server_optimizer(config), float(roster.rows.sum())
    position, kept, taken = server_step(optimizer, state.optimizer, state.position, total.delta, total.weight)
    share = jnp.where(total.weight > 0, total.weight, jnp.nan)
    slope, move = total.slope / share, position - state.position
    told = move[: slope.size]
    complete = jnp.all(replies.used) & (config.scheme == "full")
    led = total.delta / share
    length = jnp.sqrt(jnp.sum(led**2))
    pull = length / jnp.maximum(_size(config, state), 1e-300)
    way = _way(state, slope, told, pull, _size(config, state), complete)
    norm = jnp.sqrt(jnp.sum(slope**2)) / num_rows if slope.size else jnp.full((), jnp.nan)
    info = {
        "objective": total.value / share,
        "gradient_norm": norm,
        "moved": jnp.where(taken, jnp.sqrt(jnp.mean(move**2)), jnp.nan),
        "change": way.change,
        "left": way.left,
        "pull": pull,
        "alignment": led @ state.way / (length * jnp.sqrt(jnp.sum(state.way**2))),
        "step_size": state.step,
        "converged": way.left <= min(config.tolerance, ERROR_LIMIT),
        "hopeless": ~taken,
    }
    losses, step = state.losses, state.step
    if fairness is not None:
        losses = fairness.heard(total.losses, losses)
        ranks = fairness.ranks(losses)
        complete &= jnp.all(ranks == fairness.ranks(state.losses))  # else the next gradient is that of other weights
        info |= {"group_loss": losses, "group_rank": ranks}
    if config.probes and config.step_size is None:  # the curvature may have grown since the start
        step = jnp.minimum(step, _STEP * num_rows / jnp.maximum(way.curvature, 1e-300))
    slope = jnp.where(complete, slope, jnp.nan)
    after = FedAvgState(position, kept, step, state.round + 1.0, slope, told, pull, led, losses, state.drawn)
    return jax.tree.map(lambda new, old: jnp.where(taken, new, old), after, state), info


def _first_step(config: Options, probed: ProbeState | None) -> Array:
    """Of plain gradient steps, from the largest curvature; one where clients have an optimiser of their own."""
    if probed is None:
        return jnp.ones(())
    if config.step_size is not None:
        return jnp.asarray(config.step_size)
    return _STEP / jnp.where(probed.curvature > 0.0, probed.curvature, 1.0)  # a flat start tells nothing


class _Way(NamedTuple):
    """What gradients at both ends of the last move tell, see :func:`_way`.

    Attributes
    ----------
    change
        The move's length in posterior sds.
    left
        Estimated distance that was left after it, in posterior sds.
    curvature
        Of the mean loss along it; zero where it is not known.
    """

    change: Array
    left: Array
    curvature: Array


def _way(state: FedAvgState, slope: Array, move: Array, pull: Array, size: Array, complete: Array) -> _Way:
    """Lengths in posterior sds without a Hessian: ``sqrt(move' H move / d)``, with ``H move`` the gradient's change.

    Moves that shrink by a ratio r leave ``r / (1 - r)`` of the last one. Moves also shrink as steps do, at the clients
    or at the server, which brings nothing nearer: the ratio is the larger one of the moves' and of the ``pull``'s. Ways
    of the length of their rounding have no ratio.
    """
    unknown = jnp.full((), jnp.inf)
    if slope.size == 0:
        return _Way(unknown, unknown, jnp.zeros(()))
    square, far, farther = (slope - state.slope) @ state.move, jnp.sum(move**2), jnp.sum(state.move**2)
    known = complete & (state.round > 0) & (square >= 0.0)
    change = jnp.where(known, jnp.sqrt(jnp.where(known, square, 0.0) / slope.size), jnp.inf)
    moved = farther > 0.0
    rounding = _ROUNDING * jnp.sqrt(jnp.sum(state.position**2))
    moves = _ratio(jnp.sqrt(far), jnp.sqrt(farther), rounding)
    ratio = jnp.maximum(moves, _ratio(pull, state.pull, rounding / jnp.maximum(size, 1e-300)))
    left = jnp.where(ratio < _SLOWEST, change * ratio / (1.0 - jnp.minimum(ratio, _SLOWEST)), jnp.inf)
    return _Way(change, left, jnp.where(known & moved, square / jnp.where(moved, farther, 1.0), 0.0))


def _ratio(new: Array, old: Array, rounding: Array) -> Array:
    """Of two lengths, as large as their rounding lets it be; not known where the old one is all rounding."""
    sure = old - rounding
    rest = (new == 0.0) & (rounding == 0.0)  # at the origin nothing is rounded away
    return jnp.where(sure > 0.0, (new + rounding) / jnp.where(sure > 0.0, sure, 1.0), jnp.where(rest, 0.0, jnp.inf))
