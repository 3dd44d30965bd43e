"""Expected outcomes against closed forms in NumPy and SciPy, for every family and at every place."""

import warnings
from itertools import pairwise

import jax
import numpy as np
import numpyro
import pytest
from numpyro.handlers import seed, substitute, trace
from scipy import integrate, stats
from scipy.special import expit

import fedbayes as fb
from fedbayes.formula.families import FAMILIES

ROWS = {"x": [0.2, 1.0, 1.9], "sex": ["m", "f", "m"]}


def regression(family, outcomes, tables, effects=""):
    outcome, columns, left = outcomes(family)
    clients = tables(outcome, **columns)
    return fb.regression(f"{left} ~ x + sex{effects}", family=family, clients=clients), clients


def draws_of(fit, name):
    return fit.idata.posterior[name].values[..., None]


def piecewise_mean(eta, hazards, ends):
    edges = [0.0, *ends, np.inf]

    def survival(t):
        inside = np.clip(t - np.asarray(edges[:-1]), 0.0, np.diff(edges))
        return np.exp(-np.exp(eta) * (inside @ hazards))

    pieces = [integrate.quad(survival, low, high)[0] for low, high in pairwise(edges)]
    return sum(pieces)


def expected_by_hand(family, eta, fit, reg):
    mean = np.exp(eta)
    psi = draws_of(fit, "psi") if "psi" in fit.idata.posterior else None
    match family:
        case "gaussian" | "student":
            return eta
        case "bernoulli" | "binomial" | "beta_binomial" | "beta":
            return expit(eta)
        case "poisson" | "negative_binomial" | "gamma":
            return mean
        case "zero_inflated_poisson" | "zero_inflated_negative_binomial":
            return (1.0 - psi) * mean
        case "hurdle_poisson":
            return (1.0 - psi) * mean / (1.0 - np.exp(-mean))
        case "hurdle_negative_binomial":
            alpha = draws_of(fit, "alpha")
            return (1.0 - psi) * mean / (1.0 - (alpha / (alpha + mean)) ** alpha)
        case "lognormal":
            return stats.lognorm.mean(draws_of(fit, "sigma"), scale=mean)
        case "weibull":
            shape = draws_of(fit, "shape")
            unit = float(f"{np.concatenate([c['y'] for c in reg.clients.values()]).mean():.3g}")
            return stats.weibull_min.mean(shape, scale=unit * np.exp(-eta / shape))
        case "loglogistic":
            shape = np.broadcast_to(draws_of(fit, "shape"), eta.shape)
            found = mean * (np.pi / shape) / np.sin(np.pi / shape)
            return np.where(shape > 1.0, found, np.inf)
        case "piecewise_exponential":
            ends = [float(label.split()[-1]) for label in reg.coords["log_hazard_dim"][:-1]]
            hazards = np.exp(fit.idata.posterior["log_hazard"].values)
            found = np.zeros(eta.shape)
            for place in np.ndindex(eta.shape):
                found[place] = piecewise_mean(eta[place], hazards[place[:2]], ends)
            return found
        case "cumulative":
            below = np.cumsum(fit.idata.posterior["probability"].values, axis=-1)[:, :, None, :-1]
            above = expit(np.log(below / (1.0 - below)) - eta[..., None])
            ones, zeros = np.ones(eta.shape)[..., None], np.zeros(eta.shape)[..., None]
            return np.diff(np.concatenate([zeros, above, ones], axis=-1), axis=-1)


@pytest.mark.parametrize("family", [name for name in FAMILIES if name not in ("categorical", "cox")])
def test_the_expected_outcome_is_that_written_by_hand(family, outcomes, tables, made, predictor_by_hand):
    reg, clients = regression(family, outcomes, tables)
    fit = made(reg)
    eta = predictor_by_hand(fit, clients, ROWS)
    found = fb.predictions(reg, fit, ROWS)
    assert found.draws.dims[:3] == ("chain", "draw", "row")
    np.testing.assert_allclose(found.draws, expected_by_hand(family, eta, fit, reg), rtol=1e-6)
    np.testing.assert_allclose(fb.predictions(reg, fit, ROWS, scale="link").draws, eta, rtol=1e-7, atol=1e-9)


def test_single_values_are_one_row(tables, made):
    reg = fb.regression("y ~ x + sex", clients=tables(np.arange(40.0) % 7))
    fit = made(reg)
    one = fb.predictions(reg, fit, {"x": 0.5, "sex": "f"}).draws
    np.testing.assert_array_equal(one, fb.predictions(reg, fit, {"x": [0.5], "sex": ["f"]}).draws)


BEYOND = {
    "predictions": lambda *asked: fb.predictions(*asked),
    "slopes": lambda *asked: fb.slopes(*asked, "x"),
    "comparisons of levels": lambda *asked: fb.comparisons(*asked, "sex"),
}


@pytest.mark.parametrize("question", BEYOND)
def test_rows_beyond_the_bounds_of_a_spline_are_told_once(question, tables, made):
    reg = fb.regression("y ~ bs(x, df=4) * sex + (1 | site)", clients=tables(np.arange(40.0) % 7))
    fit = made(reg)
    lower, upper = reg.parts.predictors[0].design.factors["bs(x, df=4)"].bounds
    rows = {"x": [lower - 1.0, 1.0, upper, upper + 1.0], "sex": ["f"] * 4}
    with pytest.warns(UserWarning, match=r"2 of 4 rows are outside the bounds of `bs\(x, df=4\)`") as told:
        BEYOND[question](reg, fit, rows)
    assert len(told) == 1
    assert told[0].filename == __file__
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        BEYOND[question](reg, fit, {"x": [lower, 1.0], "sex": ["f"] * 2})


def test_steps_and_values_beyond_the_bounds_are_told(tables, made):
    reg = fb.regression("y ~ bs(x, df=4)", clients=tables(np.arange(40.0) % 7))
    fit = made(reg)
    for variable, step in (("x", 100.0), ({"x": [1.0, -100.0]}, None)):
        with pytest.warns(UserWarning, match="2 of 2 rows are outside"):
            fb.comparisons(reg, fit, {"x": [1.0, 1.1]}, variable, step=step)


def test_a_categorical_outcome_has_a_probability_of_each_level(outcomes, tables, made):
    reg, clients = regression("categorical", outcomes, tables)
    fit = made(reg)
    x, male = (np.concatenate([np.asarray(table[name]) for table in clients.values()]) for name in ("x", "sex"))
    posterior = fit.idata.posterior
    centred = np.asarray(ROWS["x"]) - x.mean(), (np.asarray(ROWS["sex"]) == "m") - (male == "m").mean()
    eta = posterior["Intercept_centred"].values[:, :, None, :]
    eta = eta + posterior["x"].values[:, :, None, :] * centred[0][:, None]
    eta = eta + posterior["sex"].values[:, :, 0][:, :, None, :] * centred[1][:, None]
    whole = np.concatenate([np.ones((*eta.shape[:3], 1)), np.exp(eta)], axis=-1)
    found = fb.predictions(reg, fit, ROWS)
    assert found.draws.dims == ("chain", "draw", "row", "level")
    assert found.draws["level"].values.tolist() == ["0", "1", "2"]
    np.testing.assert_allclose(found.draws, whole / whole.sum(axis=-1, keepdims=True), rtol=1e-7)
    link = fb.predictions(reg, fit, ROWS, scale="link")
    assert link.draws["level"].values.tolist() == ["1", "2"]
    np.testing.assert_allclose(link.draws, eta, rtol=1e-6, atol=1e-9)


def test_levels_are_in_the_order_that_was_declared(tables, made):
    """Probabilities under labels in another order would be silently wrong."""
    words = np.array(["low", "high", "middle", "low"] * 10)
    order = ["low", "middle", "high"]
    reg = fb.regression("y ~ x", family="cumulative", clients=tables(words), levels={"y": order})
    fit = made(reg)
    found = fb.predictions(reg, fit, {"x": [1.0]})
    assert found.draws["level"].values.tolist() == order
    threshold = fit.idata.posterior["threshold"].values
    eta = fb.predictions(reg, fit, {"x": [1.0]}, scale="link").draws.values[..., 0]
    np.testing.assert_allclose(found.draws.sel(level="low")[..., 0], expit(threshold[..., 0] - eta), rtol=1e-6)
    np.testing.assert_allclose(found.draws.sel(level="high")[..., 0], expit(eta - threshold[..., 1]), rtol=1e-6)


PROGRAMS = {
    "correlated effects": "y ~ x + sex + (1 + x | site)",
    "effects without correlation": "y ~ x + sex + (1 + x || site)",
    "groups within": "y ~ x + (1 | site) + (0 + x | site:ward)",
    "groups across": "y ~ x + (1 + x | sex)",
    "splines and an offset": "y ~ bs(x, df=4) * sex + offset(x)",
    "a formula of sigma": {"mu": "y ~ x + (1 | site)", "sigma": "~ sex + (1 | site)"},
    "no covariates": "y ~ 1",
}


@pytest.mark.parametrize("case", PROGRAMS)
def test_at_a_client_it_is_what_the_program_says(case, tables, made):
    """The program, run with each draw on the client's own rows."""
    rng = np.random.default_rng(0)
    levels = {"sex": ["f", "m"]} if case == "groups across" else {}
    clients = tables(rng.normal(size=40))
    reg = fb.regression(PROGRAMS[case], clients=clients, levels=levels)
    fit = made(reg)
    rows = {name: values for name, values in clients["b"].items() if name != "y"}
    found = fb.predictions(reg, fit, rows, where="b").draws.values
    own = fit.client_posterior("b").posterior
    for chain, draw in ((0, 1), (1, 3)):
        values = {name: own[name].values[chain, draw] for name in own}
        with jax.enable_x64(True), numpyro.validation_enabled(False):
            law = trace(substitute(seed(reg.model, 0), data=values)).get_trace(**reg.clients["b"])["y"]["fn"]
        np.testing.assert_allclose(found[chain, draw], np.broadcast_to(law.loc, 15), rtol=1e-6, atol=1e-9)


def test_the_average_site_has_no_effects(tables, made, predictor_by_hand):
    clients = tables(np.random.default_rng(0).normal(size=40))
    reg = fb.regression("y ~ x + sex + (1 + x | site) + (1 | site:ward)", clients=clients)
    fit = made(reg)
    found = fb.predictions(reg, fit, ROWS, where="average").draws
    np.testing.assert_allclose(found, predictor_by_hand(fit, clients, ROWS), rtol=1e-7, atol=1e-9)


@pytest.fixture(scope="module")
def wide(tables, made):
    """A fit whose draws are many copies of one, so that draws of a new site are all that varies."""
    clients = tables(np.random.default_rng(0).normal(size=40))
    reg = fb.regression("y ~ x + sex + (1 + x | site)", clients=clients)
    fit = made(reg)
    fit.idata.posterior = fit.idata.posterior.isel(chain=[0], draw=[0] * 20_000)
    return reg, fit


@pytest.mark.statistical(key=0, numbers=3, errors=5.0)
def test_a_new_site_has_the_sds_and_correlations_of_the_sites(wide):
    reg, fit = wide
    found = fb.predictions(reg, fit, ROWS, where="new").draws.values[0]
    posterior = fit.idata.posterior
    sd, factor = (posterior[f"1 + x|site_{name}"].values[0, 0] for name in ("sigma", "cholesky"))
    covariance = sd[:, None] * (factor @ factor.T) * sd
    z = np.column_stack([np.ones(3), ROWS["x"]])
    expected, empirical = z @ covariance @ z.T, np.cov(found.T)
    error = np.sqrt((np.outer(np.diag(expected), np.diag(expected)) + expected**2) / len(found))
    assert (np.abs(empirical - expected) < 5.0 * error).all()
    centre = fb.predictions(reg, fit, ROWS).draws.values[0, 0]
    assert (np.abs(found.mean(axis=0) - centre) < 5.0 * np.sqrt(np.diag(expected) / len(found))).all()


@pytest.mark.statistical(key=0, numbers=1, errors=5.0)
def test_the_mean_over_new_sites_is_the_integral_of_the_response(tables, made):
    """Of counts ``exp(eta + tau^2 / 2)``, and not ``exp(eta)``, which is that of the average site."""
    reg = fb.regression("y ~ x + (1 | site)", family="poisson", clients=tables(np.arange(40) % 5))
    fit = made(reg)
    many = fit.idata.posterior.isel(chain=[0], draw=[0] * 20_000)
    many["1|site_sigma"] = many["1|site_sigma"] * 0.0 + 0.5
    fit.idata.posterior = many
    average = float(fb.predictions(reg, fit, {"x": [1.0]}).draws[0, 0, 0])
    found = fb.predictions(reg, fit, {"x": [1.0]}, where="new").draws.values
    expected = average * np.exp(0.5**2 / 2.0)
    error = expected * np.sqrt(np.expm1(0.5**2) / found.size)
    assert found.mean() == pytest.approx(expected, abs=5.0 * error)
    assert abs(found.mean() - average) > 10.0 * error


def test_a_new_site_is_the_same_each_time_and_another_with_another_key(wide):
    reg, fit = wide
    one, again = (fb.predictions(reg, fit, ROWS, where="new").draws for _ in range(2))
    other = fb.predictions(reg, fit, ROWS, where="new", key=jax.random.key(5)).draws
    np.testing.assert_array_equal(one, again)
    assert (one != other).mean() > 0.99


def test_a_client_s_effects_come_with_its_own_globals(tables, made):
    """A client's draws of the globals may be others than those of the fit."""
    reg = fb.regression("y ~ x + (1 | site)", clients=tables(np.arange(40.0) % 7))
    fit = made(reg)
    own = fit.client_posterior("b").posterior
    fit._own["b"] = own.assign({name: own[name] + 10.0 for name in ("Intercept_centred", "x")})
    moved = fb.predictions(reg, fit, {"x": [0.0, 1.0]}, where="b", scale="link").draws
    before = fb.predictions(reg, made(reg), {"x": [0.0, 1.0]}, where="b", scale="link").draws
    x = np.concatenate([client["x"] for client in tables(np.zeros(40)).values()]).mean()
    np.testing.assert_allclose(moved - before, np.broadcast_to(10.0 + 10.0 * (np.array([0.0, 1.0]) - x), before.shape))


def test_a_site_that_has_joined_has_its_posterior(tables, made):
    reg = fb.regression("y ~ x + (1 | site)", clients=tables(np.arange(40.0) % 7))
    fit = made(reg)
    joined = fb.predictions(reg, fit, {"x": [0.5]}, where=fit.client_posterior("b"))
    np.testing.assert_array_equal(joined.draws, fb.predictions(reg, fit, {"x": [0.5]}, where="b").draws)


@pytest.mark.parametrize("missing", ["refuse", "drop"])
def test_groups_of_a_site_that_has_joined_are_those_of_its_table(missing, tables, made):
    """As at the client itself; a row that was left out of its data makes no group."""
    clients = tables(np.arange(40.0) % 7)
    reg = fb.regression("y ~ x + (1 + x | site:ward)", clients=clients, missing=missing)
    fit, own = made(reg), {name: list(values) for name, values in clients["b"].items()}
    if missing == "drop":
        own = {name: [*values, {"ward": "0", "sex": "f"}.get(name, np.nan)] for name, values in own.items()}
    rows, joined = {"x": [0.5, 1.5, 2.0], "ward": ["2", "1", "2"]}, (fit.client_posterior("b"), own)
    found = fb.predictions(reg, fit, rows, where=joined)
    assert found.title.endswith("at a site that has joined")
    np.testing.assert_array_equal(found.draws, fb.predictions(reg, fit, rows, where="b").draws)
    assert (found.draws != fb.predictions(reg, fit, {**rows, "ward": ["1", "2", "1"]}, where=joined).draws).all()
    slope = fb.slopes(reg, fit, rows, "x", where=joined).draws
    np.testing.assert_array_equal(slope, fb.slopes(reg, fit, rows, "x", where="b").draws)
    new = {"x": [0.5], "ward": ["9"]}
    np.testing.assert_array_equal(
        *(fb.predictions(reg, fit, new, where=where, new_groups=True).draws for where in (joined, "b"))
    )


def test_a_site_that_a_fit_was_adapted_to(tables):
    """Its predictions are the sum of its effects by label."""
    clients = tables(np.arange(40.0) % 7)
    reg = fb.regression("y ~ x + (1 | site:ward)", clients=clients)
    fit = reg.fit(key=jax.random.key(0), method="laplace", correct=False, num_draws=20, progress=False)
    table = {"x": [0.1, 1.2, 0.7], "y": [3.0, 5.0, 4.0], "ward": ["r", "q", "r"]}
    east = fit.adapt(reg.arguments("east", table, outcome=True))
    found = fb.predictions(reg, fit, {"x": [0.0, 0.0], "ward": ["q", "r"]}, where=(east, table)).draws
    level = east.posterior["Intercept"].values[..., None]
    np.testing.assert_allclose(found, level + east.posterior["1|site:ward"].values, rtol=1e-6)


def test_groups_within_a_new_site_share_their_effects_by_label(tables, made):
    reg = fb.regression("y ~ x + (1 | site:ward)", clients=tables(np.arange(40.0) % 7))
    fit = made(reg)
    named = fb.predictions(reg, fit, {"x": [1.0] * 3, "ward": ["p", "q", "p"]}, where="new").draws
    np.testing.assert_array_equal(named[..., 0], named[..., 2])
    assert (named[..., 0] != named[..., 1]).all()
    left_out = fb.predictions(reg, fit, {"x": [1.0] * 3}, where="new").draws
    np.testing.assert_array_equal(left_out[..., 0], left_out[..., 1])


@pytest.mark.statistical(key=0, numbers=1, errors=5.0)
def test_a_new_group_of_a_client_is_drawn_and_the_others_are_its_own(tables, made):
    """Standardised, the effect of a new group is a standard normal variable."""
    reg = fb.regression("y ~ x + (1 | site) + (1 | site:ward)", clients=tables(np.arange(40.0) % 7))
    fit = made(reg)
    rows = {"x": [1.0] * 4, "ward": ["1", "zz", "2", "zz"]}
    found = fb.predictions(reg, fit, rows, where="b", new_groups=True).draws.values
    known = fb.predictions(reg, fit, {"x": [1.0] * 2, "ward": ["1", "2"]}, where="b").draws.values
    np.testing.assert_allclose(found[..., [0, 2]], known, rtol=1e-10)
    np.testing.assert_array_equal(found[..., 1], found[..., 3])
    own = fit.client_posterior("b").posterior
    effect = found[..., 1] - known[..., 0] + own["1|site:ward"].values[..., 0]
    z = (effect / own["1|site:ward_sigma"].values).ravel()
    assert np.sum(z**2) < stats.chi2.isf(2.0 * stats.norm.sf(5.0), len(z))
    assert len(set(z)) == len(z)


def test_weights_trials_and_standard_errors_need_not_be_there(tables, made, outcomes):
    reg, _ = regression("binomial", outcomes, tables)
    assert fb.predictions(reg, made(reg), ROWS).draws.max() < 1.0
    clients = tables(np.arange(40.0) % 7, w=np.ones(40) + np.arange(40), s=np.ones(40))
    for left in ("y | weights(w)", "y | se(s)"):
        reg = fb.regression(f"{left} ~ x", clients=clients)
        assert fb.predictions(reg, made(reg), {"x": [0.0, 1.0]}).draws.shape[2] == 2
    assert reg.arguments("a", {"x": [0.0], "s": [2.0]})["errors"].tolist() == [2.0]


def test_rows_that_weigh_are_predicted_as_others_are(tables):
    reg = fb.regression("y | weights(w) ~ x", clients=tables(np.arange(40.0) % 7, w=np.arange(1.0, 41.0)))
    assert reg.arguments("a", {"x": [0.0, 1.0]})["weights"].tolist() == [1.0, 1.0]


def test_the_summary_and_what_is_printed(tables, made):
    reg = fb.regression("y ~ x + sex", clients=tables(np.arange(40.0) % 7))
    found = fb.predictions(reg, made(reg), ROWS, level=0.5)
    draws = found.draws.values.reshape(-1, 3)
    np.testing.assert_allclose(found.summary["lower"], np.quantile(draws, 0.25, axis=0))
    np.testing.assert_allclose(found.summary["mean"], draws.mean(axis=0))
    assert list(found.to_pandas().columns) == ["row", "mean", "sd", "median", "lower", "upper"]
    assert repr(found).splitlines()[0] == "Mean of `y` at the average site, 50% intervals"
    many = fb.predictions(reg, made(reg), {"x": np.zeros(99), "sex": ["f"] * 99})
    assert len(repr(many).splitlines()) == 43
    html = many._repr_html_()
    assert html.startswith('<table><caption style="text-align: left">Mean of `y` at the average site, 90% intervals')
    assert (html.count("<tr>"), html.count("<td")) == (41, 41 * 6)
    assert html.endswith("<p>... and 59 more, in `.to_pandas()`</p>")
