"""The table of coefficients, and how much sites differ."""

import jax
import numpy as np
import pytest
import xarray as xr

import fedbayes as fb
from fedbayes.formula.families import FAMILIES

MEASURES = {
    "gaussian": ("difference", "mean"),
    "student": ("difference", "location"),
    "bernoulli": ("odds ratio", "odds"),
    "binomial": ("odds ratio", "odds"),
    "beta_binomial": ("odds ratio", "odds"),
    "gamma": ("ratio of means", "mean"),
    "lognormal": ("ratio of medians", "median"),
    "beta": ("odds ratio of means", "odds of the mean"),
    "cumulative": ("odds ratio", None),
    "categorical": ("odds ratio", "odds"),
    "weibull": ("hazard ratio", "cumulative hazard"),
    "loglogistic": ("time ratio", "median time"),
    "piecewise_exponential": ("hazard ratio", None),
    "cox": ("hazard ratio", None),
}


@pytest.fixture(scope="module")
def reg_of(outcomes, tables):
    def of(family, formula="x + sex", **more):
        outcome, columns, left = outcomes(family)
        return fb.regression(f"{left} ~ {formula}", family=family, clients=tables(outcome, **columns, **more))

    return of


@pytest.mark.parametrize("family", FAMILIES)
def test_coefficients_on_their_natural_scale(family, reg_of, made):
    reg = reg_of(family)
    fit = made(reg)
    table = fb.summary_table(reg, fit, level=0.8)
    coefficient, intercept = MEASURES.get(family, ("rate ratio", "rate"))
    shown = table.to_pandas().set_index("coefficient")
    first = "sex[m, 1]" if family == "categorical" else "sex[m]"
    assert shown.loc[first, "measure"] == coefficient
    level = "Intercept[1]" if family == "categorical" else "Intercept"
    assert (level in shown.index) == (intercept is not None)
    assert intercept is None or shown.loc[level, "measure"] == intercept
    raw = fit.idata.posterior["sex"].values.reshape(8, -1)[:, 0]
    draws = raw if coefficient == "difference" else np.exp(raw)
    np.testing.assert_allclose(shown.loc[first, "median"], np.median(draws))
    np.testing.assert_allclose(shown.loc[first, "upper"], np.quantile(draws, 0.9))
    np.testing.assert_allclose(float(table.summary["mean"].sel(coefficient=first)), draws.mean())
    assert shown.loc[first, "probability_of_direction"] == max((raw > 0).mean(), (raw < 0).mean())


def test_parameters_and_effects_are_as_they_are(tables, made):
    formulas = {"mu": "y ~ x + (1 + x | site)", "sigma": "~ sex"}
    reg = fb.regression(formulas, clients=tables(np.arange(40.0) % 7))
    fit = made(reg)
    shown = fb.summary_table(reg, fit).to_pandas().set_index("coefficient")
    assert shown.loc["sigma_sex[m]", "measure"] == "ratio of sigma"
    assert shown.loc["sigma_Intercept", "measure"] == "sigma"
    np.testing.assert_allclose(
        shown.loc["sigma_sex[m]", "median"], np.median(np.exp(fit.idata.posterior["sigma_sex"].values))
    )
    assert "sigma" not in shown.index
    sds = fit.idata.posterior["1 + x|site_sigma"].values
    np.testing.assert_allclose(shown.loc["1 + x|site_sigma[x]", "median"], np.median(sds[..., 1]))
    assert shown.loc["1 + x|site_correlation[x, 1]", "measure"] == "correlation of effects"
    assert np.isnan(shown.loc["1 + x|site_sigma[1]", "probability_of_direction"])


def test_a_printed_table_has_the_names_of_the_posterior(reg_of, made):
    reg = reg_of("bernoulli")
    lines = repr(fb.summary_table(reg, made(reg))).splitlines()
    assert lines[0] == "Coefficients of bernoulli, 90% intervals"
    assert [line.split()[0] for line in lines[1:]] == ["coefficient", "Intercept", "x", "sex[m]"]


RESIDUALS = {
    "gaussian": lambda p: p["sigma"] ** 2,
    "lognormal": lambda p: p["sigma"] ** 2,
    "bernoulli": lambda p: np.pi**2 / 3,
    "binomial": lambda p: np.pi**2 / 3,
    "cumulative": lambda p: np.pi**2 / 3,
    "weibull": lambda p: np.pi**2 / 6,
    "loglogistic": lambda p: np.pi**2 / 3 / p["shape"] ** 2,
}


@pytest.mark.parametrize("family", [name for name in FAMILIES if name not in ("categorical", "cox")])
def test_the_share_of_the_variance(family, reg_of, made):
    reg = reg_of(family, "x + (1 | site) + (1 | site:ward)")
    fit = made(reg)
    found = fb.heterogeneity(reg, fit)
    tau, inner = (fit.idata.posterior[f"1|{name}_sigma"].values for name in ("site", "site:ward"))
    np.testing.assert_allclose(found.draws.sel(quantity="tau of 1|site"), tau)
    if family in RESIDUALS:
        residual = RESIDUALS[family](fit.idata.posterior)
        share = tau**2 / (tau**2 + inner**2 + residual)
        np.testing.assert_allclose(found.draws.sel(quantity="ICC of 1|site"), share)
        assert found.notes == ()
    else:
        assert found.draws["quantity"].size == 2
        assert "The ICC is not defined" in found.notes[0]
        assert "note: The ICC is not defined" in repr(found)


def test_the_share_of_a_meta_analysis(tables, made):
    errors = np.linspace(0.5, 3.0, 40)
    reg = fb.regression("y | se(s) ~ 1 + (1 | site)", clients=tables(np.arange(40.0) % 7, s=errors))
    fit = made(reg)
    w = errors**-2.0
    typical = 39.0 * w.sum() / (w.sum() ** 2 - (w**2).sum())
    tau = fit.idata.posterior["1|site_sigma"].values
    found = fb.heterogeneity(reg, fit)
    np.testing.assert_allclose(found.draws.sel(quantity="I2"), tau**2 / (tau**2 + typical))
    assert "I2 has a typical one" in found.notes[0]


NOT_DEFINED = {
    "slopes": ("y ~ x + (1 + x | site)", "another one for each row"),
    "a formula of sigma": ({"mu": "y ~ x + (1 | site)", "sigma": "~ sex"}, "sigma has a formula of its own"),
    "slopes of a meta-analysis": ("y | se(s) ~ x + (1 + x | site)", "I2 is not defined"),
}


@pytest.mark.parametrize("case", NOT_DEFINED)
def test_what_is_not_defined_is_said(case, tables, made):
    formula, words = NOT_DEFINED[case]
    reg = fb.regression(formula, clients=tables(np.arange(40.0) % 7, s=np.ones(40)))
    assert any(words in note for note in fb.heterogeneity(reg, made(reg)).notes)


def test_draws_that_are_no_numbers_are_refused(tables, made):
    reg = fb.regression("y ~ x", clients=tables(np.arange(40.0)))
    fit = made(reg)
    fit.idata.posterior["x"].values[0, 0] = np.nan
    with pytest.raises(fb.ClientDataError, match="of the draws of 'x' are no numbers: the fit has failed"):
        fb.summary_table(reg, fit)


def test_a_probability_says_of_which_of_two_levels(tables, made):
    clients = {
        name: {**table, "y": np.where(np.arange(len(table["y"])) % 2, "no", "yes")}
        for name, table in tables(np.arange(40.0)).items()
    }
    reg = fb.regression("y ~ x", family="bernoulli", clients=clients, levels={"y": ["yes", "no"]})
    found = fb.predictions(reg, made(reg), {"x": [0.0]})
    assert found.title == "Probability of `y` = 'no' at the average site"


def test_levels_without_an_intercept_are_compared_with_nothing(tables, made):
    clients = tables(np.arange(40.0) % 2)
    reg = fb.regression("y ~ 0 + sex + x", family="bernoulli", clients=clients)
    found = fb.summary_table(reg, made(reg))
    measures = dict(zip(found.draws["coefficient"].values, found.draws["measure"].values, strict=True))
    assert measures["sex[f]"] == measures["sex[m]"] == "odds"
    assert measures["x"] == "odds ratio"
    direction = found.summary["probability_of_direction"]
    assert np.isnan(direction.sel(coefficient=["sex[f]", "sex[m]"])).all()
    assert not np.isnan(direction.sel(coefficient="x"))


def made_estimates(median, width, reference=1.0):
    """Of one quantity, whose median is in the middle of evenly spaced draws."""
    values = np.linspace(median - width, median + width, 101)[None, :, None]
    draws = xr.DataArray(values, dims=("chain", "draw", "row"), coords={"row": ["age"]})
    return fb.Estimates(draws, "A ratio", reference=reference)


@pytest.mark.parametrize(
    ("median", "width", "shown"),
    [
        (1.0004, 1e-4, ["1.00040", "1.00031", "1.00049", ">0.999"]),
        (0.99997, 1e-4, ["0.99997", "0.99988", "1.00006", "0.649"]),
        (1.2, 0.5, ["1.2", "0.75", "1.65", "0.698"]),
        (1.0, 0.0, ["1", "1", "1", "0.5"]),
    ],
)
def test_a_ratio_near_1_is_shown_by_its_distance_from_1(median, width, shown):
    assert list(made_estimates(median, width).printed()[1]) == ["age", *shown]


def test_a_difference_has_three_digits():
    assert "1.00" not in made_estimates(1.0004, 1e-4, reference=0.0).printed()[1]
    assert made_estimates(1.0004, 1e-4, reference=0.0).printed()[1][1:4] == ("1", "5.83e-05", "1")


def test_a_fit_has_the_table_by_itself_and_so_has_its_folder(tables, tmp_path):
    clients = tables(np.arange(40.0) % 7)
    reg = fb.regression("y ~ x + sex", clients=clients)
    options = {"key": jax.random.key(0), "method": "laplace", "correct": False, "num_draws": 20, "progress": False}
    fit = reg.fit(**options)
    expected, found = fb.summary_table(reg, fit, 0.5), fit.summary_table(0.5)
    xr.testing.assert_identical(found.draws, expected.draws)
    assert repr(found) == repr(expected)
    fit.save(tmp_path / "fit")
    assert repr(fb.load_fit(tmp_path / "fit").summary_table(0.5)) == repr(expected)
    assert repr(fb.load_fit(tmp_path / "fit", reg.model, reg.clients).summary_table(0.5)) == repr(expected)
    with pytest.raises(ValueError, match="`level` is 95; it is the probability"):
        fit.summary_table(95)
    by_its_model = fb.fit_federated(reg.model, reg.clients, coords=reg.coords, dims=reg.dims, **options)
    assert repr(by_its_model.summary_table(0.5)) == repr(expected)


def test_names_of_levels_are_the_regressions_also_where_the_fit_has_none(tables):
    reg = fb.regression("y ~ x + sex", clients=tables(np.arange(40.0) % 7))
    options = {"key": jax.random.key(0), "method": "laplace", "correct": False, "num_draws": 20, "progress": False}
    found = fb.fit_federated(reg.model, reg.clients, **options).summary_table()
    assert found.draws["coefficient"].values.tolist() == ["Intercept", "x", "sex[m]", "sigma"]


def test_a_program_of_ones_own_knows_of_no_regression(tables):
    reg = fb.regression("y ~ x", clients=tables(np.arange(40.0) % 7))
    options = {"key": jax.random.key(0), "method": "laplace", "correct": False, "num_draws": 20, "progress": False}
    fit = fb.fit_federated(lambda x, y=None: reg.model(x, y), reg.clients, **options)
    with pytest.raises(fb.FormulaError, match=r"knows of no regression: .* Write `fb.summary_table\(reg, fit\)`"):
        fit.summary_table()
    assert len(fb.summary_table(reg, fit).draws["coefficient"]) == 3
