"""Programs of all phases are compiled from the start on, by other threads, while this one traces the next and runs."""

from collections.abc import Callable
from contextlib import suppress
from functools import partial
from typing import Any

from fedbayes.contract.algorithm import Key, Phase
from fedbayes.contract.state import RunState
from fedbayes.rounds.executors import Executor
from fedbayes.rounds.programs import Programs
from fedbayes.runtime.compiling import num_cores, shapes_of


def compile_ahead(
    programs: Programs, executor: Executor, current: RunState, key: Key, budget: Callable[[Phase], int]
) -> None:
    """Let other threads compile the programs that this phase and all later ones begin with, once for a roster.

    The shapes in a round follow from those of the round before, back to the state that is there. A phase that is
    sampled in blocks has programs of another kind, so that this ends before it. ``budget`` says how many rounds a phase
    has.
    """
    work = partial(_compile, programs, executor, current, key, budget)
    tried_once(programs, executor, ("rounds", current.phase), work)


def tried_once(programs: Programs, executor: Executor, what: tuple, compile_: Callable[[], None]) -> None:
    """Compile something ahead for the first fit that needs it, where there are cores for it.

    Where anything fails to be traced nobody is told: it fails again where it is called, if it is.
    """
    if executor.compiles_ahead and num_cores() > 1 and what not in programs.begun_ahead:
        programs.begun_ahead.add(what)
        with suppress(Exception):
            compile_()


def _compile(
    programs: Programs, executor: Executor, current: RunState, key: Key, budget: Callable[[Phase], int]
) -> None:
    state: Any = shapes_of(current.state)
    states: Any = ()
    for index in range(current.phase, len(programs.phases)):
        phase = programs.phases[index]
        if phase.recording is not None:
            return
        server = programs.server(index)
        if index > current.phase:
            state = shapes_of(server.init.ahead(key, state))
        shared, personal = server.broadcast.ahead(state)
        if executor.several(index, budget(phase)) is not None:
            state, states = executor.several_ahead(index, state, shared, key, states)
            continue
        known = executor.ahead(index, shared, personal, key, states)
        state, states = shapes_of(server.aggregate.ahead(state, known.replies, key)[0]), known.states
