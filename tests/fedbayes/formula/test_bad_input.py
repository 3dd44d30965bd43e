"""Data that can't be used: our own error before any work, with client, column and count; or a right answer, stated."""

import datetime
import re

import numpy as np
import pandas as pd
import pytest

import fedbayes as fb

RNG = np.random.default_rng(7)


def table(rows=20, **columns):
    made = {"y": RNG.normal(size=rows), "x": RNG.normal(size=rows), "sex": RNG.choice(["f", "m"], rows)}
    return pd.DataFrame(made | {"sick": np.arange(rows) % 2, "t": RNG.exponential(2.0, rows) + 0.1} | columns)


def two(**columns):
    return {"north": table(), "south": table(**columns)}


def spoilt(column, value, rows=2):
    frame = table()
    frame[column] = frame[column].astype(object)
    frame.loc[: rows - 1, column] = value
    return {"north": table(), "south": frame}


DATES = pd.date_range("2020-01-01", periods=20)
DATA = {
    "a missing column": ("y ~ z", {}, two(), "names 'z', and client 'north' has no such column"),
    "a column that one client lacks": (
        "y ~ z",
        {},
        {"north": table(z=np.arange(20.0)), "south": table()},
        "client 'south' has no such",
    ),
    "missing values": ("y ~ x", {}, spoilt("x", np.nan), "'south': column 'x' lacks 2 of 20 values.*missing='drop'"),
    "missing outcomes": ("y ~ x", {}, spoilt("y", None), "'south': column 'y' lacks 2 of 20 values"),
    "missing text": ("y ~ sex", {}, spoilt("sex", None), "'south': column 'sex' lacks 2 of 20 values"),
    "infinite values": ("y ~ x", {}, spoilt("x", np.inf), "'south': column 'x' has 2 infinite values"),
    "dates": ("y ~ d", {}, {"north": table(d=DATES)}, "column 'd' holds dates or times"),
    "dates as objects": ("y ~ d", {}, {"north": table(d=[datetime.date(2020, 1, 1)] * 20)}, "column 'd' holds dates"),
    "lengths of time": ("y ~ d", {}, {"north": table(d=DATES - DATES[0])}, "column 'd' holds dates or times"),
    "complex numbers": ("y ~ x", {}, two(x=np.arange(20.0) + 1j), "'south': column 'x' holds complex numbers"),
    "complex outcomes": ("y ~ x", {}, two(y=np.arange(20.0) + 0j), r"complex numbers.*`numpy.real\(frame\['y'\]\)`"),
    "complex numbers as levels": ("y ~ C(x)", {}, two(x=[1j, 2j] * 10), "column 'x' holds complex numbers"),
    "dates as text": (
        "y ~ d",
        {},
        {"north": table(d=DATES.strftime("%Y-%m-%d"))},
        r"'d' holds dates as text \('2020-01-01', '2020-01-02', ...\).*`\(pandas.to_datetime\(frame\['d'\]\) - ",
    ),
    "dates with hours as categories": (
        "y ~ d",
        {},
        {"north": table(d=pd.Categorical(DATES.strftime("%d/%m/%Y 12:30")))},
        "'d' holds dates as text",
    ),
    "periods": ("y ~ d", {}, {"north": table(d=DATES.to_period("D"))}, r"periods of time.*\(frame\['d'\].dt.to_time"),
    "text in arithmetic": ("y ~ log(sex)", {}, two(), r"column 'sex' holds text .*`log\(sex\)` needs numbers"),
    "text as an outcome": ("sex ~ x", {}, two(), "column 'sex' holds text .*the family gaussian. needs numbers"),
    "text at one client": (
        "y ~ x",
        {},
        two(x=["1"] * 20),
        "'x' holds text at client 'south', and numbers at client 'north'",
    ),
    "text and numbers": ("y ~ x", {}, spoilt("x", "?"), "values of the types float, str"),
    "objects": ("y ~ x", {}, two(x=[[1]] * 20), "values of the types list"),
    "a constant column": (
        "y ~ x",
        {},
        {"a": table(x=3.0), "b": table(x=3.0)},
        "column `x` is 3 in all rows of all clients",
    ),
    "a constant column that is scaled": ("y ~ scale(x)", {}, {"a": table(x=3.0)}, r"`scale\(x\)` is 3 in all 20 rows"),
    "a constant level": ("y ~ sex", {}, {"a": table(sex="f")}, "'sex' has the level 'f' in all rows"),
    "collinear columns": ("y ~ x + I(2 * x + 1)", {}, two(), r"columns `x`, `I\(2 \* x \+ 1\)` are collinear"),
    "more columns than rows": (
        "y ~ bs(x, df=6)",
        {},
        {"a": table(rows=5)},
        "has 7 coefficients, and all clients together 5",
    ),
    "a logarithm of zero": ("y ~ log(x)", {}, two(x=0.0), r"`log\(x\)` is no finite number in"),
    "a division by zero": ("y ~ I(1 / sick)", {}, two(), "is no finite number in 10 of 20 rows"),
    "an undeclared level": (
        "y ~ sex",
        {"levels": {"sex": ["f", "x"]}},
        two(),
        "rows have a level of 'sex' that is none of",
    ),
    "levels of no column": (
        "y ~ sex",
        {"levels": {"sexx": ["f", "m"]}},
        two(),
        "names 'sexx', which is no column.*Did you mean",
    ),
    "levels as text": ("y ~ sex", {"levels": {"sex": "fm"}}, two(), "write a list of levels"),
    "an empty list of levels": ("y ~ sex", {"levels": {"sex": []}}, two(), r"`levels\['sex'\]` is empty"),
    "True at one client and 1 at another": (
        "y ~ C(flag)",
        {},
        {"north": table(flag=np.arange(20) % 2 == 0), "south": table(flag=np.arange(20) % 2)},
        "'flag' holds True and False at client 'north', and other values at client 'south'",
    ),
    "outcomes that are True at one client and 1 at another": (
        "flag ~ x",
        {"family": "categorical"},
        {"north": table(flag=np.arange(20) % 2), "south": table(flag=(np.arange(20) % 2 == 0).astype(object))},
        "'flag' holds True and False at client 'south', and other values at client 'north'",
    ),
    "levels twice": ("y ~ sex", {"levels": {"sex": ["f", "f"]}}, two(), "each once"),
    "levels that are no mapping": ("y ~ sex", {"levels": ["f"]}, two(), "`levels` is a list"),
    "many levels": (
        "y ~ g",
        {},
        {"a": table(g=[f"g{i}" for i in range(20)])},
        "'g' has 20 levels in 20 rows; at most 6",
    ),
    "an outcome that is not binary": ("y ~ x", {"family": "bernoulli"}, two(), "20 of 20 outcomes `y` are not 0 or 1"),
    "three levels of a binary outcome": (
        "g ~ x",
        {"family": "bernoulli"},
        {"a": table(g=["a", "b", "c", "a"] * 5)},
        "has 3 levels",
    ),
    "counts below zero": (
        "c ~ x",
        {"family": "poisson"},
        two(c=-1) | {"north": table(c=1)},
        "'south': 20 of 20 outcomes `c`",
    ),
    "counts that are not whole": ("y ~ x", {"family": "negative_binomial"}, two(), "are not whole numbers from 0 on"),
    "more than the trials": (
        "c | trials(n) ~ x",
        {"family": "binomial"},
        {"a": table(c=5, n=3)},
        "from 0 to the trials",
    ),
    "no trials": ("c | trials(n) ~ x", {"family": "binomial"}, {"a": table(c=0, n=0)}, "20 of 20 numbers of trials"),
    "times that are not above zero": ("t ~ x", {"family": "weibull"}, {"a": table(t=0.0)}, "are not times above zero"),
    "shares beyond one": ("t ~ x", {"family": "beta"}, {"a": table(t=1.0)}, "are not between 0 and 1"),
    "negative times of a Gamma law": ("y ~ x", {"family": "gamma"}, two(), "are not above zero"),
    "a constant outcome": ("y ~ x", {}, {"a": table(y=2.0), "b": table(y=2.0)}, "`y` is 2 in all 40 rows"),
    "all times censored": (
        "t | cens(c) ~ x",
        {"family": "weibull"},
        {"a": table(c=1)},
        "All 20 times `t` of all clients are censored",
    ),
    "all times censored by Surv": ("Surv(t, e) ~ x", {"family": "loglogistic"}, {"a": table(e=0)}, "are censored"),
    "another kind of censoring": ("t | cens(c) ~ x", {"family": "weibull"}, {"a": table(c="left")}, "it has .'left'."),
    "weights that are zero": ("y | weights(w) ~ x", {}, {"a": table(w=0.0)}, "20 of 20 weights are not above zero"),
    "standard errors that are zero": (
        "y | se(w) ~ x",
        {},
        {"a": table(w=0.0)},
        "20 of 20 standard errors are not above",
    ),
    "standard errors and a formula of sigma": (
        {"mu": "y | se(t) ~ x", "sigma": "~ x"},
        {},
        two(),
        "there is no sigma. Leave its formula out",
    ),
    "text without an order": (
        "g ~ x",
        {"family": "cumulative"},
        {"a": table(g=["low", "high"] * 10)},
        "Declare the order",
    ),
    "no rows": ("y ~ x", {}, {"a": table(rows=0)}, "has no rows"),
    "no clients": ("y ~ x", {}, {}, "`clients` is empty"),
    "a client that is no table": ("y ~ x", {}, {"a": 3}, "is a int; write a table"),
    "columns of two axes": ("y ~ x", {}, {"a": {"y": [1.0], "x": [[1.0]]}}, r"has the shape \(1, 1\)"),
    "columns of unequal lengths": ("y ~ x", {}, {"a": {"y": [1.0], "x": [1.0, 2.0]}}, "columns of different lengths"),
    "two columns of a name": (
        "y ~ x",
        {},
        {"a": pd.DataFrame([[1.0, 2.0]], columns=["x", "x"])},
        "two columns of the name 'x'",
    ),
    "one table without the client": ("y ~ x", {}, table(), "has no column 'site' that names each row's client"),
    "one table that lacks clients": ("y ~ x", {}, table(site=[None] + ["a"] * 19), "1 of its values are missing"),
    "a client as a covariate": ("y ~ site", {}, two(), r"stands for the client itself.*\(1 \| site\)"),
    "a group's intercept in two terms": (
        "y ~ x + (x | site) + (1 | site)",
        {},
        two(),
        r"'\(1 \+ x \| site\)' and '\(1 \| site\)' both have an intercept .*'\(1 \+ x \|\| site\)'.*'\(0 \+ x",
    ),
    "a group's slope in two terms": (
        "y ~ x + (0 + x | g) + (1 + x | site:g)",
        {},
        two(),
        r"both have the effect of `x` of each 'site:g', .*'\(1 \+ x \| site:g\)'",
    ),
    "a group's term twice": (
        "y ~ x + (1 | site) + (1 | site)",
        {},
        two(),
        r"The term '\(1 \| site\)' stands twice in the formula. Write it once",
    ),
    "a group twice by a slash": ("y ~ (1 | site) + (1 | site/g)", {}, two(), r"'\(1 \| site\)' stands twice"),
    "an outcome that explains itself": (
        "y ~ y + x",
        {},
        two(),
        "outcome's column 'y' stands on the right of the formula too, in `y`.*Leave it out there",
    ),
    "an outcome in an expression": ("log(t) ~ x + I(t ** 2)", {}, two(), r"in `I\(t \*\* 2\)`"),
    "an outcome as a group": ("sick ~ x + (1 | sick)", {}, two(), "'sick' stands on the right"),
    "ends that do not rise": (
        "t ~ x",
        {"family": "piecewise_exponential", "ends": [3, 1]},
        two(),
        "write rising times",
    ),
    "events at one time": (
        "t ~ x",
        {"family": "piecewise_exponential"},
        {"a": table(t=1.0)},
        "`t` is 1 in all 20 rows",
    ),
    "a family that is not there": (
        "y ~ x",
        {"family": "poison"},
        two(),
        "`family` is 'poison'.*Did you mean 'poisson'",
    ),
    "an option that is not there": ("y ~ x", {"ends": [1]}, two(), "family gaussian has no option `ends`"),
    "an addition that is not there": (
        "y | cens(sick) ~ x",
        {},
        two(),
        r"`cens\(...\)` means nothing for the family gaussian",
    ),
    "an addition that is missing": ("y ~ x", {"family": "binomial"}, two(), r"needs `trials\(...\)`"),
    "censored twice": ("Surv(t, e) | cens(c) ~ x", {"family": "weibull"}, two(), "says twice which times"),
    "an outcome of several columns": ("bs(y, df=4) ~ x", {}, two(), "is no number; write a column"),
    "an outcome of levels that is computed": ("log(t) ~ x", {"family": "categorical"}, two(), "is a column's name"),
    "a constant addition": ("y | weights(2) ~ x", {}, two(), "names no column"),
    "no intercept beside thresholds": ("sick ~ 0 + x", {"family": "cumulative"}, two(), "which can't be left out"),
    "a formula of no parameter": ({"mu": "y ~ x", "nu": "~ x"}, {}, two(), "formulas are of"),
    "a misspelt parameter": ({"sgima": "y ~ x"}, {}, two(), "is no parameter.*Did you mean 'sigma'"),
    "a parameter's name twice": (
        "y ~ sigma",
        {},
        two(sigma=np.arange(20.0)) | {"north": table(sigma=np.arange(20.0))},
        "Two parameters",
    ),
    "a base that is no level": ("y ~ C(sex, Treatment('z'))", {}, two(), "'z' to compare with is none of those"),
    "a spline with too few": ("y ~ bs(x, df=2)", {}, two(), "`df` as a whole number from 3"),
    "a spline with both": ("y ~ bs(x, df=5, knots=[0])", {}, two(), "write either"),
    "knots that do not rise": ("y ~ bs(x, knots=[1, 0], lower_bound=-9, upper_bound=9)", {}, two(), "knots rise"),
    "knots that are text": (
        "y ~ bs(x, knots=['a'], lower_bound=-9, upper_bound=9)",
        {},
        two(),
        "knots and bounds are numbers",
    ),
    "a degree too high": ("y ~ poly(x, 9)", {}, two(), "the degree is 9; write a number from 1 to 6"),
    "a polynomial of two values": (
        "y ~ poly(sick, 3)",
        {},
        two(),
        "too few different values for a polynomial of degree 3",
    ),
    "a wrong word for missing": ("y ~ x", {"missing": "ignore"}, two(), "`missing` is 'ignore'"),
    "nothing left": ("y ~ x", {"missing": "drop"}, spoilt("x", np.nan, 20), "no row in which none of"),
}


@pytest.mark.parametrize("case", DATA)
def test_it_is_refused_in_our_words(case):
    formula, options, clients, words = DATA[case]
    with pytest.raises((fb.ClientDataError, fb.FormulaError), match=words):
        fb.regression(formula, clients=clients, **options)


def test_a_few_dates_as_text_are_levels_and_so_is_other_text():
    days = np.resize(["2020-01-05", "2020-06-05"], 20)
    assert fb.regression("y ~ d", clients={"a": table(d=days)}).coords["d_dim"] == ["2020-06-05"]
    codes = np.resize([f"2020-{letter}" for letter in "abcdef"], 20)
    assert fb.regression("y ~ d", clients={"a": table(d=codes)}).coords["d_dim"][-1] == "2020-f"


def note(formula, clients, **options):
    return " ".join(fb.regression(formula, clients=clients, **options).notes)


def test_rows_that_lack_a_value_are_left_out_and_counted():
    clients = spoilt("x", np.nan)
    reg = fb.regression("y ~ x", clients=clients, missing="drop")
    assert len(reg.clients["south"]["y"]) == 18
    assert reg.notes == ("Rows that lack a value are left out: 2 of 'south'.",)


def test_true_and_one_are_the_same_number():
    """As a number, and not as a level, True is one whatever the other clients write."""
    flag = np.arange(20) % 2
    clients = two(flag=flag)
    clients["north"]["flag"] = flag == 1
    same = fb.regression("y ~ flag", clients=clients)
    clients["north"]["flag"] = flag
    assert same.source == fb.regression("y ~ flag", clients=clients).source


def test_what_the_formula_does_not_read_may_be_missing():
    assert fb.regression("y ~ sex", clients=spoilt("x", np.nan)).notes == ()


def test_a_separated_outcome_is_told_and_its_coefficient_has_a_proper_prior():
    frame = table(sex=["f"] * 12 + ["m"] * 8)
    frame["sick"] = np.where(frame["sex"] == "m", 1, frame["sick"])
    assert "All 8 rows of sex[m] have the outcome 1" in note("sick ~ x + sex", {"a": frame}, family="bernoulli")


@pytest.mark.parametrize("family", ["weibull", "cox"])
def test_a_level_of_which_all_times_are_censored_is_told(family):
    def clients(events_of_m):
        found = {name: table(sex=["f"] * 12 + ["m"] * 8) for name in "ab"}
        return {
            name: frame.assign(e=np.where(frame["sex"] == "m", events_of_m, frame["sick"]))
            for name, frame in found.items()
        }

    told = "All 16 times of sex[m] are censored: how large its coefficient is, its prior says."
    assert note("Surv(t, e) ~ x + sex", clients(0), family=family) == told
    assert note("Surv(t, e) ~ x + sex", clients(1), family=family) == ""


@pytest.mark.parametrize("group", ["t", "site:t"])
def test_a_number_as_a_group_is_told(group):
    told = rf"`\(... \| {group}\)` has 40 groups in 40 rows, one for nearly each row.*without a bar"
    assert re.search(told, note(f"y ~ x + (1 | {group})", two()))
    assert note(f"y | se(t) ~ x + (1 | {group})", two()) == ""  # the studies of a meta-analysis
    wards = np.repeat(np.arange(5), 4)
    assert note("y ~ x + (1 | site:ward)", {"a": table(ward=wards), "b": table(ward=wards)}) == ""


def test_a_covariate_that_is_constant_at_one_client_alone_may_be_a_code():
    """A column of two values, or one that says something of the client, may well be constant."""
    clients = {name: table() for name in "abc"}
    clients["b"] = table(x=0.0, sick=1)
    formula = "y ~ x + sick + size"
    clients = {name: frame.assign(size=place) for place, (name, frame) in enumerate(clients.items())}
    told = "x has one value in all rows of 'b', and varies elsewhere: is it a code for a missing value?"
    assert note(formula, clients) == told


def test_outcomes_of_zero_and_one_have_a_law_of_their_own():
    told = 'All outcomes `sick` seem to be 0 or 1: `family="bernoulli"` is the law of such outcomes.'
    assert note("sick ~ x", two()) == told
    assert not note("sick ~ x", two(), family="bernoulli")
    assert not note("y ~ x", two())


def test_effects_of_one_client_are_told():
    told = "There is one client: how far effects of `site` differ between clients, the prior alone says."
    assert note("y ~ x + (1 | site)", {"a": table()}) == told
    assert not note("y ~ x + (1 | site)", two())


def test_outcomes_that_are_all_alike_are_told():
    assert "All outcomes `sick` are 1" in note("sick ~ x", {"a": table(sick=1)}, family="bernoulli")


def test_a_level_of_the_outcome_that_nobody_has_is_told():
    frame = table(g=[1, 2] * 10)
    assert "No row of any client has the outcome '3'" in note(
        "g ~ x", {"a": frame}, family="cumulative", levels={"g": [1, 2, 3]}
    )


def test_text_outcomes_say_which_is_one():
    assert note("sex ~ x", two(), family="bernoulli") == "sex is 0 for 'f' and 1 for 'm'."


def test_a_client_with_one_row_takes_part():
    reg = fb.regression("y ~ x + sex + (1 + x | site)", clients={"north": table(), "one": table(rows=1)})
    assert reg.clients["one"]["x"].shape == (1, 2)


def test_words_for_censoring():
    words = table(c=["none", "right"] * 10)
    numbers = table(c=[0, 1] * 10)
    made = [fb.regression("t | cens(c) ~ x", family="weibull", clients={"a": frame}) for frame in (words, numbers)]
    for reg in made:
        np.testing.assert_array_equal(reg.clients["a"]["observed"], [1.0, 0.0] * 10)
    surv = fb.regression("Surv(t, c) ~ x", family="weibull", clients={"a": numbers})
    np.testing.assert_array_equal(surv.clients["a"]["observed"], [0.0, 1.0] * 10)


SIZES = {
    "a covariate": ("y ~ x", {}),
    "an interaction": ("y ~ sex + x:t", {}),
    "a column that is scaled": ("y ~ scale(x)", {}),
    "a column of a spline": ("y ~ bs(x, df=4)", {}),
    "an imputed column": ("y ~ mi(x)", {}),
    "effects of groups": ("y ~ t + (0 + x | site)", {}),
    "a covariate beside baselines": ("t ~ x", {"family": "cox"}),
    "an outcome": ("x ~ t", {}),
    "an outcome above zero": ("x ~ t", {"family": "gamma"}),
}


@pytest.mark.filterwarnings("error")
@pytest.mark.parametrize(("size", "word"), [(1e300, "large"), (1e-300, "small")])
@pytest.mark.parametrize("case", SIZES)
def test_numbers_whose_squares_are_lost_are_told_by_their_size_and_not_as_constant(case, size, word):
    formula, options = SIZES[case]
    clients = {name: table(x=size * RNG.exponential(size=20)) for name in "ab"}
    with pytest.raises(fb.ClientDataError, match=f"are too {word} for a fit.*from 1e-15 to 1e.15. Change the unit"):
        fb.regression(formula, clients=clients, **options)


@pytest.mark.parametrize("size", [1e300, 1e-300])
def test_the_unit_that_is_named_can_be_written(size):
    frame = table(x=size * np.linspace(2.0, 4.0, 20))
    with pytest.raises(fb.ClientDataError) as refused:
        fb.regression("y ~ x", clients={"a": frame})
    instead = re.search(r"`(I\(x [*/] [^`]+\))`", str(refused.value))[1]
    found = fb.regression(f"y ~ {instead}", clients={"a": frame}).clients["a"]["x"]
    np.testing.assert_allclose(found[:, 0], np.linspace(-1.0, 1.0, 20), rtol=1e-9)


def test_a_column_far_from_zero_is_refused_before_its_variance_is_lost():
    with pytest.raises(fb.ClientDataError, match=r"subtract a number, `I\(x - 1e\+08\)`"):
        fb.regression("y ~ x", clients={"a": table(x=1e8 + RNG.normal(size=20) * 1e-3)})
