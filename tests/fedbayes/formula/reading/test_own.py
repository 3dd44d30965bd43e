"""What a site's own process says of new rows: its effects, its groups, and outcomes that are drawn."""

import jax
import numpy as np
import pandas as pd
import pytest

import fedbayes as fb
from fedbayes.formula.reading import own
from fedbayes.formula.reading.own import own_predictions

ROWS = {"x": [0.2, 1.0, 1.9], "sex": ["m", "f", "m"]}
WARDS = {**ROWS, "ward": ["2", "1", "2"]}
OUTCOME = np.arange(40.0) % 7
LEFT = {"binomial": "y | trials(n)", "gaussian": "y | se(n)", "cox": "y | cens(c)"}


@pytest.fixture(scope="module")
def warded(tables, made):
    """A regression without rows, as a site has it, that with rows, its fit, and the site's table."""
    clients, formula = tables(OUTCOME), "y ~ x + sex + (1 + x | site) + (1 | site:ward)"
    reg = fb.regression(formula, clients=clients)
    return fb.regression(formula, agreed=reg.agreed), reg, made(reg), clients["b"]


def asked(warded, rows=WARDS, table=None, **options):
    agreed, reg, fit, fitted = warded
    table = fitted if table is None else table
    posterior = fit.client_posterior("b").posterior
    return own_predictions(agreed, "b", posterior, rows, fitted=reg.clients["b"], own=table, **options)


def of_family(family, outcomes, tables, made):
    outcome, columns, _ = outcomes(family)
    reg = fb.regression(f"{LEFT.get(family, 'y')} ~ x", family=family, clients=tables(outcome, **columns))
    return reg, made(reg).client_posterior("a").posterior


def test_its_draws_are_enough(warded):
    """The regression is then one without rows, and the labels of groups are those of the site's own table."""
    _, reg, fit, _ = warded
    [(found, _)] = asked(warded).parts()
    expected = fb.predictions(reg, fit, WARDS, where="b")
    np.testing.assert_array_equal(found.draws, expected.draws)
    assert found.title == expected.title
    assert found.draws["row"].values.tolist() == [1, 2, 3]


def test_parts_of_the_rows_are_the_rows(warded, monkeypatch):
    """New groups, too, have the same effects in all parts; outcomes that are drawn are drawn anew."""
    options = {"new_groups": True, "rows": {**WARDS, "ward": ["9", "1", "9"]}}
    [(whole, _)] = asked(warded, **options).parts()
    monkeypatch.setattr(own, "_AT_ONCE", 2 * whole.draws[..., 0].size)
    parts = list(asked(warded, **options).parts())
    assert [part.draws.sizes["row"] for part, _ in parts] == [2, 1]
    assert np.concatenate([part.draws["row"] for part, _ in parts]).tolist() == [1, 2, 3]
    together = np.concatenate([part.draws.values for part, _ in parts], axis=-1)
    np.testing.assert_allclose(together, whole.draws.values, rtol=1e-12)
    first, last = (drawn.draws.values - part.draws.values for part, drawn in parts)
    assert not np.isclose(first[..., 0], last[..., 0]).any()


def test_seeds_are_of_outcomes_and_of_new_groups(warded):
    options = {"new_groups": True, "rows": {**WARDS, "ward": ["9", "1", "2"]}}
    (one, of_one), (again, of_again), (two, of_two) = (
        next(asked(warded, key=jax.random.key(seed), **options).parts()) for seed in (1, 1, 2)
    )
    np.testing.assert_array_equal(of_one.draws, of_again.draws)
    np.testing.assert_array_equal(one.draws, again.draws)
    assert not np.isclose(of_one.draws, of_two.draws).any()
    np.testing.assert_array_equal(one.draws[..., 1:], two.draws[..., 1:])
    assert not np.isclose(one.draws[..., 0], two.draws[..., 0]).any()


def test_labels_are_those_that_were_fitted(warded):
    agreed, reg, fit, fitted = warded
    num, ward = len(fitted["ward"]), np.asarray(fitted["ward"])
    changed = {
        f"it has {num - 1} rows, and the site's data {num}": {name: values[1:] for name, values in fitted.items()},
        f"{num} of {num} rows are of another group 'site:ward'": {**fitted, "ward": np.where(ward == "1", "3", "2")},
        "its groups 'site:ward' are 3, and those of the site's data 2": {**fitted, "ward": ["0", *ward[1:]]},
        "its groups 'site:ward' are 1, and those of the site's data 2": {**fitted, "ward": ["1"] * num},
    }
    for told, table in changed.items():
        with pytest.raises(fb.ClientDataError, match=f"`--own` is not the table that was fitted: {told}. Write the"):
            asked(warded, table=table)
    with pytest.raises(fb.FormulaError, match="groups 'site:ward' within a site, and their labels were not kept"):
        own_predictions(agreed, "b", fit.client_posterior("b").posterior, WARDS, fitted=reg.clients["b"])
    with pytest.raises(fb.ClientDataError, match=r"'site:ward' that is not there, such as '3'.*`--new-groups`"):
        next(asked(warded, {**WARDS, "ward": ["3"] * 3}).parts())


@pytest.mark.statistical(key=0, numbers=16, errors=6.0)
def test_new_outcomes_vary_about_the_expected_ones_by_the_law(tables, made):
    reg = fb.regression("y ~ x + (1 | site)", clients=tables(OUTCOME))
    fit, num = made(reg), 4000
    posterior = fit.client_posterior("a").posterior
    [(expected, new)] = own_predictions(reg, "a", posterior, {"x": np.linspace(0.0, 2.0, num)}, fitted={}).parts()
    standard = (new.draws.values - expected.draws.values) / posterior["sigma"].values[..., None]
    np.testing.assert_allclose(standard.mean(axis=-1), 0.0, atol=6.0 / np.sqrt(num))
    np.testing.assert_allclose(standard.std(axis=-1), 1.0, atol=6.0 / np.sqrt(2.0 * num))


@pytest.mark.parametrize(
    ("family", "told"),
    [
        ("categorical", "the probabilities say all"),
        ("bernoulli", "the probabilities say all"),
        ("binomial", "they need `n`, of the left side"),
    ],
)
def test_why_there_are_no_new_outcomes(family, told, outcomes, tables, made):
    reg, posterior = of_family(family, outcomes, tables, made)
    rows = own_predictions(reg, "a", posterior, {"x": [1.0]}, fitted={})
    assert told in rows.only_expected
    assert next(rows.parts())[1] is None


def test_of_trials_new_outcomes_are_counts_out_of_these(outcomes, tables, made):
    reg, posterior = of_family("binomial", outcomes, tables, made)
    trials = [1, 50, 1000]
    rows = own_predictions(reg, "a", posterior, pd.DataFrame({"x": ROWS["x"], "n": trials}), fitted={})
    [(expected, new)] = rows.parts()
    assert rows.only_expected == ""
    assert (expected.draws <= 1.0).all()
    drawn = new.draws.values
    assert (drawn <= trials).all()
    assert (drawn.max(axis=(0, 1))[1:] > 1).all()
    assert new.title == "A new `y`, a count out of `n`, at 'a'"


def test_cox_has_the_scale_of_the_link(outcomes, tables, made):
    reg, posterior = of_family("cox", outcomes, tables, made)
    with pytest.raises(fb.FormulaError, match="`--scale link` of `fedbayes predict`"):
        own_predictions(reg, "a", posterior, {"x": [1.0]}, fitted={})
    rows = own_predictions(reg, "a", posterior, {"x": [1.0, 2.0]}, fitted={}, scale="link")
    [(found, new)] = rows.parts()
    apart = found.draws.values[..., 1] - found.draws.values[..., 0]
    np.testing.assert_allclose(apart, posterior["x"].values, rtol=1e-5)
    assert (new, "on the scale of the link" in rows.only_expected) == (None, True)
    with pytest.raises(fb.FormulaError, match="`scale` is 'log'; write"):
        own_predictions(reg, "a", posterior, {"x": [1.0]}, fitted={}, scale="log")
