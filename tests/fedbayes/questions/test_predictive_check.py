"""Predictive checks at the client: closed forms, uniform tail probabilities under the prior, a planted misfit."""

from types import SimpleNamespace
from typing import Any

import jax
import numpy as np
import numpyro
import numpyro.distributions as dist
import pytest
from scipy import stats

import fedbayes as fb
from fedbayes.contract.client_locals import FromServer
from fedbayes.models import linear
from fedbayes.questions.predictive_check import placed, predictive_check
from fedbayes.questions.replicates import prior_draws
from fedbayes.results import arviz

KEY = jax.random.key(0)


@pytest.fixture(scope="module")
def drawn():
    return linear.simulate(KEY, rows=(5, 20, 60))[0]


@pytest.mark.slow
@pytest.mark.statistical(key=1, numbers=9, errors=5.0)
def test_the_mean_of_a_linear_model_in_closed_form(small_fit, drawn) -> None:
    """``mean(y_rep) ~ N(x m, x V x' + 1/n)`` with the mean row x: within 5 binomial errors of 400 replicates."""
    ours = small_fit.predictive_check(num_draws=200, observed=True).sel(site="y", statistic="mean")
    m, v = linear.exact_posterior(drawn)
    for name, data in drawn.items():
        row = data["x"].mean(axis=0)
        law = stats.norm(row @ m, np.sqrt(row @ v @ row + 1.0 / len(data["y"])))
        mine, tail = ours.sel(client_name=name), law.cdf(data["y"].mean())
        assert abs(float(mine["tail_probability"]) - tail) < 5.0 * np.sqrt(tail * (1.0 - tail) / 400)
        assert abs(float(mine["predictive_mean"]) - law.mean()) < 5.0 * law.std() / np.sqrt(400)
        assert abs(float(mine["predictive_sd"]) / law.std() - 1.0) < 5.0 / np.sqrt(800)
        np.testing.assert_allclose(mine["observed"], data["y"].mean())


@pytest.mark.slow
@pytest.mark.statistical(key=1, numbers=9, errors=5.0)
def test_the_prior_in_closed_form(small_fit, drawn) -> None:
    """``mean(y) ~ N(0, x x' + 1/n)`` with all globals from the prior: within 5 errors of 1,000 replicates."""
    ours = small_fit.predictive_check(prior=True).sel(site="y", statistic="mean")
    assert "observed" not in ours
    assert ours.attrs["caveat"].startswith("Prior predictive tail probabilities are uniform")
    for name, data in drawn.items():
        row = data["x"].mean(axis=0)
        law = stats.norm(0.0, np.sqrt(row @ row + 1.0 / len(data["y"])))
        mine, tail = ours.sel(client_name=name), law.cdf(data["y"].mean())
        assert abs(float(mine["tail_probability"]) - tail) < 5.0 * np.sqrt(tail * (1.0 - tail) / 1000)
        assert abs(float(mine["predictive_mean"])) < 5.0 * law.std() / np.sqrt(1000)
        assert abs(float(mine["predictive_sd"]) / law.std() - 1.0) < 5.0 / np.sqrt(2000)


def tails(double_use: bool, num=400) -> np.ndarray:
    """Of the mean and sd of data sets drawn from the prior ``mu ~ N(0, 1)`` of ``y ~ N(mu, 1)``, shape ``(2, num)``."""
    rng = np.random.default_rng(0)
    found = np.empty((2, num))
    for i in range(num):
        y = rng.normal() + rng.normal(size=6)
        mu = y.sum() / 7.0 + rng.normal(size=200) / np.sqrt(7.0) if double_use else rng.normal(size=200)
        each = placed(y, mu[None, :, None] + rng.normal(size=(1, 200, 6)), None, "y")
        found[:, i] = each["mean"].tail_probability, each["sd"].tail_probability
    return found


@pytest.mark.slow
@pytest.mark.statistical(key=0, alarm=2e-5)
def test_tail_probabilities_under_the_prior_are_uniform() -> None:
    """By Kolmogorov and Smirnov's test of 400 data sets; multiples of 1/400 are continuous enough for it."""
    for values in tails(double_use=False):
        assert stats.kstest(values, "uniform").pvalue > 1e-5


def test_the_double_use_of_data_is_noticed() -> None:
    """The companion: with draws of the posterior in their place those of the mean crowd about 1/2."""
    of_mean = tails(double_use=True)[0]
    assert stats.kstest(of_mean, "uniform").pvalue < 1e-6
    assert np.std(of_mean) < 0.8 * np.sqrt(1.0 / 12.0)


def test_an_overdispersed_client_is_named_and_nobody_else(drawn) -> None:
    wide = np.random.default_rng(0).normal(size=60) * 3.0
    clients = drawn | {"client2": {**drawn["client2"], "y": wide}}
    fit = fb.fit_federated(
        linear.model, clients, method=fb.EP(num_replicates=2), key=jax.random.key(1), num_draws=200, progress=False
    )
    found = fit.predictive_check()
    assert found["statistic"].values.tolist() == ["mean", "sd", "min", "max"]
    assert "sd of 'y' of client 'client2' (tail probability 1.000)" in found.attrs["outside"]
    assert "client0" not in found.attrs["outside"]
    assert found.attrs["caveat"].startswith("The data are used twice")


@pytest.mark.slow
@pytest.mark.statistical(key=1, numbers=1, errors=5.5)  # the least tail, 0.032, to be 0.01 in 2,000 replicates
def test_nothing_is_named_where_the_model_holds(drawn) -> None:
    fit = fb.fit_federated(
        linear.model, drawn, method=fb.EP(num_replicates=2), key=jax.random.key(1), num_draws=1000, progress=False
    )
    assert fit.predictive_check(num_draws=1000).attrs["outside"] == ""


def test_statistics_of_ones_own(small_fit, drawn) -> None:
    found = small_fit.predictive_check({"range": np.ptp, "rows": len}, num_draws=50, observed=True)
    assert found["statistic"].values.tolist() == ["range", "rows"]
    np.testing.assert_allclose(found["observed"].sel(statistic="range")[:, 0], [np.ptp(c["y"]) for c in drawn.values()])
    np.testing.assert_array_equal(found["tail_probability"].sel(statistic="rows"), 0.5)  # a tie counts half


def test_ties_and_counts() -> None:
    seen, drawn = np.array([0, 1, 1, 3]), np.array([[[0, 1, 1, 3], [0, 0, 0, 0], [5, 5, 5, 5], [3, 1, 0, 1]]])
    found = placed(seen, drawn, None, "y")
    assert list(found) == ["mean", "sd", "min", "max", "zeros"]
    assert found["mean"].tail_probability == pytest.approx(0.25 + 0.25)
    assert found["sd"].tail_probability == pytest.approx(0.5 + 0.25)  # in another order, to rounding
    assert found["zeros"].tail_probability == pytest.approx(0.25 + 0.25)
    assert found["zeros"].predictive_mean == pytest.approx((0.25 + 1.0 + 0.0 + 0.25) / 4.0)
    assert placed(seen[:0], drawn[..., :0], None, "y") == {}


def with_gaps(y, seen) -> None:
    mu = numpyro.sample("mu", dist.Normal(0.0, 1.0))
    with numpyro.plate("rows", len(y)):
        numpyro.sample("y", dist.Normal(mu, 1.0), obs=y, obs_mask=seen)


def test_missing_outcomes_are_left_out() -> None:
    rng = np.random.default_rng(0)
    clients = {name: {"y": rng.normal(1.0, 1.0, 9), "seen": np.arange(9) % 3 > 0} for name in "ab"}
    clients["a"]["y"][::3] = 1e6  # whatever stands where nothing was observed
    fit = fb.fit_federated(with_gaps, clients, method="laplace", key=KEY, num_draws=50, progress=False)
    found = fit.predictive_check({"max": np.max, "rows": len}, observed=True).isel(site=0).sel(client_name="a")
    assert found["observed"].values.tolist() == [clients["a"]["y"][clients["a"]["seen"]].max(), 6.0]
    assert 0.0 < float(found["tail_probability"].sel(statistic="max")) < 1.0
    assert found["predictive_mean"].sel(statistic="rows") == 6.0


@pytest.mark.parametrize("statistics", [np.mean, {}, {"mean": 3}])
def test_statistics_are_functions_by_name(statistics: Any, small_fit) -> None:
    with pytest.raises(ValueError, match=r"`statistics` is .*; write a mapping from names to functions"):
        small_fit.predictive_check(statistics)


@pytest.mark.parametrize("statistic", [np.cumsum, lambda y: np.nan, lambda y: "large"])
def test_a_statistic_is_a_number(statistic: Any, small_fit) -> None:
    with pytest.raises(
        ValueError, match=r"The statistic 'own' of 'y' of client 'client0' is .*; it must be one finite"
    ):
        small_fit.predictive_check({"own": statistic})


@pytest.mark.parametrize(("num_draws", "prior"), [(0, False), (201, False), (2.5, False), (True, False), (0, True)])
def test_a_number_of_replicates(num_draws: Any, prior: bool, small_fit) -> None:
    with pytest.raises(ValueError, match=rf"`num_draws` is {num_draws}; write a number from 1"):
        small_fit.predictive_check(num_draws=num_draws, prior=prior)


def test_a_point_has_no_posterior_to_check() -> None:
    point: Any = SimpleNamespace(posterior=None)
    with pytest.raises(ValueError, match="This fit is a point, and replicates with the posterior need one"):
        predictive_check(point)


def fake(small_fit: Any, **changed: Any) -> Any:
    """The small fit with another answer, prior or program."""
    names = ("answer", "key", "problem", "roster", "method", "posterior")
    fields = {name: getattr(small_fit.fitted, name) for name in names}
    return SimpleNamespace(**{**fields, **changed})


def test_a_prior_with_terms_of_its_own_can_not_be_drawn_from(small_fit, monkeypatch) -> None:
    terms = [SimpleNamespace(program=SimpleNamespace(prior_terms=("soft",)))]
    monkeypatch.setattr(arviz, "shapes_of", lambda problem: terms)
    with pytest.raises(ValueError, match=r"The prior has the terms \['soft'\] beside the laws of the globals"):
        predictive_check(fake(small_fit), prior=True)


def test_priors_that_can_not_be_drawn_from(small_fit) -> None:
    def improper(key: Any) -> Any:
        raise NotImplementedError("The site 'mu' can't be drawn.")

    roster = SimpleNamespace(prior=SimpleNamespace(draw=improper))
    coupled = SimpleNamespace(locals_from=FromServer((), {}, {}, "EP"))
    for changed, told in (
        ({"answer": coupled}, "EP couples the clients by a prior that is no part"),
        (
            {"roster": roster},
            "A prior of the globals can't be drawn from. Write `prior=False`, or a proper prior. The site 'mu' can't",
        ),
    ):
        with pytest.raises(ValueError, match=told):
            predictive_check(fake(small_fit, **changed), prior=True)
    with pytest.raises(ValueError, match=r"drawn from. Write a proper prior. The site 'mu'"):  # of a regression
        prior_draws(small_fit.problem, roster.prior, jax.random.key(0), 2)
