"""The test of uniformity: exact small cases, its level, and its power against narrow and shifted posteriors."""

import numpy as np
import pytest
from scipy import stats

from fedbayes.calibration.uniformity import distribution, p_value, uniform_band
from fedbayes.numerics.p_values import holm

NUM, DRAWS = 200, 99


def ranks_of(z: np.ndarray, spread: float = 1.0, shift: float = 0.0) -> np.ndarray:
    """Ranks among `DRAWS` quantiles of a normal posterior of this sd and mean, where truths are standard normal.

    With the truths' own sd and mean all ranks have the same probability.
    """
    return np.sum(shift + spread * stats.norm.ppf(np.arange(1, DRAWS + 1) / (DRAWS + 1)) < z[:, None], axis=1)


def test_the_distribution_function_counts_ranks_below_each_place():
    ranks = np.array([0, 1, 2, 3])
    np.testing.assert_array_equal(distribution(ranks, 3), [0.25, 0.5, 0.75])


def test_perfectly_even_ranks_have_the_largest_p_value():
    assert p_value(np.repeat(np.arange(100), 2), DRAWS) == 1.0


def test_all_ranks_in_one_place_have_the_smallest_p_value():
    assert p_value(np.zeros(NUM, int), DRAWS) == pytest.approx(1.0 / 20_001)


@pytest.mark.statistical(key="fixed inside", numbers=1, errors=4.0)
def test_the_smallest_case_is_the_binomial_test():
    """One place, z = 1/2: the statistic of 9 of 10 low ranks is 2 P(B >= 9), met by 0, 1, 9 or 10."""
    exact = 2.0 * stats.binom.sf(8, 10, 0.5)
    # 20,000 simulations: four binomial standard errors
    assert p_value(np.array([0] * 9 + [1]), 1) == pytest.approx(exact, abs=4.0 * np.sqrt(exact * (1 - exact) / 20_000))


def test_holm_multiplies_by_the_number_left_and_never_decreases():
    np.testing.assert_allclose(holm(np.array([0.04, 0.01, 0.03])), [0.06, 0.03, 0.06])
    np.testing.assert_allclose(holm(np.array([0.9, 0.8])), [1.0, 1.0])


@pytest.mark.statistical(key=1, numbers=1, errors=3.9)  # of the sets, 0.0095, and of the band's own simulation, 0.0021
def test_the_band_has_its_level_and_agrees_with_the_test():
    rng, band = np.random.default_rng(1), uniform_band(NUM, DRAWS, 0.9)
    sets = rng.integers(0, DRAWS + 1, size=(1000, NUM))
    shares = np.array([distribution(ranks, DRAWS) for ranks in sets])
    inside = np.all((shares >= band.lower - 1e-12) & (shares <= band.upper + 1e-12), axis=1)
    # 1,000 sets: four binomial standard errors, 0.038
    assert np.mean(inside) == pytest.approx(0.9, abs=4.0 * np.sqrt(0.09 / 1000))
    p_values = np.array([p_value(ranks, DRAWS) for ranks in sets[:200]])
    near = np.abs(p_values - 0.1) < 0.005  # where the quantile of the simulated law decides
    np.testing.assert_array_equal((p_values > 0.1)[~near], inside[:200][~near])


MANY, LEVEL = 1500, 1e-4  # ranks, and a level far below which the planted posteriors are found


@pytest.mark.statistical(key=2, alarm=LEVEL)
def test_the_right_posterior_is_not_found():
    assert p_value(ranks_of(np.random.default_rng(2).standard_normal(MANY)), DRAWS) > LEVEL


@pytest.mark.parametrize(("spread", "shift"), [(0.7, 0.0), (1.4, 0.0), (1.0, 0.4)])
# of 1,000 sets the logs of the statistic are six of their sds and more below that of the level: measured
@pytest.mark.statistical(key=2, numbers=1, errors=6.0)
def test_narrow_wide_and_shifted_posteriors_are_found(spread, shift):
    z = np.random.default_rng(2).standard_normal(MANY)
    assert p_value(ranks_of(z, spread, shift), DRAWS) < LEVEL
