"""Data sets from a model's own prior: their law, and what is refused."""

from functools import partial

import jax
import numpy as np
import numpyro
import numpyro.distributions as dist
import pytest

import fedbayes as fb
from fedbayes.models import hierarchical_linear, linear

KEY = jax.random.key(3)


@pytest.fixture(scope="module")
def ragged():
    clients, _ = linear.simulate(jax.random.key(0), rows=(3, 5, 5), dim=2)
    return clients, fb.prior_simulator(partial(linear.model, noise_sd=0.5, prior_sd=2.0), clients)


def test_covariates_and_shapes_stay_and_the_key_decides(ragged):
    clients, simulate = ragged
    (one, truth), (again, same), (other, _) = simulate(KEY), simulate(KEY), simulate(jax.random.key(4))
    assert list(truth) == ["beta"]
    np.testing.assert_array_equal(truth["beta"], same["beta"])
    for name, data in clients.items():
        np.testing.assert_array_equal(one[name]["x"], data["x"])
        np.testing.assert_array_equal(one[name]["y"], again[name]["y"])
        assert one[name]["y"].shape == data["y"].shape
        assert one[name]["y"].dtype == data["y"].dtype
        assert not np.any(one[name]["y"] == other[name]["y"])


@pytest.mark.statistical(key=3, numbers=4, errors=5.6)
def test_outcomes_and_truth_have_the_models_law(ragged):
    """Residuals over the noise and coefficients over their prior sd are standard normal, for all clients together."""
    _, simulate = ragged
    drawn = [simulate(jax.random.fold_in(KEY, number)) for number in range(600)]
    prior = np.concatenate([truth["beta"] for _, truth in drawn]) / 2.0
    noise = np.concatenate(
        [(data["y"] - data["x"] @ truth["beta"]) / 0.5 for clients, truth in drawn for data in clients.values()]
    )
    for sample in (prior, noise):
        # sample variances: four standard errors of half of them, sqrt(2 / n)
        half = sample.size / 2
        assert np.var(sample) == pytest.approx(1.0, abs=4.0 * np.sqrt(2.0 / half))
        assert np.mean(sample) == pytest.approx(0.0, abs=4.0 / np.sqrt(half))


@pytest.mark.statistical(key=3, numbers=1, errors=4.0)
def test_locals_differ_between_clients_and_globals_do_not():
    """With next to no noise y = x theta, and theta scatters about the one mu by the known sd."""
    x = np.eye(2)
    clients = {f"c{k}": {"x": x, "y": np.zeros(2)} for k in range(200)}
    simulate = fb.prior_simulator(partial(hierarchical_linear.model, tau=0.25, noise_sd=1e-6), clients)
    simulated, truth = simulate(KEY)
    assert list(truth) == ["mu"]
    gaps = np.stack([data["y"] for data in simulated.values()]) - truth["mu"]
    # 400 gaps of sd 0.5: four standard errors of a variance
    assert np.var(gaps) == pytest.approx(0.25, abs=4.0 * 0.25 * np.sqrt(2.0 / 400))


def soft(y):
    mu = numpyro.sample("mu", dist.Normal(0.0, 1.0))
    numpyro.factor("near", -(mu**2))
    numpyro.sample("y", dist.Normal(mu, 1.0), obs=y)


def computed(y):
    mu = numpyro.sample("mu", dist.Normal(0.0, 1.0))
    numpyro.sample("logs", dist.Normal(mu, 1.0), obs=jax.numpy.log(y))


def improper(y):
    mu = numpyro.sample("mu", dist.ImproperUniform(dist.constraints.real, (), ()))
    numpyro.sample("y", dist.Normal(mu, 1.0), obs=y)


def masked(y, seen):
    mu = numpyro.sample("mu", dist.Normal(0.0, 1.0))
    with numpyro.plate("rows", y.shape[0]):
        numpyro.sample("y", dist.Normal(mu, 1.0), obs=y, obs_mask=seen)


@pytest.mark.parametrize(
    ("model", "more", "words"),
    [
        (soft, {}, r"more than the priors of the globals: \['near'\]"),
        (computed, {}, r"observed sites \['logs'\] are computed values"),
        (improper, {}, "can't be drawn.* Write a proper distribution"),
        (masked, {"seen": np.array([True, False, True])}, "Outcomes may be missing"),
    ],
)
def test_what_can_not_be_simulated_is_refused(model, more, words):
    clients = {name: {"y": np.array([1.0, 2.0, 3.5]) + k, **more} for k, name in enumerate("ab")}
    with pytest.raises(fb.ModelError, match=words):
        fb.prior_simulator(model, clients)
