"""24 formulas of textbooks: right, which is to say the columns that NumPy makes of them by hand; or refused in words.

The columns are those of R's design, treatment contrasts and all, around their means over all rows.
"""

from itertools import pairwise

import numpy as np
import pandas as pd
import pytest

import fedbayes as fb

RNG = np.random.default_rng(11)
ROWS = 240


def _data():
    site = np.repeat([f"s{i}" for i in range(8)], 30)
    age, dose = RNG.normal(55.0, 9.0, ROWS), RNG.uniform(0.1, 4.0, ROWS)
    eta = 0.03 * (age - 55.0) + 0.2 * dose
    return pd.DataFrame(
        {
            "site": site,
            "age": age,
            "dose": dose,
            "sex": RNG.choice(["f", "m"], ROWS),
            "arm": RNG.choice(["a", "b", "c"], ROWS),
            "ward": RNG.choice(["1", "2", "3", "4"], ROWS),
            "days": RNG.integers(0, 10, ROWS),
            "n": RNG.integers(5, 20, ROWS),
            "y": eta + RNG.normal(size=ROWS),
            "sick": (RNG.random(ROWS) < 1 / (1 + np.exp(-eta))).astype(int),
            "count": RNG.poisson(np.exp(eta)),
            "time": RNG.exponential(np.exp(-eta)) + 0.01,
            "seen": RNG.integers(0, 2, ROWS),
            "share": RNG.beta(2.0, 3.0, ROWS),
            "rating": RNG.integers(1, 5, ROWS),
            "colour": RNG.choice(["r", "g", "b"], ROWS),
            "exposure": RNG.uniform(0.5, 2.0, ROWS),
        }
    ).assign(killed=lambda d: RNG.binomial(d["n"], 0.4), subject=lambda d: d["site"] + d["ward"])


DATA = _data()
# formula, family, columns of the common design, parameters among the priors, and the book or paper it is of;
# benchmarks/FORMULAS.md has them as a table
RIGHT = [
    ("y ~ dose", "gaussian", 1, ["dose", "sigma"], "McElreath 2020, 4.4: a line"),
    ("y ~ dose + I(dose ** 2)", "gaussian", 2, ["I(dose ** 2)"], "McElreath 2020, 4.5: a parabola"),
    ("y ~ bs(dose, df=7)", "gaussian", 7, ["bs(dose, df=7)"], "McElreath 2020, 4.5: a spline"),
    ("y ~ dose * sex", "gaussian", 3, ["dose:sex"], "Gelman and Hill 2007, 3.3: kidscore ~ mom.iq * mom.hs"),
    ("log(time) ~ dose + sex", "gaussian", 2, ["sigma"], "Gelman and Hill 2007, 4.4: log(earn) ~ height + male"),
    ("y ~ scale(age) + scale(dose)", "gaussian", 2, ["scale(age)"], "Gelman, Hill and Vehtari 2020, 12.2"),
    ("y ~ dose", "student", 1, ["nu"], "Kruschke 2015, 17.2: a robust line"),
    ("sick ~ dose + age", "bernoulli", 2, ["age"], "Gelman and Hill 2007, 5.4: switch ~ dist100 + arsenic"),
    ("sick ~ center(dose) * center(age)", "bernoulli", 3, ["center(dose):center(age)"], "Gelman and Hill 2007, 5.5"),
    ("killed | trials(n) ~ log(dose)", "binomial", 1, ["log(dose)"], "Dobson and Barnett 2018, 7.3: beetles"),
    ("killed | trials(n) ~ arm", "beta_binomial", 2, ["kappa"], "McElreath 2020, 12.1: admissions"),
    ("count ~ arm + offset(log(exposure))", "poisson", 2, ["arm"], "Gelman and Hill 2007, 15.1: police stops"),
    ("count ~ age + sex", "negative_binomial", 2, ["alpha"], "Venables and Ripley 2002, 7.4: quine"),
    ("count ~ dose", "zero_inflated_poisson", 1, ["psi"], "McElreath 2020, 12.2: monks"),
    ("count ~ dose", "hurdle_negative_binomial", 1, ["psi", "alpha"], "Zeileis, Kleiber and Jackman 2008"),
    ("y ~ days + (1 + days | subject)", "gaussian", 1, ["1 + days|subject_sigma"], "Bates et al. 2015: sleepstudy"),
    ("y ~ 1 + (1 | site/ward)", "gaussian", 0, ["1|site:ward_sigma"], "Bates et al. 2015: pastes"),
    ("y ~ sex + (1 | site)", "gaussian", 1, ["1|site_sigma"], "Gelman and Hill 2007, 12.4: radon"),
    ("rating ~ arm + sex + (1 | site)", "cumulative", 3, ["probability"], "Buerkner and Vuorre 2019"),
    ("colour ~ age + sex", "categorical", 2, ["Intercept"], "Venables and Ripley 2002, 7.3: multinom"),
    ("Surv(time, seen) ~ age + sex", "weibull", 2, ["shape"], "Therneau and Grambsch 2000: survreg"),
    ("time | cens(seen) ~ arm", "piecewise_exponential", 2, ["log_hazard"], "Ibrahim, Chen and Sinha 2001, 3.1"),
    ("share ~ dose", "beta", 1, ["kappa"], "Ferrari and Cribari-Neto 2004"),
    ("time ~ arm / dose", "gamma", 5, ["arm:dose"], "Dobson and Barnett 2018: slopes within groups"),
]  # fmt: skip


def test_there_are_24():
    assert len(RIGHT) == 24


@pytest.mark.parametrize(
    ("formula", "family", "width", "parameters"),
    [case[:4] for case in RIGHT],
    ids=[f"{case[1]}: {case[0]}" for case in RIGHT],
)
def test_a_formula_of_a_textbook_is_right(formula, family, width, parameters):
    reg = fb.regression(formula, family=family, clients=DATA)
    assert set(parameters) <= set(reg.priors)
    first = next(iter(reg.clients.values()))
    assert (first["x"].shape[1] if "x" in first else 0) == width
    assert reg.source.startswith("import jax.numpy as jnp")


def level(data, column, *levels):
    return [(data[column] == each).to_numpy(float) for each in levels]


def standardised(values):
    return (values - values.mean()) / values.std(ddof=1)


def moved(values):
    return values - values.mean()


def b_splines(values, knots, degree):
    """By the recursion of Cox and de Boor, the first function left out."""
    x = np.asarray(values)[:, None]
    spans = [(x >= low) & (x < high) for low, high in pairwise(knots)]
    found = np.concatenate(spans, axis=1).astype(float)
    for k in range(1, degree + 1):
        rise, fall = knots[k:-1] - knots[: -k - 1], knots[k + 1 :] - knots[1:-k]
        up = np.divide(x - knots[: -k - 1], rise, out=np.zeros((len(x), len(rise))), where=rise > 0)
        down = np.divide(knots[k + 1 :] - x, fall, out=np.zeros((len(x), len(fall))), where=fall > 0)
        found = up * found[:, :-1] + down * found[:, 1:]
    return list(found[:, 1:].T)


def nested(data):
    arms = level(data, "arm", "a", "b", "c")
    return [*arms[1:], *(arm * data["dose"] for arm in arms)]


def by_sex(data):
    (male,) = level(data, "sex", "m")
    return [data["dose"], male, data["dose"] * male]


COLUMNS = {
    "y ~ dose": lambda d: [d["dose"]],
    "y ~ dose + I(dose ** 2)": lambda d: [d["dose"], d["dose"] ** 2],
    "y ~ dose * sex": by_sex,
    "log(time) ~ dose + sex": lambda d: [d["dose"], *level(d, "sex", "m")],
    "y ~ scale(age) + scale(dose)": lambda d: [standardised(d["age"]), standardised(d["dose"])],
    "sick ~ dose + age": lambda d: [d["dose"], d["age"]],
    "sick ~ center(dose) * center(age)": lambda d: [
        *(moved(d["dose"]), moved(d["age"])), moved(d["dose"]) * moved(d["age"])
    ],
    "killed | trials(n) ~ log(dose)": lambda d: [np.log(d["dose"])],
    "killed | trials(n) ~ arm": lambda d: level(d, "arm", "b", "c"),
    "count ~ arm + offset(log(exposure))": lambda d: level(d, "arm", "b", "c"),
    "count ~ age + sex": lambda d: [d["age"], *level(d, "sex", "m")],
    "count ~ dose": lambda d: [d["dose"]],
    "y ~ days + (1 + days | subject)": lambda d: [d["days"]],
    "y ~ 1 + (1 | site/ward)": lambda d: [],
    "y ~ sex + (1 | site)": lambda d: level(d, "sex", "m"),
    "rating ~ arm + sex + (1 | site)": lambda d: [*level(d, "arm", "b", "c"), *level(d, "sex", "m")],
    "colour ~ age + sex": lambda d: [d["age"], *level(d, "sex", "m")],
    "Surv(time, seen) ~ age + sex": lambda d: [d["age"], *level(d, "sex", "m")],
    "time | cens(seen) ~ arm": lambda d: level(d, "arm", "b", "c"),
    "share ~ dose": lambda d: [d["dose"]],
    "time ~ arm / dose": nested,
}  # fmt: skip
# What else the program is given; outcomes are the column on the left, unless they stand here.
BESIDE = {
    "log(time) ~ dose + sex": {"y": np.log(DATA["time"])},
    "killed | trials(n) ~ log(dose)": {"trials": DATA["n"]},
    "killed | trials(n) ~ arm": {"trials": DATA["n"]},
    "count ~ arm + offset(log(exposure))": {"offset": np.log(DATA["exposure"])},
    "y ~ days + (1 + days | subject)": {"subject_values": np.column_stack([np.ones(ROWS), DATA["days"]])},
    "y ~ 1 + (1 | site/ward)": {"site_ward_index": DATA["ward"].astype(int) - 1},
    "rating ~ arm + sex + (1 | site)": {"y": DATA["rating"] - 1},
    "colour ~ age + sex": {"y": DATA["colour"].map({"b": 0, "g": 1, "r": 2})},
    "Surv(time, seen) ~ age + sex": {"y": DATA["time"], "observed": DATA["seen"]},
    "time | cens(seen) ~ arm": {"observed": 1 - DATA["seen"]},
}


def stacked(reg, name):
    return np.concatenate([client[name] for client in reg.clients.values()])


def by_hand(reg, formula):
    """What the program should be given, by argument, over all clients' rows."""
    if formula in COLUMNS:
        columns = COLUMNS[formula](DATA)
    else:
        spline = reg.parts.predictors[0].design.factors["bs(dose, df=7)"]
        columns = b_splines(DATA["dose"], np.asarray(spline.knots), 3)
    left = formula.split("~")[0].split("|")[0].strip()
    found = {"y": DATA.get(left), **BESIDE.get(formula, {})}
    if columns:
        found["x"] = np.column_stack([np.asarray(column, float) - np.mean(column) for column in columns])
    return {name: np.asarray(values, float) for name, values in found.items()}


@pytest.mark.parametrize(("formula", "family"), [case[:2] for case in RIGHT], ids=[case[0] for case in RIGHT])
def test_its_columns_are_those_made_by_hand(formula, family):
    reg = fb.regression(formula, family=family, clients=DATA)
    for name, values in by_hand(reg, formula).items():
        np.testing.assert_allclose(stacked(reg, name), values, rtol=1e-9, atol=1e-9)


def test_knots_of_a_spline_are_quantiles_to_a_twentieth_of_an_sd():
    reg = fb.regression("y ~ bs(dose, df=7)", clients=DATA)
    knots = reg.parts.predictors[0].design.factors["bs(dose, df=7)"].knots[3:-3]
    quantiles = np.quantile(DATA["dose"], [0.0, 0.2, 0.4, 0.6, 0.8, 1.0])
    np.testing.assert_allclose(knots, quantiles, atol=DATA["dose"].std() / 20)


OF_THE_REFUSED = {
    "y ~ .": "R: all other columns",
    "y ~ s(dose)": "Wood 2017: a penalised spline",
    "y ~ lag(dose)": "econometrics: the row before",
    "y ~ te(dose, age)": "Wood 2017: a tensor product",
    "y ~ gp(dose)": "brms: a Gaussian process",
    "y ~ mo(rating)": "brms: a monotonic effect",
    "cbind(killed, n) ~ dose": "R: binomial outcomes",
    "y ~ dose + (1 | gr(site, by=arm))": "brms: an sd of each arm",
    "time ~ dose + (1 | site)": "Therneau and Grambsch 2000: frailty beside strata",
    "time ~ 0 + dose": "a hazard without an intercept",
    "time | weights(n) ~ dose": "Therneau and Grambsch 2000: case weights",
    "y ~ poly(dose, age)": "R: polynomials of two variables",
}
NOT_THERE = [
    ("y ~ .", "gaussian", r"operator '\.' is not read"),
    ("y ~ s(dose)", "gaussian", "`s` in 's.dose.' is no function that formulas know"),
    ("y ~ lag(dose)", "gaussian", "is no function that formulas know"),
    ("y ~ te(dose, age)", "gaussian", "is no function that formulas know"),
    ("y ~ gp(dose)", "gaussian", "is no function that formulas know"),
    ("y ~ mo(rating)", "gaussian", "is no function that formulas know"),
    ("cbind(killed, n) ~ dose", "binomial", "needs `trials|is no function"),
    ("y ~ dose + (1 | gr(site, by=arm))", "gaussian", "is no column"),
    ("time ~ dose + (1 | site)", "cox", r"baseline hazard of each client, from which the effect '\(1\|site\)' can't"),
    ("time ~ 0 + dose", "cox", "has a baseline hazard of each client in place of an intercept"),
    ("time | weights(n) ~ dose", "cox", "means nothing for the family cox"),
    ("y ~ poly(dose, age)", "gaussian", "is no number, text or list"),
]


@pytest.mark.parametrize(("formula", "family", "words"), NOT_THERE, ids=[case[0] for case in NOT_THERE])
def test_what_is_not_there_is_refused_in_our_words(formula, family, words):
    with pytest.raises(fb.FormulaError, match=words):
        fb.regression(formula, family=family, clients=DATA)
