"""Running EP round by round, with what each round leaves behind."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import jax
import numpy as np
import pytest

from fedbayes.contract.algorithm import Phase
from fedbayes.inference.local.after import AFTER
from fedbayes.inference.own_site import Counted, OwnSite
from fedbayes.numerics.gaussian import Gaussian
from fedbayes.numerics.host import gaussian_moments
from fedbayes.problem.problem import make_problem
from fedbayes.rounds.executors import Batched
from fedbayes.rounds.loop import Run
from fedbayes.rounds.programs import Programs, programs_for


@dataclass(frozen=True)
class LastPhase:
    """A method's last phase, as if it were all of it; its algorithm changed, if a change is given."""

    method: Any
    change: Callable | None

    @property
    def num_replicates(self) -> int:
        return self.method.num_replicates

    def phases(self, roster: Any) -> list[Phase]:
        last = self.method.phases(roster)[-1]
        algorithm = last.algorithm if self.change is None else self.change(last.algorithm)
        return [Phase(algorithm=algorithm, max_rounds=last.max_rounds)]


class Rounds:
    """A method on a problem, one round at a time; all arrays are float64 and keep their axis of replicates.

    Programs are kept for other tests by `keep`, as those of a fit are: not where the library's functions are replaced.
    """

    def __init__(
        self,
        model: Callable,
        clients: Mapping[str, Any],
        method: Any,
        *,
        change: Callable | None = None,
        keep: bool = False,
    ) -> None:
        with jax.enable_x64(True):
            self.method, self.problem = method, make_problem(model, clients)
            last, roster = LastPhase(method, change), self.problem.roster
            if keep:
                programs = programs_for(last, roster, self.problem.programs, AFTER)
                assert not programs.warnings  # they would be heard by nobody
            else:
                programs = Programs(last.phases(roster), AFTER, method.num_replicates)
            executor, key = Batched(), jax.random.key(7)
            executor.connect(programs, self.problem, key)
            self.loop = Run(programs, roster, executor, key)
            self.current = self.loop.begin(0, None)

    def run(self, num: int = 1, active: Sequence[int] | None = None) -> "Rounds":
        mask = np.ones(len(self.problem.names), bool)
        if active is not None:
            mask = np.isin(np.arange(len(mask)), active)
        with jax.enable_x64(True):
            for _ in range(num):
                self.loop.round(self.current, mask)
        return self

    def forget(self, place: int) -> None:
        """A client loses its site, in all replicates."""
        bucket, at = self.problem.locate(place)
        own = self.loop.executor._states[bucket]

        def forgotten(leaf: np.ndarray, fresh: Any) -> np.ndarray:
            leaf = np.array(leaf)
            leaf[at] = fresh
            return leaf

        with jax.enable_x64(True):
            site = jax.tree.map(forgotten, own.site, OwnSite.neutral(self.problem.globals.size))
            self.loop.executor._states[bucket] = own._replace(site=site)

    @property
    def posterior(self) -> Gaussian:
        return self.method.answer(self.problem.roster, self.current).posterior

    @property
    def sites(self) -> Gaussian:
        """The clients' own sites, leading axes replicate and client: nobody has them in one place but a test."""
        state, executor = self.current.state, self.loop.executor

        def site(place: int) -> Gaussian:
            counted = Counted(state.counted.round[:, place], state.counted.step[:, place])
            own = executor.private(place).site
            return jax.vmap(lambda mine, told: mine.settled(told)[0].at(told))(own, counted)

        with jax.enable_x64(True):
            found = [site(place) for place in range(len(self.problem.names))]
            return jax.tree.map(lambda *leaves: np.stack(leaves, axis=1), *found)

    def moments(self) -> tuple[np.ndarray, np.ndarray]:
        """Mean (d,) and covariance (d, d) of the first replicate."""
        mean, covariance = gaussian_moments(self.posterior)
        return mean[0], covariance[0]


@pytest.fixture
def rounds() -> type[Rounds]:
    return Rounds
