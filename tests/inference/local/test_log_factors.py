"""Log factors with the locals integrated out: exact where they are Gaussian, unbiased elsewhere."""

import jax
import jax.numpy as jnp
import numpy as np
import numpyro
import numpyro.distributions as dist
import pytest
from scipy.special import roots_hermitenorm

import fedbayes as fb
from fedbayes.inference.local.log_factors import NUM_LOCAL, NUM_LOCAL_FINER, locals_given, log_factors
from fedbayes.problem.problem import make_problem

DRAWS = 2 * NUM_LOCAL
Y = np.array([1.0, 0.2, -0.5])
FLAGS = np.array([1.0, 1.0, 1.0, 0.0, 1.0])
THETA = np.random.default_rng(0).normal(size=(64, 2)) * np.array([1.0, 0.7])


@pytest.fixture(autouse=True)
def _float64():
    with jax.enable_x64(True):
        yield


def of_two() -> jax.Array:
    """A level of N(mu, tau), as the sum of two locals: one alone would be integrated by quadrature, without draws."""
    mu, log_tau = numpyro.sample("mu", dist.Normal(0.0, 2.0)), numpyro.sample("log_tau", dist.Normal(0.0, 1.0))
    with fb.local():
        one = numpyro.sample("one", dist.Normal(mu, jnp.exp(log_tau) * jnp.sqrt(0.5)))
        other = numpyro.sample("other", dist.Normal(0.0, jnp.exp(log_tau) * jnp.sqrt(0.5)))
    return one + other


def gaussian_locals(y) -> None:
    numpyro.sample("y", dist.Normal(of_two(), 1.0), obs=y)


def binary_locals(y) -> None:
    numpyro.sample("y", dist.Bernoulli(logits=of_two()), obs=y)


def walk(y) -> None:
    """A random walk from mu, whose steps have the sd tau: all of its locals depend on each other."""
    mu, log_tau = numpyro.sample("mu", dist.Normal(0.0, 2.0)), numpyro.sample("log_tau", dist.Normal(0.0, 1.0))
    with fb.local(), numpyro.plate("steps", len(y)):
        step = numpyro.sample("step", dist.Normal(0.0, 1.0))
    numpyro.sample("y", dist.Normal(mu + jnp.exp(log_tau) * jnp.cumsum(step), 1.0), obs=y)


def client_of(model, y: np.ndarray):
    return make_problem(model, {"a": {"y": y}}).client("a")


def test_gaussian_locals_are_integrated_exactly() -> None:
    found = log_factors(client_of(gaussian_locals, Y), jnp.asarray(THETA), jnp.array([0.3, 0.8]), DRAWS)
    mu, tau = THETA[:, 0], np.exp(THETA[:, 1])
    covariance = np.eye(3) + tau[:, None, None] ** 2 * np.ones((3, 3))
    gap = Y - mu[:, None]
    squares = np.einsum("si,sij,sj->s", gap, np.linalg.inv(covariance), gap)
    exact = -0.5 * (squares + np.linalg.slogdet(covariance)[1] + 3 * np.log(2 * np.pi))
    np.testing.assert_allclose(found.values, exact, rtol=1e-8)
    np.testing.assert_array_equal(found.noise, np.zeros(len(THETA)))


def walked(num: int, num_local: int):
    """The log factors of a walk of so many steps, and the exact ones."""
    few, y = THETA[:16], np.random.default_rng(3).normal(size=num).cumsum()
    shift = jnp.linspace(0.1, 0.9, num)
    found = log_factors(client_of(walk, y), jnp.asarray(few), shift, num_local)
    steps = np.minimum.outer(np.arange(1, num + 1), np.arange(1, num + 1))
    covariance = np.eye(num) + np.exp(few[:, 1])[:, None, None] ** 2 * steps
    gap = y - few[:, :1]
    squares = np.einsum("si,sij,sj->s", gap, np.linalg.inv(covariance), gap)
    return found, -0.5 * (squares + np.linalg.slogdet(covariance)[1] + num * np.log(2 * np.pi))


@pytest.mark.parametrize(("num", "num_local"), [(63, NUM_LOCAL), (64, DRAWS), (127, DRAWS)])
def test_dependent_locals_are_integrated_at_each_draw_by_its_own_curvature(num, num_local) -> None:
    """How far a walk's steps spread given its rows depends on their sd: one curvature for all draws leaves noise."""
    found, exact = walked(num, num_local)
    np.testing.assert_allclose(found.values, exact, rtol=1e-8)
    np.testing.assert_array_equal(found.noise, np.zeros(len(exact)))


@pytest.mark.parametrize(("num", "num_local"), [(64, NUM_LOCAL), (128, DRAWS)])
def test_where_one_curvature_serves_all_draws_the_noise_says_so(num, num_local) -> None:
    found, exact = walked(num, num_local)
    assert np.min(np.abs(found.values - exact)) > 1e-3
    assert np.median(found.noise) > 0.05  # and less near the draws' median, whose curvature it is
    assert np.min(found.noise) > 1e-3


def test_locals_of_a_large_group_are_those_behind_its_finer_integral() -> None:
    """Each draw's weights are equal where they are Gaussian: with the same shift, the picks take the first half."""
    client, theta, num = client_of(walk, np.arange(64.0)), jnp.asarray(THETA[:1]), 64
    shift, levels = jnp.linspace(0.1, 0.9, num), jnp.zeros((1, num))

    @jax.jit
    def at(pick):
        return locals_given(client, theta, shift, pick[None], levels, NUM_LOCAL_FINER)[0]

    picked = [np.asarray(at(jnp.asarray(pick))) for pick in (np.arange(64) + 0.5) / 64]
    assert len(np.unique(picked, axis=0)) == 32  # half of 64 draws, and not of 512


def by_quadrature(mu: np.ndarray, tau: np.ndarray) -> np.ndarray:
    nodes, weights = roots_hermitenorm(200)
    z = mu[:, None] + tau[:, None] * nodes
    logs = FLAGS.sum() * z - len(FLAGS) * np.logaddexp(0.0, z)
    return np.log(np.exp(logs) @ weights / weights.sum())


@pytest.mark.statistical(key=0, numbers=8, errors=5.0)
def test_estimates_are_unbiased_and_their_noise_is_known() -> None:
    """The mean of many estimates against quadrature, and their spread against what is reported of it."""
    client, theta = client_of(binary_locals, FLAGS), jnp.asarray(THETA[:8])
    shifts = jax.random.uniform(jax.random.key(0), (320, 2), dtype=jnp.float64)
    found = jax.jit(jax.vmap(lambda shift: log_factors(client, theta, shift, DRAWS)))(shifts)
    ratio = np.exp(np.asarray(found.values) - by_quadrature(THETA[:8, 0], np.exp(THETA[:8, 1])))
    error = ratio.std(axis=0, ddof=1) / np.sqrt(len(ratio))
    np.testing.assert_array_less(np.abs(ratio.mean(axis=0) - 1.0), 5.0 * error + 1e-9)
    # quasi-random draws do better than the independent ones for which the noise is stated
    assert np.mean(ratio.var(axis=0)) <= float(np.mean(found.noise))
    assert 0.0 < float(np.mean(found.noise)) < 0.05


@pytest.mark.statistical(key=1, numbers=2, errors=5.0)
def test_locals_are_those_of_their_law_given_the_globals() -> None:
    client, num = client_of(gaussian_locals, Y), 6400
    theta = jnp.broadcast_to(jnp.array([0.4, -0.2]), (num, 2))
    picks = jax.random.uniform(jax.random.key(1), (num,), dtype=jnp.float64)
    levels = jnp.zeros((num, 2))  # for quadrature alone
    z = np.asarray(locals_given(client, theta, jnp.array([0.1, 0.6]), picks, levels, DRAWS)).sum(axis=1)
    precision = 3.0 + np.exp(0.4)
    mean, sd = (Y.sum() + 0.4 * np.exp(0.4)) / precision, 1.0 / np.sqrt(precision)
    assert abs(z.mean() - mean) < 5.0 * sd / np.sqrt(num)
    assert abs(z.std() / sd - 1.0) < 5.0 / np.sqrt(2 * num)
