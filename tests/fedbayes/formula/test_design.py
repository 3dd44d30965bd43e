"""Columns: those of formulaic on everybody's rows; and what is agreed is what pooling would say."""

import sys

import numpy as np
import pandas as pd
import pytest
from formulaic import model_matrix

import fedbayes as fb
from fedbayes.formula.design import everybody, totals
from fedbayes.formula.design.agreement import agree, expressions_of
from fedbayes.formula.design.design import design_of
from fedbayes.formula.design.everybody import Tables
from fedbayes.formula.design.tables import tables_of
from fedbayes.formula.grammar.terms import read_terms
from fedbayes.formula.grammar.text import cut

RNG = np.random.default_rng(0)
ROWS = 300
FRAME = pd.DataFrame({
    "x": RNG.normal(50.0, 10.0, ROWS), "z": RNG.normal(size=ROWS), "k": RNG.integers(0, 3, ROWS),
    "a": RNG.choice(list("pqr"), ROWS), "b": RNG.choice(["u", "v"], ROWS), "yes": RNG.random(ROWS) < 0.5,
})  # fmt: skip
# Three clients of unequal sizes that differ in their means.
CLIENT = np.where(FRAME["x"] < 42.0, "low", np.where(FRAME["x"] < 60.0, "middle", "high"))


def designed(text, levels=None):
    tables = Tables(tables_of(FRAME.assign(site=CLIENT), "site"))
    terms = read_terms(cut(f"y ~ {text}").common)
    design = design_of(terms, agree(tables, expressions_of([terms]), levels or {}))
    order = np.concatenate([np.flatnonzero(name == CLIENT) for name in tables])
    found = np.empty((ROWS, design.width))
    found[order] = np.concatenate([design.values(table) for table in tables.values()])
    return design, found


FORMULAS = [
    "x + z", "a", "0 + a", "a * b", "a:b", "a + a:b", "b * x", "a:x", "0 + a:x", "a * b * x", "x * z", "scale(x)",
    "center(x) * a", "poly(x, 3)", "bs(x, knots=[40, 50], lower_bound=0, upper_bound=100)", "log(x) + I(z ** 2)",
    "bs(x, knots=[45], degree=3, lower_bound=0, upper_bound=100)", "C(k)", "C(k, contr.sum)",
    "C(a, contr.treatment('q')) * b", "a / b", "(a + b + x) ** 2", "0 + a + b", "0 + x:a + b", "0 + a * b", "I(x > 50)",
    "scale(log(x))", "b %in% a", "0 + x + a", "poly(x, 2, raw=True)", "bs(z, degree=2, lower_bound=-5, upper_bound=5)",
    "bs(x, knots=[50], lower_bound=0, upper_bound=100, include_intercept=True) - 1", "scale(x):a", "a:b:x + a:b",
]  # fmt: skip


@pytest.mark.parametrize("text", FORMULAS)
def test_columns_are_those_of_formulaic_on_all_rows(text):
    _, found = designed(text)
    expected = model_matrix(text, FRAME)
    expected = np.asarray(expected.drop(columns="Intercept", errors="ignore"), float)
    assert found.shape == expected.shape
    left = list(range(found.shape[1]))
    for column in expected.T:  # each is there once; the order within an interaction is our own
        same = [place for place in left if np.allclose(found[:, place], column, rtol=1e-8, atol=1e-8)]
        assert same
        left.remove(same[0])


def test_true_and_false_are_numbers():
    design, found = designed("yes")
    assert design.names == ("yes",)
    np.testing.assert_array_equal(found[:, 0], FRAME["yes"])


def test_everybodys_mean_and_sd_are_those_of_all_rows():
    _, found = designed("scale(x)")
    assert found.mean() == pytest.approx(0.0, abs=1e-10)
    assert found.std(ddof=1) == pytest.approx(1.0, rel=1e-10)


def own_means(told):
    """The planted mistake: the first client's mean is taken for everybody's."""
    return next(iter(told))


def test_a_site_s_own_mean_in_scale_is_caught(monkeypatch):
    monkeypatch.setattr(everybody, "total", lambda told: own_means(told))
    _, found = designed("scale(x)")
    assert abs(found.mean()) > 0.1


def test_knots_of_binned_counts_are_quantiles_to_the_width_of_a_bin():
    design, _ = designed("bs(x, df=5)")
    knots = design.factors["bs(x, df=5)"].knots
    x, bin_ = FRAME["x"], FRAME["x"].std() / 20.0
    np.testing.assert_allclose(knots[4:6], np.quantile(x, [1 / 3, 2 / 3]), atol=bin_)
    assert 0.0 <= x.min() - knots[0] <= bin_
    assert 0.0 <= knots[-1] - x.max() <= bin_


def test_a_spline_goes_on_beyond_its_bounds():
    design, _ = designed("bs(x, knots=[50], lower_bound=40, upper_bound=60)")
    rows = next(iter(tables_of({"a": {"x": [30.0, 39.9, 40.0, 60.0, 61.0]}}, "site").values()))
    values = design.values(rows)
    assert np.isfinite(values).all()
    np.testing.assert_allclose(values[1], values[2], atol=0.05)


def test_quantiles_reach_the_outer_bins_where_values_lie_further_out():
    counts = totals.binned(np.array([-100.0, 0.0, 100.0]), 0.0, 1.0)
    assert counts.sum() == 3.0
    found = totals.quantiles(counts, np.array([0.0, 1.0]), 0.0, 1.0)
    np.testing.assert_allclose(found, [-10.0, 10.0])


def test_sums_add_up_whatever_the_order_and_a_missing_level_is_zero():
    parts = [{"n": 1.0, "levels": {"a": np.array([1.0, 1.0])}}, {"n": 2.0, "levels": {"b": np.array([3.0, 1.0])}}]
    forwards, backwards = totals.total(parts), totals.total(parts[::-1])
    assert forwards["n"] == backwards["n"] == 3.0
    assert {name: list(each) for name, each in forwards["levels"].items()} == {"a": [1.0, 1.0], "b": [3.0, 1.0]}
    assert totals.total([]) == {}


def test_declared_levels_have_columns_in_their_order_also_where_nobody_has_them():
    design, found = designed("a", {"a": ["r", "p", "q", "never"]})
    assert design.names == ("a[p]", "a[q]", "a[never]")
    assert found[:, 2].sum() == 0.0


def test_levels_are_agreed_in_the_order_of_numbers():
    rng = np.random.default_rng(1)
    frame = pd.DataFrame({"y": rng.normal(size=60), "g": rng.choice(["2", "10", "1"], 60), "site": ["a", "b"] * 30})
    assert fb.regression("y ~ g", clients=frame).coords["g_dim"] == ["2", "10"]


def test_the_levels_of_a_categorical_column_are_its_own():
    rng = np.random.default_rng(1)
    frame = pd.DataFrame({"y": rng.normal(size=60), "site": ["a", "b"] * 30})
    frame["g"] = pd.Categorical(rng.choice(["low", "high"], 60), categories=["low", "middle", "high"])
    reg = fb.regression("y ~ g", clients=frame)
    assert reg.coords["g_dim"] == ["middle", "high"]
    assert any("No row of any client has g[middle]" in note for note in reg.notes)


def test_every_client_has_the_same_columns_though_each_lacks_a_level():
    y = [1.0, 2.0, 4.0, 3.0, 7.0, 5.0]
    frames = {"one": {"y": y, "g": list("aaabbb")}, "two": {"y": y, "g": list("bbbccc")}}
    reg = fb.regression("y ~ g", clients=frames)
    assert reg.clients["one"]["x"].shape == reg.clients["two"]["x"].shape == (6, 2)
    assert any("One client alone has rows of g[a], g[c]" in note for note in reg.notes)


def test_polars_and_mappings_and_pandas_say_the_same():
    polars = pytest.importorskip("polars")
    data = {"y": [1.0, 2.0, 4.0, 3.0], "g": ["a", "b", "a", "b"], "x": [1, 2, 3, 5]}
    made = [
        fb.regression("y ~ g + x", clients={"s": each}) for each in (data, pd.DataFrame(data), polars.DataFrame(data))
    ]
    for reg in made[1:]:
        assert reg.source == made[0].source
        np.testing.assert_array_equal(reg.clients["s"]["x"], made[0].clients["s"]["x"])


def test_true_and_false_may_be_levels():
    assert designed("C(yes)")[0].names == ("C(yes)[True]",)


def test_more_columns_than_anybody_reads_are_refused():
    rng = np.random.default_rng(0)
    wide = pd.DataFrame({f"g{i}": rng.integers(0, 30, 900) for i in range(2)}).assign(y=rng.normal(size=900))
    with pytest.raises(fb.FormulaError, match="The terms have 899 columns; at most 500"):
        fb.regression("y ~ C(g0) * C(g1)", clients={"a": wide})


def test_an_outcome_in_backticks_may_have_any_name():
    rows = {"a": {"blood pressure": [1.0, 2.0, 4.0, 3.0], "x": [0.0, 1.0, 2.0, 5.0]}}
    reg = fb.regression("`blood pressure` ~ x", clients=rows)
    np.testing.assert_array_equal(reg.clients["a"]["y"], rows["a"]["blood pressure"])
    assert '"blood pressure"' in reg.source


def test_without_pandas_one_is_told_what_to_install(monkeypatch):
    monkeypatch.setitem(sys.modules, "pandas", None)
    with pytest.raises(fb.FormulaError, match=r"need pandas.*fedbayes\[formula\]"):
        fb.regression("y ~ x", clients={"a": {"y": [1.0], "x": [1.0]}})
