"""The only loop: broadcast, local updates, aggregate, until the algorithm has converged or its rounds are spent."""

import time
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import jax
import numpy as np
from jax import Array

from fedbayes.contract.algorithm import CONTROL, Phase, Recording, everybody
from fedbayes.contract.state import Record, RunState
from fedbayes.errors import FederatedError, ResultCode, usable
from fedbayes.problem.program.hierarchy import without_funnel
from fedbayes.problem.roster import Roster
from fedbayes.rounds.ahead import compile_ahead
from fedbayes.rounds.chains import Pace, pace, summary
from fedbayes.rounds.checkpoint import Checkpoint
from fedbayes.rounds.exchange import Heard, Round
from fedbayes.rounds.executors import MOST_ROUNDS, Executor
from fedbayes.rounds.forecast import Forecast
from fedbayes.rounds.memory import memory_explained
from fedbayes.rounds.programs import Programs
from fedbayes.rounds.progress import Progress
from fedbayes.runtime.compiling import waited
from fedbayes.runtime.keys import Purpose, key_for

_MOMENT = 0.2  # seconds between two looks at rounds that are one program: progress, checkpoint, an interrupt

Participation = float | Callable[[int, Array], np.ndarray]


class Run:
    """A method at work on the clients of an executor.

    Parameters
    ----------
    programs
        The method's phases.
    roster
        What is known of the clients.
    executor
        Where their updates run.
    key
        Of the whole fit; a round's key is ``fold_in(fold_in(key, phase), round)``.
    participation
        Fraction of the clients per round, drawn afresh, or ``(round, key) -> mask``.
    before_last
        Called where the last phase begins, after its programs have begun to be compiled by other threads.
    forecast
        Says how long it will take; ``None``: nobody does.
    """

    def __init__(
        self,
        programs: Programs,
        roster: Roster,
        executor: Executor,
        key: Array,
        participation: Participation = 1.0,
        before_last: Callable[[RunState], None] | None = None,
        forecast: Forecast | None = None,
    ) -> None:
        self.programs, self.roster, self.executor, self.key = programs, roster, executor, key
        self.participation, self._before_last, self._forecast = participation, before_last, forecast

    def begin(self, index: int, before: RunState | None) -> RunState:
        """Start a phase from the end of the one before it."""
        phase, server, key = self.programs.phases[index], self.programs.server(index), self._phase_key(index)
        if phase.check is not None and before is not None:
            phase.check(before)
        state = on_host(server.init(key, None if before is None else before.state))
        shared, _ = server.broadcast(state)
        self.executor.begin(index, shared, key)
        return RunState(
            phase=index,
            rounds_in_phase=0,
            state=state,
            updates=[next(iter(phase.algorithm.updates))] * self.roster.num_clients,
            settled=np.zeros(self.roster.num_clients, bool),
            converged=False,
            history=[] if before is None else before.history,
        )

    def run(
        self, num_rounds: int | None, progress: Progress, checkpoint: Checkpoint | None = None, num_draws: int = 1000
    ) -> RunState:
        """Run the phases one after the other.

        Parameters
        ----------
        num_rounds
            Budget of the main phase; ``None``: its own.
        progress
            Told of each round.
        checkpoint
            Written after each round, or after those that were one program, and read at the start.
        num_draws
            Draws that a phase collects whose rounds are draws.

        Raises
        ------
        FederatedError
            No reply could be used and the posterior is not proper without them.
        """
        current = None
        if checkpoint is not None:
            current = checkpoint.read(lambda index: self.begin(index, None), self.executor)
        if current is None:
            current = self.begin(0, None)
        if self.participation == 1.0:  # else the first round has another number of clients
            compile_ahead(self.programs, self.executor, current, self.key, partial(_budget, num_rounds))
        while True:
            phase = self.programs.phases[current.phase]
            if phase is self.programs.phases[-1] and self._before_last is not None:
                self._before_last(current)
            before, told = waited(), len(current.history)
            for _ in self._steps(phase, current, _budget(num_rounds, phase), num_draws, progress):
                for record in current.history[told:]:
                    progress.after_round(record)
                told = len(current.history)
                if self._forecast is not None:
                    self._forecast.after_round(current, waited() - before, progress)
                before = waited()
                if checkpoint is not None:
                    checkpoint.write(current, self.executor)
            if current.phase == len(self.programs.phases) - 1:
                return current
            current = self.begin(current.phase + 1, current)

    def _steps(
        self, phase: Phase, current: RunState, budget: int, num_draws: int, progress: Progress
    ) -> Iterator[None]:
        if phase.recording is None:
            progress.start(phase.algorithm.name, None, current.rounds_in_phase)
            self._foretell(current, budget)
            everybody = phase.full_participation or self.participation == 1.0
            several = self.executor.several(current.phase, budget) if everybody else None
            if several is not None:
                return self._together(several, current, budget)
            return self._rounds(phase, current, budget)
        phase.recording.check(current)
        todo = pace(phase.recording, current.state, budget, num_draws)
        progress.start(phase.algorithm.name, todo.draws * todo.stride, current.rounds_in_phase)
        self._foretell(current, todo.draws * todo.stride)
        return self._blocks(phase, phase.recording, current, todo)

    def _foretell(self, current: RunState, rounds: int) -> None:
        if self._forecast is not None:
            self._forecast.begin(current.phase, rounds)

    def _rounds(self, phase: Phase, current: RunState, budget: int) -> Iterator[None]:
        """Round after round, until the algorithm has converged or the budget is spent."""
        while current.rounds_in_phase < budget and not np.all(current.settled):
            self.round(current, self._needed(phase, current) & self._taking_part(phase, current))
            yield

    def _together(self, several: Callable, current: RunState, budget: int) -> Iterator[None]:
        """The same, with as many rounds in one program as take a moment: where they begin does not change them."""
        size, mask = 1, np.ones(self.roster.num_clients, bool)
        while current.rounds_in_phase < budget and not np.all(current.settled):
            before, started = waited(), time.perf_counter()
            with memory_explained("Some rounds in one program"):
                done = several(current.state, self._phase_key(current.phase), current.rounds_in_phase, size)
            seconds, num = time.perf_counter() - started, int(done.done)
            current.state = done.state
            records = {
                name: np.array(leaf[:num]) for name, leaf in done.records.items()
            }  # not all that there is room for
            for at in range(num):
                record = {name: leaf[at] for name, leaf in records.items()}
                sizes = int(record.pop("bytes_down")), int(record.pop("bytes_up"))
                if at == num - 1:  # none but the last can end them
                    self._settle(current, mask, record["code"], record, changed=False)
                self._write(current, record, mask, seconds / num, 1, sizes, current.updates)
            yield
            each = max(seconds - waited() + before, 1e-9) / num
            size = max(1, min(MOST_ROUNDS, 8 * size, int(_MOMENT / each), budget - current.rounds_in_phase))

    def _blocks(self, phase: Phase, recording: Recording, current: RunState, todo: Pace) -> Iterator[None]:
        """Blocks of draws, fused into one program each where the executor allows it."""
        fused = self.executor.fuse(current.phase, todo.block)
        while (left := todo.draws - sum(map(len, current.draws))) > 0:
            size = min(todo.block, left)
            if fused is None:
                self._one_by_one(phase, recording, current, todo.stride, size)
            else:
                self._fused(fused, current, todo.stride, size)
            recording.check(current)
            yield

    def _fused(self, fused: Callable, current: RunState, stride: int, size: int) -> None:
        started, rounds, num = time.perf_counter(), size * stride, self.roster.num_clients
        with memory_explained("A block of rounds in one program"):
            done = fused(current.state, self._phase_key(current.phase), current.rounds_in_phase, stride, size)
        current.state = done.state
        current.draws.append(done.theta)
        record = {name: leaf / rounds if leaf.dtype.kind == "f" else leaf for name, leaf in done.totals.items()}
        sizes = (rounds * int(record.pop("bytes_down")), rounds * int(record.pop("bytes_up")))
        seconds = time.perf_counter() - started
        self._write(current, record, np.ones(num, bool), seconds, rounds, sizes, current.updates)

    def _one_by_one(self, phase: Phase, recording: Recording, current: RunState, stride: int, size: int) -> None:
        """The same rounds one by one."""
        before, drawn = len(current.history), []
        server = self.programs.server(current.phase)
        draw = self.programs.kept(("draw", current.phase), lambda: jax.jit(recording.draw))
        for _ in range(size):
            for _ in range(stride):
                self.round(current, self._needed(phase, current))
            drawn.append(np.asarray(draw(current.state)))
            self.executor.record(current.phase, server.broadcast(current.state)[0])
        current.draws.append(np.stack(drawn))
        current.history[before:] = [summary(current.history[before:])]

    def round(self, current: RunState, mask: np.ndarray) -> None:
        """One round of the clients in ``mask``; ``current`` is changed in place."""
        started, key = time.perf_counter(), self._round_key(current)
        server = self.programs.server(current.phase)
        active, updates = np.flatnonzero(mask), current.updates
        record: Record = {"code": np.full(len(mask), ResultCode.INACTIVE)}
        sizes = (0, 0)
        if len(active):
            shared, personal = server.broadcast(current.state)
            order = Round(current.phase, shared, personal, key, active, updates)
            with memory_explained(f"A round of the clients' updates {sorted(set(updates))}"):
                heard = self.executor.run(order)
            current.state, info = on_host(server.aggregate(current.state, heard.replies, key))
            record = info | heard.infos | {"code": heard.codes}
            current.updates = self._chosen(current, record, heard)
            self._settle(current, mask, heard.codes, record, changed=current.updates != updates)
            sizes = (heard.bytes_down, heard.bytes_up)
        seconds = time.perf_counter() - started
        self._write(current, record, mask, seconds, 1, sizes, updates if len(active) else None)

    def _chosen(self, current: RunState, record: Record, heard: Heard) -> list[str]:
        """Each client's update in the next round."""
        return self.programs.phases[current.phase].algorithm.choose(current.updates, record)

    def _settle(self, current: RunState, mask: np.ndarray, codes: np.ndarray, record: Record, *, changed: bool) -> None:
        """Whether every client has been heard since the last round that changed something."""
        # a client that has just changed its update must be heard once more
        settled = bool(np.all(record["converged"])) and not changed
        current.settled = (current.settled | mask) if settled else np.zeros(len(mask), bool)
        used = usable(codes)[mask]
        current.converged = bool(np.all(current.settled)) and bool(np.all(used))
        if np.any(record.get("hopeless", False)):  # more rounds would not help: stop, without having converged
            current.settled, current.converged = np.ones(len(mask), bool), False
        if not np.any(used) and not np.all(record.get("proper", True)):
            self._give_up(current, codes)

    def _write(
        self,
        current: RunState,
        record: Record,
        mask: np.ndarray,
        seconds: float,
        rounds: int,
        sizes: tuple[int, int],
        updates: list[str] | None = None,
    ) -> None:
        """Note down what one or several rounds brought."""
        noted = {name: value for name, value in record.items() if name not in CONTROL}
        noted["solver"] = np.asarray([""] * len(mask) if updates is None else updates)
        noted |= {"active": mask, "rounds": np.asarray(rounds)}
        noted |= {"bytes_down": np.asarray(sizes[0]), "bytes_up": np.asarray(sizes[1])}
        noted["phase"] = np.asarray(self.programs.phases[current.phase].algorithm.name)
        noted["seconds"] = np.asarray(seconds)
        current.history.append(noted)
        current.rounds_in_phase += rounds

    def _give_up(self, current: RunState, codes: np.ndarray) -> None:
        names, phase = self.roster.names, self.programs.phases[current.phase].algorithm.name
        reasons = {name: ResultCode(int(np.max(code))).meaning for name, code in zip(names, codes, strict=True)}
        hierarchy = self.roster.prior.hierarchy
        advice = "Try proper priors on the globals, or other scales of the data."
        if np.any(codes == ResultCode.NOT_SUMMED):
            advice += " A secure sum needs all sites: the logs of those whose message is not finite say why that is."
        raise FederatedError(
            f"Round {current.rounds_in_phase + 1} of phase '{phase}': no client's message could be used, and the "
            f"posterior is not proper without them: {reasons}. {without_funnel(hierarchy) if hierarchy else advice} "
            "`executor='sequential'` names the client in whatever the model raises."
        )

    def _phase_key(self, index: int) -> Array:
        return jax.random.fold_in(self.key, index)

    def _round_key(self, current: RunState) -> Array:
        return jax.random.fold_in(self._phase_key(current.phase), current.rounds_in_phase)

    def _needed(self, phase: Phase, current: RunState) -> np.ndarray:
        """The clients that the algorithm asks for."""
        if phase.algorithm.participants is everybody:
            return np.ones(self.roster.num_clients, bool)
        return np.asarray(self.programs.server(current.phase).participants(current.state))

    def _taking_part(self, phase: Phase, current: RunState) -> np.ndarray:
        """The clients that take part, by the user's choice."""
        num, participation = self.roster.num_clients, self.participation
        if phase.full_participation or participation == 1.0:
            return np.ones(num, bool)
        key = key_for(self._round_key(current), Purpose.PARTICIPATION)
        if callable(participation):
            mask = np.asarray(participation(current.rounds_in_phase, key))
            if mask.shape != (num,) or mask.dtype != bool:
                raise ValueError(
                    f"`participation` returned shape {mask.shape} and dtype {mask.dtype}; return one boolean per "
                    f"client, shape ({num},)."
                )
            return mask
        mask = np.zeros(num, bool)
        mask[np.asarray(jax.random.permutation(key, num))[: max(1, round(participation * num))]] = True
        return mask


def _budget(num_rounds: int | None, phase: Phase) -> int:
    """The rounds of a phase, of which the user's number is the main one's."""
    return num_rounds if phase.main and num_rounds is not None else phase.max_rounds


def on_host(tree: Any) -> Any:
    """NumPy arrays: between rounds there are no weak types, which would compile everything twice."""
    return jax.tree.map(np.asarray, tree)
