"""A server, which has an agreement and no rows, reads of a fit what is global, as whoever has the rows."""

import numpy as np
import pytest

import fedbayes as fb

ROWS = {"x": [0.2, 1.0], "sex": ["m", "f"]}
FORMULA = "y ~ x + sex + (1 | site)"


@pytest.fixture(scope="module")
def fitted(tables, made):
    reg = fb.regression(FORMULA, clients=tables(np.arange(40.0) % 7))
    return reg, fb.regression(FORMULA, agreed=reg.agreed), made(reg)


READ = {
    "coefficients": lambda reg, fit: fb.summary_table(reg, fit),
    "heterogeneity": lambda reg, fit: fb.heterogeneity(reg, fit),
    "the average site": lambda reg, fit: fb.predictions(reg, fit, ROWS),
    "a new site": lambda reg, fit: fb.comparisons(reg, fit, ROWS, "sex", where="new"),
}


@pytest.mark.parametrize("case", READ)
def test_what_is_global_is_read_without_rows(case, fitted):
    reg, agreed, fit = fitted
    assert not agreed.clients
    np.testing.assert_array_equal(READ[case](agreed, fit).draws, READ[case](reg, fit).draws)


def test_what_is_a_sites_own_is_refused_without_rows(fitted):
    _, agreed, fit = fitted
    with pytest.raises(fb.FormulaError, match=r"`where` is 'a'; write 'average', 'new', or what.*anybody's rows"):
        fb.predictions(agreed, fit, ROWS, where="a")
    with pytest.raises(fb.ClientDataError, match=r"effects of sites are not known here. This regression was made"):
        fb.random_effects(agreed, fit)


def test_i_squared_needs_the_standard_errors_of_all_rows(tables, made):
    clients = {name: {**table, "s": np.ones(len(table["y"]))} for name, table in tables(np.arange(40.0) % 7).items()}
    formula = "y | se(s) ~ 1 + (1 | site)"
    reg = fb.regression(formula, clients=clients)
    agreed, fit = fb.regression(formula, agreed=reg.agreed), made(reg)
    assert "I2" in fb.heterogeneity(reg, fit).draws["quantity"]
    found = fb.heterogeneity(agreed, fit)
    assert "I2" not in found.draws["quantity"]
    assert any("standard errors of all rows" in note for note in found.notes)
