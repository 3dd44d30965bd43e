"""After the rounds clients are padded to several lengths, where what is evaluated of padding takes a while."""

import jax
import numpy as np
import numpyro
import numpyro.distributions as dist
import pytest

import fedbayes as fb
from fedbayes.inference.ep import EP
from fedbayes.inference.local.after import AFTER
from fedbayes.models import gp
from fedbayes.problem.problem import make_problem
from fedbayes.rounds.exchange import Round
from fedbayes.rounds.executors import Batched, batched
from fedbayes.rounds.programs import Programs
from fedbayes.runtime.precision import computing

SIZES, DRAWS = (40, 5, 6, 3), 30
KEY = jax.random.key(3)


def model(x, y=None):
    mu = numpyro.sample("mu", dist.Normal(0.0, 2.0))
    with fb.local():
        shift = numpyro.sample("shift", dist.Normal(mu, 1.0))
    numpyro.sample("y", dist.Bernoulli(logits=shift + 0.5 * x), obs=y)


def rows_of_their_own(x, y=None):
    mu = numpyro.sample("mu", dist.Normal(0.0, 2.0))
    with fb.local(), numpyro.plate("rows", x.shape[0]):
        z = numpyro.sample("z", dist.Normal(mu, 1.0))
        numpyro.sample("y", dist.Bernoulli(logits=z + 0.5 * x), obs=y)


def process(x, y=None):
    scale = numpyro.sample("scale", dist.LogNormal(0.0, 1.0))
    numpyro.sample("y", gp.GaussianProcess(gp.RBF(scale), x, 0.5), obs=y)


def executor_of(function) -> Batched:
    rng, method, executor = np.random.default_rng(4), EP(num_replicates=1), Batched()
    clients = {f"c{n}": {"x": rng.normal(size=n), "y": (rng.uniform(size=n) < 0.4).astype(float)} for n in SIZES}
    problem = make_problem(function, clients)
    assert len(problem.buckets) == 1
    executor.connect(Programs(method.phases(problem.roster), AFTER, 1), problem, KEY)
    return executor


def theta() -> np.ndarray:
    return np.random.default_rng(5).normal(size=(1, DRAWS, 1))


def answers(executor: Batched, active: np.ndarray) -> np.ndarray:
    order = Round(None, theta(), (), KEY, active, ["log_likelihood"] * len(SIZES))
    return np.asarray(executor.run(order).replies.each)


def lengths(executor: Batched, phase: int | None, name: str) -> list[tuple[int, list[int]]]:
    shared = theta() if phase is None else jax.ShapeDtypeStruct((1, 1), float)
    return [(part.clients.mask.shape[1], part.members.tolist()) for part in executor._parts(phase, name, 0, shared)]


@pytest.mark.parametrize("active", [np.arange(4), np.array([0]), np.array([3, 1])])
def test_clients_answer_the_same_whatever_they_are_padded_to(active, monkeypatch) -> None:
    with computing():
        executor = executor_of(model)
        expected = answers(executor, active)
        monkeypatch.setattr(batched, "_WORTH_A_PROGRAM", 1.0)
        assert lengths(executor, None, "log_likelihood") == [(6, [1, 2, 3]), (40, [0])]
        np.testing.assert_allclose(answers(executor, active), expected, rtol=1e-12)
        executor.chunk = 1
        np.testing.assert_allclose(answers(executor, active), expected, rtol=1e-12)


def test_little_work_rounds_and_locals_of_rows_have_one_length(monkeypatch) -> None:
    with computing():
        executor = executor_of(model)
        whole = [(40, [0, 1, 2, 3])]
        assert lengths(executor, None, "log_likelihood") == whole
        monkeypatch.setattr(batched, "_WORTH_A_PROGRAM", 1.0)
        assert lengths(executor, 0, "newton") == whole
        assert lengths(executor, None, "cavity") == whole  # of which the work is not known
        assert lengths(executor_of(rows_of_their_own), None, "log_likelihood") == whole


def test_rows_that_each_meet_all_others_are_worth_more_programs(monkeypatch) -> None:
    """A Gaussian process of n rows costs their square: 30 draws of 4 clients padded to 40 rows, or of fewer rows."""
    with computing():
        executor = executor_of(process)
        wasted = DRAWS * (4 * 40**2 - (3 * 6**2 + 40**2))
        monkeypatch.setattr(batched, "_WORTH_A_PROGRAM", wasted - 1.0)
        assert lengths(executor, None, "log_likelihood") == [(6, [1, 2, 3]), (40, [0])]
        monkeypatch.setattr(batched, "_WORTH_A_PROGRAM", 1.01 * wasted)  # of three lengths, too
        assert lengths(executor, None, "log_likelihood") == [(40, [0, 1, 2, 3])]


def test_programs_of_all_lengths_are_compiled_ahead(monkeypatch) -> None:
    monkeypatch.setattr(batched, "_WORTH_A_PROGRAM", 1.0)
    with computing():
        executor = executor_of(model)
        executor.asked_ahead("log_likelihood", theta(), (), KEY, len(SIZES))
        program = executor._program(None, "log_likelihood")
        assert len(program._under_way) == 2
        answers(executor, np.arange(4))
        assert not program._under_way  # each was called for
