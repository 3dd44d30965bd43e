"""How long a fit in this process will take: from shapes before its first round, and by the clock after each.

Methods say how many evaluations of a client's log density an update takes (:class:`~fedbayes.contract.work.Work`), of
which each costs as much as the client has rows, with those that pad it. The clock says what a round has taken, without
the wait for its programs, and so what an evaluation takes. Then

    seconds left = seconds of this round / its evaluations * (evaluations of the rounds to come + those of the check),

with as many rounds as a phase takes most often. That is right within a factor of two or three
(``benchmarks/FORETOLD.md``): rounds can be more or fewer, searches longer or shorter, the check can take a second
exchange, and programs still have to be compiled.

What can't be waited for is foreseen from shapes alone: matrices of locals by locals, where these are many and not
independent given the globals.
"""

import warnings
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import jax
import numpy as np

from fedbayes.contract.algorithm import Shared, Update
from fedbayes.contract.state import RunState
from fedbayes.contract.work import Work
from fedbayes.errors import FederatedError, SlowFitWarning
from fedbayes.problem.client import length
from fedbayes.problem.problem import Problem
from fedbayes.problem.roster import Roster
from fedbayes.rounds.memory import memory_here
from fedbayes.rounds.programs import Programs
from fedbayes.rounds.progress import Progress
from fedbayes.runtime.compiling import num_cores

_LONG, _VERY_LONG = 60.0, 600.0  # seconds from which a line is written, and a warning given
_LEAST = 1.0  # seconds of a round that tell of evaluations, and not of what every round takes beside them
_AGAIN = 2.0  # times as long as was said before, from which it is said anew
_PER_ROW = 100.0  # operations on matrices that take as long as the log density of a row
_PER_SECOND = 2e10  # operations on large matrices by one core
_MUCH = 0.3  # of the time left, from which it is said how the check costs less
_OF_LOCALS = (
    "Locals cost little where they are independent given the globals and all have the same first axis, one entry for "
    "each group; others can be fewer, as by a coarser grid, or integrated out in the model."
)


class Asked(NamedTuple):
    """What clients will be asked once the rounds are over.

    Attributes
    ----------
    draws
        Shape of the draws of the globals for one replicate.
    fewer
        What takes fewer of them: code.
    """

    draws: jax.ShapeDtypeStruct
    fewer: Sequence[str]


class Part(NamedTuple):
    """Of what is to come: in words, the seconds that it will take, and the share of each client."""

    words: str
    seconds: float
    by_client: np.ndarray


class Forecast:
    """Says how long a fit will take, where that is long.

    Parameters
    ----------
    programs, problem, roster
        Of the fit.
    check
        What follows the rounds; ``None``: nothing.
    is_checked
        Whether it does, by what the last phase would end with.
    cheaper
        What would take less time in the place of the method: code.
    """

    def __init__(
        self,
        programs: Programs,
        problem: Problem,
        roster: Roster,
        check: Asked | None,
        is_checked: Callable[[RunState], bool],
        cheaper: Sequence[str],
    ) -> None:
        self._programs, self._problem, self._roster = programs, problem, roster
        self._check, self._is_checked, self._cheaper = check, is_checked, cheaper
        self._rounds, self._said, self._warned = 0, 0.0, False

    def before_rounds(self, stacklevel: int) -> None:
        """Say, or refuse, what is too much by its shapes alone.

        Raises
        ------
        FederatedError
            Matrices of locals by locals, or draws of all locals, do not fit into the memory of this machine.

        Warns
        -----
        SlowFitWarning
            Operations on such matrices alone will take more than ten minutes.
        """
        first, seconds = self._first_work(), 0.0
        for place, work, times in first:
            asked, there = work.numbers * 8.0, memory_here()
            if asked > there:
                raise FederatedError(
                    f"The locals of {self._described(place)} ask for {asked / 2**30:,.1f} GiB of memory at once, for "
                    "matrices of locals by locals and for draws of all of them, and this machine has "
                    f"{there / 2**30:,.1f} GiB. {_OF_LOCALS}"
                )
            seconds += work.operations * times / (_PER_SECOND * num_cores())
        if seconds > _VERY_LONG:
            worst = max(first, key=lambda each: each[1].operations * each[2])[0]
            warnings.warn(
                f"This fit will take about {spoken(seconds)} or more, for matrices of locals by locals alone: "
                f"{self._described(worst)} has the largest. {_OF_LOCALS}{self._advice(())}",
                SlowFitWarning,
                stacklevel=stacklevel + 1,
            )
            self._warned, self._said = True, seconds

    def begin(self, phase: int, rounds: int) -> None:
        """A phase begins, with a budget of so many rounds."""
        usual = self._programs.phases[phase].usual_rounds
        self._rounds = rounds if usual is None else min(rounds, usual)

    def after_round(self, current: RunState, waited: float, progress: Progress) -> None:
        """One round, or a block of rounds, is done, in which the clock ran for so long until programs were compiled.

        Nothing is said of a round that computed less than it waited: the next one tells more.

        Warns
        -----
        SlowFitWarning
            More than ten minutes are left; once.
        """
        seconds = float(current.history[-1]["seconds"]) - waited
        self._said -= seconds
        if seconds < max(_LEAST, waited):
            return
        parts = self.left(current, seconds)
        left = sum(part.seconds for part in parts)
        if left < max(_LONG, _AGAIN * self._said):
            return
        self._said, words = left, self._words(parts, left)
        if left > _VERY_LONG and not self._warned:
            self._warned = True
            warnings.warn(words, SlowFitWarning, stacklevel=4)
        else:
            progress.say(words)

    def left(self, current: RunState, seconds: float) -> list[Part]:
        """What is left, by what the last round has taken."""
        record, active, now = current.history[-1], current.history[-1]["active"], self._programs.phases[current.phase]
        goes_on = current.rounds_in_phase < self._rounds if now.recording else not np.all(current.settled)
        number = max(1, self._rounds - current.rounds_in_phase) if goes_on else 0
        name = now.algorithm.name if now.recording or now.usual_rounds else f"{now.algorithm.name} at most"
        of_one, took = seconds / int(record["rounds"]), self._of_round(current.phase, record["solver"].tolist())
        if took is None or not took[active].any():
            return [_rounds_of(name, number, of_one * active / max(active.sum(), 1))]
        unit, next_ = of_one / took[active].sum(), self._of_round(current.phase, current.updates)
        each = unit * active.mean() * (took if next_ is None else next_)
        return [_rounds_of(name, number, each), *self._later(current, unit)]

    def _later(self, current: RunState, unit: float) -> list[Part]:
        """The phases to come and the check, where an evaluation with a row takes so many seconds."""
        parts, phases = [], self._programs.phases
        for phase, later in enumerate(phases[current.phase + 1 :], current.phase + 1):
            first = self._of_round(phase, [next(iter(later.algorithm.updates))] * self._roster.num_clients)
            if first is not None and later.usual_rounds is not None:
                parts.append(_rounds_of(later.algorithm.name, later.usual_rounds, unit * first))
        is_last = current.phase == len(phases) - 1
        if self._check is not None and (not is_last or self._is_checked(current)):
            parts.append(self._of_check(self._check.draws, unit))
        return parts

    def _of_check(self, draws: Shared, unit: float) -> Part:
        costs = self._costs(self._programs.update(None, "log_likelihood"), draws)
        times = self._programs.num_replicates
        each = np.zeros(self._roster.num_clients) if costs is None else unit * times * costs
        return Part(f"the check of the answer at {times * draws.shape[0]:,} draws", float(each.sum()), each)

    def _of_round(self, phase: int, updates: Sequence[str]) -> np.ndarray | None:
        """Evaluations times rows of a round, by client; ``None`` where the method does not say."""
        times = 1 if self._programs.phases[phase].once else self._programs.num_replicates
        found = np.zeros(self._roster.num_clients)
        for name in set(updates) - {""}:
            these = np.flatnonzero(np.asarray(updates) == name)
            costs = self._costs(self._programs.update(phase, name), None)
            if costs is None:
                return None
            found[these] = times * costs[these]
        return found

    def _costs(self, update: Update, shared: Shared) -> np.ndarray | None:
        """Of one replicate."""
        if update.work is None:
            return None
        found = np.zeros(self._roster.num_clients)
        for bucket in self._problem.buckets:
            work, rows = update.work(shared, bucket.clients), length(bucket.clients.data, axis=1)
            found[bucket.members] = work.evaluations * rows + work.operations / _PER_ROW
        return found

    def _first_work(self) -> list[tuple[int, Work, int]]:
        """Of each client what phases begin with, and the check: for the largest of equal ones, and how often it is."""
        programs, found = self._programs, list[tuple[int, Work, int]]()
        asked: list[tuple[Update, Any, int]] = []
        for phase in programs.phases:
            times = (1 if phase.once else programs.num_replicates) * (phase.usual_rounds or 1)
            asked.append((next(iter(phase.algorithm.updates.values())), None, times))
        if self._check is not None:
            asked.append((programs.update(None, "log_likelihood"), self._check.draws, programs.num_replicates))
        for update, shared, times in asked:
            for bucket in self._problem.buckets if update.work is not None else ():
                work = update.work(shared, bucket.clients)  # type: ignore[misc]
                found.append((int(bucket.members[0]), work, times * len(bucket.members)))
        return found

    def _words(self, parts: Sequence[Part], left: float) -> str:
        """How long, of what, at which client, and what would be cheaper."""
        large = [part for part in parts if part.seconds > 0.05 * left]
        told = ", ".join(f"{spoken(part.seconds)} for {part.words}" for part in large)
        by_client = np.sum([part.by_client for part in parts], axis=0)
        most = int(np.lexsort((self._roster.rows, by_client))[-1])  # of those that are padded alike the largest
        return (
            f"This fit will go on for about {spoken(left)}: {told}. The largest share, {by_client[most] / left:.0%}, "
            f"is that of {self._described(most)}.{self._advice(parts)}"
        )

    def _advice(self, parts: Sequence[Part]) -> str:
        left = sum(part.seconds for part in parts)
        check = [] if self._check is None else [*self._check.fewer, "`correct=False`, which leaves out the check"]
        of_check = sum(part.seconds for part in parts if part.words.startswith("the check"))
        cheaper = [*(check if of_check > _MUCH * left else ()), *self._cheaper]
        return f" What takes less: {'; '.join(cheaper)}." if cheaper else ""

    def _described(self, place: int) -> str:
        """A client with its size."""
        rows, number = self._roster.rows[place], int(self._roster.num_locals[place])
        sizes = [f"{rows:,.0f} rows"]
        if number:
            size = self._roster.locals[place].group_size
            kind = "one by one" if size == 1 else f"in groups of {size:,} that depend on each other"
            kind = "that depend on each other" if size == number and number > 1 else kind
            sizes.append(f"{number:,} locals {kind}")
        return f"client '{self._roster.names[place]}' ({', '.join(sizes)})"


def _rounds_of(name: str, number: int, each: np.ndarray) -> Part:
    plural = "round" if number == 1 else "rounds"
    return Part(f"{number:,} {plural} of {name}", float(number * each.sum()), number * each)


def spoken(seconds: float) -> str:
    """A time in words, of two digits at most."""
    for unit, size in (("hours", 3600.0), ("minutes", 60.0)):
        if seconds > 1.5 * size:
            return f"{seconds / size:,.0f} {unit}"
    return f"{seconds:.0f} seconds"
