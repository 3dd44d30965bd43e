from functools import partial

import jax
import numpy as np
import pytest
from numpyro import handlers
from numpyro.infer.util import log_density
from scipy import stats

from fedbayes.models import linear
from fedbayes.problem.program.sites import LOCAL


def test_sites():
    clients, _ = linear.simulate(jax.random.key(0), rows=(7,), dim=2)
    trace = handlers.trace(handlers.seed(linear.model, 0)).get_trace(**clients["client0"])
    assert {name: np.shape(site["value"]) for name, site in trace.items()} == {"beta": (2,), "y": (7,)}
    assert not any(LOCAL in site["infer"] for site in trace.values())
    assert trace["y"]["fn"].log_prob(trace["y"]["value"]).shape == (7,)


def test_model_without_outcomes_predicts():
    trace = handlers.trace(handlers.seed(linear.model, 0)).get_trace(np.ones((4, 2)))
    assert trace["y"]["value"].shape == (4,)
    assert not trace["y"]["is_observed"]


def test_exact_posterior_by_conditioning_the_joint_gaussian():
    clients, _ = linear.simulate(jax.random.key(1), rows=(4, 0, 9), dim=3, noise_sd=0.7, prior_sd=2.0)
    x = np.concatenate([client["x"] for client in clients.values()])
    y = np.concatenate([client["y"] for client in clients.values()])
    outcome = 4.0 * x @ x.T + 0.49 * np.eye(13)
    gain = 4.0 * x.T @ np.linalg.inv(outcome)
    mean, covariance = linear.exact_posterior(clients, noise_sd=0.7, prior_sd=2.0)
    np.testing.assert_allclose(mean, gain @ y, rtol=1e-10)
    np.testing.assert_allclose(covariance, 4.0 * np.eye(3) - 4.0 * gain @ x, rtol=1e-10, atol=1e-12)
    np.testing.assert_array_equal(covariance, covariance.T)


def test_exact_posterior_is_that_of_the_program():
    clients, _ = linear.simulate(jax.random.key(2), rows=(12,), dim=2, noise_sd=0.5, prior_sd=3.0)
    mean, covariance = linear.exact_posterior(clients, noise_sd=0.5, prior_sd=3.0)
    program = partial(linear.model, **clients["client0"], noise_sd=0.5, prior_sd=3.0)
    with jax.enable_x64(True):

        def density(beta):
            return log_density(program, (), {}, {"beta": beta})[0]

        np.testing.assert_allclose(jax.grad(density)(mean), 0, atol=1e-10)
        np.testing.assert_allclose(-jax.hessian(density)(mean), np.linalg.inv(covariance), rtol=1e-10, atol=1e-10)


@pytest.mark.statistical(key="0 to 399", alarm=1e-5)
def test_simulated_truth_is_calibrated_under_the_exact_posterior():
    """A posterior with twice the covariance, planted, is far beyond the level."""
    distance = []
    for seed in range(400):
        clients, truth = linear.simulate(jax.random.key(seed), rows=(1, 2), dim=3, noise_sd=1.5, prior_sd=2.0)
        mean, covariance = linear.exact_posterior(clients, noise_sd=1.5, prior_sd=2.0)
        distance.append((truth["beta"] - mean) @ np.linalg.solve(covariance, truth["beta"] - mean))
    assert stats.kstest(distance, stats.chi2(3).cdf).pvalue > 1e-5
    assert stats.kstest(np.divide(distance, 2), stats.chi2(3).cdf).pvalue < 1e-8


def test_simulate_depends_on_the_key_and_the_client_alone():
    first, truth = linear.simulate(jax.random.key(3), rows=(5, 6))
    again, _ = linear.simulate(jax.random.key(3), rows=(9, 6, 2))
    other, _ = linear.simulate(jax.random.key(4), rows=(5, 6))
    np.testing.assert_array_equal(first["client1"]["y"], again["client1"]["y"])
    assert not np.array_equal(first["client1"]["y"], other["client1"]["y"])
    given, kept = linear.simulate(jax.random.key(3), rows=(5, 6), beta=truth["beta"], dim=99)
    np.testing.assert_array_equal(kept["beta"], truth["beta"])
    np.testing.assert_array_equal(given["client0"]["y"], first["client0"]["y"])


def test_exact_posterior_needs_clients():
    with pytest.raises(ValueError, match="at least one"):
        linear.exact_posterior({})
