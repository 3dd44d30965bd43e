"""Observed values that their distribution can't take are refused before the fit."""

import jax
import numpy as np
import numpyro
import numpyro.distributions as dist
import pytest

import fedbayes as fb
from fedbayes.problem.problem import make_problem


def observed(law, outcome=lambda y: y):
    """A program with one global, whose outcome has this law."""

    def model(y, n=None):
        mu = numpyro.sample("mu", dist.Normal(0.0, 1.0))
        numpyro.sample("obs", law(mu, n), obs=outcome(y))

    return model


@pytest.fixture(autouse=True)
def _float64():
    with jax.enable_x64(True):
        yield


def check(model, good, bad, **more):
    clients = {"north": {"y": np.asarray(good)}, "south": {"y": np.asarray(bad)}}
    return make_problem(model, {name: data | more for name, data in clients.items()})


def bernoulli(mu, n):
    return dist.Bernoulli(logits=mu)


IMPOSSIBLE = {
    "coded 1 and 2": (
        bernoulli,
        [0, 1, 1],
        [1, 2, 2],
        "holds 2 values .* `BernoulliLogits` of the site 'obs' .* first 2 at",
    ),
    "and what it takes": (bernoulli, [0, 1, 1], [1, 2, 2], r"at \(1,\)\. It takes 0 and 1\. Correct the data"),
    "negative count": (
        lambda mu, n: dist.Poisson(jax.numpy.exp(mu)),
        [0, 1],
        [3, -1],
        "first -1 at .* integers from 0",
    ),
    "half a count": (lambda mu, n: dist.Poisson(jax.numpy.exp(mu)), [0.0, 1.0], [0.5, 1.0], "first 0.5 at .* integers"),
    "half a count, beside integers": (
        lambda mu, n: dist.Poisson(jax.numpy.exp(mu)),
        [0, 1],
        [0.5, 1.0],
        "first 0.5 at .* integers",
    ),
    "category too high": (
        lambda mu, n: dist.Categorical(logits=mu * np.arange(3.0)),
        [0, 2],
        [1, 3],
        "first 3 at .* integers from 0 to 2",
    ),
    "zero waiting time": (
        lambda mu, n: dist.Exponential(jax.numpy.exp(mu)),
        [0.1, 1.0],
        [1.0, -0.5],
        "numbers above 0",
    ),
    "share above one": (lambda mu, n: dist.Beta(2.0, 2.0), [0.1, 0.9], [0.1, 1.2], "numbers from 0.0 to 1.0"),
    "no simplex": (
        lambda mu, n: dist.Dirichlet(np.ones(2)),
        [[0.1, 0.9]],
        [[0.5, 0.6]],
        r"first \[0.5 0.6\] at \(0,\)",
    ),
    "scalar": (bernoulli, 1.0, 2.0, r"holds 1 values .* first 2.0 at \(0,\)"),
}


@pytest.mark.parametrize("name", IMPOSSIBLE)
def test_impossible_outcomes(name):
    law, good, bad, message = IMPOSSIBLE[name]
    with pytest.raises(fb.ClientDataError, match=rf"Client 'south': `y` .*{message}"):
        check(observed(law), good, bad)
    assert check(observed(law), good, good).names == ("north", "south")


def test_an_outcome_that_is_computed_from_an_argument():
    with pytest.raises(fb.ClientDataError, match=r"Client 'south': the outcome 'obs' holds 1 values .* first 2"):
        check(observed(bernoulli, lambda y: y - 1), [1, 2], [1, 3])
    assert check(observed(bernoulli, lambda y: y - 1), [1, 2], [2, 1])


def test_bounds_that_are_data():
    model = observed(lambda mu, n: dist.Binomial(n, logits=mu))
    with pytest.raises(fb.ClientDataError, match=r"'south': `y` holds 1 values .* first 7 at \(1,\)"):
        check(model, [1, 2], [1, 7], n=np.array([5, 6]))
    assert check(model, [1, 2], [1, 6], n=np.array([5, 6]))


def test_bounds_that_are_latents_are_for_the_posterior_to_find():
    """Outside them at the check's points, an outcome may well be inside elsewhere."""
    model = observed(lambda mu, n: dist.Uniform(0.0, jax.numpy.exp(mu)))
    assert check(model, [0.1, 0.2], [5.0, 6.0])


def test_masked_outcomes_may_be_anything():
    """They stand for missing ones."""
    model = observed(lambda mu, n: dist.Bernoulli(logits=mu).mask(n))
    assert check(model, [0, 1], [1, -1], n=np.array([True, False]))


def test_real_outcomes_cost_no_check():
    model = observed(lambda mu, n: dist.Normal(mu, 1.0).expand([2]).to_event(1))
    assert check(model, [[0.0, 1.0]], [[2.0, 3.0]]).programs[0].outcomes == ()


def test_one_value_for_many_distributions_is_said():
    def model(y):
        mu = numpyro.sample("mu", dist.Normal(0.0, 1.0).expand([3]).to_event(1))
        numpyro.sample("obs", dist.Normal(mu, 1.0), obs=y)

    clients = {name: {"y": np.ones(1)} for name in ("north", "south")}
    with pytest.warns(UserWarning, match=r"'obs' has shape \(1,\), .* shape \(3,\): every value counts 3 times"):
        make_problem(model, clients)


def test_a_latent_per_row_that_is_not_local_is_said():
    def model(y):
        mu = numpyro.sample("mu", dist.Normal(0.0, 1.0))
        with numpyro.plate("rows", len(y)):
            theta = numpyro.sample("theta", dist.Normal(mu, 1.0))
            numpyro.sample("obs", dist.Normal(theta, 1.0), obs=y)

    clients = {name: {"y": np.arange(3.0)} for name in ("north", "south")}
    with pytest.warns(UserWarning, match=r"'theta' is in the plate 'rows' of the outcomes: .* `local=\('theta',\)`"):
        make_problem(model, clients)
    assert make_problem(model, clients, local=("theta",)).globals.names == ("mu",)
