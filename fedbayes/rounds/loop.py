"""The only loop: broadcast, local updates, aggregate, until the algorithm has converged or its rounds are spent."""

import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

import jax
import numpy as np
from jax import Array

from fedbayes.algorithm import FederatedAlgorithm, Phase, Sampling
from fedbayes.errors import FederatedError, ResultCode, usable
from fedbayes.problem.problem import Problem
from fedbayes.rounds.chains import DrawBlock, Fused, Pace, draw_of, pace, summary, total
from fedbayes.rounds.checkpoint import Checkpoint
from fedbayes.rounds.executors import Batched, Executor, Round
from fedbayes.rounds.progress import Progress

Participation = float | Callable[[int, Array], np.ndarray]


@dataclass
class Progressing:
    """Where a fit stands: all that a checkpoint holds.

    Attributes
    ----------
    phase
        Index of the running phase.
    rounds_in_phase
        Rounds it has done.
    state
        The server's.
    clients
        The clients' private states, per bucket.
    variants
        Each client's local update.
    quiet
        Clients heard since the last round that changed something.
    converged
        Whether the last phase has converged.
    history
        One record of arrays per round; of a sampler, per block of rounds.
    draws
        A sampler's draws so far.
    """

    phase: int
    rounds_in_phase: int
    state: Any
    clients: list[Any]
    variants: list[str]
    quiet: np.ndarray
    converged: bool
    history: list[dict[str, np.ndarray]] = field(default_factory=list)
    draws: list[DrawBlock] = field(default_factory=list)


def run_phases(
    phases: list[Phase],
    problem: Problem,
    executor: Executor,
    key: Array,
    *,
    num_rounds: int | None,
    participation: Participation,
    progress: Progress,
    checkpoint: Checkpoint | None,
    num_draws: int = 1000,
) -> Progressing:
    """Run the phases of a method one after the other.

    Parameters
    ----------
    phases
        The algorithms with their budgets.
    problem
        Model and clients.
    executor
        Where the clients' updates run.
    key
        Of the whole fit; a round's key is ``fold_in(fold_in(key, phase), round)``.
    num_rounds
        Budget of the main phase; ``None``: its own.
    participation
        Fraction of clients per round, drawn afresh, or ``(round, key) -> mask``.
    progress
        Told of each round.
    checkpoint
        Written after each round, and read at the start.
    num_draws
        Draws that a sampler collects.

    Raises
    ------
    FederatedError
        No client could be used and the global is not proper.
    """
    programs = [CompiledServer(phase.algorithm) for phase in phases]
    current = (
        None if checkpoint is None else checkpoint.read(lambda p: begin_phase(phases, p, None, problem, executor, key))
    )
    if current is None:
        current = begin_phase(phases, 0, None, problem, executor, key)
    while True:
        phase, program = phases[current.phase], programs[current.phase]
        last = current.phase == len(phases) - 1
        budget = num_rounds if phase.main and num_rounds is not None else phase.max_rounds
        if phase.sampling is None:
            progress.start(phase.algorithm.name, None)
            steps = _rounds(program, phase, problem, executor, current, budget, participation, key)
        else:
            phase.sampling.check(current, problem)
            todo = pace(phase.sampling, current.state, budget, num_draws)
            progress.start(phase.algorithm.name, todo.draws * todo.stride)
            steps = _blocks(program, phase.sampling, problem, executor, current, todo, key)
        for _ in steps:
            progress.after_round(current.history[-1])
            if checkpoint is not None:
                checkpoint.write(current)
        if last:
            return current
        current = begin_phase(phases, current.phase + 1, current, problem, executor, key)


def _rounds(
    program: "CompiledServer",
    phase: Phase,
    problem: Problem,
    executor: Executor,
    current: Progressing,
    budget: int,
    participation: Participation,
    key: Array,
) -> Iterator[None]:
    """Round after round, until the algorithm has converged or the budget is spent."""
    while current.rounds_in_phase < budget and not np.all(current.quiet):
        mask = _mask(phase, participation, current, problem, key)
        run_round(program, problem, executor, current, mask, _round_key(key, current))
        yield


def _blocks(
    program: "CompiledServer",
    sampling: Sampling,
    problem: Problem,
    executor: Executor,
    current: Progressing,
    todo: Pace,
    key: Array,
) -> Iterator[None]:
    """A sampler's blocks of draws, fused into one program each where the executor allows it."""
    phase_key = jax.random.fold_in(key, current.phase)
    fused = Fused(program.algorithm, executor, problem, todo.block) if isinstance(executor, Batched) else None
    while (left := todo.draws - sum(len(block.theta) for block in current.draws)) > 0:
        size = min(todo.block, left)
        if fused is not None:
            fused(current, phase_key, todo.stride, size)
        else:
            _unfused_block(program, problem, executor, current, key, todo.stride, size)
        sampling.check(current, problem)
        yield


def _unfused_block(
    program: "CompiledServer",
    problem: Problem,
    executor: Executor,
    current: Progressing,
    key: Array,
    stride: int,
    size: int,
) -> None:
    """The same rounds one by one."""
    before, drawn = len(current.history), []
    for _ in range(size):
        for _ in range(stride):
            needed = program.algorithm.participants
            mask = np.ones(len(problem.names), bool) if needed is None else np.asarray(needed(current.state))
            run_round(program, problem, executor, current, mask, _round_key(key, current))
        drawn.append(jax.tree.map(np.asarray, draw_of(program.algorithm, current.state, current.clients)))
    current.draws.append(jax.tree.map(lambda *leaves: np.stack(leaves), *drawn))
    current.history[before:] = [summary(current.history[before:])]


def begin_phase(
    phases: list[Phase], index: int, before: Progressing | None, problem: Problem, executor: Executor, key: Array
) -> Progressing:
    """A phase before its first round, started from the phase before it."""
    algorithm = phases[index].algorithm
    phase_key = jax.random.fold_in(key, index)
    state = _on_host(jax.jit(algorithm.init)(phase_key, None if before is None else before.state))
    variants = [next(iter(algorithm.local_updates))] * len(problem.names)
    return Progressing(
        phase=index,
        rounds_in_phase=0,
        state=state,
        clients=executor.start(algorithm, problem, state, phase_key),
        variants=variants,
        quiet=np.zeros(len(problem.names), bool),
        converged=False,
        history=[] if before is None else before.history,
    )


def _on_host(tree: Any) -> Any:
    """Plain arrays: JAX's weak types would compile every program a second time in round two."""
    return jax.tree.map(np.asarray, tree)


def _round_key(key: Array, current: Progressing) -> Array:
    return jax.random.fold_in(jax.random.fold_in(key, current.phase), current.rounds_in_phase)


class CompiledServer:
    """The server's half, compiled once."""

    def __init__(self, algorithm: FederatedAlgorithm) -> None:
        self.algorithm = algorithm
        self.broadcast = jax.jit(algorithm.broadcast)
        self.aggregate = jax.jit(algorithm.aggregate)


def run_round(
    program: CompiledServer, problem: Problem, executor: Executor, current: Progressing, mask: np.ndarray, key: Array
) -> None:
    """One round: broadcast, local updates of the clients in ``mask``, aggregate; ``current`` is changed in place."""
    started = time.perf_counter()
    algorithm, num_clients = program.algorithm, len(problem.names)
    active = np.flatnonzero(mask)
    codes = np.full(num_clients, ResultCode.INACTIVE)
    record: dict[str, np.ndarray] = {"code": codes}
    if len(active):
        shared, personal = program.broadcast(current.state)
        replies, current.clients = executor.run(
            algorithm.local_updates, problem, current.clients, Round(shared, personal, key, active, current.variants)
        )
        codes_active = np.asarray(replies.infos["code"])
        full = jax.tree.map(lambda leaf: _scattered(leaf, active, num_clients), replies.messages)
        good = usable(codes_active)
        used = np.zeros((num_clients, *codes_active.shape[1:]), bool)
        used[active] = good
        codes = np.full(used.shape, ResultCode.INACTIVE)
        codes[active] = codes_active
        messages, used = _reduced(algorithm, full, used)
        current.state, info = _on_host(program.aggregate(current.state, messages, used, key))
        infos = {name: _scattered_info(np.asarray(leaf), active, num_clients) for name, leaf in replies.infos.items()}
        infos["code"] = codes
        variants = np.asarray(current.variants)
        current.variants = algorithm.choose(current.variants, infos | info)
        record = {name: np.asarray(leaf) for name, leaf in info.items()} | infos | {"solver": variants}
        quiet = bool(np.all(record.pop("converged")))
        # a client that changes its solver has the last word still to say
        quiet &= list(current.variants) == variants.tolist()
        current.quiet = (current.quiet | mask) if quiet else np.zeros(num_clients, bool)
        heard = np.all(good.reshape(len(active), -1), axis=1)
        current.converged = bool(np.all(current.quiet)) and bool(np.all(heard))
        if not np.any(good) and algorithm.posterior is not None:
            _give_up_if_improper(algorithm.posterior, algorithm.name, current, problem, codes)
    record["active"] = mask
    record["phase"] = np.asarray(algorithm.name)
    record["seconds"] = np.asarray(time.perf_counter() - started)
    current.history.append(record)
    current.rounds_in_phase += 1


def _scattered(leaf: np.ndarray, active: np.ndarray, num: int) -> np.ndarray:
    if len(active) == num:
        return leaf
    full = np.zeros((num, *leaf.shape[1:]), leaf.dtype)
    full[active] = leaf
    return full


def _scattered_info(leaf: np.ndarray, active: np.ndarray, num: int) -> np.ndarray:
    full = (
        np.full((num, *leaf.shape[1:]), np.nan)
        if leaf.dtype.kind == "f"
        else np.zeros((num, *leaf.shape[1:]), leaf.dtype)
    )
    full[active] = leaf
    return full


def _reduced(algorithm: FederatedAlgorithm, messages: Any, used: np.ndarray) -> tuple[Any, np.ndarray]:
    if algorithm.reduction == "stack":
        return messages, used
    return total(messages, used, np), np.sum(used, axis=0)


def _give_up_if_improper(
    posterior: Callable, phase: str, current: Progressing, problem: Problem, codes: np.ndarray
) -> None:
    proper = jax.vmap(lambda q: q.is_proper())(posterior(current.state))
    if not np.all(np.asarray(proper)):
        reasons = {name: ResultCode(int(np.max(code))).meaning for name, code in zip(problem.names, codes, strict=True)}
        raise FederatedError(
            f"Round {current.rounds_in_phase + 1} of phase '{phase}': no client's message could be used, and "
            f"the posterior is "
            f"not proper without them: {reasons}. Try proper priors on the globals, or other scales of the data; "
            "`executor='sequential'` names the client in whatever the model raises."
        )


def _mask(phase: Phase, participation: Participation, current: Progressing, problem: Problem, key: Array) -> np.ndarray:
    num = len(problem.names)
    if phase.full_participation:
        return np.ones(num, bool)
    round_key = jax.random.fold_in(_round_key(key, current), num)
    if callable(participation):
        mask = np.asarray(participation(current.rounds_in_phase, round_key))
        if mask.shape != (num,) or mask.dtype != bool:
            raise ValueError(
                f"`participation` returned shape {mask.shape} and dtype {mask.dtype}; return one boolean per client, "
                f"shape ({num},)."
            )
        return mask
    if participation == 1.0:
        return np.ones(num, bool)
    count = max(1, round(participation * num))
    mask = np.zeros(num, bool)
    mask[np.asarray(jax.random.permutation(round_key, num))[:count]] = True
    return mask
