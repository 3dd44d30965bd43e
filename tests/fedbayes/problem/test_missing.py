"""NumPyro's `obs_mask`, and code that only reverse differentiation takes."""

import jax
import jax.numpy as jnp
import numpy as np
import numpyro
import numpyro.distributions as dist
import pytest
from jax.experimental.ode import odeint

import fedbayes as fb
from fedbayes.problem.problem import make_problem

KEY = jax.random.key(0)


@pytest.fixture(autouse=True)
def _float64():
    with jax.enable_x64(True):
        yield


def with_gaps(y, seen) -> None:
    mu = numpyro.sample("mu", dist.Normal(0.0, 1.0))
    with numpyro.plate("rows", len(y)):
        numpyro.sample("y", dist.Normal(mu, 1.0), obs=y, obs_mask=seen)


def gaps(*rows) -> dict:
    rng = np.random.default_rng(0)
    return {f"c{k}": {"y": rng.normal(1.0, 1.0, n), "seen": np.arange(n) % 3 > 0} for k, n in enumerate(rows)}


def test_missing_outcomes_integrate_out() -> None:
    """Gaussian, so exact: the posterior of the outcomes that were seen, ragged clients side by side."""
    clients = gaps(6, 13, 20)
    fit = fb.fit_federated(with_gaps, clients, key=KEY, progress=False, num_draws=50)
    seen = np.concatenate([client["y"][client["seen"]] for client in clients.values()])
    mean, covariance = fit.moments()
    np.testing.assert_allclose(mean[:, 0], seen.sum() / (1.0 + len(seen)), rtol=1e-8)
    np.testing.assert_allclose(covariance[:, 0, 0], 1.0 / (1.0 + len(seen)), rtol=1e-8)
    assert list(fit.client_posterior("c1").posterior.data_vars) == ["mu"]


def test_missing_values_that_others_read_are_refused() -> None:
    def model(x, y, seen) -> None:
        slope = numpyro.sample("slope", dist.Normal(0.0, 1.0))
        with numpyro.plate("rows", len(y)):
            x = numpyro.sample("x", dist.Normal(0.0, 1.0), obs=x, obs_mask=seen)
            numpyro.sample("y", dist.Normal(slope * x, 1.0), obs=y)

    clients = {name: data | {"x": data["y"]} for name, data in gaps(6, 6).items()}
    with pytest.raises(fb.ModelError, match=r"`obs_mask` leaves out of the site 'x' are read by the sites \['y'\]"):
        make_problem(model, clients)


def decay(y) -> None:
    rate = numpyro.sample("rate", dist.LogNormal(-1.0, 0.3))
    path = odeint(lambda state, t, rate: -rate * state, jnp.array([2.0]), jnp.arange(len(y), dtype=float), rate)
    numpyro.sample("y", dist.Normal(path[:, 0], 0.3), obs=y)


def solved(y) -> None:
    rate = numpyro.sample("rate", dist.LogNormal(-1.0, 0.3))
    numpyro.sample("y", dist.Normal(2.0 * jnp.exp(-rate * jnp.arange(len(y))), 0.3), obs=y)


def test_a_differential_equation_is_fitted_like_its_solution() -> None:
    """`odeint` has no forward derivative, so that Hessians are taken backward twice."""
    rng = np.random.default_rng(1)
    clients = {name: {"y": 2.0 * np.exp(-0.4 * np.arange(8)) + 0.3 * rng.normal(size=8)} for name in "abc"}
    problem = make_problem(decay, clients)
    assert problem.programs[0].jacobian is jax.jacrev
    fits = [fb.fit_federated(model, clients, method="laplace", key=KEY, progress=False) for model in (decay, solved)]
    for ours, exact in zip(*(fit.moments() for fit in fits), strict=True):
        np.testing.assert_allclose(ours, exact, rtol=1e-5)
