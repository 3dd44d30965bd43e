"""How long a fit in this process will take: from shapes before its first round, and by the clock after each.

Methods say how many evaluations of a client's log density an update takes (:class:`~fedbayes.contract.work.Work`), of
which each costs as much as the client has rows, with those that pad it. The clock says what a round has taken, without
the wait for its programs, and so what an evaluation takes. Then

    seconds left = seconds of this round / its evaluations * (evaluations of the rounds to come + those of the check),

with as many rounds as a phase takes most often; a phase that takes more, or of which that is not known, is foretold by
all of its budget, which is an upper bound and never a warning. What was said was between 0.6 and 2.7 times what it took
(``benchmarks/FORETOLD.md``), so that times are spoken in coarse words: searches can be longer or shorter, the check can
take a second exchange, and programs still have to be compiled.

What can't be waited for is foreseen from shapes alone: matrices of locals by locals, where these are many and not
independent given the globals.
"""

import sys
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import jax
import numpy as np

from fedbayes.contract.algorithm import Method, Phase, Shared, Update
from fedbayes.contract.state import RunState
from fedbayes.contract.work import Work
from fedbayes.errors import FederatedError, SlowFitWarning
from fedbayes.problem.client import length
from fedbayes.problem.problem import Problem
from fedbayes.rounds.memory import memory_here
from fedbayes.rounds.programs import Programs
from fedbayes.rounds.progress import Progress
from fedbayes.runtime.compiling import num_cores

_LONG, _VERY_LONG = 60.0, 600.0  # seconds from which a line is written, and a warning given
_LEAST = 1.0  # seconds of a round that tell of evaluations, and not of what every round takes beside them
_AGAIN = 2.0  # times as long as was said before, from which it is said anew
_PER_SECOND = 2e10  # operations on large matrices by one core
_MUCH = 0.3  # of the time left, from which it is said how the check costs less
_LESS = 0.7  # of the work of this fit, up to which another one is offered
_FEWER = "be fewer, as by a coarser grid, or integrated out in the model"
_MATRICES = (
    "Locals cost little where they are independent given the globals and all have the same first axis, one entry for "
    f"each group; others can {_FEWER}."
)
_DRAWS = (
    "Locals that are independent given the globals and all have the same first axis, one entry for each, are "
    "integrated out one by one; those in larger groups by draws, of which as many are needed as there are locals. They "
    f"can {_FEWER}."
)
_SINGLE = f"Locals can {_FEWER}."
_HOUR = 3600.0
_TIMES = (  # seconds below which these words are meant
    (45.0, "less than a minute"),
    (90.0, "a minute"),
    (300.0, "a few minutes"),
    (900.0, "ten minutes"),
    (0.75 * _HOUR, "half an hour"),
    (1.5 * _HOUR, "an hour"),
    (6.0 * _HOUR, "a few hours"),
    (18.0 * _HOUR, "half a day"),
    (36.0 * _HOUR, "a day"),
    (240.0 * _HOUR, "a few days"),
)


class Asked(NamedTuple):
    """What clients will be asked once the rounds are over.

    Attributes
    ----------
    draws
        ``(replicates) -> shape``: of the draws of the globals for each of so many replicates.
    fewer
        What takes fewer of them: code.
    """

    draws: Callable[[int], jax.ShapeDtypeStruct]
    fewer: Sequence[str]


class Part(NamedTuple):
    """Of what is to come.

    Attributes
    ----------
    words
        What it is.
    seconds, by_client
        That it will take: all of it, and the share of each client.
    at_most
        Whether it will hardly take so long.
    of_check
        Whether it is the check, and no rounds.
    """

    words: str
    seconds: float
    by_client: np.ndarray
    at_most: bool = False
    of_check: bool = False


class _Begun(NamedTuple):
    """What a phase begins with, or the check: for the largest of equal clients, and how often it will be done."""

    what: str
    place: int
    work: Work
    times: int


class Forecast:
    """Says how long a fit will take, where that is long.

    Parameters
    ----------
    programs, problem
        Of the fit.
    check
        What follows the rounds; ``None``: nothing.
    is_checked
        Whether it does, by what the last phase would end with.
    cheaper
        Methods that may compute less, by their words.
    """

    def __init__(
        self,
        programs: Programs,
        problem: Problem,
        check: Asked | None,
        is_checked: Callable[[RunState], bool],
        cheaper: Mapping[str, Method],
    ) -> None:
        self._programs, self._problem, self._roster = programs, problem, problem.roster
        self._check, self._is_checked, self._cheaper = check, is_checked, cheaper
        self._usual: int | None = None
        self._budget, self._said, self._warned = 0, 0.0, False

    def before_rounds(self, num_rounds: int | None) -> None:
        """Say, or refuse, what is too much by its shapes alone.

        Parameters
        ----------
        num_rounds
            Budget of the main phase; ``None``: its own.

        Raises
        ------
        FederatedError
            Matrices of locals by locals, or draws of all locals, do not fit into the memory of this machine.

        Warns
        -----
        SlowFitWarning
            Operations on such matrices alone will take more than ten minutes of this machine's CPU.
        """
        begun = list(self._begun(self._programs.phases, self._programs.num_replicates, num_rounds))
        there = memory_here()
        for each in begun:
            if _bytes(each.work) > there:
                raise FederatedError(self._refusal(each, there))
        if jax.default_backend() != "cpu":  # how fast another device is on matrices is not known
            return
        seconds = sum(each.work.operations * each.times for each in begun) / (_PER_SECOND * num_cores())
        if seconds > _VERY_LONG:
            worst = max(begun, key=lambda each: each.work.operations * each.times)
            self._warned, self._said = True, seconds
            self._warn(
                f"This fit will take {_about(seconds)} or more, for matrices of locals by locals alone: "
                f"{self._described(worst.place)} has the largest, in {worst.what}. {self._for_fewer(worst)}"
                f"{self._advice(())}"
            )

    def begin(self, phase: int, rounds: int) -> None:
        """A phase begins, with a budget of so many rounds."""
        usual = self._programs.phases[phase].usual_rounds
        self._budget, self._usual = rounds, None if usual is None else min(rounds, usual)

    def after_round(self, current: RunState, waited: float, progress: Progress) -> None:
        """One round, or a block of rounds, is done, in which the clock ran for so long until programs were compiled.

        Nothing is said of a round that computed less than it waited: the next one tells more. What was said is said
        anew only where it has doubled.

        Warns
        -----
        SlowFitWarning
            More than ten minutes are left; once, and not where that is an upper bound, or is foretold by a phase that
            only begins the fit, whose rounds take too little to tell of others.
        """
        seconds = max(0.0, float(current.history[-1]["seconds"]) - waited)
        if seconds < max(_LEAST, waited):
            return
        parts = self.left(current, seconds)
        left = sum(part.seconds for part in parts)
        is_known = self._programs.phases[current.phase].main and not any(part.at_most for part in parts)
        is_warned_of = left > _VERY_LONG and is_known and not self._warned
        if not is_warned_of and left < max(_LONG, _AGAIN * self._said):
            return
        self._said, words = left, self._words(parts, left)
        if is_warned_of:
            self._warned = True
            self._warn(words)
        else:
            progress.say(words)

    def _warn(self, words: str) -> None:
        """At the first line outside of this package: a fit is begun by functions, methods and commands."""
        frame, level = sys._getframe(), 1
        while frame.f_back is not None and str(frame.f_globals.get("__name__")).startswith("fedbayes."):
            frame, level = frame.f_back, level + 1
        warnings.warn(words, SlowFitWarning, stacklevel=level)

    def left(self, current: RunState, seconds: float) -> list[Part]:
        """What is left, by what the last round has taken."""
        record, active, now = current.history[-1], current.history[-1]["active"], self._programs.phases[current.phase]
        done = current.rounds_in_phase
        goes_on = done < self._budget and (now.recording is not None or not np.all(current.settled))
        expected = self._budget if now.recording else self._usual
        at_most = goes_on and (expected is None or done >= expected)
        rounds = self._budget if at_most or expected is None else expected
        number = rounds - done if goes_on else 0
        name = f"{now.algorithm.name}, if it takes them all" if at_most else now.algorithm.name
        of_one, took = seconds / int(record["rounds"]), self._of_round(current.phase, record["solver"].tolist())
        if took is None or not took[active].any():
            return [_rounds_of(name, number, of_one * active / max(active.sum(), 1), at_most=at_most)]
        unit, next_ = of_one / took[active].sum(), self._of_round(current.phase, current.updates)
        each = unit * active.mean() * (took if next_ is None else next_)
        return [_rounds_of(name, number, each, at_most=at_most), *self._later(current, unit)]

    def _later(self, current: RunState, unit: float) -> list[Part]:
        """The phases to come and the check, where an evaluation with a row takes so many seconds."""
        parts, phases = [], self._programs.phases
        for phase, later in enumerate(phases[current.phase + 1 :], current.phase + 1):
            first = self._of_round(phase, [next(iter(later.algorithm.updates))] * self._roster.num_clients)
            if first is not None and later.usual_rounds is not None:
                parts.append(_rounds_of(later.algorithm.name, later.usual_rounds, unit * first))
        is_last = current.phase == len(phases) - 1
        if self._check is not None and (not is_last or self._is_checked(current)):
            parts.append(self._of_check(self._check, unit))
        return parts

    def _of_check(self, check: Asked, unit: float) -> Part:
        times = self._programs.num_replicates
        draws = check.draws(times)
        costs = self._costs(self._programs.update(None, "log_likelihood"), draws)
        each = np.zeros(self._roster.num_clients) if costs is None else unit * times * costs
        words = f"the check of the answer at {times * draws.shape[0]:,} draws"
        return Part(words, float(each.sum()), each, of_check=True)

    def _of_round(self, phase: int, updates: Sequence[str]) -> np.ndarray | None:
        """Evaluations times rows of a round, by client; ``None`` where the method does not say."""
        times = self._programs.times(phase)
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
            rows = length(bucket.clients.data, axis=1)
            found[bucket.members] = update.work(shared, bucket.clients).of_rows(rows)
        return found

    def _asked(
        self, phases: Sequence[Phase], replicates: int, num_rounds: int | None = None
    ) -> Iterator[tuple[str, Update, Any, int | None, int]]:
        """What clients are asked first by the phases of a method, and by the check: rounds, and how often in each.

        Where the rounds are ``None`` their number is not known.
        """
        for phase in phases:
            (name, update), rounds = next(iter(phase.algorithm.updates.items())), phase.usual_rounds
            if phase.main and rounds is not None and num_rounds is not None:
                rounds = min(rounds, num_rounds)
            what = f"the phase '{phase.algorithm.name}' by the solver '{name}'"
            yield what, update, None, rounds, 1 if phase.once else replicates
        if self._check is not None:
            update = self._programs.update(None, "log_likelihood")
            yield "the check of the answer", update, self._check.draws(replicates), 1, replicates

    def _begun(self, phases: Sequence[Phase], replicates: int, num_rounds: int | None = None) -> Iterator[_Begun]:
        """What a fit takes at least."""
        for what, update, shared, rounds, times in self._asked(phases, replicates, num_rounds):
            for bucket in self._problem.buckets if update.work is not None else ():
                work = update.work(shared, bucket.clients)  # type: ignore[misc]
                yield _Begun(what, int(bucket.members[0]), work, (rounds or 1) * times * len(bucket.members))

    def _total(self, phases: Sequence[Phase], replicates: int) -> float:
        """Evaluations times rows of a whole fit; infinite where the method does not say."""
        total = 0.0
        for _, update, shared, rounds, times in self._asked(phases, replicates):
            costs = self._costs(update, shared)
            total += np.inf if rounds is None or costs is None else rounds * times * float(costs.sum())
        return total

    def _others(self) -> Iterator[tuple[str, list[Phase], int]]:
        """The phases and replicates of methods that may compute less, by their words."""
        for words, method in self._cheaper.items():
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")  # of a method that nobody has chosen
                yield words, method.phases(self._roster), method.num_replicates

    def _refusal(self, begun: _Begun, there: float) -> str:
        """What asks for more memory than there is, and what asks for less."""
        kind = "matrices of locals by locals" if begun.work.matrices >= begun.work.draws else "draws of all of them"
        fits = [
            words
            for words, phases, replicates in self._others()
            if all(_bytes(each.work) <= there for each in self._begun(phases, replicates))
        ]
        return (
            f"The locals of {self._described(begun.place)} ask for {_bytes(begun.work) / 2**30:,.1f} GiB of memory at "
            f"once, for {kind} in {begun.what}, and this machine, or its container, has {there / 2**30:,.1f} GiB. "
            f"{self._for_fewer(begun)}{_offered('asks for', fits)}"
        )

    def _for_fewer(self, begun: _Begun) -> str:
        if self._roster.locals[begun.place].group_size == 1:
            return _SINGLE
        return _MATRICES if begun.work.matrices >= begun.work.draws else _DRAWS

    def _words(self, parts: Sequence[Part], left: float) -> str:
        """How long, of what, at which client, and what would be cheaper."""
        large = [part for part in parts if part.seconds > 0.05 * left]
        told = ", ".join(f"{spoken(part.seconds)} for {part.words}" for part in large)
        by_client = np.sum([part.by_client for part in parts], axis=0)
        most = int(np.lexsort((self._roster.rows, by_client))[-1])  # of those that are padded alike the largest
        in_all = f"at most {spoken(left)}" if any(part.at_most for part in parts) else _about(left)
        return (
            f"This fit will go on for {in_all}: {told}. The largest share, {by_client[most] / left:.0%}, "
            f"is that of {self._described(most)}.{self._advice(parts)}"
        )

    def _advice(self, parts: Sequence[Part]) -> str:
        left, of_check = (sum(part.seconds for part in some) for some in (parts, [p for p in parts if p.of_check]))
        check = [] if self._check is None else [*self._check.fewer, "`correct=False`, which leaves out the check"]
        now = self._total(self._programs.phases, self._programs.num_replicates)
        others = [
            words
            for words, phases, replicates in self._others()
            if self._total(phases, replicates) < _LESS * now < np.inf
        ]
        return _offered("takes", [*(check if of_check > _MUCH * left else ()), *others])

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


def _rounds_of(name: str, number: int, each: np.ndarray, *, at_most: bool = False) -> Part:
    plural = "round" if number == 1 else "rounds"
    return Part(f"{number:,} {plural} of {name}", float(number * each.sum()), number * each, at_most)


def _bytes(work: Work) -> float:
    return 8.0 * work.numbers


def _offered(verb: str, options: Sequence[str]) -> str:
    return f" What {verb} less: {'; '.join(options)}." if options else ""


def spoken(seconds: float) -> str:
    """A time in words that are as coarse as it is known."""
    return next((words for limit, words in _TIMES if seconds < limit), "weeks")


def _about(seconds: float) -> str:
    """The same in a sentence: words that are vague by themselves need no more."""
    words = spoken(seconds)
    return f"about {words}" if not words.startswith(("a few", "less", "weeks")) else words
