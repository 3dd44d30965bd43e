"""The rounds of many data sets at once, each of which stops when a fit of it alone would."""

import jax
import numpy as np
from jax import Array

from fedbayes.contract.algorithm import Method, Phase
from fedbayes.contract.state import Record, RunState
from fedbayes.errors import usable
from fedbayes.problem.roster import Roster
from fedbayes.rounds.exchange import Heard
from fedbayes.rounds.executors import Executor
from fedbayes.rounds.loop import Run
from fedbayes.rounds.programs import Programs


class SimulatedRun(Run):
    """A method at work on many data sets, its replicates.

    A data set that has converged keeps its state while the others go on, so that what is found of it does not depend
    on them. Clients' updates are chosen for all data sets that still run together.

    Attributes
    ----------
    converged
        By the rule of the last phase, with every client heard, shape ``(data sets,)``.
    failed
        No client's reply could be used, and there is no posterior without them.
    rounds
        That each data set took, over all phases.
    """

    def __init__(self, programs: Programs, roster: Roster, executor: Executor, key: Array) -> None:
        super().__init__(programs, roster, executor, key)
        num = programs.num_replicates
        self.failed, self.rounds = np.zeros(num, bool), np.zeros(num, int)
        self.converged, self._stopped = np.zeros(num, bool), np.zeros(num, bool)

    def begin(self, index: int, before: RunState | None) -> RunState:
        """See :class:`~fedbayes.rounds.loop.Run`."""
        self.converged, self._stopped = np.zeros_like(self.failed), self.failed.copy()
        return super().begin(index, before)

    def round(self, current: RunState, mask: np.ndarray) -> None:
        """One round; the state of a data set that has stopped stays as it is."""
        kept, before = self._stopped.copy(), current.state
        super().round(current, mask)
        self.rounds += ~kept
        if np.any(kept):
            current.state = jax.tree.map(lambda old, new: _where(kept, old, new), before, current.state)

    def _chosen(self, current: RunState, record: Record, heard: Heard) -> list[str]:
        """By what is reported of the data sets that still run."""
        live = ~self._stopped
        by_client = {*heard.infos, "code"}
        reports = {name: leaf[:, live] if name in by_client else leaf[live] for name, leaf in record.items()}
        return self.programs.phases[current.phase].algorithm.choose(current.updates, reports)

    def _settle(self, current: RunState, mask: np.ndarray, codes: np.ndarray, record: Record, *, changed: bool) -> None:
        """The loop's rule for each data set: it has converged, more rounds would not help, or nothing can be used."""
        used, never = usable(codes), np.zeros_like(self.failed)
        settled, hopeless = record["converged"] & (not changed), record.get("hopeless", never)
        nothing = ~used.any(axis=0) & ~record.get("proper", ~never)
        ending = (settled | hopeless | nothing) & ~self._stopped
        self.converged |= ending & settled & ~hopeless & used.all(axis=0)
        self.failed |= ending & nothing
        self._stopped |= ending
        current.settled = np.full(len(mask), bool(np.all(self._stopped)))
        current.converged = bool(np.all(self.converged))


def _where(kept: np.ndarray, old: np.ndarray, new: np.ndarray) -> np.ndarray:
    return np.where(kept.reshape(kept.shape + (1,) * (new.ndim - 1)), old, new)


def why_not_at_once(method: Method, phases: tuple[Phase, ...] | list[Phase]) -> str | None:
    """Why a method's data sets can't be fitted side by side, in words; ``None`` where they can."""
    if any(phase.recording is not None for phase in phases):
        return "its rounds are steps of Markov chains, planned for one data set"
    if any(phase.check is not None for phase in phases):
        return "one of its phases looks at the data set before it starts"
    if method.only_locals:
        return "it couples the clients' local latents"
    if method.needs_rows:
        return "it draws mini-batches"
    return None
