"""What can't be read is refused in one sentence that says what is wrong, and what to write instead."""

import numpy as np
import pytest

import fedbayes as fb

ROWS = {"x": [0.2, 1.0], "sex": ["m", "f"], "ward": ["1", "2"]}


@pytest.fixture(scope="module")
def fitted(tables, made):
    reg = fb.regression("y ~ x + sex + (1 | site:ward)", clients=tables(np.arange(40.0) % 7))
    return reg, made(reg)


def without(name):
    return {column: values for column, values in ROWS.items() if column != name}


ASKED = {
    "an unknown client": (
        lambda r, f: fb.predictions(r, f, ROWS, where="aa"),
        "`where` is 'aa'; write 'average', 'new'.*Did you mean 'a'",
    ),
    "no place": (lambda r, f: fb.predictions(r, f, ROWS, where=3), "`where` is 3; write 'average'"),
    "an unknown scale": (
        lambda r, f: fb.predictions(r, f, ROWS, scale="logit"),
        "`scale` is 'logit'; write 'response'",
    ),
    "a level of intervals": (lambda r, f: fb.predictions(r, f, ROWS, level=95), "`level` is 95; it is the probability"),
    "a level that is true": (lambda r, f: fb.summary_table(r, f, level=True), "`level` is True"),
    "a missing column": (
        lambda r, f: fb.predictions(r, f, without("x")),
        "names 'x', and client 'new rows' has no such column",
    ),
    "a missing column of levels": (
        lambda r, f: fb.predictions(r, f, without("sex"), where="b"),
        "names 'sex', and client 'b' has no",
    ),
    "a missing column of groups": (
        lambda r, f: fb.predictions(r, f, without("ward"), where="b"),
        "names 'ward', and client 'b' has no",
    ),
    "an unseen level": (
        lambda r, f: fb.predictions(r, f, {**ROWS, "sex": ["m", "x"]}),
        "1 of 2 rows have a level of 'sex' that is none of the declared",
    ),
    "an unseen group": (
        lambda r, f: fb.predictions(r, f, {**ROWS, "ward": ["1", "9"]}, where="b"),
        "of a group of 'site:ward' that is not there, such as '9'",
    ),
    "a missing value": (
        lambda r, f: fb.predictions(r, f, {**ROWS, "x": [1.0, np.nan]}),
        "column 'x' lacks 1 of 2 values. Fill them in, or leave these rows out",
    ),
    "no rows": (
        lambda r, f: fb.predictions(r, f, {"x": [], "sex": [], "ward": []}),
        "The table of 'new rows' has no rows. Write one row at least",
    ),
    "new rows of the program that lack a value": (
        lambda r, f: r.arguments("a", {**ROWS, "x": [1.0, np.nan]}),
        "column 'x' lacks 1 of 2 values. Fill them in",
    ),
    "a value beside columns": (lambda r, f: fb.predictions(r, f, {**ROWS, "x": 1.0}), r"column 'x' has the shape \(\)"),
    "no table": (lambda r, f: fb.predictions(r, f, 3), "is a int; write a table"),
    "no fit": (lambda r, f: fb.predictions(r, None, ROWS), "`fit` is a NoneType; write what `reg.fit"),
    "no regression": (lambda r, f: fb.predictions("y ~ x", f, ROWS), "`reg` is a str; write what `fb.regression`"),
    "the two the wrong way round": (lambda r, f: fb.summary_table(f, r), "`reg` is a MadeFit"),
    "an unknown variable": (
        lambda r, f: fb.comparisons(r, f, ROWS, "sexx"),
        "`variable` is 'sexx', which is no column on the right .*Did you mean 'sex'",
    ),
    "the outcome": (lambda r, f: fb.comparisons(r, f, ROWS, "y"), "`variable` is 'y', which is no column"),
    "a group": (
        lambda r, f: fb.comparisons(r, f, ROWS, "ward"),
        r"`variable` is 'ward', a group.*fit.random_effects\(\).contrast",
    ),
    "a slope of levels": (lambda r, f: fb.slopes(r, f, ROWS, "sex"), r"has the levels \['f', 'm'\] and no slope"),
    "another measure": (lambda r, f: fb.comparisons(r, f, ROWS, "x", by="lift"), "`by` is 'lift'; write 'difference'"),
    "odds of a mean": (
        lambda r, f: fb.comparisons(r, f, ROWS, "x", by="odds ratio"),
        "the mean of `y` is no probability",
    ),
    "a ratio of linear predictors": (
        lambda r, f: fb.comparisons(r, f, ROWS, "x", by="ratio", scale="link"),
        "only a 'difference' means something",
    ),
    "no two values": (
        lambda r, f: fb.comparisons(r, f, ROWS, {"sex": "fm"}),
        r"compares 'fm' .*\{'sex': \['f', 'm'\]\}",
    ),
    "three values": (
        lambda r, f: fb.comparisons(r, f, ROWS, {"x": [1, 2, 3]}),
        r"write the two values, \{'x': \[0.0, 1.0\]\}",
    ),
    "a value that is no level": (
        lambda r, f: fb.comparisons(r, f, ROWS, {"sex": ["f", "mm"]}),
        r"compares 'mm' of 'sex', whose levels are \['f', 'm'\]. Did you mean 'm'",
    ),
    "a value that is no number": (
        lambda r, f: fb.comparisons(r, f, ROWS, {"x": ["low", 1.0]}),
        "compares 'low' of 'x', which is a number",
    ),
    "a value and itself": (lambda r, f: fb.comparisons(r, f, ROWS, {"x": [1, 1.0]}), "compares 1 of 'x' with itself"),
    "two columns": (
        lambda r, f: fb.comparisons(r, f, ROWS, {"x": [0, 1], "sex": ["f", "m"]}),
        r"has 2 columns, \['x', 'sex'\]; write one",
    ),
    "values and a step": (
        lambda r, f: fb.comparisons(r, f, ROWS, {"x": [0, 1]}, step=2),
        "`step` is 2, and `variable` names two values",
    ),
    "a slope between values": (
        lambda r, f: fb.slopes(r, f, ROWS, {"x": [0, 1]}),
        r"`variable` is \{'x': \[0, 1\]\}, which is no column",
    ),
    "a step of zero": (lambda r, f: fb.comparisons(r, f, ROWS, "x", step=0), "`step` is 0; write how much larger"),
    "a step of text": (lambda r, f: fb.comparisons(r, f, ROWS, "x", step="sd"), "`step` is 'sd'"),
    "survival of a mean": (
        lambda r, f: fb.survival_curves(r, f, ROWS, [1.0]),
        "The family gaussian has no times until an event",
    ),
    "no key": (lambda r, f: fb.predictions(r, f, ROWS, where="new", key=3), "`key` is 3; write a typed JAX key"),
    "a joined site with groups": (
        lambda r, f: fb.predictions(r, f, ROWS, where=f.client_posterior("b")),
        r"labels of its groups 'site:ward' are not known here. Write `where=\(fit.adapt\(...\), table\)`",
    ),
    "a joined site with another table": (
        lambda r, f: fb.predictions(r, f, ROWS, where=(f.client_posterior("b"), {"ward": ["1", "2", "3"]})),
        "has the effects of 2 groups 'site:ward', and a table with 3. Write the table",
    ),
    "a joined site with a table without groups": (
        lambda r, f: fb.predictions(r, f, ROWS, where=(f.client_posterior("b"), {"x": [1.0]})),
        "names 'ward', and client 'new rows' has no",
    ),
    "a group that a joined site lacks": (
        lambda r, f: fb.predictions(
            r, f, {**ROWS, "ward": ["1", "9"]}, where=(f.client_posterior("b"), {"ward": ["1", "2"]})
        ),
        "of a group of 'site:ward' that is not there, such as '9'",
    ),
    "two places": (lambda r, f: fb.predictions(r, f, ROWS, where=("a", "b")), "`where` is a tuple; write 'average'"),
}


@pytest.mark.parametrize("case", ASKED)
def test_it_is_refused_in_our_words(case, fitted):
    ask, words = ASKED[case]
    with pytest.raises((fb.FormulaError, fb.ClientDataError, ValueError, TypeError), match=words):
        ask(*fitted)


OTHERS = {
    "a term less": ("y ~ sex + (1 | site:ward)", {}, "of another regression: its posterior has no 'x'"),
    "other levels": (
        "y ~ x + sex + (1 | site:ward)",
        {"sex": ["m", "f"]},
        r"along 'sex_dim' it has \['f'\], and this one \['m'\]",
    ),
    "more levels": ("y ~ x + sex + (1 | site:ward)", {"sex": ["f", "m", "n"]}, "its 'sex' has the shape"),
}


@pytest.mark.parametrize("case", OTHERS)
def test_a_fit_of_another_regression_is_refused(case, tables, made, fitted):
    formula, levels, words = OTHERS[case]
    other = fb.regression(formula, clients=tables(np.arange(40.0) % 7), levels=levels)
    with pytest.raises(fb.FormulaError, match=words):
        fb.predictions(fitted[0], made(other), ROWS)


def test_a_fit_of_other_clients_is_refused(tables, made, fitted):
    clients = tables(np.arange(40.0) % 7)
    other = fb.regression("y ~ x + sex + (1 | site:ward)", clients={"a": clients["a"], "z": clients["b"]})
    with pytest.raises(fb.FormulaError, match="The fit is of other clients, 'a', 'z', than the regression, 'a', 'b'"):
        fb.random_effects(fitted[0], made(other))


def test_a_client_that_is_called_by_one_of_the_words(tables, made):
    clients = tables(np.arange(40.0) % 7)
    reg = fb.regression("y ~ x", clients={"new": clients["a"], "b": clients["b"]})
    with pytest.raises(fb.FormulaError, match="`where` is 'new', a word that a client is called by, too"):
        fb.predictions(reg, made(reg), ROWS, where="new")


@pytest.mark.parametrize("ask", [fb.random_effects, fb.heterogeneity])
def test_a_regression_without_effects_has_none(ask, tables, made):
    reg = fb.regression("y ~ x", clients=tables(np.arange(40.0) % 7))
    with pytest.raises(fb.FormulaError, match=r"has no effects of groups.*\(1 \| site\)"):
        ask(reg, made(reg))


@pytest.mark.parametrize("times", [[-1.0], "later", [[1.0]], [], [np.inf]])
def test_times_that_are_none(times, tables, made):
    rng = np.random.default_rng(0)
    reg = fb.regression("y ~ x", family="weibull", clients=tables(rng.exponential(2.0, 40) + 0.1))
    with pytest.raises(ValueError, match="write numbers from zero on"):
        fb.survival_curves(reg, made(reg), ROWS, times)


@pytest.mark.parametrize("horizon", [0.0, -1.0, np.inf, "year", None])
def test_horizons_that_are_none(horizon, tables, made):
    rng = np.random.default_rng(0)
    reg = fb.regression("y ~ x", family="weibull", clients=tables(rng.exponential(2.0, 40) + 0.1))
    curves = fb.survival_curves(reg, made(reg), ROWS, [1.0])
    with pytest.raises(ValueError, match="write a time above zero"):
        curves.restricted_mean(horizon)
