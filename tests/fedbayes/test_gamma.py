"""The gamma function's logarithm, its slope and curvature, against SciPy and sums of logarithms."""

import math

import jax
import numpy as np
import pytest
from scipy import special, stats

from fedbayes.formula.families.overdispersed import BetaBinomial
from fedbayes.formula.families.shares import Beta
from fedbayes.numerics.gamma import log_gamma, log_rising

AT = np.concatenate([10.0 ** np.arange(-8.0, 39.0), np.linspace(0.01, 30.0, 301)])


@pytest.fixture(autouse=True)
def double():
    with jax.enable_x64(True):
        yield


def derivative(function, order):
    for _ in range(order):
        function = jax.grad(function)
    return jax.jit(jax.vmap(function))


@pytest.mark.parametrize(
    ("order", "exact"),
    [(0, special.gammaln), (1, special.digamma), (2, lambda x: special.polygamma(1, x))],
    ids=["value", "slope", "curvature"],
)
def test_it_is_scipy_s(order, exact):
    expected = exact(AT)
    # of a slope near its zero at 1.46 rounding leaves an absolute error
    np.testing.assert_allclose(derivative(log_gamma, order)(AT), expected, rtol=1e-13, atol=1e-14 * (order < 2))


def test_at_the_ends_of_floating_point():
    far = np.array([1e-300, 1e60, 1e300])
    np.testing.assert_allclose(derivative(log_gamma, 0)(far), special.gammaln(far), rtol=1e-14)


@pytest.mark.parametrize("n", [1, 7, 400])
@pytest.mark.parametrize("a", [1e-10, 0.3, 7.7, 123.4, 1e7, 1e12, 1e17, 1e40])
def test_a_rising_product_is_the_sum_of_logarithms(a, n):
    """Its slope and curvature, too, which are tiny where `a` is large."""
    factors = a + np.arange(n)
    expected = math.fsum(np.log(factors)), math.fsum(1.0 / factors), -math.fsum(factors**-2.0)
    for order, each in enumerate(expected):
        found = derivative(lambda a: log_rising(a, float(n)), order)(np.array([a]))
        np.testing.assert_allclose(found, each, rtol=1e-10)


def test_no_factor_has_the_logarithm_zero():
    at = np.array([1e-10, 0.3, 7.7, 1e17, 1e200])
    np.testing.assert_allclose(derivative(lambda a: log_rising(a, 0.0), 0)(at), 0.0, atol=1e-15)


@pytest.mark.parametrize("a", [1e-3, 0.3, 1e3, 1e5, 1e9, 1e20])
def test_in_single_precision_too(a):
    a, n = np.float32(a), np.float32(400.0)
    assert log_gamma(a).dtype == np.float32
    # of the sum of terms of both signs six digits are right
    np.testing.assert_allclose(log_gamma(a), special.gammaln(a), rtol=1e-6, atol=2e-5)
    expected = math.fsum(np.log(np.float64(a) + np.arange(400)))
    np.testing.assert_allclose(log_rising(a, n), expected, rtol=1e-6)


def test_densities_are_scipy_s():
    a, b, y = np.array([0.2, 3.0, 50.0]), np.array([1.5, 0.7, 80.0]), np.array([0.3, 0.99, 0.41])
    np.testing.assert_allclose(Beta(a, b).log_prob(y), stats.beta.logpdf(y, a, b), rtol=1e-12)
    counts = np.array([0, 4, 9])
    expected = stats.betabinom.logpmf(counts, 9, a, b)
    np.testing.assert_allclose(BetaBinomial(a, b, 9).log_prob(counts), expected, rtol=1e-11)


def test_outside_of_the_support_there_is_no_density():
    for law, value in ((Beta(2.0, 3.0, validate_args=True), 1.2), (BetaBinomial(2.0, 3.0, 9, validate_args=True), 12)):
        with pytest.warns(UserWarning, match="Out-of-support"):
            assert np.isneginf(law.log_prob(value))
