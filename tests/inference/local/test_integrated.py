"""Single locals beside a few others: their curvature against dense algebra, their integral against exact ones.

The programs are small, and told which locals are single ones.
"""

from dataclasses import replace
from functools import cache
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import numpyro
import numpyro.distributions as dist
import pytest
from scipy.special import logsumexp
from scipy.stats import multivariate_normal

import fedbayes as fb
from fedbayes.inference.local import solvers
from fedbayes.inference.local.density.arrow import Places, find_arrow
from fedbayes.inference.local.density.conditional import find_conditional
from fedbayes.inference.local.density.integrated import Integrated
from fedbayes.inference.local.density.moments import score_regression
from fedbayes.inference.local.density.tilted import Tilted, cold_chains, cold_start
from fedbayes.inference.local.log_factors import NUM_LOCAL_FINER, locals_given, log_factors
from fedbayes.inference.mode import expansion
from fedbayes.numerics.gaussian import Gaussian
from fedbayes.problem.client import Client
from fedbayes.problem.problem import make_problem

NUM, EACH = 5, 3
GROUP = np.tile(np.arange(NUM), EACH)
RNG = np.random.default_rng(0)
X = RNG.normal(size=NUM * EACH)
SCALES = (0.8, 0.6, 0.5)  # of the groups' effects, of the client's own, of the rows
THETA = np.array([0.3, -0.5])


@pytest.fixture(autouse=True)
def _float64():
    """The clients are made before anything is traced."""
    with jax.enable_x64(True):
        client(False), client(True)
        yield


def star(y, binary: bool) -> None:
    mu, beta = numpyro.sample("mu", dist.Normal(0.0, 2.0)), numpyro.sample("beta", dist.Normal(0.0, 1.0))
    with fb.local():
        u = numpyro.sample("u", dist.Normal(0.0, 1.0).expand([NUM]).to_event(1))
        w = numpyro.sample("w", dist.Normal(0.0, 1.0).expand([2]).to_event(1))
    mean = mu + beta * X + SCALES[0] * u[GROUP] + SCALES[1] * (w[0] + w[1] * X)
    numpyro.sample("y", dist.Bernoulli(logits=mean) if binary else dist.Normal(mean, SCALES[2]), obs=y)


@cache
def outcomes(binary: bool) -> np.ndarray:
    rng = np.random.default_rng(1)
    return (rng.random(NUM * EACH) < 0.6).astype(int) if binary else rng.normal(size=NUM * EACH)


@cache
def made(binary: bool) -> Client:
    return make_problem(star, {"a": {"y": outcomes(binary), "binary": binary}}).client("a")


def client(binary: bool = False) -> Client:
    return replace(made(binary), singles=("u",))


def exact(theta: Any) -> float:
    """Log marginal likelihood of the Gaussian program."""
    a, b, c = (scale**2 for scale in SCALES)
    covariance = a * (GROUP[:, None] == GROUP) + b * (1.0 + np.outer(X, X)) + c * np.eye(len(X))
    return float(multivariate_normal.logpdf(outcomes(False), theta[0] + theta[1] * X, covariance))


def by_sums(theta: Any) -> float:
    """The same of the binary program: sums over a fine grid of each local."""
    grid = np.linspace(-6.0, 6.0, 61)
    width, law = grid[1] - grid[0], -0.5 * grid**2 - 0.5 * np.log(2.0 * np.pi)
    first, second = np.meshgrid(grid, grid, indexing="ij")
    total = law[:, None] + law
    for group in range(NUM):
        rows = np.flatnonzero(GROUP == group)
        mean = theta[0] + theta[1] * X[rows] + SCALES[1] * (first[..., None] + second[..., None] * X[rows])
        logits = mean[..., None, :] + SCALES[0] * grid[:, None]
        signs = 2.0 * outcomes(True)[rows] - 1.0
        logs = -np.logaddexp(0.0, -signs * logits).sum(axis=-1) + law
        total = total + logsumexp(logs, axis=-1) + np.log(width)
    return float(logsumexp(total) + 2.0 * np.log(width))


@pytest.mark.parametrize("binary", [False, True])
def test_the_arrow_is_the_dense_laplace_approximation(binary) -> None:
    own = client(binary)
    places, log_density = Places(own.single_places, own.others), own.given(jnp.asarray(THETA))
    start, everything = cold_start(own.num_locals), jnp.arange(own.num_locals)[None]
    found = jax.jit(lambda: find_arrow(log_density, start, places, max_steps=50))()
    dense = jax.jit(lambda: find_conditional(log_density, start, everything, max_steps=50))()
    np.testing.assert_allclose(found.mode, dense.mode, atol=1e-8)
    np.testing.assert_allclose(found.log_spread(), dense.log_spread(), atol=1e-8)
    slope = jnp.asarray(RNG.normal(size=own.num_locals))
    np.testing.assert_allclose(found.solve(slope, places), dense.white[0].T @ (dense.white[0] @ slope), atol=1e-8)


@pytest.mark.parametrize("far", [-8.0, 6.0])
def test_the_mode_is_found_from_far_away(far) -> None:
    theta = jnp.asarray(THETA)
    factor = jax.jit(lambda: Integrated.around(client(True), theta, jnp.full(NUM + 2, far)))()
    np.testing.assert_allclose(jax.grad(client(True).given(theta))(factor.there.mode), 0.0, atol=1e-3)


def test_gaussian_locals_are_integrated_out_exactly() -> None:
    theta = jnp.asarray(THETA + 0.3 * RNG.normal(size=(4, 2)))
    run = jax.jit(lambda theta: log_factors(client(), Gaussian.neutral(2), theta, jnp.full(NUM + 2, 0.3)))
    found = run(theta)
    np.testing.assert_allclose(found.values, [exact(each) for each in np.asarray(theta)], atol=1e-9)
    np.testing.assert_allclose(found.noise, 0.0, atol=1e-12)
    np.testing.assert_allclose(found.halved, 0.0, atol=1e-9)


def test_others_are_integrated_out_within_their_noise() -> None:
    """Eight draws of the two others, within four of the errors that they state; and 64."""
    theta = jnp.asarray(THETA + 0.3 * RNG.normal(size=(16, 2)))
    truth = np.array([by_sums(each) for each in np.asarray(theta)])
    for num_local, most in ((16, 0.05), (NUM_LOCAL_FINER, 0.005)):

        def run(theta, num_local=num_local):
            return log_factors(client(True), Gaussian.neutral(2), theta, jnp.full(NUM + 2, 0.3), num_local)

        found = jax.jit(run)(theta)
        error = np.asarray(found.values) - truth
        assert np.all(np.asarray(found.noise) < most)
        assert np.all(np.abs(error) < 4.0 * np.sqrt(np.asarray(found.noise)) + 1e-5)
        assert np.all(np.abs(found.halved) < 1e-3)


def test_the_expansion_at_a_point_is_that_of_the_exact_marginal() -> None:
    message, z = jax.jit(lambda: expansion(client(), jnp.asarray(THETA), cold_start(NUM + 2), 16))()
    design = np.stack([np.ones_like(X), X], axis=1)
    a, b, c = (scale**2 for scale in SCALES)
    covariance = a * (GROUP[:, None] == GROUP) + b * (1.0 + np.outer(X, X)) + c * np.eye(len(X))
    solved = np.linalg.solve(covariance, design)
    np.testing.assert_allclose(message.value, exact(THETA), atol=1e-9)
    np.testing.assert_allclose(message.site.precision, design.T @ solved, rtol=1e-6)
    np.testing.assert_allclose(message.site.shift, solved.T @ outcomes(False), rtol=1e-5, atol=1e-6)
    np.testing.assert_allclose(jax.grad(client().given(jnp.asarray(THETA)))(z), 0.0, atol=1e-6)


def test_the_curvature_without_third_derivatives_is_the_integrals() -> None:
    """Of Gaussian locals, where both are the same."""
    factor = jax.jit(lambda: Integrated.around(client(), jnp.asarray(THETA), cold_start(NUM + 2)))()
    position = jnp.asarray([*THETA, 0.2, -0.1])
    both = jax.jit(lambda factor, at: (factor.curvature(at), -jax.hessian(factor.log_factor)(at)))
    np.testing.assert_allclose(*both(factor, position), atol=1e-6)


@pytest.mark.parametrize("name", ["importance", "nested"])
def test_a_site_is_the_exact_one_of_a_gaussian_client(name) -> None:
    solver = solvers.integrating(getattr(solvers, name)(num_samples=32, estimator=score_regression))
    cavity = Gaussian(jnp.zeros(2), jnp.eye(2), jnp.zeros(()))

    @jax.jit
    def run(own):
        warm = cold_chains(cold_start(2 + NUM + 2))
        return solver.run(Tilted(own, cavity), warm, solver.inputs(jax.random.key(0), 2 + NUM + 2))

    found = run(client())
    message, _ = jax.jit(lambda: expansion(client(), jnp.asarray(THETA), cold_start(NUM + 2), 16))()
    np.testing.assert_allclose(found.site.precision, message.site.precision, rtol=1e-5)
    np.testing.assert_allclose(found.site.shift, message.site.shift, rtol=1e-5, atol=1e-5)
    assert found.warm.position.shape == (2 + NUM + 2,)


@pytest.mark.statistical(key=2, numbers=14, errors=5.0)
def test_draws_of_the_locals_have_their_law_given_the_globals() -> None:
    """Means and variances of Gaussian locals against their exact law."""
    num, own = 4096, client()
    theta = jnp.broadcast_to(jnp.asarray(THETA), (num, 2))
    keys = jax.random.split(jax.random.key(2), 3)
    picks = jax.random.uniform(keys[0], (num,), dtype=jnp.float64)
    levels = jax.random.uniform(keys[1], (num, NUM + 2), dtype=jnp.float64)
    shift = jax.random.uniform(keys[2], (NUM + 2,), dtype=jnp.float64)
    z = np.asarray(jax.jit(lambda: locals_given(own, Gaussian.neutral(2), theta, shift, picks, levels))())
    everything = jnp.arange(NUM + 2)[None]
    log_density = own.given(jnp.asarray(THETA))
    law = jax.jit(lambda: find_conditional(log_density, jnp.zeros(NUM + 2), everything, max_steps=20))()
    covariance = np.asarray(law.white[0].T @ law.white[0])
    sd = np.sqrt(np.diag(covariance))
    assert np.all(np.abs(z.mean(axis=0) - law.mode) < 5.0 * sd / np.sqrt(num))
    np.testing.assert_allclose(
        np.cov(z.T) / np.outer(sd, sd), covariance / np.outer(sd, sd), atol=5.0 * np.sqrt(2 / num)
    )
