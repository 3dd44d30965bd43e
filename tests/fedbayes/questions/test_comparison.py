import numpy as np
import pytest

from fedbayes.questions.comparison import Comparison, Row, compare, flat_draws
from fedbayes.results.arviz import to_arviz


def idata(coords=None, dims=None, **draws):
    return to_arviz({"posterior": draws}, coords or {}, dims or {}, {})


def test_flat_draws_names_scalars_first_and_as_summary_does():
    rng = np.random.default_rng(0)
    vector, scalar, matrix = rng.normal(size=(2, 5, 2)), rng.normal(size=(2, 5)), rng.normal(size=(2, 5, 1, 2))
    source = idata({"c": ["x", "y"]}, {"b": ["c"]}, b=vector, a=scalar, m=matrix)
    found = flat_draws(source)
    assert list(found) == ["a", "b[x]", "b[y]", "m[0, 0]", "m[0, 1]"]
    np.testing.assert_array_equal(found["b[y]"], vector[..., 1])
    np.testing.assert_array_equal(found["m[0, 1]"], matrix[..., 0, 1])
    assert list(flat_draws(source, ["b"])) == ["b[x]", "b[y]"]


def test_compare_matches_by_name_and_keeps_the_first_order():
    rng = np.random.default_rng(1)
    draws = {name: rng.normal(size=(2, 50)) for name in "abc"}
    comparison = compare(idata(c=draws["c"], a=draws["a"]), idata(a=draws["b"], b=draws["b"], c=2.0 * draws["c"] + 1.0))
    rows = {row.name: row for row in comparison.rows}
    assert list(rows) == ["c", "a"]
    np.testing.assert_allclose(rows["c"].sd_ratio, 0.5)
    np.testing.assert_allclose(
        rows["c"].difference, (draws["c"].mean() - 2 * draws["c"].mean() - 1) / (2 * draws["c"].std(ddof=1))
    )
    np.testing.assert_allclose(rows["a"].reference_mean, draws["b"].mean())


def test_summaries_of_a_comparison():
    rows = (Row("a", 3.0, 1.0, 0.0, 1.0, 0.1, 0.3), Row("b", 0.0, 1.8, 8.0, 2.0, 0.2, 0.8))
    comparison = Comparison(rows)
    np.testing.assert_allclose(comparison.rms_difference, np.sqrt((9 + 16) / 2))
    np.testing.assert_allclose(comparison.monte_carlo_error, 0.1)
    np.testing.assert_allclose(comparison.reference_monte_carlo_error, np.sqrt((0.09 + 0.16) / 2))
    np.testing.assert_allclose(comparison.largest_sd_error, 0.1)


@pytest.mark.statistical(key=2, numbers=2, errors=10.0)  # of the sticky draws, measured
def test_monte_carlo_error_of_independent_and_of_sticky_draws():
    rng = np.random.default_rng(2)
    independent = rng.normal(size=(4, 8000))
    sticky = np.repeat(independent[:, :800], 10, axis=1)
    comparison = compare(idata(a=independent), idata(a=sticky))
    # the effective number of draws is itself estimated: 32,000 and 3,200, known to some 4 percent
    np.testing.assert_allclose(comparison.rows[0].monte_carlo_error, 1 / np.sqrt(32_000), rtol=0.2)
    np.testing.assert_allclose(comparison.rows[0].reference_monte_carlo_error, 1 / np.sqrt(3200), rtol=0.2)


def test_nothing_in_common_is_an_error():
    draws = np.random.default_rng(3).normal(size=(2, 10))
    with pytest.raises(ValueError, match=r"share no parameter: one has a, the other b\. Give both the same `coords`"):
        compare(idata(a=draws), idata(b=draws))
