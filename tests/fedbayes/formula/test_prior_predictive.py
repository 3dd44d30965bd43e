"""Draws of the priors and of outcomes given these, as ArviZ reads them."""

import arviz as az
import jax
import matplotlib.pyplot as plt
import numpy as np
import pytest

import fedbayes as fb

KEY, DRAWS, ROWS = jax.random.key(3), 20, {"a": 5, "b": 7}
RNG = np.random.default_rng(2)
TABLES = {
    name: {
        "x": RNG.normal(size=rows), "sex": np.resize(["f", "m"], rows), "s": np.full(rows, 1e-9),
        "y": RNG.normal(size=rows), "seen": np.resize([1, 0], rows), "time": RNG.exponential(size=rows) + 0.1,
    }
    for name, rows in ROWS.items()
}  # fmt: skip


@pytest.fixture(scope="module")
def reg():
    return fb.regression("y | se(s) ~ x + sex + (1 | site)", clients=TABLES)


@pytest.fixture(scope="module")
def found(reg):
    return reg.prior_predictive(key=KEY, num_draws=DRAWS)


def test_it_has_the_groups_of_arviz(found):
    assert found["prior"].sizes["draw"] == found["prior_predictive"].sizes["draw"] == DRAWS
    labels = [f"{name}[{row}]" for name, rows in ROWS.items() for row in range(rows)]
    assert found["prior_predictive"]["y_row"].values.tolist() == labels
    np.testing.assert_array_equal(found["observed_data"]["y"], np.concatenate([each["y"] for each in TABLES.values()]))


def test_outcomes_are_those_of_the_model_at_the_draws(found):
    """Without noise they are the linear predictor, but for one number of each client: its own effect."""
    prior, drawn = found["prior"], found["prior_predictive"]["y"].values
    x = np.concatenate([each["x"] for each in TABLES.values()])
    male = np.concatenate([each["sex"] == "m" for each in TABLES.values()])
    eta = prior["Intercept"].values[..., None] + prior["x"].values[..., None] * x + prior["sex"].values * male
    effects = drawn - eta
    np.testing.assert_allclose(effects[..., :5], np.broadcast_to(effects[..., :1], (1, DRAWS, 5)), atol=1e-6)
    np.testing.assert_allclose(effects[..., 5:], np.broadcast_to(effects[..., 5:6], (1, DRAWS, 7)), atol=1e-6)
    assert (np.abs(effects[..., 0] - effects[..., 5]) > 1e-3).all()
    assert len(np.unique(prior["x"])) == DRAWS


def test_the_picture_of_arviz_draws_it(found):
    assert az.plot_ppc(found, group="prior").get_xlabel() == "y"
    plt.close("all")


def test_a_fit_takes_it_in_and_has_the_same_parameters():
    """With the fit's key, outcomes are those of its own check."""
    reg = fb.regression("y ~ x + sex", clients=TABLES)
    found = reg.prior_predictive(key=KEY, num_draws=DRAWS)
    fit = reg.fit(key=KEY, method="laplace", num_draws=10, correct=False, progress=False)
    assert {name: each.dims for name, each in found["prior"].items()} == {
        name: each.dims for name, each in fit.idata.posterior.items()
    }
    assert found["prior"]["sex_dim"].values.tolist() == fit.idata.posterior["sex_dim"].values.tolist() == ["m"]
    checked = fit.predictive_check(prior=True, num_draws=DRAWS).sel(site="y", statistic="mean")
    means = found["prior_predictive"]["y"].values
    np.testing.assert_allclose(checked["predictive_mean"], [means[..., :5].mean(), means[..., 5:].mean()], rtol=1e-6)
    fit.idata.extend(found)
    assert {"posterior", "prior", "prior_predictive", "observed_data"} <= set(fit.idata.groups())
    assert az.plot_ppc(fit.idata, group="prior") is not None
    plt.close("all")


def test_what_has_no_prior_predictive_is_refused(reg):
    agreed = fb.regression("y | se(s) ~ x + sex + (1 | site)", agreed=reg.agreed)
    with pytest.raises(fb.ClientDataError, match=r"made of an agreement, and has no clients\. Give `clients=`"):
        agreed.prior_predictive(key=KEY)
    cox = fb.regression("Surv(time, seen) ~ x", family="cox", clients=TABLES)
    with pytest.raises(fb.FormulaError, match="there are no expected times, and none can be drawn"):
        cox.prior_predictive(key=KEY)
    with pytest.raises(ValueError, match="`num_draws` is 0; write a number from 1"):
        reg.prior_predictive(key=KEY, num_draws=0)
    with pytest.raises(TypeError, match="`key` is 3; write a typed JAX key"):
        reg.prior_predictive(key=3)
