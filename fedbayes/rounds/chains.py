"""Rounds of a sampler: blocks of draws, each block one compiled program where the executor can fuse rounds.

A draw is the chain's position at a synchronisation, every ``stride`` rounds. Diagnostics are averaged over a block
(result codes: the worst), so that ten thousand rounds leave a few dozen records.
"""

import time
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array

from fedbayes.algorithm import FederatedAlgorithm, Sampling
from fedbayes.errors import usable
from fedbayes.problem.problem import Problem
from fedbayes.rounds.executors import Batched

if TYPE_CHECKING:
    from fedbayes.rounds.loop import Progressing

_BLOCKS = 50  # progress, checkpoint and diagnostics this often in a run


class DrawBlock(NamedTuple):
    """Consecutive draws.

    Attributes
    ----------
    theta
        Unconstrained globals, shape ``(draws, replicates, d)``.
    private
        The clients' own parts, per bucket, ``(draws, clients, replicates, m)``.
    """

    theta: Any
    private: list[Any]


class Pace(NamedTuple):
    """How a budget of rounds is spent: draws, rounds from one to the next, and draws per block."""

    draws: int
    stride: int
    block: int


def pace(sampling: Sampling, state: Any, budget: int, num_draws: int) -> Pace:
    """The pace of a sampler; fewer rounds per draw, then fewer draws, where the budget of rounds asks for it."""
    wanted = sampling.num_warmup + num_draws
    stride = max(1, min(sampling.stride(state), budget // wanted))
    draws = min(wanted, budget)
    if draws <= sampling.num_warmup:
        raise ValueError(
            f"{budget} rounds leave no draws after the {sampling.num_warmup} of the warm-up. Raise `num_rounds`, or "
            "write a smaller `num_warmup`."
        )
    return Pace(draws, stride, -(-draws // _BLOCKS))


def concatenated(blocks: list[DrawBlock]) -> DrawBlock:
    """All draws as one block."""
    return jax.tree.map(lambda *leaves: np.concatenate(leaves), *blocks)


def fused_block(algorithm: FederatedAlgorithm, executor: Batched, problem: Problem, block: int) -> Callable:
    """``size`` draws of ``stride`` rounds each as one compiled program, for any ``size <= block``.

    Returns
    -------
    callable
        ``(state, states, clients, key, first_round, stride, size) -> (state, states, draws, totals)``; ``totals`` are
        sums of the diagnostics over rounds, and maxima of the integers among them.
    """
    (update,) = algorithm.local_updates.values()
    batched = executor.batched(update)
    devices = 1 if executor.mesh is None else executor.mesh.size
    back = np.argsort(np.concatenate([bucket.members for bucket in problem.buckets]))

    def replies(state: Any, states: list, clients: list, key: Array) -> tuple[Any, list, Any]:
        shared, personal = algorithm.broadcast(state)
        answers, after = [], []
        for bucket, mine, client in zip(problem.buckets, states, clients, strict=True):
            num, addressed = len(bucket.members), jax.tree.map(lambda leaf, at=bucket.members: leaf[at], personal)
            mine, addressed, client = _filled((mine, addressed, client), num, devices)
            answer = batched(shared, addressed, mine, client, key)
            message, new, info = jax.tree.map(lambda leaf, n=num: leaf[:n], answer)
            answers.append((message, info))
            after.append(new)
        messages, infos = jax.tree.map(lambda *leaves: jnp.concatenate(leaves)[back], *answers)
        return messages, after, infos

    def one_round(state: Any, states: list, clients: list, key: Array) -> tuple[Any, list, dict]:
        messages, states, infos = replies(state, states, clients, key)
        used = usable(infos["code"])
        state, info = algorithm.aggregate(state, total(messages, used, jnp), jnp.sum(used, axis=0), key)
        return state, states, {**info, **infos}

    def run(
        state: Any, states: list, clients: list, key: Array, first: Array, stride: Array, size: Array
    ) -> tuple[Any, list, DrawBlock, dict]:
        shapes = jax.eval_shape(one_round, state, states, clients, key)[2]
        totals = jax.tree.map(lambda leaf: jnp.zeros(leaf.shape, leaf.dtype), shapes)

        def rounds(i: Array, carry: tuple) -> tuple:
            state, states, totals = carry
            state, states, info = one_round(state, states, clients, jax.random.fold_in(key, i))
            return state, states, jax.tree.map(_accumulated, totals, info)

        def draw(i: Array, carry: tuple) -> tuple:
            *before, drawn = carry
            begin = first + i * stride
            state, states, totals = jax.lax.fori_loop(begin, begin + stride, rounds, tuple(before))
            drawn = jax.tree.map(lambda all_, one: all_.at[i].set(one), drawn, draw_of(algorithm, state, states))
            return state, states, totals, drawn

        empty = jax.tree.map(
            lambda leaf: jnp.zeros((block, *leaf.shape), leaf.dtype),
            jax.eval_shape(lambda *now: draw_of(algorithm, *now), state, states),
        )
        state, states, totals, drawn = jax.lax.fori_loop(0, size, draw, (state, states, totals, empty))
        return state, states, drawn, totals

    return jax.jit(run)


def _filled(tree: Any, num: int, devices: int) -> Any:
    """A leading axis of ``num`` clients, with copies of the first ones so that every device has as many."""
    if num % devices == 0:
        return tree
    places = np.resize(np.arange(num), -(-num // devices) * devices)
    return jax.tree.map(lambda leaf: leaf[places], tree)


def draw_of(algorithm: FederatedAlgorithm, state: Any, states: list) -> DrawBlock:
    """The draw at a synchronisation."""
    if algorithm.draw is None:
        raise TypeError(f"The algorithm '{algorithm.name}' is no sampler: it has no `draw`.")
    private = []
    if algorithm.private_draw is not None:
        shared, _ = algorithm.broadcast(state)
        private = [jax.vmap(algorithm.private_draw, (None, 0))(shared, mine) for mine in states]
    return DrawBlock(algorithm.draw(state), private)


def total(messages: Any, used: Any, xp: Any) -> Any:
    """The sum of the used messages over the leading axis of clients; ``xp`` is NumPy or its JAX twin."""

    def add(leaf: Any) -> Any:
        mask = used.reshape(used.shape + (1,) * (leaf.ndim - used.ndim))
        return xp.sum(xp.where(mask, leaf, 0), axis=0)

    return jax.tree.map(add, messages)


def _accumulated(so_far: Array, value: Array) -> Array:
    return so_far + value if jnp.issubdtype(value.dtype, jnp.floating) else jnp.maximum(so_far, value)


def summary(records: Sequence[Mapping[str, np.ndarray]]) -> dict[str, np.ndarray]:
    """One record for many rounds: means of floats, maxima of codes, the sum of seconds, whether ever active."""
    # the diagnostics of a client that sat out a round count as zero there
    reduce: dict[str, Callable] = {"f": lambda a: np.nan_to_num(a).mean(axis=0), "U": lambda a: a[-1]}
    merged = {}
    for name in records[0]:
        values = np.stack([record[name] for record in records])
        merged[name] = reduce.get(values.dtype.kind, lambda a: a.max(axis=0))(values)
    merged["seconds"] = np.sum([record["seconds"] for record in records])
    return merged | {"rounds": np.asarray(len(records))}


class Fused:
    """Blocks of draws by one compiled program."""

    def __init__(self, algorithm: FederatedAlgorithm, executor: Batched, problem: Problem, block: int) -> None:
        self.algorithm, self.problem = algorithm, problem
        self.program = fused_block(algorithm, executor, problem, block)

    def __call__(self, current: "Progressing", key: Array, stride: int, size: int) -> None:
        """Run one block; ``current`` is changed in place."""
        started, num = time.perf_counter(), len(self.problem.names)
        clients = [bucket.clients for bucket in self.problem.buckets]
        done = current.rounds_in_phase
        answer = self.program(current.state, current.clients, clients, key, done, stride, size)
        current.state, current.clients, drawn, totals = jax.tree.map(np.asarray, answer)
        current.draws.append(jax.tree.map(lambda leaf: leaf[:size], drawn))
        rounds = size * stride
        record = {name: leaf / rounds if leaf.dtype.kind == "f" else leaf for name, leaf in totals.items()}
        del record["converged"]
        record |= {"solver": np.asarray(current.variants), "active": np.ones(num, bool)}
        record |= {"phase": np.asarray(self.algorithm.name), "rounds": np.asarray(rounds)}
        current.history.append(record | {"seconds": np.asarray(time.perf_counter() - started)})
        current.rounds_in_phase += rounds
