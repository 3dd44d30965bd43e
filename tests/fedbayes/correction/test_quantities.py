"""Monte Carlo errors of means, sds and quantiles of weighted draws, by closed forms and by many repetitions."""

from collections.abc import Callable

import jax
import numpy as np
import pytest
from scipy import stats

from fedbayes.correction.proposal import systematic
from fedbayes.correction.quantities import PROBABILITIES, Summary, Taken, short_tails, summarised

PROPOSAL, TARGET = stats.norm(0.3, 1.5), stats.norm(0.0, 1.0)
CHAINS, DRAWS, NUM = 2, 1500, 1000


@pytest.fixture(autouse=True)
def _float64():
    with jax.enable_x64(True):
        yield


def weighted(seed: int) -> tuple[np.ndarray, Taken]:
    """Draws of a proposal with the weights of another law."""
    draws = PROPOSAL.rvs((CHAINS, DRAWS), random_state=seed)
    weights = np.exp(TARGET.logpdf(draws) - PROPOSAL.logpdf(draws))
    return draws, Taken(weights / weights.sum(axis=1, keepdims=True), NUM)


def plain(draws: np.ndarray) -> Summary:
    """Of draws ``(draw,)`` that count alike."""
    return summarised(draws[None, :, None], Taken.evenly((1, len(draws)), len(draws)))


def test_even_draws_have_the_textbooks_errors() -> None:
    draws = TARGET.rvs(4000, random_state=1)
    found = plain(draws)
    np.testing.assert_allclose(found.mean, draws.mean())
    np.testing.assert_allclose(found.mean_mcse, draws.std() / np.sqrt(4000))
    np.testing.assert_allclose(found.sd, draws.std())
    variance = ((draws - draws.mean()) ** 2).std() / np.sqrt(4000)
    np.testing.assert_allclose(found.sd_mcse, 0.5 * variance / draws.std())
    np.testing.assert_allclose(found.quantiles[0], np.quantile(draws, PROBABILITIES, method="inverted_cdf"))
    chances = np.array(PROBABILITIES)
    error = np.sqrt(chances * (1 - chances) / 4000)
    lower, upper = (np.quantile(draws, p, method="inverted_cdf") for p in (chances - error, chances + error))
    np.testing.assert_allclose(found.quantiles_mcse[0], 0.5 * (upper - lower))
    assert found.mean_reliable.all()
    assert found.sd_reliable.all()


@pytest.mark.statistical(key=0, numbers=7, errors=5.6)  # the ratio of sds over 400 repetitions is known to 3.5 percent
def test_stated_errors_are_those_of_many_repetitions() -> None:
    """Of the draws that a fit gives out: weights, and taking draws by them."""
    truth = np.concatenate([[TARGET.mean(), TARGET.std()], TARGET.ppf(PROBABILITIES)])
    gaps, stated, weights_alone = [], [], []
    for seed in range(400):
        draws, taken = weighted(seed)
        rng = np.random.default_rng(seed)
        given = np.concatenate([own[systematic(w, NUM, rng)] for own, w in zip(draws, taken.weights, strict=True)])
        found = summarised(draws[..., None], taken)
        stated.append([found.mean_mcse[0], found.sd_mcse[0], *found.quantiles_mcse[0]])
        weights_alone.append(summarised(draws[..., None], taken._replace(num=0)).mean_mcse[0])
        gaps.append(np.array([given.mean(), given.std(), *np.quantile(given, PROBABILITIES)]) - truth)
    true = np.sqrt(np.mean(np.square(gaps), axis=0))
    np.testing.assert_allclose(np.mean(stated, axis=0) / true, 1.0, atol=0.2)
    assert np.mean(weights_alone) < 0.85 * true[0]  # without the error of taking draws the test above would fail


@pytest.mark.parametrize(
    ("draw", "mean", "sd"),
    [
        (lambda rng: rng.standard_t(2.2, 8000), True, False),
        (lambda rng: rng.standard_t(1.2, 8000), False, False),
        (lambda rng: np.exp(3.0 * rng.normal(size=8000)), False, False),
        (lambda rng: np.exp(30.0 * rng.normal(size=8000)), False, False),  # one draw is nearly all of the mean
        (lambda rng: np.exp(0.4 * rng.normal(size=8000)), True, True),
        (lambda rng: rng.normal(size=8000), True, True),
        (lambda rng: rng.random(8000) < 0.01, True, True),
        (lambda rng: np.full(8000, 2.0), True, True),
    ],
)
def test_a_tail_too_long_for_a_moment_is_seen(draw: Callable, mean: bool, sd: bool) -> None:
    found = plain(draw(np.random.default_rng(0)).astype(float))
    assert (found.mean_reliable[0], found.sd_reliable[0]) == (mean, sd)


def test_short_tails_are_those_of_the_summary_however_the_weights_are_normalised() -> None:
    """A normal, and one over a uniform, which has no mean; weights that sum to one over all chains together, too."""
    draws, taken = weighted(1)
    values = np.stack([draws, 1.0 / np.random.default_rng(0).random(draws.shape)], axis=-1)
    found = summarised(values, taken)
    assert found.sd_reliable.tolist() == [True, False]
    for for_mean, for_sd in (short_tails(values, taken.weights), short_tails(values, taken.weights / CHAINS)):
        np.testing.assert_array_equal(for_mean, found.mean_reliable)
        np.testing.assert_array_equal(for_sd, found.sd_reliable)


def test_what_has_no_weight_need_not_be_a_number() -> None:
    draws, taken = weighted(0)
    weights = taken.weights.copy()
    weights[:, :3] = 0.0
    weights /= weights.sum(axis=1, keepdims=True)
    far = draws.copy()
    far[:, :3] = np.array([np.nan, np.inf, -np.inf])
    cut = taken._replace(weights=weights)
    for mine, other in zip(summarised(far[..., None], cut), summarised(draws[..., None], cut), strict=True):
        np.testing.assert_allclose(mine, other)


def test_many_functions_are_taken_in_parts(monkeypatch: pytest.MonkeyPatch) -> None:
    draws, taken = weighted(3)
    values = np.stack([draws, draws**2, np.exp(draws)], axis=-1)
    whole = summarised(values, taken)
    monkeypatch.setattr("fedbayes.correction.quantities._NUMBERS", draws.size)
    for mine, other in zip(summarised(values, taken), whole, strict=True):
        np.testing.assert_allclose(mine, other, rtol=1e-12)
