"""Survival curves, mean and restricted mean times against SciPy's laws and numerical integrals."""

from itertools import pairwise

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy import integrate, stats

import fedbayes as fb
from fedbayes.formula.families.cox import CoxPartial
from fedbayes.formula.families.times import LogLogistic, PiecewiseExponential, Times, Weibull

ROWS = {"x": [0.2, 1.0, 1.9], "sex": ["m", "f", "m"]}
TIMES = [0.0, 0.5, 2.0, 9.0]


@pytest.fixture(scope="module", params=["weibull", "loglogistic", "piecewise_exponential"])
def fitted(request, outcomes, tables, made):
    outcome, columns, left = outcomes(request.param)
    clients = tables(outcome, **columns)
    reg = fb.regression(f"{left} ~ x + sex + (1 | site)", family=request.param, clients=clients)
    return reg, made(reg), clients


def survival(reg, fit, eta, place, time):
    posterior = fit.idata.posterior
    chain, draw, _ = place
    if reg.family == "piecewise_exponential":
        edges = np.array([0.0, *(float(label.split()[-1]) for label in reg.coords["log_hazard_dim"][:-1]), np.inf])
        hazards = np.exp(posterior["log_hazard"].values[chain, draw])
        return np.exp(-np.exp(eta[place]) * (np.clip(time - edges[:-1], 0.0, np.diff(edges)) @ hazards))
    shape = posterior["shape"].values[chain, draw]
    if reg.family == "loglogistic":
        return stats.fisk(shape, scale=np.exp(eta[place])).sf(time)
    unit = float(f"{np.concatenate([c['y'] for c in reg.clients.values()]).mean():.3g}")
    return stats.weibull_min(shape, scale=unit * np.exp(-eta[place] / shape)).sf(time)


def test_curves_and_restricted_means(fitted, predictor_by_hand):
    reg, fit, clients = fitted
    eta = predictor_by_hand(fit, clients, ROWS)
    curves = fb.survival_curves(reg, fit, ROWS, TIMES)
    assert curves.draws.dims == ("chain", "draw", "row", "time")
    means = curves.restricted_mean(4.0)
    assert means.draws.dims == ("chain", "draw", "row")
    assert means.title == "Expected time until the event or 4 at the average site"
    for place in ((0, 0, 0), (1, 2, 1), (1, 3, 2)):
        expected = [survival(reg, fit, eta, place, time) for time in TIMES]
        np.testing.assert_allclose(curves.draws.values[place], expected, rtol=1e-6, atol=1e-12)
        integral = integrate.quad(lambda t, place=place: survival(reg, fit, eta, place, t), 0.0, 4.0, limit=500)[0]
        np.testing.assert_allclose(means.draws.values[place], integral, rtol=1e-5, atol=1e-7)


def test_curves_at_a_client_have_its_frailty(fitted):
    reg, fit, _ = fitted
    average, own = (fb.survival_curves(reg, fit, ROWS, [2.0], where=where).draws for where in ("average", "b"))
    effect = fit.client_posterior("b").posterior["1|site"].values[..., None]
    if reg.family == "loglogistic":
        shape = fit.idata.posterior["shape"].values[..., None]
        odds = [(1.0 - each[..., 0]) / each[..., 0] for each in (average, own)]
        np.testing.assert_allclose(odds[1], odds[0] * np.exp(-shape * effect), rtol=1e-5)
    else:
        np.testing.assert_allclose(np.log(own[..., 0]), np.log(average[..., 0]) * np.exp(effect), rtol=1e-5)


def test_a_mean_time_that_is_infinite_is_said_to_be(tables, made):
    """Of a log-logistic law with a shape of at most one, without a warning."""
    reg = fb.regression("y ~ x", family="loglogistic", clients=tables(np.random.default_rng(0).exponential(2.0, 40)))
    fit = made(reg)
    shape = fit.idata.posterior["shape"]
    fit.idata.posterior["shape"] = shape.copy(data=np.linspace(0.6, 3.0, shape.size).reshape(shape.shape))
    summary = fb.predictions(reg, fit, {"x": [1.0]}).summary
    assert np.isinf([summary["mean"][0], summary["sd"][0], summary["upper"][0]]).all()
    assert np.isfinite([summary["median"][0], summary["lower"][0]]).all()


LAWS = {
    "weibull, falling hazard": (Weibull(jnp.array([0.4]), 0.4, 3.0), None),
    "weibull, rising hazard": (Weibull(jnp.array([0.4]), 4.0, 3.0), None),
    "loglogistic": (LogLogistic(jnp.array([0.4]), 2.5), None),
    "piecewise": (PiecewiseExponential(jnp.array([0.4]), jnp.array([-1.0, 0.2, -0.5]), (0.5, 1.5)), [0.5, 1.5]),
}


@pytest.mark.parametrize("case", LAWS)
@pytest.mark.parametrize("horizon", [0.3, 2.0, 50.0])
def test_a_restricted_mean_is_the_integral_of_the_survival(case, horizon):
    law, points = LAWS[case]
    with jax.enable_x64(True):
        inside = [point for point in points or [1e-3, 0.1, 1.0] if point < horizon]
        whole = integrate.quad(
            lambda t: float(law.survival(jnp.array([t]))[0]), 0.0, horizon, points=inside or None, limit=200
        )[0]
        assert float(law.restricted_mean(horizon)[0]) == pytest.approx(whole, rel=1e-5)


def test_mean_times():
    with jax.enable_x64(True):
        assert float(Weibull(0.4, 1.6, 3.0).mean) == pytest.approx(
            stats.weibull_min.mean(1.6, scale=3.0 * np.exp(-0.4 / 1.6)), rel=1e-7
        )
        assert float(LogLogistic(0.4, 2.5).mean) == pytest.approx(stats.fisk.mean(2.5, scale=np.exp(0.4)), rel=1e-7)
        assert np.isinf(float(LogLogistic(0.4, 1.0).mean))
    with pytest.raises(NotImplementedError):
        _ = Times(None, ()).mean


def test_a_partial_likelihood_has_no_times(outcomes, tables, made):
    outcome, columns, left = outcomes("cox")
    reg = fb.regression(f"{left} ~ x", family="cox", clients=tables(outcome, **columns))
    fit, rows = made(reg), {"x": [0.0, 1.0]}
    for ask in (
        lambda: fb.predictions(reg, fit, rows),
        lambda: fb.comparisons(reg, fit, rows, "x"),
        lambda: CoxPartial(jnp.zeros(3)).sample(jax.random.key(0)),
        lambda: CoxPartial(jnp.zeros(3)).given(CoxPartial(jnp.zeros(3)), jnp.ones(3)),
        lambda: CoxPartial(jnp.zeros(3)).marginals,
    ):
        with pytest.raises(fb.FormulaError, match="which row has an event, and not when"):
            ask()
    with pytest.raises(fb.FormulaError, match="no times until an event"):
        fb.survival_curves(reg, fit, rows, times=[1.0])
    eta = fb.predictions(reg, fit, rows, scale="link").draws
    for low, high in pairwise(np.moveaxis(eta.values, -1, 0)):
        np.testing.assert_allclose(high - low, fit.idata.posterior["x"].values, rtol=1e-6, atol=1e-9)
