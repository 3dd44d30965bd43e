"""Rounds that are draws: blocks of them, each block one compiled program where the executor can fuse rounds.

A draw is the chain's position at a synchronisation, every ``stride`` rounds. Diagnostics are averaged over a block
(result codes: the worst), so that ten thousand rounds leave a few dozen records.
"""

from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array

from fedbayes.contract.algorithm import Info, Key, Phase, Private, Recording, Replies, Reply, State, Update
from fedbayes.errors import usable
from fedbayes.problem.client import Client
from fedbayes.rounds.exchange import sum_of_used
from fedbayes.rounds.programs import client_key
from fedbayes.runtime.compiling import num_bytes

_BLOCKS = 50  # of a run: after each, progress, checkpoint and diagnostics


class Pace(NamedTuple):
    """How a budget of rounds is spent: draws, rounds from one to the next, and draws per block."""

    draws: int
    stride: int
    block: int


def pace(recording: Recording, state: State, budget: int, num_draws: int) -> Pace:
    """The pace of the chains; fewer rounds per draw, then fewer draws, where the budget of rounds asks for it."""
    wanted = recording.num_warmup + num_draws
    stride = max(1, min(recording.stride(state), budget // wanted))
    draws = min(wanted, budget)
    if draws <= recording.num_warmup:
        raise ValueError(
            f"{budget} rounds leave no draws after the {recording.num_warmup} of the warm-up. Raise `num_rounds`, or "
            "write a smaller `num_warmup`."
        )
    return Pace(draws, stride, -(-draws // _BLOCKS))


class FusedRounds(NamedTuple):
    """What a block of fused rounds leaves behind.

    Attributes
    ----------
    state
        The server's.
    states
        The clients' private ones, per bucket; they stay with the executor, as ``private`` does.
    theta
        Draws of the unconstrained globals, shape ``(draw, chain, d)``.
    private
        The clients' own parts of the draws, per bucket ``(draw, client, chain, m)``.
    totals
        Sums of the diagnostics over rounds, and maxima of the integers among them.
    """

    state: State
    states: list[Private]
    theta: Array
    private: list[Array]
    totals: Info


def fused_block(
    phase: Phase, update: Update, batched: Callable, members: Sequence[Sequence[int]], devices: int, block: int
) -> Callable:
    """``size`` draws of ``stride`` rounds each as one program, for any ``size <= block``.

    Parameters
    ----------
    phase
        A phase whose rounds are draws.
    update
        Its only update.
    batched
        The same for clients along a leading axis.
    members
        The places of each bucket's clients.
    devices
        Number of devices among which ``batched`` divides the clients.
    block
        Largest number of draws.

    Returns
    -------
    callable
        ``(state, states, clients, secrets, key, first_round, stride, size) -> FusedRounds``.
    """
    algorithm, recording = phase.algorithm, phase.recording
    assert recording is not None  # noqa: S101
    back = np.argsort(np.concatenate(members))

    def ask(bucket: Sequence[int], broadcast: tuple, mine: Private, clients: Client, secrets: Key, key: Key) -> Any:
        """The replies of one bucket's clients."""
        places, (shared, personal) = np.asarray(bucket), broadcast
        keys = jax.vmap(lambda secret: client_key(secret, key))(secrets[places])
        inputs = jax.vmap(lambda own: update.inputs(own, shared, clients.num_locals))(keys)
        addressed = jax.tree.map(lambda leaf: leaf[places], personal)
        mine, addressed, clients, inputs = _filled((mine, addressed, clients, inputs), len(places), devices)
        return jax.tree.map(lambda leaf: leaf[: len(places)], batched(shared, addressed, mine, clients, inputs))

    def one_round(state: State, states: list, clients: list, secrets: Key, key: Key) -> tuple[State, list, Info]:
        broadcast = algorithm.broadcast(state)
        asked = [ask(b, broadcast, mine, c, secrets, key) for b, mine, c in zip(members, states, clients, strict=True)]
        reply = jax.tree.map(lambda *leaves: jnp.concatenate(leaves)[back], *(reply for reply, _ in asked))
        used = usable(reply.code)
        state, info = algorithm.aggregate(state, Replies(sum_of_used(reply.total, used), reply.each, used), key)
        info |= {**reply.info, "code": reply.code, **_sizes(broadcast, reply, key)}
        return state, [after for _, after in asked], info

    def draw_of(state: State, states: list) -> tuple[Array, list]:
        shared, _ = algorithm.broadcast(state)
        return recording.draw(state), [jax.vmap(recording.private_draw, (None, 0))(shared, mine) for mine in states]

    def run(
        state: State,
        states: list,
        clients: list,
        secrets: Key,
        key: Key,
        first: Array,
        stride: Array,
        size: Array,
    ) -> FusedRounds:
        shapes = jax.eval_shape(one_round, state, states, clients, secrets, key)[2]
        totals = jax.tree.map(lambda leaf: jnp.zeros(leaf.shape, leaf.dtype), shapes)

        def rounds(i: Array, carry: tuple) -> tuple:
            state, states, totals = carry
            state, states, info = one_round(state, states, clients, secrets, jax.random.fold_in(key, i))
            return state, states, jax.tree.map(_accumulated, totals, info)

        def draw(i: Array, carry: tuple) -> tuple:
            *before, drawn = carry
            begin = first + i * stride
            state, states, totals = jax.lax.fori_loop(begin, begin + stride, rounds, tuple(before))
            drawn = jax.tree.map(lambda all_, one: all_.at[i].set(one), drawn, draw_of(state, states))
            return state, states, totals, drawn

        empty = jax.tree.map(
            lambda leaf: jnp.zeros((block, *leaf.shape), leaf.dtype), jax.eval_shape(draw_of, state, states)
        )
        state, states, totals, drawn = jax.lax.fori_loop(0, size, draw, (state, states, totals, empty))
        theta, private = drawn
        return FusedRounds(state, states, theta, private, totals)

    return run


def _sizes(broadcast: tuple, reply: Reply, key: Key) -> Info:
    """Bytes to and from one client, from the shapes alone: inside a fused program nothing is sent."""
    num_clients, (shared, personal) = len(reply.code), broadcast
    down = num_bytes(shared) + num_bytes(personal) // num_clients + num_bytes(jax.random.key_data(key))
    return {"bytes_down": jnp.asarray(down), "bytes_up": jnp.asarray(num_bytes(reply) // num_clients)}


def _filled(tree: Any, num: int, devices: int) -> Any:
    """A leading axis of ``num`` clients, with copies of the first ones so that every device has as many."""
    if num % devices == 0:
        return tree
    places = np.resize(np.arange(num), -(-num // devices) * devices)
    return jax.tree.map(lambda leaf: leaf[places], tree)


def _accumulated(so_far: Array, value: Array) -> Array:
    return so_far + value if jnp.issubdtype(value.dtype, jnp.floating) else jnp.maximum(so_far, value)


def summary(records: Sequence[Mapping[str, np.ndarray]]) -> dict[str, np.ndarray]:
    """One record for many rounds: means of floats, maxima of codes, sums of seconds, whether ever active."""
    # the diagnostics of a client that sat out a round count as zero there
    reduce: dict[str, Callable] = {"f": lambda a: np.nan_to_num(a).mean(axis=0), "U": lambda a: a[-1]}
    merged = {}
    for name in records[0]:
        values = np.stack([record[name] for record in records])
        merged[name] = reduce.get(values.dtype.kind, lambda a: a.max(axis=0))(values)
    for name in ("seconds", "rounds", "bytes_down", "bytes_up"):
        merged[name] = np.sum([record[name] for record in records])
    return merged
