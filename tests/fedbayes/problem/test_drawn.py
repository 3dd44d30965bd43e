"""Distributions that NumPyro can't draw: a fit needs their densities alone, and what is drawn says which site it is."""

import jax
import numpy as np
import numpyro
import numpyro.distributions as dist
import pytest
from numpyro.handlers import seed

import fedbayes as fb
from fedbayes.problem.problem import make_problem
from fedbayes.problem.program.handlers import Drawn, Unobserved

CLIENTS = {"a": {"y": np.array([0.5, 1.0])}, "b": {"y": np.array([2.0, 1.5])}}
KEY = jax.random.key(0)


class Undrawable(dist.Normal):
    """A normal distribution whose draws need a package that is not there."""

    def sample(self, key, sample_shape=()):
        raise ImportError("Please install `nosuch>=1.0` for betaincinv.")


class UndrawableT(dist.StudentT):
    """The same of heavier tails."""

    sample = Undrawable.sample


def prior(y=None):
    mu = numpyro.sample("mu", UndrawableT(3.0, 0.0, 1.0))
    numpyro.sample("y", dist.Normal(mu, 1.0).expand([2]), obs=y)


def outcome(y=None):
    mu = numpyro.sample("mu", dist.Normal(0.0, 1.0))
    numpyro.sample("y", Undrawable(mu, 1.0).expand([2]).to_event(1), obs=y)


def improper(y=None):
    mu = numpyro.sample("mu", dist.ImproperUniform(dist.constraints.real, (), ()))
    numpyro.sample("y", dist.Normal(mu, 1.0).expand([2]), obs=y)


def failing(y=None):
    numpyro.sample("mu", dist.Normal(0.0, 1.0))
    raise ImportError("of the model's own")


@pytest.fixture(scope="module")
def fit():
    return fb.fit_federated(outcome, CLIENTS, key=KEY, method="laplace", num_draws=20, progress=False)


@pytest.mark.parametrize(
    ("program", "message"),
    [
        (
            prior,
            r"NumPyro can't draw the site 'mu', a UndrawableT: Please install `nosuch>=1.0` for betaincinv\. A fit",
        ),
        (improper, r"The site 'mu', a ImproperUniform, can't be drawn.* Write a proper distribution, such as"),
    ],
)
def test_a_site_that_can_not_be_drawn_is_named(program, message):
    with pytest.raises(fb.ModelError, match=message) as info:
        seed(Drawn(program), 0)()
    assert isinstance(info.value, NotImplementedError)


def test_an_error_of_the_models_own_is_the_models():
    with pytest.raises(ImportError, match="of the model's own"):
        seed(Unobserved(failing), 0)()


def test_a_truncated_distribution_is_named_with_its_base():
    class NoQuantiles(dist.Normal):
        def icdf(self, q):
            raise ImportError("Please install it.")

    def truncated():
        numpyro.sample("nu", dist.TruncatedDistribution(NoQuantiles(0.0, 1.0), low=0.0))

    with pytest.raises(fb.ModelError, match="the site 'nu', a LeftTruncatedDistribution of a NoQuantiles: Please"):
        seed(Drawn(truncated), 0)()


def test_a_prior_that_can_not_be_drawn_has_no_spread():
    with jax.enable_x64(True):
        assert make_problem(prior, CLIENTS).prior.spread is None


def test_a_fit_needs_no_draws(fit):
    assert fit.converged
    with pytest.raises(fb.ModelError, match=r"NumPyro can't draw the site 'y', a Undrawable: .* predictions"):
        fit.predict("a", y=None)


def test_half_a_symmetric_distribution_can_be_drawn():
    """What the message says to write instead has the density of the truncated one."""
    whole = dist.StudentT(3.0, 0.0, 2.0)
    folded, truncated = dist.FoldedDistribution(whole), dist.TruncatedDistribution(whole, low=0.0)
    x = np.array([0.1, 1.0, 7.0])
    np.testing.assert_allclose(folded.log_prob(x), truncated.log_prob(x), rtol=1e-5)
    assert float(folded.sample(KEY)) > 0.0
