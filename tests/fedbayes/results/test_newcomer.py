"""A client that joins after the fit: the fit's draws of the globals, taken by the weights of its factor."""

from types import SimpleNamespace

import jax
import numpy as np
import numpyro
import numpyro.distributions as dist
import pytest

import fedbayes as fb
from fedbayes.contract import client_locals
from fedbayes.results.personal import _weighed

KEY = jax.random.key(3)
THETA = np.random.default_rng(0).normal(size=(4, 2000, 1))


def answers(outcome: float, noise: float, *, imprecise: float = 0.0, missing: int = 0):
    """A client with one row ``y ~ N(theta, noise)``, whose local is ``theta + 1``."""

    def ask(update, theta):
        each = theta + 1.0 if update == "given" else -0.5 * ((outcome - theta[..., 0]) / noise) ** 2
        each = each.copy()
        each[:missing] = np.nan
        infos = {name: np.zeros((1, *theta.shape[:2])) for name in ("noise", "halved")}
        infos["noise"] += imprecise
        return SimpleNamespace(replies=SimpleNamespace(each=each[None]), infos=infos)

    return ask


def test_weights_make_the_posterior_with_one_more_client():
    """Normal with normal: ``theta ~ N(0, 1)`` and one outcome of sd 2 at 1.5 make ``N(0.3, 0.8)``."""
    found = _weighed(answers(1.5, 2.0), THETA, KEY)
    draws = found.draws
    assert draws.shape == (4, 2000, 2)
    np.testing.assert_array_equal(draws[..., 1], draws[..., 0] + 1.0)  # each local is the one of its globals
    error = np.sqrt(0.8 / 8000)
    assert abs(draws[..., 0].mean() - 0.3) < 4.0 * 1.2 * error  # weights cost a tenth of the draws, and resampling
    assert abs(draws[..., 0].std() - np.sqrt(0.8)) < 4.0 * error
    assert found.attrs["k_hat"] < 0.7


def test_each_chain_is_weighed_by_itself():
    """Of a chain far away one draw takes all; it is a quarter of the answer, though next to nothing of all weight."""
    apart = THETA.copy()
    assert _weighed(answers(1.5, 0.5), apart, KEY) is not None
    apart[0] += 10.0
    assert _weighed(answers(1.5, 0.5), apart, KEY) is None


@pytest.mark.parametrize(
    ("ask", "theta"),
    [
        (answers(8.0, 0.1), THETA),  # far from all draws
        (answers(1.5, 2.0, imprecise=1.1), THETA),  # the estimate of its factor varies by more than itself
        (answers(1.5, 2.0, missing=1), THETA),  # a chain in which it could not answer
        (answers(1.5, 2.0), np.repeat(THETA[:, :20], 100, axis=1)),  # 80 draws, each a hundred times
    ],
)
def test_weights_that_are_not_to_be_trusted_give_nothing(ask, theta):
    assert _weighed(ask, theta, KEY) is None


def model(x, y=None):
    mu = numpyro.sample("mu", dist.Normal(0.0, 2.0))
    with fb.local():
        shift = numpyro.sample("shift", dist.Normal(mu, 1.0))
    numpyro.sample("y", dist.Normal(shift * x, 0.7), obs=y)


def test_a_newcomer_is_weighed_where_joint_weights_fail(monkeypatch):
    """All is Gaussian, so that the posterior of the newcomer's local has a closed form."""
    rng = np.random.default_rng(5)
    sites = {name: {"x": rng.uniform(1, 2, size=9), "y": rng.normal(1.0, 0.7, size=9)} for name in ("a", "b", "c")}
    new = sites.pop("c")
    fit = fb.fit_federated(model, sites, method=fb.EP(num_samples=64), key=KEY, num_draws=500, progress=False)
    monkeypatch.setattr(client_locals, "K_HAT_LIMIT", -np.inf)
    found = fit.adapt(new).posterior
    assert found.attrs["solver"] == "importance weights of the fit's draws"
    precision, shift = np.diag([0.25 + 3.0, 1.0, 1.0, 1.0]), np.zeros(4)  # of mu and the three locals
    precision[0, 1:] = precision[1:, 0] = -1.0
    for k, rows in enumerate([*sites.values(), new], start=1):
        precision[k, k] += np.sum(rows["x"] ** 2) / 0.49
        shift[k] = np.sum(rows["x"] * rows["y"]) / 0.49
    covariance = np.linalg.inv(precision)
    mean, sd = covariance @ shift, np.sqrt(np.diag(covariance))
    for name, place in {"mu": 0, "shift": 3}.items():
        draws = found[name].values
        assert abs(draws.mean() - mean[place]) < 5.0 * sd[place] / np.sqrt(2000)
        assert abs(draws.std() / sd[place] - 1.0) < 5.0 / np.sqrt(2 * 2000)
