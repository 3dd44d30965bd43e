"""Stated Monte Carlo errors of constrained quantities are those of many fits; the measure itself by closed forms."""

from pathlib import Path

import numpy as np
import pytest
from scipy import stats

SCRIPT = Path(__file__).resolve().parents[2] / "benchmarks" / "own_quantities.py"

pytestmark = pytest.mark.skipif(not SCRIPT.exists(), reason="these tests run away from a checkout")

ZOO = (
    "rare counts",
    "rare events",
    "mean and sd of 6 outcomes",
    "separated, Normal prior",
    "separated, t prior",
    "odds and risk ratio",
    "ratio of two rates",
    "durations",
    "lethal dose",
    "sd between 3 clients",
    "eight schools",
    "two modes",
    "banana",
)


@pytest.fixture(scope="module")
def script(load):
    return load("own_quantities")


def test_the_zoo_is_whole(script) -> None:
    assert tuple(script.quantity_cases()) == ZOO


def test_quantiles_of_a_grid_are_those_of_the_law(script) -> None:
    """Each value twice, as where a grid has a second axis."""
    points = np.repeat(np.linspace(-8.0, 8.0, 2001), 2)
    weights = stats.norm.pdf(points) / stats.norm.pdf(points).sum()
    np.testing.assert_allclose(script._quantiles(points, weights), stats.norm.ppf(script.PROBABILITIES), atol=1e-4)


def test_errors_that_are_stated_too_small_are_seen(script) -> None:
    gaps, stated = np.array([[3.0, 1.0], [-3.0, -1.0]]), np.ones((2, 2))
    np.testing.assert_allclose(script._ratio(gaps, stated, np.ones((2, 2), bool)), [3.0, 1.0])
    assert np.isnan(script._ratio(gaps, stated, np.zeros((2, 2), bool))).all()


@pytest.mark.slow
@pytest.mark.statistical(key=0, numbers=7, alarm=1e-5)  # 8 times the squared ratio is about chi-squared with 8
def test_stated_errors_are_those_of_many_fits(script, monkeypatch) -> None:
    monkeypatch.setattr(script, "NUM_KEYS", 8)
    found = script.measure(script.quantity_cases()["rare counts"])
    for ratio in (found.ratio_mean, found.ratio_sd, found.ratio_quantiles):
        assert np.all((ratio > 0.1) & (ratio < 2.0)), ratio
    assert found.trusted.tolist() == [1.0]
