"""Many rounds in one program: what a round costs beside its arithmetic, milliseconds of the host, is paid once for all.

Both programs consist of the same round, with the keys, the updates and the aggregation of rounds one by one.
"""

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array

from fedbayes.contract.algorithm import Info, Key, Phase, Private, Replies, Reply, State, Teams, Update
from fedbayes.errors import usable
from fedbayes.problem.client import Client
from fedbayes.rounds.exchange import told
from fedbayes.rounds.executors.executor import summed
from fedbayes.rounds.programs import client_key
from fedbayes.runtime.compiling import num_bytes

OneRound = Callable[[State, list, list, Key, Key], tuple[State, list, Info]]
"""``(state, states, clients, secrets, key) -> (state, states, record)``, the clients' parts in a list of buckets."""


def round_of(
    phase: Phase, update: Update, batched: Callable[..., Callable], members: Sequence[Sequence[int]], devices: int
) -> OneRound:
    """A round of all clients, of which each is asked.

    Parameters
    ----------
    phase
        The phase.
    update
        Its only update.
    batched
        ``(teams) -> run``: the update for clients along a leading axis, to which ``shared`` belongs with teams.
    members
        The places of each bucket's clients.
    devices
        Number of devices among which ``run`` divides the clients.
    """
    algorithm, back = phase.algorithm, np.argsort(np.concatenate(members))

    def ask(bucket: Sequence[int], broadcast: tuple, mine: Private, clients: Client, secrets: Key, key: Key) -> Any:
        """The replies of one bucket's clients, and what they keep."""
        places, (shared, personal) = np.asarray(bucket), broadcast
        teams = isinstance(shared, Teams)
        keys = jax.vmap(lambda secret: client_key(secret, key))(secrets[places])
        inputs = jax.vmap(lambda own: update.inputs(own, shared, clients.num_locals))(keys)
        addressed = jax.tree.map(lambda leaf: leaf[places], personal)
        part = told(shared, places) if teams else ()
        each = (part, addressed, mine, clients, inputs)
        part, addressed, mine, clients, inputs = _filled(each, len(places), devices)
        found = batched(teams=teams)(part if teams else shared, addressed, mine, clients, inputs)
        return jax.tree.map(lambda leaf: leaf[: len(places)], found)

    def one_round(state: State, states: list, clients: list, secrets: Key, key: Key) -> tuple[State, list, Info]:
        broadcast = algorithm.broadcast(state)
        asked = [ask(b, broadcast, mine, c, secrets, key) for b, mine, c in zip(members, states, clients, strict=True)]
        reply = jax.tree.map(lambda *leaves: jnp.concatenate(leaves)[back], *(reply for reply, _ in asked))
        everybody = np.arange(len(back))
        total = summed(reply, np.ones(len(back), bool), broadcast[0], everybody)
        state, info = algorithm.aggregate(state, Replies(total, reply.each, usable(reply.code)), key)
        info |= {**reply.info, "code": reply.code, **_sizes(broadcast, reply, key)}
        return state, [after for _, after in asked], info

    return one_round


class SeveralRounds(NamedTuple):
    """What rounds in one program leave behind.

    Attributes
    ----------
    state
        The server's.
    states
        The clients' private ones, per bucket; they stay with the executor.
    records
        What each round brought, leading axis of the program's largest number of rounds.
    done
        How many rounds were made.
    """

    state: State
    states: list[Private]
    records: Info
    done: Array


def several_rounds(one_round: OneRound, most: int) -> Callable:
    """Up to ``most`` rounds as one program, which ends sooner where the loop over rounds would.

    Returns
    -------
    callable
        ``(state, states, clients, secrets, key, first_round, size) -> SeveralRounds``.
    """

    def run(
        state: State, states: list, clients: list, secrets: Key, key: Key, first: Array, size: Array
    ) -> SeveralRounds:
        *after, record = jax.eval_shape(one_round, state, states, clients, secrets, key)
        state, states = jax.tree.map(_wide, (state, states), tuple(after))
        empty = jax.tree.map(lambda leaf: jnp.zeros((most, *leaf.shape), leaf.dtype), record)

        def goes_on(carry: tuple) -> Array:
            done, over, *_ = carry
            return (done < size) & ~over

        def another(carry: tuple) -> tuple:
            done, _, state, states, records = carry
            state, states, record = one_round(state, states, clients, secrets, jax.random.fold_in(key, first + done))
            records = jax.tree.map(lambda all_, one: all_.at[done].set(one), records, record)
            return done + 1, _is_over(record), state, states, records

        begin = (jnp.zeros((), jnp.int64), jnp.zeros((), bool), state, states, empty)
        done, _, state, states, records = jax.lax.while_loop(goes_on, another, begin)
        return SeveralRounds(state, states, records, done)

    return run


def _wide(leaf: Array, after: jax.ShapeDtypeStruct) -> Array:
    """A number as wide as a round leaves it: an optimiser's state may begin with narrower ones."""
    return leaf if leaf.dtype == after.dtype else leaf.astype(after.dtype)


def _is_over(record: Info) -> Array:
    """Whether the loop over rounds ends after this one: it has arrived, it can't, or nobody could be heard."""
    lost = ~jnp.any(usable(record["code"])) & ~jnp.all(record.get("proper", True))
    return jnp.all(record["converged"]) | jnp.any(record.get("hopeless", False)) | lost


class FusedRounds(NamedTuple):
    """What a block of fused rounds that are draws leaves behind.

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


def fused_block(phase: Phase, one_round: OneRound, block: int) -> Callable:
    """``size`` draws of ``stride`` rounds each as one program, for any ``size <= block``.

    Parameters
    ----------
    phase
        A phase whose rounds are draws.
    one_round
        Of this phase.
    block
        Largest number of draws.

    Returns
    -------
    callable
        ``(state, states, clients, secrets, key, first_round, stride, size) -> FusedRounds``.
    """
    algorithm, recording = phase.algorithm, phase.recording
    assert recording is not None  # noqa: S101

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
    if isinstance(shared, Teams):  # a client is told its own team's part
        shared = jax.tree.map(lambda leaf: leaf[:, 0], shared.shared)
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
