"""Running EP round by round, with what each round leaves behind."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import jax
import numpy as np
import pytest

from fedbayes.algorithm import Phase, replicated
from fedbayes.gaussian import Gaussian
from fedbayes.problem.problem import Problem, make_problem
from fedbayes.rounds.executors import Batched
from fedbayes.rounds.loop import CompiledServer, begin_phase, run_round


class Rounds:
    """A method on a problem, one round at a time; all arrays are float64 and keep their axis of replicates."""

    def __init__(
        self, model: Callable, clients: Mapping[str, Any], method: Any, *, change: Callable | None = None
    ) -> None:
        with jax.enable_x64(True):
            self.problem: Problem = make_problem(model, clients)
            phase = method.phases(self.problem)[-1]
            algorithm = phase.algorithm if change is None else change(phase.algorithm)
            self.phases = [Phase(replicated(algorithm, method.num_replicates), phase.max_rounds, False)]
            self.server, self.executor, self.key = (
                CompiledServer(self.phases[0].algorithm),
                Batched(),
                jax.random.key(7),
            )
            self.current = begin_phase(self.phases, 0, None, self.problem, self.executor, self.key)

    def run(self, num: int = 1, active: Sequence[int] | None = None) -> "Rounds":
        mask = np.ones(len(self.problem.names), bool)
        if active is not None:
            mask = np.isin(np.arange(len(mask)), active)
        with jax.enable_x64(True):
            for _ in range(num):
                key = jax.random.fold_in(self.key, self.current.rounds_in_phase)
                run_round(self.server, self.problem, self.executor, self.current, mask, key)
        return self

    @property
    def posterior(self) -> Gaussian:
        with jax.enable_x64(True):
            return jax.tree.map(np.asarray, self.phases[0].algorithm.posterior(self.current.state))

    def moments(self) -> tuple[np.ndarray, np.ndarray]:
        """Mean (d,) and covariance (d, d) of the first replicate."""
        precision, shift = self.posterior.precision[0], self.posterior.shift[0]
        return np.linalg.solve(precision, shift), np.linalg.inv(precision)


@pytest.fixture
def rounds() -> type[Rounds]:
    return Rounds
