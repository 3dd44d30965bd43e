"""Proposals as skewed as the locals: exact quantiles of known laws, and integrals of known value with little noise."""

import jax
import jax.numpy as jnp
import numpy as np
import numpyro
import numpyro.distributions as dist
import pytest
from scipy.special import gammaln, ndtr
from scipy.stats import loggamma

import fedbayes as fb
from fedbayes.inference.local import log_factors as module
from fedbayes.inference.local.density.conditional import find_conditional
from fedbayes.inference.local.density.skewed import Axes, find_axes, whitened_draws
from fedbayes.inference.local.log_factors import NUM_LOCAL, log_factors
from fedbayes.problem.problem import make_problem

SHAPES = np.array([0.7, 1.5, 4.0, 30.0])  # of gamma laws, whose logarithms are the less skewed the larger these are
GROUP = np.arange(4)[None]
STRAIGHT = np.arange(-3.5, 3.6, 0.25)  # the knots of an axis that is not skewed
COUPLED = np.eye(8) + np.triu(0.5 * np.random.default_rng(0).normal(size=(8, 8)), 1)


@pytest.fixture(autouse=True)
def _float64():
    with jax.enable_x64(True):
        yield


def log_gammas(z: jax.Array) -> jax.Array:
    """Independent logarithms of gamma variables, unnormalised."""
    return jnp.sum(SHAPES * z - jnp.exp(z))


def approximation(log_density, groups: np.ndarray):
    return find_conditional(log_density, jnp.log(SHAPES), jnp.asarray(groups), max_steps=40)


@pytest.mark.parametrize("groups", [GROUP, GROUP.reshape(2, 2)])
def test_axes_are_at_the_exact_quantiles(groups) -> None:
    """One group, and two groups whose axes are looked along side by side."""
    there = approximation(log_gammas, groups)
    x = np.linspace(-3.0, 3.0, 25)  # at knots
    found = jax.vmap(find_axes(log_gammas, there, jnp.asarray(groups), 29).at)(np.tile(x[:, None], 4))
    exact = loggamma.ppf(ndtr(x)[:, None], SHAPES)
    np.testing.assert_allclose(found, (exact - np.log(SHAPES)) * np.sqrt(SHAPES), atol=0.02)
    assert np.max(np.abs(found - x[:, None])) > 2.0  # they are far from those of the Laplace approximation


def axes_of(log_density) -> Axes:
    return find_axes(log_density, approximation(log_density, GROUP), jnp.asarray(GROUP), 11)


@pytest.mark.parametrize("x", [[0.1, -1.3, 2.2, 0.6], [-4.4, 5.0, 3.6, -3.9]], ids=["between knots", "beyond them"])
def test_the_way_back_and_its_determinant(x) -> None:
    axes, x = axes_of(log_gammas), jnp.asarray(x)
    _, expected = np.linalg.slogdet(jax.jacfwd(axes.at)(x))
    back, stretched = axes.back(axes.at(x))
    np.testing.assert_allclose(back, x, rtol=1e-12)
    np.testing.assert_allclose(stretched, expected, rtol=1e-9)


def test_weights_are_bounded_by_those_of_draws_that_are_not_skewed() -> None:
    """Also where the maps are far from the density: one of eight draws is not mapped, and the mixture knows it."""
    noise, wide = np.random.default_rng(0).normal(size=(64, 4)), 1.5
    maps = Axes(jnp.broadcast_to(0.05 * STRAIGHT, (4, 29)))  # twenty times too narrow
    found = whitened_draws(jnp.asarray(noise), wide, maps)
    np.testing.assert_allclose(found.e[56:], wide * noise[56:])
    np.testing.assert_allclose(found.e[:32], 0.05 * noise[:32], rtol=1e-12)
    plain = -0.5 * np.sum((found.e / wide) ** 2, axis=1) - 4 * np.log(wide)
    assert np.min(found.mixture - plain) > -np.log(8.0) - 1e-9
    np.testing.assert_allclose(found.narrow[:32], -0.5 * np.sum(noise[:32] ** 2, axis=1) - 4 * np.log(0.05))


def test_an_axis_that_leaves_the_support_is_not_skewed_and_all_others_are() -> None:
    """Beyond it the gradient is not a number."""
    axes = axes_of(lambda z: log_gammas(z) + 1e-3 * jnp.sqrt(z[3] - 2.9))
    straight = np.max(np.abs(axes.knots - STRAIGHT), axis=1) == 0.0
    np.testing.assert_array_equal(straight, [False, False, False, True])


def test_of_a_gaussian_nothing_is_moved() -> None:
    root = jnp.asarray(np.random.default_rng(0).normal(size=(4, 4)))
    axes = axes_of(lambda z: -0.5 * jnp.sum((root @ (z - 1.0)) ** 2))
    x = jnp.asarray(np.random.default_rng(1).normal(size=4))
    np.testing.assert_allclose(axes.at(x), x, rtol=1e-14)
    assert axes.back(x)[1] == 0.0


def coupled(y) -> None:
    """Eight locals, which ``COUPLED``, of determinant one, makes independent, with log-gamma laws around the global."""
    level = numpyro.sample("level", dist.Normal(0.0, 1.0))
    with fb.local():
        z = numpyro.sample("z", dist.ImproperUniform(dist.constraints.real_vector, (), (8,)))
    u = COUPLED @ z - level
    numpyro.factor("law", jnp.sum(np.tile(SHAPES, 2) * u - jnp.exp(u)))
    numpyro.sample("y", dist.Normal(level, 1.0), obs=y)


def found_at(theta: np.ndarray):
    client = make_problem(coupled, {"a": {"y": np.zeros(2)}}).client("a")
    return log_factors(client, jnp.asarray(theta), jnp.linspace(0.1, 0.9, 8), NUM_LOCAL)


def test_skewed_locals_are_integrated_with_little_noise(monkeypatch) -> None:
    """The integral is a product of gamma functions; with the Laplace approximation alone there is far more noise."""
    theta = np.random.default_rng(0).normal(size=(64, 1))
    exact = 2.0 * gammaln(SHAPES).sum() - (theta[:, 0] ** 2 + np.log(2.0 * np.pi))
    found = found_at(theta)
    ratio = np.exp(np.asarray(found.values) - exact)
    error = np.sqrt(np.mean(found.noise) / len(theta))
    assert abs(ratio.mean() - 1.0) < 4.0 * error
    assert np.mean(found.noise) < 0.02
    straight = lambda *_: Axes(jnp.broadcast_to(STRAIGHT, (8, 29)))  # noqa: E731
    monkeypatch.setattr(module, "find_axes", straight)
    assert np.mean(found_at(theta).noise) > 0.1
