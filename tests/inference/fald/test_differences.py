"""How FA-LD's clients differ at the mode: in closed form, and from sums the same as from single expansions."""

import jax
import numpy as np
import numpyro
import numpyro.distributions as dist
import pytest
from numpyro.distributions import constraints

from fedbayes.inference.fald.differences import differences_phase, known_of
from fedbayes.inference.fald.method import FALD
from fedbayes.inference.local.after import AFTER
from fedbayes.inference.mode import Needs, mode_phase
from fedbayes.inference.options import client_weights
from fedbayes.problem.problem import make_problem
from fedbayes.rounds.executors import Batched
from fedbayes.rounds.loop import Run
from fedbayes.rounds.programs import Programs
from fedbayes.rounds.progress import Silent

KEY = jax.random.key(3)


def plane(x, y):
    beta = numpyro.sample("beta", dist.ImproperUniform(constraints.real_vector, (), (2,)))
    numpyro.sample("y", dist.Normal(x @ beta, 1.0), obs=y)


def clients(sizes=(3, 6, 9)):
    rng = np.random.default_rng(1)
    return {f"c{n}": {"x": rng.normal(size=(n, 2)), "y": rng.normal(size=n)} for n in sizes}


def state_of(phases, problem):
    programs, executor = Programs(phases, AFTER, 1), Batched()
    executor.connect(programs, problem, KEY)
    return jax.tree.map(
        lambda leaf: np.asarray(leaf)[0], Run(programs, problem.roster, executor, KEY).run(None, Silent()).state
    )


@pytest.mark.parametrize("weights", ["rows", "equal"])
@pytest.mark.parametrize("preconditioner", ["none", "dense"])
def test_sums_tell_what_single_expansions_tell(weights, preconditioner) -> None:
    config = FALD(weights=weights, preconditioner=preconditioner)
    with jax.enable_x64(True):
        problem = make_problem(plane, clients())
        p = client_weights(config.weights, problem.roster)
        sums = [mode_phase(problem.roster, Needs(), tolerance=1e-3, max_rounds=50)]
        known = state_of([*sums, differences_phase(config, problem.roster, p)], problem)
        single = mode_phase(problem.roster, Needs(single=True), tolerance=1e-3, max_rounds=50)
        exact = known_of(config, state_of([single], problem), p)
    found, expected = (jax.tree.map(np.asarray, each.differences) for each in (known, exact))
    np.testing.assert_allclose(found.square, expected.square, rtol=1e-9)
    np.testing.assert_allclose(found.pull, expected.pull, rtol=1e-9, atol=1e-9 * np.abs(expected.pull).max())
    assert expected.smooth <= found.smooth * (1 + 1e-12) <= expected.smooth * 3 ** (1 / 128) * (1 + 1e-9)
    assert expected.convex * 3 ** (-1 / 128) * (1 - 1e-6) <= found.convex <= expected.convex * (1 + 1e-6)


def test_they_are_those_of_the_clients_matrices() -> None:
    config, data = FALD(weights="equal", preconditioner="none"), clients()
    with jax.enable_x64(True):
        problem = make_problem(plane, data)
        p = client_weights(config.weights, problem.roster)
        mode = mode_phase(problem.roster, Needs(), tolerance=1e-3, max_rounds=50)
        found = state_of([mode, differences_phase(config, problem.roster, p)], problem).differences
    hessians = [3.0 * each["x"].T @ each["x"] for each in data.values()]
    sums = [sum(each["x"].T @ each[name] for each in data.values()) for name in ("x", "y")]
    best = np.linalg.solve(*sums)
    slopes = [3.0 * each["x"].T @ (each["x"] @ best - each["y"]) for each in data.values()]
    np.testing.assert_allclose(found.square, sum(h @ h for h in hessians) / 3.0, rtol=1e-9)
    np.testing.assert_allclose(found.pull, sum(h @ g for h, g in zip(hessians, slopes, strict=True)) / 3.0, rtol=1e-6)
    tops = np.array([np.linalg.eigvalsh(h)[-1] for h in hessians])
    np.testing.assert_allclose(
        found.smooth, np.sum(tops**128.0 / tops.max() ** 128.0) ** (1 / 128) * tops.max(), rtol=1e-6
    )
    least = np.array([np.linalg.eigvalsh(h)[0] for h in hessians])
    np.testing.assert_allclose(
        1.0 / found.convex, np.sum((least.min() / least) ** 128.0) ** (1 / 128) / least.min(), rtol=1e-6
    )


def test_a_client_without_curvature_leaves_no_convexity() -> None:
    """One row in two dimensions: the smallest eigenvalue is zero, or just below."""
    config = FALD(preconditioner="none")
    with jax.enable_x64(True):
        problem = make_problem(plane, clients((1, 6, 9)))
        p = client_weights(config.weights, problem.roster)
        mode = mode_phase(problem.roster, Needs(), tolerance=1e-3, max_rounds=50)
        found = state_of([mode, differences_phase(config, problem.roster, p)], problem).differences
    assert 0.0 <= found.convex < 1e-8 * found.smooth
