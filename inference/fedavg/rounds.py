"""The server's half of federated averaging: an optimiser descends along the clients' mean delta."""

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import optax
from jax import Array

from fedbayes.algorithm import Algorithm, Info, Replies, Reply, Update, its_key, no_inputs
from fedbayes.errors import ResultCode
from fedbayes.inference.fedavg.clients import largest_curvature, make_descent, make_energy, start_locals
from fedbayes.inference.fedavg.options import Options
from fedbayes.inference.local.tilted import cold_start
from fedbayes.inference.options import DENSE_LIMIT, given_start
from fedbayes.problem.clients import Client
from fedbayes.problem.roster import Roster

_STEP = 0.5  # of plain gradient steps by default, over the largest curvature at the start
_SLOWEST = 0.999  # ratio of two rounds' moves that counts as getting nearer


class Shared(NamedTuple):
    """The broadcast: the server's position ``(d,)``, and the factor of the clients' steps in this round."""

    position: Array
    scale: Array


class Message(NamedTuple):
    """What a client adds to the server's sums.

    Attributes
    ----------
    delta
        From where its steps ended to the server, times its weight, shape ``(d,)``.
    weight
        Its weight p.
    value
        Its energy at the server's position; with mini-batches the mean over its steps.
    slope
        The energy's gradient there, shape ``(d,)``; empty where it isn't sent.
    """

    delta: Array
    weight: Array
    value: Array
    slope: Array


class ProbeState(NamedTuple):
    """The start, ``(d,)``, and the clients' largest curvatures there, ``(K,)``."""

    position: Array
    curvatures: Array


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
        The gradient that the last round reported, and how far it moved the server, ``(d,)``; empty where unknown.
    """

    position: Array
    optimizer: Any
    step: Array
    round: Array
    slope: Array
    move: Array


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


def sends_slope(config: Options, roster: Roster) -> bool:
    """Whether clients send the gradient at the server's position, which makes a message twice as long."""
    return roster.size <= DENSE_LIMIT and config.batch_size is None


def first_position(config: Options, roster: Roster, key: Array) -> Array:
    """Where the rounds begin."""
    if not isinstance(config.init, str):
        return jnp.asarray(given_start(config.init, roster))
    if config.init == "random":  # as NumPyro's samplers
        return jax.random.uniform(key, (roster.size,), jnp.float64, -2.0, 2.0)
    return cold_start(roster.size)


def probing(config: Options, roster: Roster, weights: np.ndarray) -> Algorithm:
    """One round that asks for the clients' largest curvatures at the start."""

    def probe(position: Array, personal: tuple[()], z: Array, client: Client, inputs: tuple[()]) -> tuple[Reply, Array]:
        energy = make_energy(config, roster, weights, client)
        found = largest_curvature(energy, position, z, float(roster.rows.sum()))
        code = jnp.where(jnp.isfinite(found), ResultCode.OK, ResultCode.NOT_FINITE)
        return Reply(each=found, code=code, info={"curvature": found}), z

    def aggregate(state: ProbeState, replies: Replies, key: Array) -> tuple[ProbeState, Info]:
        return state._replace(curvatures=jnp.where(replies.used, replies.each, jnp.nan)), {"converged": jnp.array(True)}

    return Algorithm(
        name="probe",
        init=lambda key, previous: ProbeState(
            first_position(config, roster, key), jnp.full(roster.num_clients, jnp.nan)
        ),
        broadcast=lambda state: (state.position, ()),
        init_client=start_locals,
        updates={"power": Update(probe, no_inputs)},
        aggregate=aggregate,
    )


def averaging(config: Options, roster: Roster, weights: np.ndarray) -> Algorithm:
    """The rounds: clients go down their losses, and the server averages."""
    size, optimizer, reports = roster.size, server_optimizer(config), sends_slope(config, roster)
    descent = make_descent(config, roster)
    known, num_rows = size if reports else 0, float(roster.rows.sum())

    def init(key: Array, previous: ProbeState | None) -> FedAvgState:
        position = first_position(config, roster, key) if previous is None else previous.position
        step, nothing = _first_step(config, previous), jnp.zeros(known)
        return FedAvgState(position, optimizer.init(position), step, jnp.zeros(()), nothing, nothing)

    def broadcast(state: FedAvgState) -> tuple[Shared, tuple[()]]:
        factor = 1.0 if config.schedule is None else jnp.asarray(config.schedule(state.round), jnp.float64)
        return Shared(state.position, factor * state.step), ()

    def update(shared: Shared, personal: tuple[()], z: Array, client: Client, key: Any) -> tuple[Reply, Array]:
        energy = make_energy(config, roster, weights, client)
        done = descent(energy, shared.position, z, shared.scale, key)
        delta, weight = shared.position - done.position, energy.weight
        fine = jnp.all(jnp.isfinite(delta)) & jnp.isfinite(done.value)
        code = jnp.where(fine, ResultCode.OK, ResultCode.NOT_FINITE)
        total = Message(weight * delta, weight, done.value, done.slope[:known])
        reply = Reply(total=total, code=code, info={"drift": jnp.sqrt(jnp.mean(delta**2))})
        return reply, jnp.where(fine, done.carry, z)

    def aggregate(state: FedAvgState, replies: Replies, key: Array) -> tuple[FedAvgState, Info]:
        total: Message = replies.total
        position, kept, taken = server_step(optimizer, state.optimizer, state.position, total.delta, total.weight)
        share = jnp.where(total.weight > 0, total.weight, jnp.nan)
        slope, move = total.slope / share, position - state.position
        way = _way(state, slope, move[:known], jnp.all(replies.used))
        info = {
            "objective": total.value / share,
            "gradient_norm": jnp.sqrt(jnp.sum(slope**2)) / num_rows if reports else jnp.full((), jnp.nan),
            "moved": jnp.where(taken, jnp.sqrt(jnp.mean(move**2)), jnp.nan),
            "change": way.change,
            "left": way.left,
            "step_size": state.step,
            "converged": way.left <= config.tolerance,
            "hopeless": ~taken,
        }
        step = state.step
        if config.probes and config.step_size is None:  # the curvature may have grown since the start
            step = jnp.minimum(step, _STEP * num_rows / jnp.maximum(way.curvature, 1e-300))
        after = FedAvgState(position, kept, step, state.round + 1.0, slope, move[:known])
        return jax.tree.map(lambda new, old: jnp.where(taken, new, old), after, state), info

    return Algorithm(
        name="FedAvg" if config.proximal == 0.0 else "FedProx",
        init=init,
        broadcast=broadcast,
        init_client=start_locals,
        updates={config.solver: Update(update, no_inputs if config.batch_size is None else its_key)},
        aggregate=aggregate,
    )


def _first_step(config: Options, probed: ProbeState | None) -> Array:
    """Of plain gradient steps, from the clients' curvatures; one where they have an optimiser of their own."""
    if probed is None:
        return jnp.ones(())
    if config.step_size is not None:
        return jnp.asarray(config.step_size)
    most = jnp.nanmax(probed.curvatures)
    return _STEP / jnp.where(most > 0.0, most, 1.0)  # a flat start tells nothing


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


def _way(state: FedAvgState, slope: Array, move: Array, complete: Array) -> _Way:
    """Lengths in posterior sds without a Hessian: ``sqrt(move' H move / d)``, with ``H move`` the gradient's change.

    Moves that shrink by a ratio r leave ``r / (1 - r)`` of the last one.
    """
    unknown = jnp.full((), jnp.inf)
    if slope.size == 0:
        return _Way(unknown, unknown, jnp.zeros(()))
    square, far, farther = (slope - state.slope) @ state.move, jnp.sum(move**2), jnp.sum(state.move**2)
    known = complete & (state.round > 0) & (square >= 0.0)
    change = jnp.where(known, jnp.sqrt(jnp.where(known, square, 0.0) / slope.size), jnp.inf)
    moved = farther > 0.0
    ratio = jnp.sqrt(far / jnp.where(moved, farther, 1.0))
    left = jnp.where(ratio < _SLOWEST, change * ratio / (1.0 - jnp.minimum(ratio, _SLOWEST)), jnp.inf)
    return _Way(change, left, jnp.where(known & moved, square / jnp.where(moved, farther, 1.0), 0.0))
