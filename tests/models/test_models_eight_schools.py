import jax
import jax.numpy as jnp
import numpy as np
import pytest
from numpyro import handlers
from numpyro.infer.util import log_density
from scipy import stats

from fedbayes.models import eight_schools
from fedbayes.problem.program.sites import LOCAL

NODES, WEIGHTS = np.polynomial.hermite_e.hermegauss(60)
MODELS = {"theta": eight_schools.model, "theta_raw": eight_schools.model_noncentered}


def factor(latent, client, mu, tau):
    """Log of the integral over the local latent of a program's density, without the prior of (mu, tau)."""
    theta = mu + tau * NODES
    values = theta if latent == "theta" else NODES
    jacobian = tau if latent == "theta" else 1.0
    with jax.enable_x64(True):

        def density(value):
            return log_density(MODELS[latent], (), client, {"mu": mu, "tau": tau, latent: value})[0]

        log_joint = np.asarray(jax.vmap(density)(jnp.asarray(values)))
    prior = stats.norm(0, 5).logpdf(mu) + stats.halfcauchy(scale=5).logpdf(tau)
    return np.log(np.sum(WEIGHTS * np.exp(log_joint - prior + NODES**2 / 2)) * jacobian)


def test_data():
    clients = eight_schools.clients()
    assert "".join(clients) == "ABCDEFGH"
    assert [client["y"].item() for client in clients.values()] == [28, 8, -3, 7, -1, 1, 18, 12]
    assert [client["sigma"].item() for client in clients.values()] == [15, 10, 16, 11, 9, 11, 10, 18]
    assert {array.shape for client in clients.values() for array in client.values()} == {(1,)}


@pytest.mark.parametrize("latent", MODELS)
def test_sites(latent):
    trace = handlers.trace(handlers.seed(MODELS[latent], 0)).get_trace(**eight_schools.clients()["A"])
    assert set(trace) == {"mu", "tau", "theta", "y"} | {latent}
    assert [name for name, site in trace.items() if site.get("infer", {}).get(LOCAL)] == [latent]
    assert trace["y"]["is_observed"]
    if latent == "theta_raw":
        expected = trace["mu"]["value"] + trace["tau"]["value"] * trace["theta_raw"]["value"]
        np.testing.assert_allclose(trace["theta"]["value"], expected, rtol=1e-6)


@pytest.mark.parametrize("latent", MODELS)
@pytest.mark.parametrize(("mu", "tau"), [(0.0, 1.0), (4.4, 3.6), (-9.0, 8.0)])
def test_both_parametrisations_have_the_same_factor(latent, mu, tau):
    client = eight_schools.clients()["G"]
    expected = stats.norm(mu, np.hypot(tau, 10.0)).logpdf(18.0)
    np.testing.assert_allclose(factor(latent, client, mu, tau), expected, rtol=1e-8)


def test_posterior_is_that_of_posteriordb():
    # Means and sds of 10,000 reference draws of eight_schools_noncentered, posteriordb, BSD-3.
    mu, log_tau = np.meshgrid(np.linspace(-25, 35, 400), np.linspace(-9, 6, 600), indexing="ij")
    tau = np.exp(log_tau)
    trace = handlers.trace(handlers.seed(eight_schools.model, 0)).get_trace(**eight_schools.clients()["A"])
    log_posterior = log_tau + np.asarray(trace["mu"]["fn"].log_prob(mu) + trace["tau"]["fn"].log_prob(tau))
    for client in eight_schools.clients().values():
        log_posterior += stats.norm(mu, np.hypot(tau, client["sigma"])).logpdf(client["y"])
    weight = np.exp(log_posterior - log_posterior.max())
    weight /= weight.sum()

    def moments(value):
        mean = np.sum(weight * value)
        return [mean, np.sqrt(np.sum(weight * (value - mean) ** 2))]

    np.testing.assert_allclose(moments(mu), [4.4105, 3.3093], atol=0.12)  # about 4 standard errors of the draws
    np.testing.assert_allclose(moments(tau), [3.6021, 3.1985], atol=0.15)
    shrunk = np.sum(weight * (28 * tau**2 + 15**2 * mu) / (tau**2 + 15**2))
    np.testing.assert_allclose(shrunk, 6.1505, atol=0.2)


@pytest.mark.statistical(key=0, alarm=2.1e-5)  # two tests at 1e-5, and 4.9 standard errors
def test_simulate_draws_from_the_model():
    """A planted variance for an sd is far beyond the level."""
    sigma = np.repeat([1.0, 12.0], 6000)
    clients, truth = eight_schools.simulate(jax.random.key(0), sigma, mu=3.0, tau=2.0)
    y = np.concatenate([client["y"] for client in clients.values()])
    assert [client["sigma"].shape for client in clients.values()] == [(1,)] * 12_000
    assert stats.kstest((truth["theta"] - 3) / 2, "norm").pvalue > 1e-5
    assert stats.kstest((truth["theta"] - 3) / 4, "norm").pvalue < 1e-50
    assert stats.kstest((y - truth["theta"]) / sigma, "norm").pvalue > 1e-5
    assert stats.kstest((y - truth["theta"]) / sigma**2, "norm").pvalue < 1e-50
    assert abs(stats.pearsonr(y - truth["theta"], truth["theta"]).statistic) < 4 / np.sqrt(8000)
    assert (truth["mu"], truth["tau"]) == (3.0, 2.0)


@pytest.mark.statistical(key="0 to 1499", alarm=2e-5)
def test_simulate_draws_the_truth_from_the_prior():
    """A planted sd for a variance is far beyond the level."""
    truths = [eight_schools.simulate(jax.random.key(seed), ())[1] for seed in range(1500)]
    laws = {"mu": stats.norm, "tau": stats.halfcauchy}
    for name, law in laws.items():
        drawn = [truth[name] for truth in truths]
        assert stats.kstest(drawn, law(scale=5).cdf).pvalue > 1e-5
        assert stats.kstest(drawn, law(scale=np.sqrt(5)).cdf).pvalue < 1e-10


def test_simulate_depends_on_the_key_and_the_client_alone():
    first, _ = eight_schools.simulate(jax.random.key(3))
    again, _ = eight_schools.simulate(jax.random.key(3), eight_schools.STANDARD_ERRORS[:3])
    other, _ = eight_schools.simulate(jax.random.key(4))
    assert len(first) == 8
    assert first["school2"]["y"] == again["school2"]["y"]
    assert first["school2"]["y"] != other["school2"]["y"]
