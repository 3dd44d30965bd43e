"""Held-out predictive densities, and what a client gains by joining, against closed forms."""

import jax
import numpy as np
import numpyro
import numpyro.distributions as dist
import pytest
from scipy.stats import norm

import fedbayes as fb
from fedbayes.models import linear

KEY = jax.random.key(3)


def halves(rows=(14, 40, 60)) -> tuple[dict, dict]:
    clients, _ = linear.simulate(jax.random.key(5), rows=rows)
    train = {name: {k: np.asarray(v)[8:] for k, v in data.items()} for name, data in clients.items()}
    test = {name: {k: np.asarray(v)[:8] for k, v in data.items()} for name, data in clients.items()}
    return train, test


def exact(train: dict, rows: dict) -> np.ndarray:
    """Log predictive density of each row: normal, its variance that of the mean and of the noise."""
    mean, covariance = linear.exact_posterior(train)
    sd = np.sqrt(1.0 + np.einsum("ni,ij,nj->n", rows["x"], covariance, rows["x"]))
    return norm.logpdf(rows["y"], rows["x"] @ mean, sd)


@pytest.fixture(scope="module")
def fitted():
    train, test = halves()
    return fb.fit_federated(linear.model, train, key=KEY, num_draws=4000, progress=False), train, test


@pytest.fixture(scope="module")
def approximated():
    """Where no number is asked for; one of the kinds of answers below."""
    train, test = halves()
    return of_few_draws(linear.model, train, fb.Laplace()), test


def of_few_draws(model, train, method) -> fb.FederatedFit:
    return fb.fit_federated(model, train, method=method, key=KEY, num_draws=500, correct=False, progress=False)


@pytest.mark.slow
@pytest.mark.statistical(key=3, numbers=24, errors=8.0)  # measured: 4 is for rows far out in the tails
def test_log_predictive_density_is_exact(fitted) -> None:
    """From 16,000 independent draws; four times the largest Monte Carlo error of a row."""
    fit, train, test = fitted
    for name, rows in test.items():
        found = fit.log_predictive_density(name, **rows)["y"]
        np.testing.assert_allclose(found, exact(train, rows), atol=0.04)


@pytest.mark.slow
@pytest.mark.statistical(key=3, numbers=12, errors=4.7)  # measured; the smallest is of the client with six rows alone
def test_gain_is_the_difference_of_two_exact_densities(fitted) -> None:
    fit, train, test = fitted
    gains = fb.federation_gain(fit, test)
    assert list(gains["client"].values) == list(test)
    for name, rows in test.items():
        mine = gains.sel(client=name)
        together, alone = exact(train, rows), exact({name: train[name]}, rows)
        np.testing.assert_allclose(mine["together"], together.mean(), atol=0.02)
        np.testing.assert_allclose(mine["alone"], alone.mean(), atol=0.02)
        np.testing.assert_allclose(mine["gain"], (together - alone).mean(), atol=0.03)
        np.testing.assert_allclose(mine["gain_se"], (together - alone).std(ddof=1) / np.sqrt(8), atol=0.02)
    assert int(gains["outcomes"].sum()) == 24
    assert bool(gains["alone_converged"].all())
    assert gains["gain"].attrs["units"] == "nats per outcome"


@pytest.mark.parametrize(
    "method",
    [
        fb.FedAvg(local_steps=1),
        fb.FedAvg(laplace=False),
        fb.Laplace(),
        fb.OneShot(combine="laplace", num_replicates=1, check=False),
    ],
)
def test_every_kind_of_answer_has_one(method) -> None:
    train, test = halves()
    fit = of_few_draws(linear.model, train, method)
    first = next(iter(test))
    gains = fb.federation_gain(fit, {first: test[first]})
    assert gains.sizes["client"] == 1
    assert np.all(np.isfinite(gains["gain"]))


def groups(y=None, sizes=None) -> None:
    mu = numpyro.sample("mu", dist.Normal(0.0, 3.0))
    with fb.local():
        theta = numpyro.sample("theta", dist.Normal(mu, 1.0))
    numpyro.sample("y", dist.Normal(theta, 1.0).expand([4] if y is None else y.shape).to_event(0), obs=y)


@pytest.mark.slow
@pytest.mark.statistical(key=3, numbers=3, errors=5.5)  # of 16,000 draws of its own law, measured
def test_a_client_with_locals_predicts_with_its_own() -> None:
    """Normal groups: the client's theta given everybody is normal, and so is the next row."""
    rng = np.random.default_rng(0)
    train = {name: {"y": rng.normal(m, 1.0, size=n)} for name, m, n in (("a", 0.0, 3), ("b", 2.0, 20), ("c", 4.0, 20))}
    fit = fb.fit_federated(groups, train, key=KEY, num_draws=4000, progress=False)
    # given mu the clients' means are N(mu, 1 + 1/n)
    own = np.array([1.0 + 1.0 / len(data["y"]) for data in train.values()])
    means = np.array([data["y"].mean() for data in train.values()])
    others = 1.0 / (1.0 / 9.0 + np.sum(1.0 / own[1:]))
    prior_mean, prior_var = others * np.sum(means[1:] / own[1:]), others + 1.0
    precision = 1.0 / prior_var + 3.0
    mean = (prior_mean / prior_var + 3.0 * means[0]) / precision
    y = np.array([-1.0, 0.5, 2.0])
    found = fit.log_predictive_density("a", y=y)["y"]
    np.testing.assert_allclose(found, norm.logpdf(y, mean, np.sqrt(1.0 + 1.0 / precision)), atol=0.03)


def flat(x, y=None) -> None:
    beta = numpyro.sample("beta", dist.ImproperUniform(dist.constraints.real_vector, (), (3,)))
    numpyro.sample("y", dist.Normal(x @ beta, 1.0), obs=y)


def test_a_client_without_a_posterior_of_its_own_gains_without_bounds() -> None:
    """Two rows for three coefficients under a flat prior."""
    train, test = halves(rows=(10, 40, 60))
    fit = of_few_draws(flat, train, fb.Laplace())
    first = next(iter(test))
    gains = fb.federation_gain(fit, {first: test[first]}).sel(client=first)
    assert float(gains["gain"]) == np.inf
    assert np.isnan(gains["alone"])
    assert np.isfinite(gains["together"])


def test_bad_input(approximated) -> None:
    fit, test = approximated
    with pytest.raises(KeyError, match="nowhere"):
        fb.federation_gain(fit, {"nowhere": next(iter(test.values()))})
    with pytest.raises(ValueError, match="`held_out` is empty"):
        fb.federation_gain(fit, {})
    with pytest.raises(ValueError, match="`held_out` is a list; write a mapping"):
        fb.federation_gain(fit, [1])


@pytest.mark.parametrize("method", [fb.FedAvg, fb.FedProx, fb.FedEnsemble, fb.FALD, fb.FedPA])
def test_alone_a_client_has_no_weights_of_others(method) -> None:
    assert method(weights={"a": 0.25, "b": 0.75}).for_one_client().weights == "rows"


def test_one_client_alone_is_not_drawn_among_others() -> None:
    alone = fb.FALD(scheme="with_replacement", num_active=2).for_one_client()
    assert (alone.scheme, alone.num_active) == ("full", None)


def test_outcomes_that_are_missing_have_no_density(approximated) -> None:
    fit, test = approximated
    first, rows = next(iter(test.items()))
    with pytest.raises(fb.ClientDataError, match=r"hold no outcome.*`y=\.\.\.`"):
        fit.log_predictive_density(first, x=rows["x"])
    with pytest.raises(fb.ClientDataError, match=r"The outcomes in \['y'\] have missing values"):
        fit.log_predictive_density(first, x=rows["x"], y=np.where(np.arange(8) == 3, np.nan, rows["y"]))
