"""fedbayes, round by round: what each round has reached and what it cost, cold and warm."""

import time
import warnings
from functools import wraps
from typing import Any, NamedTuple

import jax
import numpy as np
from problems import BenchmarkSet
from scores import Moments

import fedbayes
from fedbayes.contract.algorithm import Method, Reply
from fedbayes.contract.state import RunState
from fedbayes.inference.local.after import AFTER
from fedbayes.numerics.gaussian import Gaussian
from fedbayes.numerics.host import gaussian_moments
from fedbayes.problem.problem import make_problem
from fedbayes.rounds.exchange import Heard, Round
from fedbayes.rounds.executors import Batched
from fedbayes.rounds.loop import Run
from fedbayes.rounds.programs import Programs
from fedbayes.rounds.wire import encode


class Step(NamedTuple):
    """What a method has after some time: seconds since its start, and the moments it would report."""

    seconds: float
    moments: Moments


class Recording(Batched):
    """The batched executor, which remembers its last exchange."""

    last: tuple[Round, Heard]

    def run(self, order: Round) -> Heard:
        """See `fedbayes.rounds.executors.Batched`."""
        heard = super().run(order)
        self.last = (order, heard)
        return heard

    def num_bytes(self) -> tuple[int, int]:
        """Bytes to and from one client in the last round, encoded as over a network."""
        order, heard = self.last
        parts = (order.personal, heard.replies.each, heard.codes, heard.infos)
        personal, each, code, info = jax.tree.map(lambda leaf: np.asarray(leaf)[0], parts)
        request = {"shared": order.shared, "personal": personal, "key": jax.random.key_data(order.key)}
        # a client's own part of the sum has the shapes of the sum
        return len(encode(request)), len(encode(Reply(heard.replies.total, each, code, info)))


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
        self.method = method
        self.problem = make_problem(problem.model, problem.clients, rows=method.needs_rows)
        self.roster = self.problem.roster
        self.programs = Programs(method.phases(self.roster), AFTER, method.num_replicates)
        self.executor = Recording()
        self.loop: Run
        self.current: RunState

    def start(self, key: jax.Array) -> RunState:
        """A fit before its first round."""
        self.executor.connect(self.programs, self.problem, key)
        self.loop = Run(self.programs, self.roster, self.executor, key)
        self.current = self.loop.begin(0, None)
        return self.current

    def next_phase(self) -> RunState:
        """The next phase before its first round."""
        self.current = self.loop.begin(self.current.phase + 1, self.current)
        return self.current

    def round(self) -> None:
        """One more round of all clients."""
        self.loop.round(self.current, np.ones(len(self.roster.names), bool))

    def run(self, key: jax.Array) -> list[Step]:
        """A whole fit.

        The seconds are those of the rounds of all phases, without what begins a phase; the steps are the rounds of the
        last phase.
        """
        self.start(key)
        steps, seconds = [], 0.0
        while True:
            last = self.current.phase == len(self.programs.phases) - 1
            budget = self.programs.phases[self.current.phase].max_rounds
            while self.current.rounds_in_phase < budget and not np.all(self.current.settled):
                self.round()
                seconds += float(self.current.history[-1]["seconds"])
                if last:
                    steps.append(Step(seconds, posterior(self.method.answer(self.roster, self.current).posterior)))
            if last:
                return steps
            self.next_phase()

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
        cavities = self.method.answer(self.roster, self.current).locals_from.others
        return [jax.tree.map(lambda leaf, k=k: leaf[0, k], cavities) for k in range(len(self.roster.names))]


def posterior(replicates: Gaussian) -> Moments:
    """Moments of the replicates' mixture, as in ``fit.idata``; NaN where one is improper."""
    return mixture(*gaussian_moments(replicates))


def mixture(mean: np.ndarray, covariance: np.ndarray) -> Moments:
    """Moments of a mixture of equal parts, from theirs, ``(part, d)`` and ``(part, d, d)``."""
    between = np.cov(mean, rowvar=False, bias=True) if len(mean) > 1 else 0.0
    return Moments(mean.mean(axis=0), covariance.mean(axis=0) + between)


def rounds_of(fit: fedbayes.FederatedFit) -> dict[str, int]:
    """Rounds of a fit by phase."""
    counts = fit.rounds["rounds"].to_series().groupby(fit.rounds["phase"].values, sort=False).sum()
    return {str(name): int(count) for name, count in counts.items()}


def first_fit(problem: BenchmarkSet, key: jax.Array, method: Any = "ep") -> tuple[float, fedbayes.FederatedFit]:
    """Seconds of `fedbayes.fit_federated` as a user calls it, with every compilation."""
    jax.clear_caches()

    @wraps(problem.model)  # to fedbayes another model, of which it has kept nothing
    def model(*arguments: Any, **data: Any) -> None:
        problem.model(*arguments, **data)

    started = time.perf_counter()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", fedbayes.NotConvergedWarning)
        fit = fedbayes.fit_federated(model, problem.clients, method=method, key=key, progress=False)
    return time.perf_counter() - started, fit
