"""The report of a regression: its formula, its coefficients as they are read, and how much sites differ."""

import xml.etree.ElementTree as ET
from dataclasses import replace
from functools import wraps
from types import SimpleNamespace

import numpy as np
import numpyro.distributions as dist
import pandas as pd
import pytest
import xarray as xr

import fedbayes as fb
from fedbayes.cli.reports import tables_beside, whole_fit
from fedbayes.formula import regression as formula_regression
from fedbayes.report import writing
from fedbayes.results.fitted import fitted_by
from fedbayes.results.saved.folder import check_savable, read_meta
from fedbayes.results.saved.regression import Read, Regressed, Share, carried_by

RNG = np.random.default_rng(0)
CLIENTS = {
    name: pd.DataFrame({"age": RNG.normal(50, 9, 12).round(), "sex": ["f", "m"] * 6, "sick": [0, 1, 1, 0] * 3})
    for name in ("north", "south", "west")
}
FORMULA = "sick ~ age + sex + (1 | site)"


def made(reg, **values):
    """Draws that look like those of a fit."""
    shape = (2, 50)
    sites = {"Intercept": -1.0, "Intercept_centred": 0.2, "age": 0.0004, "1|site_sigma": 0.7} | values
    spread = {"age": 1e-4, "1|site_sigma": 0.1}
    drawn = {
        name: (("chain", "draw"), mean + spread.get(name, 0.3) * RNG.normal(size=shape)) for name, mean in sites.items()
    }
    sex = (("chain", "draw", *reg.dims["sex"]), 0.4 + 0.3 * RNG.normal(size=(*shape, 1)))
    return xr.Dataset({**drawn, "sex": sex}, {name: reg.coords[name] for name in reg.dims["sex"]})


@pytest.fixture(scope="module")
def reg():
    return fb.regression(FORMULA, family="bernoulli", clients=CLIENTS)


@pytest.fixture(scope="module")
def of_regression(facts, reg):
    posterior = made(reg)
    return facts._replace(
        idata={"posterior": posterior}, regression=reg.described, tables={"rounds": facts.tables["rounds"]}
    )


def section(text, name):
    page = ET.fromstring(text.removeprefix("<!DOCTYPE html>\n"))
    return next(each for each in page.iter("section") if each.get("id") == name)


def rows(text, name):
    """Of each table of a section, its rows."""
    found = section(text, name).iter("table")
    return [[["".join(cell.itertext()) for cell in row] for row in table.iter("tr")] for table in found]


def test_the_coefficients_are_those_of_the_summary_table(of_regression, reg):
    fit = SimpleNamespace(idata=SimpleNamespace(posterior=of_regression.idata["posterior"]))
    coefficients, spread, *_ = rows(writing.html(of_regression), "posterior")
    expected = fb.summary_table(reg, fit).printed()[1:]
    shown = [[cell.replace("\N{MINUS SIGN}", "-").replace("\N{EN DASH}", "") for cell in row] for row in coefficients]
    assert shown[1:] == [list(row) for row in expected]
    assert coefficients[2][:2] == ["age", "odds ratio"]
    assert coefficients[2][2].startswith("1.000")  # a yearly odds ratio is not 1
    assert [row[0] for row in spread[1:]] == ["tau of 1|site", "ICC of 1|site"]
    assert [row[1:4] for row in spread[1:]] == [list(row[1:4]) for row in fb.heterogeneity(reg, fit).printed()[1:]]


def test_it_says_the_formula_and_the_scale(of_regression):
    found = writing.html(of_regression)
    told = dict(rows(found, "model")[0])
    assert told == {"formula": FORMULA, "family": "bernoulli, link logit"}
    said = "".join(section(found, "posterior").itertext())
    assert "on the scale of the link, log odds: a coefficient is there the logarithm of its odds ratio" in said
    assert "Intercept is the odds where all numeric covariates are 0" in said


def test_priors_have_the_names_of_the_globals(reg):
    assert reg.described.priors == {
        "Intercept_centred": "Normal(0.0, 1.5)",
        "age": reg.described.priors["age"],
        "sex": "Normal(0.0, 1.0).expand([1]).to_event(1)",
        "1|site_sigma": "HalfNormal(1.5)",
    }


def test_differences_are_no_logarithms(of_regression):
    reg = fb.regression({"mu": "age ~ sex", "sigma": "~ sex"}, clients=CLIENTS)
    said = reg.described
    assert not said.is_log
    assert said.scale == "mean"
    names = {"sigma_Intercept": 0.1, "sigma_sex": 0.2}
    posterior = made(reg, **names)
    posterior["sigma_sex"] = posterior["sex"].rename({reg.dims["sex"][0]: reg.dims["sigma_sex"][0]})
    found = writing.html(of_regression._replace(regression=said, idata={"posterior": posterior}))
    assert "logarithm" not in "".join(section(found, "posterior").itertext())
    assert dict(rows(found, "model")[0])["formula of sigma"] == "~ sex"
    whats = {row[0]: row[1] for row in rows(found, "posterior")[0]}
    assert (whats["sex[m]"], whats["sigma_sex[m]"]) == ("difference", "ratio of sigma")


@pytest.fixture(scope="module")
def described(facts):
    """The regression that the stored fit might be of."""
    reads = [Read("Intercept", "mean", may_lack=True), Read("lam", "ratio", reference=0.0, is_log=True)]
    share = Share("lam", ["lam"], 2.0, "sigma2", -1.0)
    priors = {"lam": "LogNormal(0.0, 1.0)"}
    program = "import numpyro\n"
    return Regressed({"": "y ~ x"}, "gaussian", "identity", "mean", program, priors, reads, (), [share], ("why",))


def test_a_saved_fit_knows_its_regression(fit, described, tmp_path):
    """So the report of its folder says what that of the fit says, and the program has one digest."""
    ours = fb.FederatedFit(replace(fit.fitted, regression=described))
    ours.save(tmp_path / "fit")
    read = read_meta(tmp_path / "fit").regression
    posterior = fit.idata.posterior
    for one, other in zip(read.entries(posterior), described.entries(posterior), strict=True):
        assert one[:2] == other[:2]
        np.testing.assert_array_equal(one.draws, other.draws)
    ratio = posterior["lam"] ** 2 / (posterior["lam"] ** 2 + 2.0 / posterior["sigma2"])
    np.testing.assert_allclose(read.heterogeneity(posterior)[0].draws, ratio)
    loaded = fb.load_fit(tmp_path / "fit")
    first, second = (each.report(tmp_path / "report.html").read_text(encoding="utf-8") for each in (ours, loaded))
    assert rows(first, "posterior") == rows(second, "posterior")
    assert rows(first, "model") == rows(second, "model")
    assert rows(second, "model")[1][1] == ["lam", "scalar", "LogNormal(0.0, 1.0)"]
    digests = [dict(rows(each, "reproducibility")[0]) for each in (first, second)]
    for line in ("program's digest", "method"):
        assert digests[0][line] == digests[1][line]
    assert "import numpyro" in "".join(section(second, "model").itertext())


def test_the_program_of_a_regression_carries_it_to_its_fits(fit, reg):
    of_reg = SimpleNamespace(answer=lambda *_: None)
    given = (of_reg, fit.problem, fit.fitted.run, fit.fitted.programs, fit.fitted.executor, fit.fitted.key, None)
    found = fitted_by(*given, carried=carried_by(reg.model))
    assert found.regression == reg.described
    assert found.regression.source == reg.source
    assert fit.fitted.regression is None
    assert carried_by(lambda **_: None) is None
    assert carried_by(reg.model).whole is reg


def test_a_program_that_wraps_that_of_a_regression_is_none_itself(reg):
    """`functools.wraps` gives it the attributes of what it wraps, whose likelihood it need not have."""

    @wraps(reg.model)
    def other(**arguments):
        return reg.model(**{**arguments, "y": 1 - arguments["y"]})

    assert vars(other).keys() >= vars(reg.model).keys()
    assert carried_by(other) is None


def test_options_are_saved_in_the_methods_own_order():
    method = fb.EP(num_samples=64)
    assert f"EP({', '.join(f'{name}={value!r}' for name, value in check_savable(method).items())})" == repr(method)


@pytest.fixture
def result(reg, tmp_path):
    """What `fedbayes fit` writes, but for the fit."""
    (tmp_path / "fit").mkdir()
    reg.agreed.save(tmp_path / "agreed.json")
    pd.DataFrame({"unit": ["1", "2"], "site": "", "mean": [0.5, -0.5], "tau": 1.0}).to_csv(tmp_path / "effects.csv")
    for name, table in CLIENTS.items():
        table.to_csv(tmp_path / f"{name}.csv", index=False)
    return tmp_path


def test_the_files_that_were_fitted_make_the_regression_again(result, reg, monkeypatch):
    asked = {}
    monkeypatch.setattr("fedbayes.fit.load_fit", lambda *arguments: asked.update(given=arguments))
    whole_fit(result / "fit", [result / f"{name}.csv" for name in CLIENTS], None, "utf-8")
    folder, _, clients = asked["given"]
    assert folder == result / "fit"
    assert list(clients) == list(reg.clients)
    for name, arguments in reg.clients.items():
        for argument, values in arguments.items():
            np.testing.assert_array_equal(clients[name][argument], values)


def test_priors_that_were_given_are_those_of_the_regression_made_again(result, monkeypatch):
    given = {"age": dist.Normal(0.0, 0.1), "sex": dist.StudentT(3.0, 0.0, 2.5)}
    reg = fb.regression(FORMULA, family="bernoulli", clients=CLIENTS, priors=given)
    reg.agreed.save(result / "agreed.json")
    asked = {}
    monkeypatch.setattr("fedbayes.fit.load_fit", lambda *arguments: asked.update(given=arguments))
    whole_fit(result / "fit", [result / f"{name}.csv" for name in CLIENTS], None, "utf-8")
    assert carried_by(asked["given"][1]).regression.source == reg.source


def test_a_prior_that_can_not_be_read_again_names_the_file(result, reg):
    agreed = replace(reg.agreed, priors={"age": "dist.Normall(0.0, 0.1)"})
    agreed.save(result / "agreed.json")
    with pytest.raises(fb.FormulaError, match=r"agreed.json', the prior of 'age': .* Did you mean 'Normal'"):
        whole_fit(result / "fit", [result / f"{name}.csv" for name in CLIENTS], None, "utf-8")


def test_the_same_formula_is_the_same_program_from_shell_and_python(result, reg, monkeypatch):
    sources = []
    whole = formula_regression.regression
    monkeypatch.setattr("fedbayes.fit.load_fit", lambda *_: None)
    monkeypatch.setattr(formula_regression, "regression", lambda *a, **k: sources.append(whole(*a, **k)) or sources[-1])
    whole_fit(result / "fit", [result / f"{name}.csv" for name in CLIENTS], None, "utf-8")
    assert sources[0].described.source == reg.described.source


def test_data_of_another_kind_of_fit_are_refused(tmp_path):
    with pytest.raises(fb.ReportError, match=r"agreed.json' is not there. Leave them out"):
        whole_fit(tmp_path / "fit", [tmp_path / "north.csv"], None, "utf-8")


def test_effects_beside_the_fit_are_a_table_of_the_report(result, facts):
    beside = tables_beside(result)
    given = writing.given_tables(beside)
    (table,) = rows(writing.html(facts._replace(given=given)), "given")
    assert table == [["unit", "mean", "tau"], ["1", "0.5", "1"], ["2", "\N{MINUS SIGN}0.5", "1"]]
    (result / "effects.csv").unlink()
    assert tables_beside(result) == {}
