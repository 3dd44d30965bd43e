"""Comparisons and slopes against closed forms, with levels in their order and means taken before ratios."""

import numpy as np
import pytest
from scipy.special import expit

import fedbayes as fb
from fedbayes.formula.families import FAMILIES

ROWS = {"x": [0.2, 1.0, 1.9], "sex": ["m", "f", "m"]}


@pytest.fixture(scope="module")
def logistic(tables, made):
    """A logistic regression with two numbers that enter it by curves, and levels; and its draws."""
    rng = np.random.default_rng(1)
    clients = tables(rng.integers(0, 2, 40), stage=rng.choice(["I", "II", "III"], 40), drug=rng.random(40) < 0.5)
    formula = "y ~ poly(x, 2, raw=True) + sex + stage + C(dose) + drug"
    for table in clients.values():
        table["dose"] = np.resize([1, 2, 5], len(table["x"]))
    reg = fb.regression(formula, family="bernoulli", clients=clients, levels={"stage": ["III", "I", "II"]})
    return reg, made(reg)


WHOLE = {**ROWS, "stage": ["I", "II", "III"], "dose": [1, 2, 5], "drug": [True, False, True]}


def eta(reg, fit, **columns):
    return fb.predictions(reg, fit, {**WHOLE, **columns}, scale="link").draws.values


def test_each_level_is_compared_with_the_first_one(logistic):
    """The first is the one without a coefficient, and not the first of the alphabet or of the rows."""
    reg, fit = logistic
    found = fb.comparisons(reg, fit, WHOLE, "stage", scale="link")
    assert found.draws["contrast"].values.tolist() == ["I vs III", "II vs III"]
    np.testing.assert_allclose(found.draws, fit.idata.posterior["stage"].values, rtol=1e-6, atol=1e-9)


def test_two_levels_by_name(logistic):
    """The second with the first, also where neither is the one without a coefficient."""
    reg, fit = logistic
    found = fb.comparisons(reg, fit, WHOLE, {"stage": ["I", "II"]}, scale="link")
    assert found.draws["contrast"].values.tolist() == ["II vs I"]
    assert found.title.startswith("Difference of the linear predictor of `y` by stage at")
    coefficients = fit.idata.posterior["stage"].values
    np.testing.assert_allclose(found.draws[..., 0], coefficients[..., 1] - coefficients[..., 0], rtol=1e-6, atol=1e-9)


PAIRS = {"x": ([0.5, 2], "2 vs 0.5"), "dose": ((5, 2), "2 vs 5"), "drug": ([True, False], "False vs True")}


@pytest.mark.parametrize("name", PAIRS)
def test_two_values_of_numbers(name, logistic):
    pair, label = PAIRS[name]
    reg, fit = logistic
    found = fb.comparisons(reg, fit, WHOLE, {name: pair}, scale="link", average=False)
    assert found.draws["contrast"].values.tolist() == [label]
    first, second = (eta(reg, fit, **{name: [value] * 3}) for value in pair)
    np.testing.assert_allclose(found.draws[:, :, 0], second - first, rtol=1e-9, atol=1e-12)


CODINGS = {
    "another base": ("C(stage, Treatment('II'))", ["I vs II", "III vs II"], lambda c: (c[0], c[1])),
    "sums": ("C(stage, Sum)", ["II vs I", "III vs I"], lambda c: (c[1] - c[0], -2.0 * c[0] - c[1])),
}


@pytest.mark.parametrize("case", CODINGS)
def test_levels_with_another_coding(case, tables, made):
    term, labels, expected = CODINGS[case]
    stage = np.random.default_rng(1).choice(["I", "II", "III"], 40)
    reg = fb.regression(f"y ~ {term}", clients=tables(np.arange(40.0) % 7, stage=stage))
    fit = made(reg)
    found = fb.comparisons(reg, fit, {"stage": ["II", "I"]}, "stage")
    assert found.draws["contrast"].values.tolist() == labels
    coefficients = np.moveaxis(fit.idata.posterior[reg.terms[0]].values, -1, 0)
    np.testing.assert_allclose(np.moveaxis(found.draws.values, -1, 0), expected(coefficients), rtol=1e-6, atol=1e-9)


def test_levels_that_are_numbers(logistic):
    reg, fit = logistic
    found = fb.comparisons(reg, fit, WHOLE, "dose", scale="link")
    assert found.draws["contrast"].values.tolist() == ["2 vs 1", "5 vs 1"]
    np.testing.assert_allclose(found.draws, fit.idata.posterior["C(dose)"].values, rtol=1e-6, atol=1e-9)


def test_yes_and_no(logistic):
    reg, fit = logistic
    found = fb.comparisons(reg, fit, WHOLE, "drug", scale="link")
    assert found.draws["contrast"].values.tolist() == ["True vs False"]
    np.testing.assert_allclose(found.draws[..., 0], fit.idata.posterior["drug"].values, rtol=1e-6, atol=1e-9)


def test_each_row_and_their_mean(logistic):
    reg, fit = logistic
    women, men = (expit(eta(reg, fit, sex=[sex] * 3)) for sex in "fm")
    each = fb.comparisons(reg, fit, WHOLE, "sex", average=False)
    assert each.draws.dims == ("chain", "draw", "contrast", "row")
    np.testing.assert_allclose(each.draws[:, :, 0], men - women, atol=1e-12)
    np.testing.assert_allclose(fb.comparisons(reg, fit, WHOLE, "sex").draws[..., 0], (men - women).mean(axis=2))


def test_a_ratio_is_one_of_means(logistic):
    reg, fit = logistic
    women, men = (expit(eta(reg, fit, sex=[sex] * 3)) for sex in "fm")
    ratio = fb.comparisons(reg, fit, WHOLE, "sex", by="ratio")
    np.testing.assert_allclose(ratio.draws[..., 0], men.mean(axis=2) / women.mean(axis=2))
    odds = fb.comparisons(reg, fit, WHOLE, "sex", by="odds ratio")
    one, two = men.mean(axis=2), women.mean(axis=2)
    np.testing.assert_allclose(odds.draws[..., 0], one / (1 - one) / (two / (1 - two)))
    above = (ratio.draws.values > 1.0).mean()
    assert float(ratio.summary["probability_of_direction"][0]) == max(above, 1.0 - above)


def test_the_odds_ratio_of_each_row_is_the_exponential_of_its_coefficient(logistic):
    reg, fit = logistic
    found = fb.comparisons(reg, fit, WHOLE, "sex", by="odds ratio", average=False).draws
    expected = np.exp(fit.idata.posterior["sex"].values)
    np.testing.assert_allclose(found[:, :, 0], np.broadcast_to(expected, found[:, :, 0].shape), rtol=1e-6)


def test_of_zeros_and_ones_the_two_are_compared(logistic):
    """And not one more with a one, which would be a two."""
    reg, fit = logistic
    rows = {**WHOLE, "x": np.arange(len(WHOLE["x"])) % 2.0}
    found = fb.comparisons(reg, fit, rows, "x", average=False)
    assert found.draws["contrast"].values.tolist() == ["1 vs 0"]
    ends = [fb.predictions(reg, fit, {**rows, "x": np.full(len(rows["x"]), end)}).draws.values for end in (0.0, 1.0)]
    np.testing.assert_allclose(found.draws.values[:, :, 0], ends[1] - ends[0], rtol=1e-12)
    assert fb.comparisons(reg, fit, rows, "x", step=1.0).draws["contrast"].values.tolist() == ["+1"]


def test_a_step_of_a_number(logistic):
    reg, fit = logistic
    found = fb.comparisons(reg, fit, WHOLE, "x", step=0.5, average=False)
    assert found.draws["contrast"].values.tolist() == ["+0.5"]
    moved = expit(eta(reg, fit, x=np.asarray(WHOLE["x"]) + 0.5)) - expit(eta(reg, fit))
    np.testing.assert_allclose(found.draws[:, :, 0], moved, atol=1e-12)


def test_a_slope_is_the_derivative(logistic):
    """Of ``expit(a + b x + c x^2)``: ``p (1 - p) (b + 2 c x)``."""
    reg, fit = logistic
    b, c = np.moveaxis(fit.idata.posterior["poly(x, 2, raw=True)"].values, -1, 0)
    p, x = expit(eta(reg, fit)), np.asarray(WHOLE["x"])
    expected = p * (1.0 - p) * (b[..., None] + 2.0 * c[..., None] * x)
    found = fb.slopes(reg, fit, WHOLE, "x", average=False)
    np.testing.assert_allclose(found.draws, expected, rtol=1e-5, atol=1e-8)
    np.testing.assert_allclose(fb.slopes(reg, fit, WHOLE, "x").draws, expected.mean(axis=2), rtol=1e-5, atol=1e-8)


def test_a_new_site_is_the_same_on_both_sides(tables, made):
    reg = fb.regression("y ~ x + sex + (1 | site)", clients=tables(np.arange(40.0) % 7))
    fit = made(reg)
    found = fb.comparisons(reg, fit, ROWS, "x", where="new")
    np.testing.assert_allclose(found.draws[..., 0], fit.idata.posterior["x"].values, rtol=1e-6, atol=1e-9)


def test_a_slope_of_a_site_is_the_common_one_and_its_own(tables, made):
    reg = fb.regression("y ~ x + sex + (1 + x | site)", clients=tables(np.arange(40.0) % 7))
    fit = made(reg)
    found = fb.slopes(reg, fit, ROWS, "x", where="b")
    own = fit.client_posterior("b").posterior
    np.testing.assert_allclose(found.draws, own["x"] + own["1 + x|site"].values[..., 1], rtol=1e-6, atol=1e-8)


@pytest.mark.parametrize("family", FAMILIES)
def test_every_family_is_compared(family, outcomes, tables, made):
    outcome, columns, left = outcomes(family)
    reg = fb.regression(f"{left} ~ x + sex", family=family, clients=tables(outcome, **columns))
    fit = made(reg)
    difference = fb.comparisons(reg, fit, ROWS, "sex", scale="link")
    coefficient = fit.idata.posterior["sex"].values
    np.testing.assert_allclose(np.squeeze(difference.draws), np.squeeze(coefficient), rtol=1e-6, atol=1e-8)
    if family in ("cumulative", "categorical"):
        total = fb.comparisons(reg, fit, ROWS, "sex").draws.sum("level")
        np.testing.assert_allclose(total, 0.0, atol=1e-12)


def test_a_slope_where_the_variable_does_not_vary(tables, made):
    """A difference that is small beside the size of a number may be large beside what it varies by."""
    clients = {
        name: {"x": 1e4 + np.asarray(table["x"]), "y": (np.arange(len(table["x"])) % 2)}
        for name, table in tables(np.arange(40.0)).items()
    }
    reg = fb.regression("y ~ x", family="bernoulli", clients=clients)
    fit = made(reg)
    found = fb.slopes(reg, fit, {"x": [1e4]}, "x").draws.values
    at = fb.predictions(reg, fit, {"x": [1e4]}).draws.values[..., 0]
    exact = fit.idata.posterior["x"].values * at * (1.0 - at)
    np.testing.assert_allclose(found, exact, rtol=1e-3)
