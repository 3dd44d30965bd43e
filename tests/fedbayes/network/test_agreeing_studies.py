"""Real studies: a formula, agreed on in one process or over a network, has the density of a program written by hand.

The densities by hand are in NumPy and SciPy, from the tables as they are. Programs of the same density have the same
posterior, so no sampler is asked.
"""

from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

import jax
import numpy as np
import pytest
from agreements import here, network_of, over
from numpyro.infer.util import log_density
from permissive import PERMISSIVE
from scipy import stats
from scipy.special import expit

import fedbayes as fb
from fedbayes.models import tables
from fedbayes.network.agreeing.study import FormulaStudy

# Institutions of two patients, and a level that three rows have, are no question of these tests.
POLICY = Path(PERMISSIVE["policy"]).read_text()


class Case(NamedTuple):
    """A study, its tables, the columns of its predictor, and an outcome's log density by hand.

    ``columns`` are of a table, by the name of their coefficient; ``outcome`` takes the table, the predictor without its
    intercept, and the values of the parameters.
    """

    study: FormulaStudy
    clients: Mapping[str, Mapping[str, Any]]
    columns: Callable[[Mapping[str, Any]], dict[str, list[np.ndarray]]]
    outcome: Callable[[Mapping[str, Any], np.ndarray, Mapping[str, Any]], np.ndarray]
    others: Mapping[str, Any]


def levels(values, *others):
    """The dummies of all levels but the first."""
    return [np.asarray(values) == other for other in others]


def hospitals():
    def columns(table):
        male, age = table["sex"] == "male", table["age"]
        return {
            "age": [age], "sex": [male], "pain": levels(table["pain"], "no pain", "other pain", "typical angina"),
            "pressure": [table["pressure"]], "angina": [table["angina"]], "age:sex": [age * male],
        }  # fmt: skip

    def outcome(table, eta, values):
        odds = values["Intercept_centred"] + eta + values["1|site_sigma"] * values["1|site_offset"]
        return stats.bernoulli.logpmf(table["sick"], expit(odds))

    pain = ["atypical angina", "no pain", "other pain", "typical angina"]
    study = FormulaStudy(
        "sick ~ age * sex + pain + pressure + angina + (1 | site)",
        "bernoulli",
        {"sex": ["female", "male"], "pain": pain},
    )
    others = {"Intercept_centred": 0.2, "1|site_sigma": 0.8, "1|site_offset": -0.4}
    return Case(study, tables.hospitals(), columns, outcome, others)


def halves():
    """The students of each school in two halves: sums are secure from three sites on."""
    found = {}
    for school, table in tables.students().items():
        for half in range(2):
            rows = {name: values[half::2] for name, values in table.items()}
            found[f"{school} {half}"] = rows | {"school": np.repeat(school, len(rows["sex"]))}
    return found


def of_students(table):
    return {
        "sex": levels(table["sex"], "male"), "studytime": [table["studytime"]], "failures": [table["failures"]],
        "school": levels(table["school"], "MS"),
    }  # fmt: skip


STUDENTS = {"sex": ["female", "male"], "school": ["GP", "MS"]}


def grades():
    """Three rows for each student, whose level is the student's own."""

    def by_term(table):
        names, number = ("sex", "studytime", "failures", "school"), len(table["sex"])
        grade = np.concatenate([table[f"grade{term}"] for term in (1, 2, 3)]).astype(float)
        student = np.tile([f"{one:03d}" for one in range(number)], 3)
        return {"grade": grade, "student": student} | {name: np.tile(table[name], 3) for name in names}

    def outcome(table, eta, values):
        level = values["Intercept_centred"] + eta
        own = values["1|site:student_sigma"] * values["1|site:student_offset"][table["student"].astype(int)]
        sigma = np.exp(values["sigma_Intercept_centred"] + values["sigma_school"] * (school(table) - share))
        return stats.norm.logpdf(table["grade"], level + own, sigma)

    def school(table):
        return table["school"] == "MS"

    clients = {name: by_term(table) for name, table in halves().items()}
    share = np.mean(np.concatenate([school(table) for table in clients.values()]))
    formula = {"mu": "grade ~ sex + studytime + failures + school + (1 | site:student)", "sigma": "~ school"}
    others = {
        "Intercept_centred": 11.0, "1|site:student_sigma": 2.1, "sigma_Intercept_centred": 0.3,
        "sigma_school": np.array([0.4]),
    }  # fmt: skip
    return Case(FormulaStudy(formula, levels=STUDENTS), clients, of_students, outcome, others)


def bands():
    """The last grade as failed, passed or good."""
    names = ["failed", "passed", "good"]

    def banded(table):
        band = np.select([table["grade3"] < 10, table["grade3"] < 14], names[:2], names[2])
        return {name: table[name] for name in ("sex", "studytime", "failures", "school")} | {"band": band}

    def outcome(table, eta, values):
        ends = np.cumsum(values["probability"])[:-1]
        below = expit(np.log(ends / (1.0 - ends)) - eta[:, None])
        shares = np.diff(np.column_stack([np.zeros(len(eta)), below, np.ones(len(eta))]), axis=1)
        return np.log([share[names.index(band)] for share, band in zip(shares, table["band"], strict=True)])

    clients = {name: banded(table) for name, table in halves().items()}
    study = FormulaStudy("band ~ sex + studytime + failures + school", "cumulative", STUDENTS | {"band": names})
    return Case(study, clients, of_students, outcome, {"probability": np.array([0.2, 0.5, 0.3])})


def lung():
    def columns(table):
        return {"age": [table["age"]], "sex": levels(table["sex"], "male"), "ecog": [table["ecog"]]}

    def outcome(table, eta, values):
        """The hazard is ``shape / t (t / m)^shape exp(eta)``, with ``m`` the mean of all times."""
        eta = values["Intercept_centred"] + eta + values["1|site_sigma"] * values["1|site_offset"]
        shape, relative = values["shape"], np.log(table["days"] / mean)
        hazard = eta + np.log(shape / mean) + (shape - 1.0) * relative
        return table["died"] * hazard - np.exp(eta + shape * relative)

    clients = tables.lung()
    mean = float(f"{np.mean(np.concatenate([table['days'] for table in clients.values()])):.3g}")  # as it is printed
    study = FormulaStudy("Surv(days, died) ~ age + sex + ecog + (1 | site)", "weibull", {"sex": ["female", "male"]})
    others = {"Intercept_centred": -0.2, "1|site_sigma": 0.3, "1|site_offset": 0.7, "shape": 1.3}
    return Case(study, clients, columns, outcome, others)


CASES = {"hospitals": hospitals, "grades of students": grades, "grades in bands": bands, "survival": lung}


def by_hand(case, reg, table, values):
    """Log density of one site: priors as they are printed, locals' standard normal law, and the outcomes."""
    columns = case.columns(table)
    everywhere = [case.columns(each) for each in case.clients.values()]
    eta = 0.0
    for name, own in columns.items():
        for place, (column, coefficient) in enumerate(zip(own, np.ravel(values[name]), strict=True)):
            eta = eta + coefficient * (column - np.mean(np.concatenate([each[name][place] for each in everywhere])))
    found = np.sum(case.outcome(table, eta, values))
    for name, prior in reg.priors.items():
        at = values[f"{name}_centred" if name.endswith("Intercept") else name]
        found += np.sum(np.asarray(prior.log_prob(at)))
    return found + sum(stats.norm.logpdf(at).sum() for name, at in values.items() if name.endswith("_offset"))


def values_of(case, reg, table, rng):
    """Values of all parameters at one site, each of its parameter's shape."""
    found = {name: 0.1 * rng.normal(size=len(own)) for name, own in case.columns(table).items()} | dict(case.others)
    if "student" in table:
        found["1|site:student_offset"] = rng.normal(size=len(set(table["student"])))
    return {
        name: np.reshape(value, reg.priors[name].event_shape) if name in reg.priors else value
        for name, value in found.items()
    }


@pytest.mark.parametrize("where", ["here", "over a network", "over a network, levels by sums"])
@pytest.mark.parametrize("name", CASES)
def test_a_study_by_a_formula_has_the_density_by_hand(name, where, tmp_path):
    case, rng = CASES[name](), np.random.default_rng(3)
    reg = here(case.study, case.clients)
    if where != "here":
        order = {name: levels for name, levels in case.study.levels.items() if name == case.study.outcome.name}
        study = replace(case.study, levels=order) if "levels" in where else case.study
        agreed = over(network_of(tmp_path, study, case.clients, POLICY), study)
        reg = fb.regression(case.study.formula, family=case.study.family, agreed=agreed)
    for site, table in list(case.clients.items())[:4]:
        values = values_of(case, reg, table, rng)
        with jax.enable_x64(True):
            found, _ = log_density(reg.model, (), reg.arguments(site, table, outcome=True), values)
            assert float(found) == pytest.approx(by_hand(case, reg, table, values), rel=1e-8)
