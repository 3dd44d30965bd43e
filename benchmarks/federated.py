"""fedbayes, round by round: what each round has reached and what it cost, cold and warm."""

import time
import warnings
from typing import Any, NamedTuple

import jax
import numpy as np
from problems import BenchmarkSet
from scores import Moments

import fedbayes
from fedbayes.algorithm import Method, phases_of
from fedbayes.gaussian import Gaussian
from fedbayes.problem.problem import make_problem
from fedbayes.rounds.executors import Batched, Replies, Round
from fedbayes.rounds.loop import CompiledServer, Progressing, begin_phase, run_round
from fedbayes.rounds.wire import encode


class Step(NamedTuple):
    """What a method has after some time: seconds since its start, and the moments it would report."""

    seconds: float
    moments: Moments


class Recording(Batched):
    """The batched executor, which remembers its last exchange."""

    last: tuple[Round, Replies]

    def run(self, updates: Any, problem: Any, states: Any, work: Round) -> Any:
        """See `fedbayes.rounds.executors.Batched`."""
        replies, states = super().run(updates, problem, states, work)
        self.last = (work, replies)
        return replies, states

    def num_bytes(self) -> tuple[int, int]:
        """Bytes to and from one client in the last round, encoded as over a network."""
        work, replies = self.last
        personal, message, info = (
            jax.tree.map(lambda leaf: np.asarray(leaf)[0], part) for part in (work.personal, *replies)
        )
        request = {"shared": work.shared, "personal": personal, "key": jax.random.key_data(work.key)}
        return len(encode(request)), len(encode((message, info)))


class Federation:
    """A method's compiled programs, kept between runs.

    Parameters
    ----------
    problem
        The set.
    method
        Configured, such as ``fedbayes.EP()``.
    """

    def __init__(self, problem: BenchmarkSet, method: Method) -> None:
        self.problem = make_problem(problem.model, problem.clients)
        self.phases = phases_of(method, self.problem)
        self.servers = [CompiledServer(phase.algorithm) for phase in self.phases]
        self.executor = Recording()
        self.current: Progressing | None = None

    def run(self, key: jax.Array) -> list[Step]:
        """A whole fit; the seconds are those of the rounds, without what begins a phase."""
        everybody, steps, seconds = np.ones(len(self.problem.names), bool), [], 0.0
        self.current = None
        for index, phase in enumerate(self.phases):
            current = begin_phase(self.phases, index, self.current, self.problem, self.executor, key)
            self.current = current
            while current.rounds_in_phase < phase.max_rounds and not current.converged:
                round_key = jax.random.fold_in(jax.random.fold_in(key, index), current.rounds_in_phase)
                run_round(self.servers[index], self.problem, self.executor, current, everybody, round_key)
                seconds += float(current.history[-1]["seconds"])
                if phase.algorithm.posterior is not None:
                    steps.append(Step(seconds, posterior(phase.algorithm.posterior(current.state))))
        return steps

    def rounds(self) -> str:
        """Rounds of each phase, in words."""
        names = [str(record["phase"]) for record in self.current.history]
        return " + ".join(f"{names.count(name)} {name}" for name in dict.fromkeys(names))

    def solvers(self) -> str:
        """Local solvers of the last round, in words."""
        names, counts = np.unique(self.current.history[-1]["solver"], return_counts=True)
        return ", ".join(f"{count} {name}" for name, count in zip(names, counts, strict=True))

    def cavities(self) -> list[Gaussian]:
        """The first replicate's cavity of each client."""
        sites = self.current.state.sites
        whole = self.phases[-1].algorithm.posterior(self.current.state)
        parts = [jax.tree.map(lambda leaf, k=k: leaf[0, k], sites) for k in range(len(self.problem.names))]
        return [(jax.tree.map(lambda leaf: leaf[0], whole) - part).symmetrised() for part in parts]


def posterior(replicates: Gaussian) -> Moments:
    """Moments of the replicates' mixture, as in ``fit.idata``."""
    precision = np.asarray(replicates.precision)
    try:
        covariance = np.linalg.inv(precision)
    except np.linalg.LinAlgError:
        covariance = np.full_like(precision, np.nan)
    mean = np.einsum("rij,rj->ri", covariance, np.asarray(replicates.shift))
    return Moments(mean.mean(axis=0), covariance.mean(axis=0) + np.cov(mean, rowvar=False, bias=True))


def first_fit(problem: BenchmarkSet, key: jax.Array, method: Any = "ep") -> tuple[float, fedbayes.FederatedFit]:
    """Seconds of `fedbayes.fit_federated` as a user calls it, with every compilation."""
    jax.clear_caches()
    started = time.perf_counter()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", fedbayes.NotConvergedWarning)
        fit = fedbayes.fit_federated(problem.model, problem.clients, method=method, key=key, progress=False)
    return time.perf_counter() - started, fit
