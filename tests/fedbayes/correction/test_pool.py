"""Importance weights of several proposals, and when they are trusted."""

from dataclasses import replace

import jax
import numpy as np
import pytest

from fedbayes.correction.pool import HALVED, SHARE, Pool, largest_share, trusted
from fedbayes.correction.proposal import Law, Proposal, systematic

SD, LOG_SCALE = 1.3, -2.0  # of a Normal target, known up to this scale


def law(mean: float, sd: float, freedom: float = np.inf) -> Proposal:
    return Proposal([Law.of_moments(np.array([mean]), np.array([[sd**2]]), freedom)], [1.0])


def pool_from(*proposals: Proposal, num: int = 1 << 12, seed: int = 0) -> Pool:
    """Two chains of draws of each proposal; the target is ``N(1, SD)``."""
    rng = np.random.default_rng(seed)
    theta = np.concatenate([np.stack([p.draws(rng, num) for _ in range(2)]) for p in proposals], axis=1)
    log_joint = LOG_SCALE + law(1.0, SD).log_density(theta.reshape(-1, 1)).reshape(theta.shape[:2])
    counts = (num,) * len(proposals)
    return Pool(
        theta, log_joint[..., None], log_joint, (proposals, proposals), counts, *np.zeros((2, *theta.shape[:2]))
    )


@pytest.fixture(autouse=True)
def _float64():
    with jax.enable_x64(True):
        yield


@pytest.mark.statistical(key=0, numbers=4, errors=150.0)  # even draws: errors of 1e-5, measured
def test_weighted_moments_and_evidence_are_the_targets() -> None:
    pool = pool_from(law(0.0, 2.0))
    mean, covariance = pool.moments()
    np.testing.assert_allclose([mean[0], np.sqrt(covariance[0, 0])], [1.0, SD], rtol=2e-3)
    np.testing.assert_allclose(pool.log_evidence(), LOG_SCALE, atol=2e-3)
    assert pool.reliable


def test_draws_of_two_proposals_are_weighed_as_their_mixtures() -> None:
    one, two = law(0.0, 0.5), law(3.0, 1.0)
    both = pool_from(one).extended(pool_from(two, seed=1))
    by_hand = both.log_joint - np.log(
        0.5 * np.exp(one.log_density(both.theta.reshape(-1, 1)))
        + 0.5 * np.exp(two.log_density(both.theta.reshape(-1, 1)))
    ).reshape(both.log_joint.shape)
    np.testing.assert_allclose(both.log_weights, by_hand, rtol=1e-9)
    assert pool_from(one).effective < 0.2 * both.effective  # neither alone reaches the whole target


def test_a_proposal_that_is_too_narrow_is_not_trusted() -> None:
    assert not pool_from(law(1.0, 0.3)).reliable
    assert pool_from(law(1.0, 1.0)).reliable


def test_noisy_estimates_are_not_trusted() -> None:
    pool = pool_from(law(1.0, 1.0))
    noise = np.full(pool.theta.shape[:2], 1.3)
    assert not replace(pool, noise=noise).reliable
    assert replace(pool, noise=noise).weighted_noise == pytest.approx(1.3)
    assert replace(pool, noise=0.7 * noise).reliable


def test_quadrature_that_half_of_the_nodes_change_is_not_trusted() -> None:
    """By a trend along the draws; what is the same everywhere changes no weight."""
    pool = pool_from(law(1.0, 1.0))
    assert replace(pool, halved=np.full(pool.theta.shape[:2], 5.0)).weighted_noise == pytest.approx(0.0, abs=1e-12)
    trend = 2.0 * HALVED * pool.theta[..., 0] / np.sqrt(pool.moments()[1][0, 0])
    assert replace(pool, halved=trend).weighted_noise == pytest.approx(4.0)
    assert not replace(pool, halved=trend).reliable


def test_first_answers_are_held_to_a_third_of_what_is_accepted_in_the_end() -> None:
    pool = pool_from(law(1.0, 1.0))
    trend = 0.5 * HALVED * pool.theta[..., 0] / np.sqrt(pool.moments()[1][0, 0])
    assert replace(pool, halved=trend).reliable
    assert replace(pool, halved=trend).needs_finer
    assert not replace(pool, halved=0.5 * trend).needs_finer


def test_noise_where_there_is_no_weight_does_no_harm() -> None:
    """Draws of a law that is far off: a search for the locals may fail there, and none of them is used."""
    pool = pool_from(law(1.0, 1.5)).extended(pool_from(law(60.0, 0.1)))
    far = np.asarray(pool.theta[..., 0] > 50.0)
    quiet = replace(pool, noise=np.where(far, 1e3, 0.1))
    assert quiet.reliable
    assert quiet.weighted_noise == pytest.approx(0.1, rel=1e-6)
    assert replace(pool, noise=np.where(far, np.nan, 0.1)).reliable
    assert not replace(pool, noise=np.where(far, 0.1, 1e3)).reliable


def test_bounded_weights_are_trusted_whatever_their_k_hat() -> None:
    """Nine of ten weights are equal, the others up to ten times as large: k-hat calls that a heavy tail."""
    rng = np.random.default_rng(0)
    weights = np.concatenate([np.ones(9000), 1.0 + 9.0 * rng.random(1000) ** 8])
    assert largest_share(np.log(weights)) < SHARE
    assert trusted(np.log(weights), 1.6)


@pytest.mark.parametrize("shape", [0.9, 1.2])
@pytest.mark.statistical(key=1, alarm=1e-9)  # none of 2,000 samples gets through: measured
def test_weights_with_a_heavy_tail_have_a_large_share(shape: float) -> None:
    """So that the second rule does not let them pass: of a hundred samples it lets through few."""
    rng = np.random.default_rng(1)
    shares = [largest_share(-shape * np.log(rng.random(5000))) for _ in range(100)]
    assert np.mean(np.asarray(shares) <= SHARE) < 0.15


def test_tempered_weights_keep_enough_draws() -> None:
    pool = pool_from(law(8.0, 0.5))
    assert pool.effective < 50.0
    assert 1.0 / np.sum(pool.tempered(50.0) ** 2) >= 50.0


def resampled_moments(seed: int) -> list[float]:
    """Mean and sd of two chains of 32,000 resampled draws of the target."""
    pool = pool_from(law(0.0, 2.0), num=1 << 15, seed=seed)
    places = pool.resampled(32_000, jax.random.key(seed))
    drawn = np.stack([mine[at, 0] for mine, at in zip(pool.theta, places, strict=True)])
    assert drawn.shape == (2, 32_000)
    return [drawn.mean(), drawn.std()]


@pytest.mark.statistical(key=0, numbers=2, errors=6.5)  # measured: sds of 0.003 and 0.0028
def test_resampled_draws_are_the_targets() -> None:
    np.testing.assert_allclose(resampled_moments(0), [1.0, SD], rtol=0.02)


def counted_in_order(pool: Pool, num: int, key: jax.Array) -> np.ndarray:
    rng = np.random.default_rng(np.asarray(jax.random.key_data(key)))
    return np.stack([systematic(weights, num, rng) for weights in pool.weights])


@pytest.mark.parametrize("planted", [False, True])
@pytest.mark.statistical(key="0 to 19", alarm=1e-6)  # chi-squared of 20: sds of 0.003, and of 0.019 with the bug
def test_planted_bug_draws_counted_in_their_own_order_are_not_the_targets(planted, monkeypatch) -> None:
    """Every second point of a Sobol sequence is not spread as the sequence is, and more of them are no better."""
    if planted:
        monkeypatch.setattr(Pool, "resampled", counted_in_order)
    means = np.array([resampled_moments(seed)[0] for seed in range(20)])
    assert (np.sqrt(np.mean((means - 1.0) ** 2)) > 0.006) == planted


def test_nothing_finite_is_unreliable() -> None:
    pool = pool_from(law(0.0, 1.0))
    assert not replace(pool, log_joint=np.full(pool.log_joint.shape, np.nan)).reliable


def test_weights_are_smoothed_in_double_precision_whoever_asks() -> None:
    """A constant in the log weights changes nothing, however large: a float32 near -1e7 has a step of one."""
    with jax.enable_x64(False):
        near = pool_from(law(1.0, 0.3))
        far = replace(near, log_joint=near.log_joint - 1e7)
        assert near.largest > SHARE  # they are smoothed
        assert far.k_hat == pytest.approx(near.k_hat, abs=1e-5)
        np.testing.assert_allclose(far.weights, near.weights, rtol=1e-5)
