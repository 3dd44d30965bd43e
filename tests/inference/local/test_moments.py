"""A client's site from draws: exactness, invariance under linear changes of the globals, and the size of its error."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from fedbayes.inference.local.density import moments
from fedbayes.inference.local.density.moments import (
    TiltedDraws,
    covariance_inversion,
    score_regression,
    symmetric_slope,
)
from fedbayes.numerics.gaussian import Gaussian

SIZE = 4


@pytest.fixture(autouse=True)
def _float64():
    with jax.enable_x64(True):
        yield


def invertible(rng, size=SIZE):
    """A change of coordinates with condition number 1,000."""
    left, right = (np.linalg.qr(rng.normal(size=(size, size)))[0] for _ in range(2))
    return left @ np.diag(np.geomspace(0.03, 30.0, size)) @ right


def draws_of(theta, score):
    num, size = theta.shape
    even, nothing = np.full(num, 1.0 / num), np.zeros((size, 0))
    return TiltedDraws(theta, score, even, np.zeros(size), np.eye(size), nothing, np.asarray(float(num)))


def estimate(theta, score, estimator=score_regression):
    return estimator(draws_of(theta, score), Gaussian.neutral(theta.shape[1]))


def skewed(rng, num=256, size=SIZE):
    """Draws, and the scores of a factor that is not Gaussian."""
    theta = rng.normal(size=(num, size))
    mixing = rng.normal(size=(size, size))
    return theta, -np.tanh(theta @ mixing) @ mixing.T - 0.3 * theta**2


@pytest.mark.parametrize("estimator", [score_regression, covariance_inversion])
def test_a_linear_change_of_the_globals_changes_the_site_by_exactly_that(estimator):
    rng = np.random.default_rng(0)
    theta, score = skewed(rng)
    change = invertible(rng)
    here = estimate(theta, score, estimator)
    there = estimate(np.linalg.solve(change, theta.T).T, score @ change, estimator)
    np.testing.assert_allclose(there.precision, change.T @ here.precision @ change, rtol=1e-8, atol=1e-10)
    np.testing.assert_allclose(there.shift, change.T @ here.shift, rtol=1e-8, atol=1e-10)
    covariance = np.cov(theta.T)
    inverse = np.linalg.inv(change)
    np.testing.assert_allclose(
        there.error.noise(inverse @ covariance @ inverse.T), here.error.noise(covariance), rtol=1e-8
    )


def test_a_diagonal_spread_would_depend_on_the_coordinates(monkeypatch):
    """Planted bug: the residuals' variances without their covariances."""
    rng = np.random.default_rng(0)
    theta, score = skewed(rng)
    change = invertible(rng)
    correct = moments.symmetric_slope
    monkeypatch.setattr(
        moments, "symmetric_slope", lambda raw, spread, leverage: correct(raw, spread * np.eye(SIZE), leverage)
    )
    here = estimate(theta, score)
    there = estimate(np.linalg.solve(change, theta.T).T, score @ change)
    assert np.max(np.abs(there.precision - change.T @ here.precision @ change)) > 1e-2 * np.max(np.abs(there.precision))


@pytest.mark.parametrize("known", [1, 2, 3])
def test_a_client_has_no_site_where_it_knows_nothing(known):
    """Its factor depends on some linear functions of the globals alone, none of them a coordinate."""
    rng = np.random.default_rng(known)
    theta = rng.normal(size=(256, SIZE))
    seen = rng.normal(size=(SIZE, known))
    score = -np.tanh(theta @ seen) @ seen.T
    unseen = np.linalg.svd(seen.T)[2][known:].T
    found = estimate(theta, score)
    size = np.max(np.abs(found.precision))
    assert np.max(np.abs(found.precision @ unseen)) < 1e-10 * size
    assert np.max(np.abs(unseen.T @ found.shift)) < 1e-10 * np.max(np.abs(found.shift))
    averaged = 0.5 * sum(raw_slopes(theta, score))
    assert np.max(np.abs(averaged @ unseen)) > 1e-3 * size  # a plain average of the slopes would have noise there


def raw_slopes(theta, score):
    design = np.column_stack([np.ones(len(theta)), theta])
    slopes = -np.linalg.lstsq(design, score, rcond=None)[0][1:]
    return slopes, slopes.T


def simulated(rng, truth, spread, leverage, num):
    """Slopes with the covariance that the regression's have."""
    left, right = np.linalg.cholesky(spread), np.linalg.cholesky(leverage)
    return truth + left @ rng.normal(size=(num, *truth.shape)) @ right.T


def squared_error(found, truth):
    """Mean squared error, with five of its standard errors."""
    error = np.sum((np.asarray(found) - truth) ** 2, axis=(1, 2))
    return np.mean(error), 5.0 * np.std(error) / np.sqrt(len(error))


@pytest.mark.statistical(key=1, numbers=1, errors=5.0)
def test_the_symmetric_slope_has_the_least_error_and_says_how_much():
    rng = np.random.default_rng(1)
    turn = np.linalg.qr(rng.normal(size=(SIZE, SIZE)))[0]
    spread = turn @ np.diag([1e-6, 1e-3, 0.1, 10.0]) @ turn.T
    leverage = np.eye(SIZE) + 0.3
    truth = np.eye(SIZE)
    raw = simulated(rng, truth, spread, leverage, 6250)
    found, error = jax.vmap(symmetric_slope, (0, None, None))(raw, spread, leverage)
    mine, margin = squared_error(found, truth)
    basis, variance = error.basis[0], error.variance[0]
    gram = basis.T @ basis
    scale = np.diagonal(gram)
    expected = np.sum(variance * (np.outer(scale, scale) + gram**2)) - np.diagonal(variance) @ scale**2
    assert abs(mine - expected) < margin
    plain, _ = squared_error(0.5 * (raw + np.swapaxes(raw, 1, 2)), truth)
    assert plain > 1.2 * mine


def test_weights_of_the_wrong_mirror_image_are_seen(monkeypatch):
    """Planted bug: the entry takes the weight of its mirror image; a client then has noise where it knows nothing."""
    rng = np.random.default_rng(1)
    theta = rng.normal(size=(256, SIZE))
    seen = rng.normal(size=(SIZE, 2))
    unseen = np.linalg.svd(seen.T)[2][2:].T
    correct = moments.symmetric_slope
    monkeypatch.setattr(moments, "symmetric_slope", lambda raw, spread, leverage: correct(raw.T, spread, leverage))
    found = estimate(theta, -np.tanh(theta @ seen) @ seen.T)
    assert np.max(np.abs(found.precision @ unseen)) > 1e-3 * np.max(np.abs(found.precision))


@pytest.mark.parametrize("uncentred", [0.0, 10.0])
@pytest.mark.parametrize("estimator", [score_regression, covariance_inversion])
@pytest.mark.statistical(key=2, numbers=1, errors=5.0)
def test_the_noise_is_the_squared_error_over_replicates(estimator, uncentred):
    """Also for correlated globals, as an intercept beside an uncentred covariate is."""
    rng = np.random.default_rng(2)
    slant = np.eye(SIZE)
    slant[0, 1:] = uncentred
    inverse = np.linalg.inv(slant)
    theta = rng.normal(size=(600, 256, SIZE))
    residual = rng.normal(size=theta.shape) @ rng.normal(size=(SIZE, SIZE))
    score = residual - theta @ np.diag(np.arange(SIZE))
    covariance = inverse @ inverse.T
    found = jax.vmap(lambda t, g: estimate(t, g, estimator))(theta @ inverse.T, score @ slant)
    truth = jax.tree.map(lambda leaf: jnp.mean(leaf, axis=0), (found.shift, found.precision))
    level = found.shift - truth[0]
    gap = found.precision - truth[1]
    white = np.linalg.cholesky(covariance)
    squared = np.einsum("ni,ij,nj->n", level, covariance, level)
    squared = squared + 0.5 * np.sum((white.T @ gap @ white) ** 2, axis=(1, 2))
    said = np.mean(jax.vmap(lambda error: error.noise(covariance))(found.error))
    # six errors, of which at 256 draws what is said is off by 1.1 itself (50 seeds)
    assert abs(said / np.mean(squared) - 1.0) < 6.1 * np.std(squared) / np.mean(squared) / np.sqrt(len(squared))


def test_opposite_draws_count_together() -> None:
    """Two draws of the locals with the same globals, whose residuals cancel, leave no error; alone each has one."""
    rng = np.random.default_rng(0)
    theta, offset = rng.normal(size=(64, 2)), rng.normal(size=(64, 2))
    score = -theta @ np.diag([2.0, 3.0])
    draws = TiltedDraws(
        jnp.asarray(np.concatenate([theta, theta])),
        jnp.asarray(np.concatenate([score + offset, score - offset])),
        jnp.full(128, 1.0 / 128),
        jnp.zeros(2),
        jnp.eye(2),
        jnp.zeros((2, 0)),
        jnp.asarray(128.0),
    )
    cavity = Gaussian(jnp.zeros(2), jnp.eye(2), jnp.zeros(()))
    together, apart = (score_regression(draws._replace(sides=sides), cavity) for sides in (2, 1))
    np.testing.assert_allclose(together.precision, np.diag([2.0, 3.0]), atol=1e-12)
    np.testing.assert_allclose(together.error.level, 0.0, atol=1e-24)
    assert np.all(np.diagonal(apart.error.level) > 1e-3)
