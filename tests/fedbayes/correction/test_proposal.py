"""Where draws are proposed: densities against SciPy's, draws against their moments."""

import numpy as np
import pytest
from scipy import stats

from fedbayes.correction.proposal import Law, Proposal, fitted, systematic

MEAN, COVARIANCE = np.array([1.0, -2.0]), np.array([[2.0, 0.7], [0.7, 0.5]])
POINTS = np.random.default_rng(0).normal(size=(50, 2)) * 3.0


@pytest.mark.parametrize("freedom", [np.inf, 5.0])
def test_densities_are_scipys(freedom: float) -> None:
    law = Law.of_moments(MEAN, COVARIANCE, freedom)
    rival = (
        stats.multivariate_normal(MEAN, COVARIANCE)
        if np.isinf(freedom)
        else stats.multivariate_t(MEAN, COVARIANCE, df=freedom)
    )
    np.testing.assert_allclose(law.log_density(POINTS), rival.logpdf(POINTS), rtol=1e-10)


@pytest.mark.parametrize("evenly", [False, True])
@pytest.mark.parametrize(
    "freedom",
    [
        pytest.param(np.inf, marks=pytest.mark.statistical(key=1, numbers=5, errors=11.0)),
        pytest.param(5.0, marks=pytest.mark.statistical(key=1, numbers=5, errors=8.0)),  # measured
    ],
)
def test_draws_have_the_laws_moments(freedom: float, evenly: bool) -> None:
    """Covariances of Student's t have heavy tails: more draws than the tolerances are written for."""
    draws = Law.of_moments(MEAN, COVARIANCE, freedom).draws(np.random.default_rng(1), 1 << 17, evenly=evenly)
    spread = COVARIANCE * (1.0 if np.isinf(freedom) else freedom / (freedom - 2.0))
    sd = np.sqrt(np.diagonal(spread))
    few = 1 << 14
    np.testing.assert_array_less(np.abs(draws.mean(axis=0) - MEAN), 4.0 * sd / np.sqrt(few))
    np.testing.assert_allclose(np.cov(draws.T), spread, rtol=0.08)
    if evenly and np.isinf(freedom):  # far below the error of independent draws
        np.testing.assert_array_less(np.abs(draws.mean(axis=0) - MEAN), 0.2 * sd / np.sqrt(len(draws)))


def test_a_mixture_has_the_mixtures_density() -> None:
    laws = [Law.of_moments(MEAN, COVARIANCE), Law.of_moments(-MEAN, 2.0 * COVARIANCE, 5.0)]
    mixture = Proposal(laws, [3.0, 1.0])
    by_hand = np.log(sum(s * np.exp(law.log_density(POINTS)) for s, law in zip((0.75, 0.25), laws, strict=True)))
    np.testing.assert_allclose(mixture.log_density(POINTS), by_hand, rtol=1e-10)
    assert mixture.draws(np.random.default_rng(0), 101).shape == (101, 2)


def test_a_fitted_proposal_follows_two_modes() -> None:
    """The density between two modes is far below that at the modes, as no single law's would be."""
    rng = np.random.default_rng(2)
    points = np.concatenate([rng.normal(-6.0, 0.5, (500, 1)), rng.normal(6.0, 0.5, (500, 1))])
    proposal = fitted(points, np.full(1000, 1e-3), rng)
    at = proposal.log_density(np.array([[-6.0], [0.0], [6.0]]))
    np.testing.assert_array_less(at[1], at[[0, 2]] - 0.3)
    alone = Proposal(proposal.laws[:1], [1.0]).log_density(np.array([[-6.0], [0.0]]))
    assert alone[1] > alone[0]


def test_systematic_resampling_takes_each_draw_as_often_as_its_weight_says() -> None:
    weights = np.array([0.5, 0.3, 0.15, 0.05])
    counts = np.bincount(systematic(weights, 1000, np.random.default_rng(0)), minlength=4)
    np.testing.assert_allclose(counts, 1000 * weights, atol=1.0)
