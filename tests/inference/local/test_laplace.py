"""The mode of a tilted density from where a fit starts: at the prior's mean, or far away, across a saddle."""

import jax
import jax.numpy as jnp
import numpy as np
import numpyro
import numpyro.distributions as dist
import pytest
from scipy.optimize import minimize

import fedbayes as fb
from fedbayes.inference.local.density import laplace
from fedbayes.inference.local.density.laplace import find_mode
from fedbayes.inference.local.density.tilted import Tilted, cold_chains, cold_start
from fedbayes.inference.local.solvers import laplace as laplace_solver
from fedbayes.numerics.gaussian import Gaussian
from fedbayes.problem.problem import make_problem


@pytest.fixture(autouse=True)
def _double():
    with jax.enable_x64(True):
        yield


def logistic(x, y) -> None:
    beta = numpyro.sample("beta", dist.Normal(0.0, 1.0).expand([3]).to_event(1))
    numpyro.sample("y", dist.Bernoulli(logits=x @ beta), obs=y)


def linear(x, y) -> None:
    beta = numpyro.sample("beta", dist.Normal(0.0, 10.0).expand([3]).to_event(1))
    sigma = numpyro.sample("sigma", dist.LogNormal(0.0, 3.0))
    numpyro.sample("y", dist.Normal(x @ beta, sigma), obs=y)


def tilted(model, data, guess) -> Tilted:
    problem = make_problem(model, {"a": data})
    return Tilted(problem.client("a"), problem.prior.gaussian, jnp.asarray(guess))


def peak(target: Tilted, start) -> np.ndarray:
    """By SciPy."""
    value = jax.jit(jax.value_and_grad(lambda x: -target.log_density(x)))
    return minimize(value, start, jac=True, method="BFGS", options={"gtol": 1e-8}).x


def test_a_prior_of_mean_zero_is_no_trap() -> None:
    """At logit zero NumPyro's Bernoulli has a gradient that is off by one half, from which no step gains anything."""
    rng = np.random.default_rng(0)
    x = rng.normal(size=(50, 3))
    target = tilted(logistic, {"x": x, "y": (rng.random(50) < 0.2).astype(int)}, np.zeros(3))
    kink = jax.grad(target.log_density)(jnp.zeros(3)) - jax.grad(target.log_density)(jnp.full(3, 1e-9))
    assert float(jnp.max(jnp.abs(kink))) > 0.1
    found = target.mode(cold_start(3), tolerance=1e-8)
    assert bool(found.converged)
    np.testing.assert_allclose(found.position, peak(target, np.full(3, 0.1)), atol=1e-5)


def saddle() -> Tilted:
    """A regression whose residuals are small: from zero the way leads over a large scale, and back."""
    rng = np.random.default_rng(1)
    x = 50.0 + 50.0 * rng.normal(size=(12, 3))
    return tilted(linear, {"x": x, "y": x @ [1.0, 1.0, 1.0] + 0.05 * rng.normal(size=12)}, np.zeros(4))


def test_a_saddle_is_crossed() -> None:
    target = saddle()
    found = target.mode(cold_start(4), tolerance=1e-8)
    assert bool(found.converged)
    np.testing.assert_allclose(found.position, peak(target, np.array([1.0, 1.0, 1.0, -3.0])), atol=1e-4)
    np.testing.assert_allclose(jax.grad(target.log_density)(found.position), 0.0, atol=1e-3)


def test_steps_that_grow_cross_it_sooner(monkeypatch) -> None:
    target = saddle()

    def steps() -> int:
        """The least bound of the steps under which the mode is found."""
        found = jax.jit(lambda most: find_mode(target.log_density, cold_start(4), max_steps=most).converged)
        return next(most for most in range(1, 100) if bool(found(most)))

    growing = steps()
    monkeypatch.setattr(laplace, "_GROWTH", 0.0)
    assert steps() > 1.5 * growing


def test_what_grows_for_ever_has_no_mode_and_a_flat_ridge_has_one() -> None:
    start = jnp.asarray([0.3, 0.1])
    assert not bool(find_mode(lambda x: x[0] - 0.5 * x[1] ** 2, start).converged)
    assert bool(find_mode(lambda x: -0.5 * (x[0] + x[1]) ** 2, start).converged)


def one_local(y) -> None:
    theta = numpyro.sample("theta", dist.Normal(0.0, 1.0))
    with fb.local():
        z = numpyro.sample("z", dist.Normal(theta, 1.0))
    numpyro.sample("y", dist.Normal(z, 1.0), obs=y)


def test_the_site_of_a_gaussian_client_is_exact_with_its_local_integrated_out() -> None:
    """``y`` given ``theta`` is normal with variance 2, and with the cavity's variance 1 in all 3."""
    target = tilted(one_local, {"y": np.float64(1.7)}, np.zeros(1))
    cavity = Gaussian(jnp.zeros(1), jnp.eye(1), jnp.zeros(())).normalised()
    found = laplace_solver().run(target._replace(cavity=cavity), cold_chains(cold_start(2)), ())
    np.testing.assert_allclose(found.site.precision, [[0.5]], atol=1e-12)
    np.testing.assert_allclose(found.site.shift, [1.7 / 2.0], atol=1e-12)
    evidence = float(found.log_evidence - 0.5 * np.log(2.0 * np.pi))  # of the kernel, without the cavity's scale
    np.testing.assert_allclose(evidence, float(dist.Normal(0.0, np.sqrt(3.0)).log_prob(1.7)), atol=1e-9)


@pytest.mark.parametrize(("lead", "mode"), [(1e-13, -1.0), (1e-3, 1.0)])
def test_of_starts_that_are_as_good_as_each_other_the_first_is_taken(lead, mode):
    """Which is better by rounding alone differs between machines, and between one client and many side by side."""
    starts = jnp.asarray([[-0.9], [0.9]])
    found = find_mode(lambda x: lead * (x[0] > 0.0) - jnp.sum((x**2 - 1.0) ** 2), starts, tolerance=1e-9)
    np.testing.assert_allclose(found.position, [mode], atol=1e-6)
