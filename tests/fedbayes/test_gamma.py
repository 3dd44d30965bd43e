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


@pytest.mark.parametrize("n", [0, 1, 7, 400])
@pytest.mark.parametrize("a", [1e-10, 0.3, 7.7, 123.4, 1e7, 1e12, 1e17, 1e40, 1e200])
def test_a_rising_product_is_the_sum_of_logarithms(a, n):
    factors = a + np.arange(n)
    expected = math.fsum(np.log(factors)), math.fsum(1.0 / factors), -math.fsum(factors**-2.0)
    for order, each in enumerate(expected):
        found = derivative(lambda a: log_rising(a, float(n)), order)(np.array([a]))
        # the slope of what is nearly constant is a difference of the slopes at both ends, at a few roundings
        np.testing.assert_allclose(found, each, rtol=1e-12, atol=1e-15)


def test_densities_are_scipy_s():
    a, b, y = np.array([0.2, 3.0, 50.0]), np.array([1.5, 0.7, 80.0]), np.array([0.3, 0.99, 0.41])
    np.testing.assert_allclose(Beta(a, b).log_prob(y), stats.beta.logpdf(y, a, b), rtol=1e-12)
    counts = np.array([0, 4, 9])
    expected = stats.betabinom.logpmf(counts, 9, a, b)
    np.testing.assert_allclose(BetaBinomial(a, b, 9).log_prob(counts), expected, rtol=1e-11)
