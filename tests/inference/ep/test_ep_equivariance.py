"""The law of EP's coordinates: a linear change of the globals changes no answer, no number of rounds, and no noise.

Each problem is fitted in its own coordinates and in others, ``theta = basis @ v``, far from orthogonal. The random
numbers then differ, so that the two fits agree as far as their Monte Carlo errors let them; for given draws the site is
equivariant to round-off (``tests/inference/local/test_moments.py``).
"""

import json
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import numpyro
import numpyro.distributions as dist
import pytest

import fedbayes as fb
from fedbayes.models import heart_disease

NES = Path(__file__).parents[2] / "data" / "posteriordb" / "nes1980-nes.json"


class Problem(NamedTuple):
    """A program in the coordinates of a basis, its clients, and from where EP starts."""

    size: int
    model: Callable
    clients: dict
    init: str = "auto"


def gaussian(basis: np.ndarray, sd: np.ndarray):
    """``theta ~ N(0, diag(sd^2))``, sampled as ``v`` with ``theta = basis @ v``."""
    precision = basis.T @ (basis / sd[:, None] ** 2)
    return jnp.asarray(basis) @ numpyro.sample("v", dist.MultivariateNormal(precision_matrix=precision))


def flat(basis: np.ndarray):
    improper = dist.ImproperUniform(dist.constraints.real_vector, (), (len(basis),))
    return jnp.asarray(basis) @ numpyro.sample("v", improper)


def heart() -> Problem:
    def model(basis):
        def program(x, y=None):
            theta = gaussian(basis, np.array([5.0] + [1.0] * 13))
            numpyro.sample("y", dist.Bernoulli(logits=theta[0] + x @ theta[1:]), obs=y)

        return program

    return Problem(14, model, heart_disease.clients())


def nes_by_age() -> Problem:
    """Under a flat prior, each client without some of the covariates; a scale besides."""
    data = json.loads(NES.read_text())["data"]
    age = np.asarray(data["age_discrete"])
    columns = [np.ones(data["N"]), data["real_ideo"], data["race_adj"], age == 2, age == 3, age == 4]
    x = np.column_stack([*columns, data["educ1"], data["gender"], data["income"]]).astype(float)
    y, order = np.asarray(data["partyid7"], float), np.argsort(age, kind="stable")

    def model(basis):
        def program(x, y=None):
            sigma = numpyro.sample("sigma", dist.ImproperUniform(dist.constraints.positive, (), ()))
            numpyro.sample("y", dist.Normal(x @ flat(basis), sigma), obs=y)

        return program

    clients = {f"client{k}": {"x": x[rows], "y": y[rows]} for k, rows in enumerate(np.array_split(order, 5))}
    return Problem(9, model, clients)


def mean_and_scale() -> Problem:
    """The globals of HM2's example, a mean and a log variance, which few rows a client make skew."""
    rng = np.random.default_rng(0)

    def model(basis):
        def program(th):
            mu, ell = gaussian(basis, np.ones(2))
            with numpyro.plate("rows", len(th)):
                numpyro.sample("estimate", dist.Normal(mu, jnp.exp(0.5 * ell)), obs=th)

        return program

    return Problem(2, model, {f"client{k}": {"th": 1.0 + rng.normal(size=10)} for k in range(10)})


def hierarchical() -> Problem:
    """Groups as local latents; the log of their scale is a global.

    EP starts at the clients' own modes: rounds of Newton's method, whose damping takes its scale from the coordinates,
    would end at one distance in these and at another in those.
    """
    rng, groups, clients = np.random.default_rng(1), 6, {}
    for k in range(5):
        group = np.repeat(np.arange(groups), 5)
        y = 0.5 + 0.7 * rng.normal(size=groups)[group] + rng.normal(size=len(group))
        clients[f"school{k}"] = {"y": y, "group": group}

    def model(basis):
        def program(y, group):
            mu, log_tau = gaussian(basis, np.array([2.0, 1.0]))
            with fb.local(), numpyro.plate("groups", groups):
                effect = numpyro.sample("effect", dist.Normal(mu, jnp.exp(log_tau)))
            with numpyro.plate("rows", len(y)):
                numpyro.sample("y", dist.Normal(effect[group], 1.0), obs=y)

        return program

    return Problem(2, model, clients, init="laplace")


def oblique(size: int) -> np.ndarray:
    """A basis whose vectors have lengths up to three, and are far from orthogonal."""
    rng = np.random.default_rng(size)
    left, right = (np.linalg.qr(rng.normal(size=(size, size)))[0] for _ in range(2))
    return left @ np.diag(np.geomspace(1.0 / 3.0, 3.0, size)) @ right


def fit(problem: Problem, basis: np.ndarray, damping: float | None = None) -> fb.FederatedFit:
    method = fb.EP(init=problem.init, damping=damping)
    return fb.fit_federated(problem.model(basis), problem.clients, method=method, key=jax.random.key(0), progress=False)


def last(found: fb.FederatedFit, name: str) -> float:
    return float(found.rounds[name][-1].mean())


def end_together(plain: fb.FederatedFit, turned: fb.FederatedFit) -> None:
    """Both end in one round, or the later one was there, but for the noise in what decides it.

    Without the rounds of Newton's method before EP, whose damping takes its scale from the coordinates.
    """
    both = [found.rounds.sel(round=found.rounds["phase"] == "EP") for found in (plain, turned)]
    last = min(len(rounds["round"]) for rounds in both) - 1
    for rounds in both:
        change, noise = (rounds[name][last].to_numpy().mean() for name in ("change", "monte_carlo_noise"))
        assert change <= plain.method.tolerance + 2.0 * noise


@pytest.mark.slow
@pytest.mark.optimised
@pytest.mark.parametrize("make", [heart, nes_by_age, mean_and_scale, hierarchical])
@pytest.mark.statistical(key=0, numbers=28, errors=6.0)
def test_a_linear_change_of_the_globals_changes_nothing(make) -> None:
    """Means and sds within six standard errors of the two fits' difference, the noise within a fifth."""
    problem = make()
    basis, size = oblique(problem.size), problem.size
    plain, turned = fit(problem, np.eye(size)), fit(problem, basis)
    places = [label.startswith("v[") for label in plain.global_labels]
    back = np.eye(len(places))
    back[np.ix_(places, places)] = basis
    (mean, covariance), (other, spread) = plain.moments(), turned.moments()
    other, spread = other @ back.T, back @ spread @ back.T
    sd = np.sqrt(np.diagonal(covariance.mean(axis=0)))
    error = 6.0 * np.hypot(plain.monte_carlo_error, turned.monte_carlo_error) / np.sqrt(plain.num_chains)
    np.testing.assert_allclose((mean - other).mean(axis=0) / sd, 0.0, atol=error)
    np.testing.assert_allclose(np.sqrt(np.diagonal(spread.mean(axis=0))) / sd, 1.0, atol=error)
    end_together(plain, turned)
    np.testing.assert_allclose(last(turned, "monte_carlo_noise"), last(plain, "monte_carlo_noise"), rtol=0.2)


@pytest.mark.slow
@pytest.mark.optimised
def test_planted_bug_steps_that_depend_on_the_coordinates_are_seen() -> None:
    """Damped in one of the two systems of coordinates, EP needs six rounds and not four."""
    problem = heart()
    with pytest.raises(AssertionError):
        end_together(fit(problem, np.eye(problem.size)), fit(problem, oblique(problem.size), damping=0.7))
