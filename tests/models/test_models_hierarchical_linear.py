from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from numpyro import handlers
from numpyro.infer.util import log_density
from scipy import stats

from fedbayes.models import hierarchical_linear as hm2
from fedbayes.problem.program.sites import LOCAL

NODES, WEIGHTS = np.polynomial.hermite_e.hermegauss(80)
MODELS = {"theta": hm2.model, "theta_raw": hm2.model_noncentered}
TAU = np.array([0.3, 2.0])


@pytest.fixture(scope="module")
def clients():
    return hm2.simulate(jax.random.key(7), 4, (3, 0, 1, 6), mu=(1.0, -2.0), tau=TAU, noise_sd=0.6)[0]


def dense_posterior(clients, tau, noise_sd):
    """Mean and covariance of (mu, theta_1, ..., theta_K) by conditioning the joint Gaussian with all outcomes."""
    d, number = len(tau), len(clients)
    prior = np.kron(np.ones((number + 1, number + 1)), np.eye(d)) + np.kron(
        np.diag([0.0] + [1.0] * number), np.diag(tau)
    )
    design = np.zeros((0, d * (number + 1)))
    for k, client in enumerate(clients.values()):
        block = np.zeros((len(client["y"]), d * (number + 1)))
        block[:, d * (k + 1) : d * (k + 2)] = client["x"]
        design = np.concatenate([design, block])
    y = np.concatenate([client["y"] for client in clients.values()])
    gain = prior @ design.T @ np.linalg.inv(design @ prior @ design.T + noise_sd**2 * np.eye(len(y)))
    return gain @ y, prior - gain @ design @ prior


@pytest.mark.parametrize("latent", MODELS)
@pytest.mark.parametrize("tau", [None, 0.5, (0.3, 2.0)])
def test_sites(clients, latent, tau):
    program = handlers.seed(partial(MODELS[latent], tau=tau, noise_sd=0.6), 0)
    trace = handlers.trace(program).get_trace(**clients["client0"])
    sampled = {name: np.shape(site["value"]) for name, site in trace.items() if site["type"] == "sample"}
    assert sampled == {"mu": (2,), latent: (2,), "y": (3,)} | ({"tau": (2,)} if tau is None else {})
    assert [name for name, site in trace.items() if site.get("infer", {}).get(LOCAL)] == [latent]
    assert trace["y"]["fn"].log_prob(trace["y"]["value"]).shape == (3,)
    if latent == "theta_raw":
        variance = trace["tau"]["value"] if tau is None else np.asarray(tau)
        expected = trace["mu"]["value"] + np.sqrt(variance) * trace["theta_raw"]["value"]
        np.testing.assert_allclose(trace["theta"]["value"], expected, rtol=1e-5)


@pytest.mark.parametrize("known", [False, True], ids=["sampled", "known"])
@pytest.mark.parametrize("latent", MODELS)
def test_both_parametrisations_integrate_to_the_factor(latent, known):
    mu, tau, noise_sd = 0.4, 1.7, 0.9
    (client,) = hm2.simulate(jax.random.key(1), 1, 3, dim=1, noise_sd=noise_sd)[0].values()
    expected = hm2.log_factor(client, mu, np.log(tau), noise_sd)
    program = partial(MODELS[latent], tau=tau if known else None, noise_sd=noise_sd)
    values = mu + np.sqrt(tau) * NODES if latent == "theta" else NODES
    with jax.enable_x64(True):

        def density(value):
            sites = {"mu": jnp.array([mu]), latent: value[None]} | ({} if known else {"tau": jnp.array([tau])})
            return log_density(program, (), client, sites)[0]

        log_joint = np.asarray(jax.vmap(density)(jnp.asarray(values)))
    prior = stats.norm.logpdf(mu) + (0.0 if known else stats.lognorm(1.0).logpdf(tau))
    jacobian = np.sqrt(tau) if latent == "theta" else 1.0
    integral = np.log(np.sum(WEIGHTS * np.exp(log_joint - prior + NODES**2 / 2)) * jacobian)
    np.testing.assert_allclose(integral, expected, rtol=1e-7)


@pytest.mark.parametrize("name", ["client0", "client1", "client3"])
def test_log_factor_against_scipy(clients, name):
    x, y = clients[name]["x"], clients[name]["y"]
    mu, covariance = np.array([0.2, -1.0]), 0.36 * np.eye(len(y)) + x @ np.diag(TAU) @ x.T
    expected = stats.multivariate_normal(x @ mu, covariance).logpdf(y) if len(y) else 0.0
    np.testing.assert_allclose(hm2.log_factor(clients[name], mu, np.log(TAU), 0.6), expected, rtol=1e-12)


def test_exact_posteriors_by_conditioning_the_joint_gaussian(clients):
    mean, covariance = dense_posterior(clients, TAU, 0.6)
    for block, (m, v) in enumerate(
        [hm2.exact_posterior_mu(clients, TAU, 0.6)]
        + [hm2.exact_client_posterior(clients, name, TAU, 0.6) for name in clients]
    ):
        part = slice(2 * block, 2 * block + 2)
        np.testing.assert_allclose(m, mean[part], rtol=1e-10, atol=1e-12)
        np.testing.assert_allclose(v, covariance[part, part], rtol=1e-9, atol=1e-12)
        np.testing.assert_array_equal(v, v.T)


def test_exact_posterior_mu_is_prior_times_factors(clients):
    mean, covariance = hm2.exact_posterior_mu(clients, TAU, 0.6)
    exact = stats.multivariate_normal(mean, covariance)

    def joint(mu):
        return stats.norm.logpdf(mu).sum() + sum(hm2.log_factor(c, mu, np.log(TAU), 0.6) for c in clients.values())

    points = np.random.default_rng(0).standard_normal((6, 2))
    difference = [joint(point) - exact.logpdf(point) for point in points]
    np.testing.assert_allclose(difference, difference[0], rtol=1e-10)


def test_tau_zero_pools_the_clients(clients):
    mean, covariance = hm2.exact_posterior_mu(clients, 0.0, 0.6)
    x = np.concatenate([client["x"] for client in clients.values()])
    y = np.concatenate([client["y"] for client in clients.values()])
    precision = np.eye(2) + x.T @ x / 0.36
    np.testing.assert_allclose(mean, np.linalg.solve(precision, x.T @ y / 0.36), rtol=1e-10)
    np.testing.assert_allclose(covariance, np.linalg.inv(precision), rtol=1e-10, atol=1e-14)
    theta, _ = hm2.exact_client_posterior(clients, "client3", 0.0, 0.6)
    np.testing.assert_allclose(theta, mean, rtol=1e-12)


def test_unknown_client(clients):
    with pytest.raises(ValueError, match=r"no client 'north'; the clients are 'client0', 'client1'"):
        hm2.exact_client_posterior(clients, "north", TAU)


@pytest.mark.statistical(key="0 to 599", alarm=2e-5)
def test_simulated_truth_is_calibrated_under_the_exact_posteriors():
    """Posteriors with twice the covariance, planted, are far beyond the level."""
    distance = {"mu": [], "theta": []}
    for seed in range(600):
        clients, truth = hm2.simulate(jax.random.key(seed), 3, (2, 5, 3), dim=2, tau=TAU, noise_sd=0.6)
        for name, value, (mean, covariance) in (
            ("mu", truth["mu"], hm2.exact_posterior_mu(clients, TAU, 0.6)),
            ("theta", truth["theta"][0], hm2.exact_client_posterior(clients, "client0", TAU, 0.6)),
        ):
            distance[name].append((value - mean) @ np.linalg.solve(covariance, value - mean))
    for values in distance.values():
        assert stats.kstest(values, stats.chi2(2).cdf).pvalue > 1e-5
        assert stats.kstest(np.divide(values, 2), stats.chi2(2).cdf).pvalue < 1e-8


@pytest.mark.statistical(key=0, numbers=4, errors=5.0)  # means
@pytest.mark.statistical(key=0, numbers=10, errors=6.3)  # variances, sqrt(2 / 8000) each, and covariances
def test_simulated_thetas_have_the_variances_of_yue():
    _, truth = hm2.simulate(jax.random.key(0), 8000, 0, mu=hm2.YUE_MU, tau=hm2.YUE_TAU)
    standardised = (truth["theta"] - hm2.YUE_MU) / np.sqrt(hm2.YUE_TAU)
    np.testing.assert_allclose(standardised.mean(axis=0), 0, atol=4 / np.sqrt(5000))
    np.testing.assert_allclose(np.cov(standardised.T), np.eye(4), atol=0.1)
    np.testing.assert_array_equal(truth["tau"], hm2.YUE_TAU)


@pytest.mark.statistical(key="0 to 799", alarm=2e-5)
def test_simulate_draws_the_truth_from_the_prior():
    """Twice the sd, planted, is far beyond the level."""
    truths = [hm2.simulate(jax.random.key(seed), 0, dim=2)[1] for seed in range(800)]
    for drawn in (np.ravel([truth["mu"] for truth in truths]), np.log(np.ravel([truth["tau"] for truth in truths]))):
        assert stats.kstest(drawn, "norm").pvalue > 1e-5
        assert stats.kstest(drawn / 2, "norm").pvalue < 1e-12


def test_simulate_depends_on_the_key_and_the_client_alone():
    first, truth = hm2.simulate(jax.random.key(3), 2, (5, 6))
    again, _ = hm2.simulate(jax.random.key(3), 3, (9, 6, 2))
    other, _ = hm2.simulate(jax.random.key(4), 2, (5, 6))
    np.testing.assert_array_equal(first["client1"]["y"], again["client1"]["y"])
    assert not np.array_equal(first["client1"]["y"], other["client1"]["y"])
    assert not np.array_equal(truth["theta"][0], truth["theta"][1])


def test_simulate_refuses_rows_that_do_not_match():
    with pytest.raises(ValueError, match="rows has 2 entries for num_clients=3; give one number or one each"):
        hm2.simulate(jax.random.key(0), 3, (4, 5))
