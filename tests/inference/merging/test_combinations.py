"""Merged subposteriors where the answer is known: Gaussians, commuting covariances, mixtures that can be enumerated."""

from functools import partial
from itertools import product

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from numpyro.infer import hmc_util
from scipy.integrate import quad
from scipy.linalg import sqrtm
from scipy.special import digamma, gammaincinv, polygamma
from scipy.stats import multivariate_normal

from fedbayes.inference.merging import combinations as combiners

consensus = jax.jit(combiners.consensus)
wasserstein_barycentre = jax.jit(combiners.wasserstein_barycentre)
density_product = jax.jit(combiners.density_product, static_argnames=("num", "num_sweeps"))

MULTIPLE = 5.0  # of a Monte Carlo standard error


@pytest.fixture(autouse=True)
def double():
    with jax.enable_x64(True):
        yield


def random_covariances(rng, num_clients, size, condition=10.0):
    turns = np.linalg.qr(rng.normal(size=(num_clients, size, size)))[0]
    levels = np.exp(rng.normal(size=(num_clients, 1))) * np.geomspace(1.0, 1.0 / condition, size)
    return (turns * levels[:, None]) @ np.swapaxes(turns, 1, 2)


def gaussian_product(means, covariances):
    """Mean and covariance."""
    precisions = np.linalg.inv(covariances)
    covariance = np.linalg.inv(precisions.sum(axis=0))
    return covariance @ np.einsum("kij,kj->i", precisions, means), covariance


def sample_moments(draws):
    return np.mean(draws, axis=1), np.stack([np.atleast_2d(np.cov(own.T)) for own in draws])


def exact_gaussian_draws(rng, means, covariances, num):
    """Draws whose sample moments are the given ones, with no sample correlation between clients."""
    num_clients, size = means.shape
    noise = rng.normal(size=(num, num_clients * size))
    noise = np.linalg.qr(noise - noise.mean(axis=0))[0] * np.sqrt(num - 1)
    noise = np.swapaxes(noise.reshape(num, num_clients, size), 0, 1)
    return means[:, None] + np.einsum("kni,kji->knj", noise, np.linalg.cholesky(covariances))


def agrees(draws, mean, covariance, allowance=0.0):
    """Independent draws have the given moments, up to the Monte Carlo error and an allowance in sds."""
    sd = np.sqrt(np.diagonal(np.atleast_2d(covariance)))
    gap = (np.asarray(draws) - mean) / sd
    mean_error = np.abs(gap.mean(axis=0))
    spread_error = np.abs((gap**2).mean(axis=0) - 1.0)
    num = len(gap)
    return np.all(mean_error < MULTIPLE * gap.std(axis=0) / np.sqrt(num) + allowance) and np.all(
        spread_error < MULTIPLE * (gap**2).std(axis=0) / np.sqrt(num) + 2.0 * allowance
    )


# consensus


@pytest.fixture
def problem():
    rng = np.random.default_rng(2)
    means, covariances = rng.normal(size=(4, 3)), random_covariances(rng, 4, 3)
    return means, covariances, exact_gaussian_draws(rng, means, covariances, 200)


def test_consensus_of_gaussian_subposteriors_is_their_product(problem) -> None:
    means, covariances, draws = problem
    merged = np.asarray(consensus(draws, np.linalg.inv(covariances)))
    mean, covariance = gaussian_product(means, covariances)
    np.testing.assert_allclose(merged.mean(axis=0), mean, rtol=1e-10, atol=1e-12)
    np.testing.assert_allclose(np.cov(merged.T), covariance, rtol=1e-10, atol=1e-12)


def test_unweighted_average_is_caught(problem) -> None:
    means, covariances, draws = problem
    merged = np.asarray(consensus(draws, np.broadcast_to(np.eye(3), covariances.shape)))
    assert np.max(np.abs(merged.mean(axis=0) - gaussian_product(means, covariances)[0])) > 0.1


def test_consensus_is_numpyros(problem) -> None:
    draws = np.exp(problem[2])
    precisions = np.linalg.inv(sample_moments(draws)[1])  # numpyro's weights for `diagonal=False`
    reference = hmc_util.consensus([{"theta": jnp.asarray(own)} for own in draws])["theta"]
    np.testing.assert_allclose(consensus(draws, precisions), reference, rtol=1e-10, atol=1e-11)


def test_consensus_of_one_or_of_equal_clients_changes_nothing(problem) -> None:
    _, covariances, draws = problem
    precisions = np.linalg.inv(covariances)
    np.testing.assert_allclose(consensus(draws[:1], precisions[:1]), draws[0], rtol=1e-11, atol=1e-12)
    equal = consensus(np.stack([draws[0]] * 5), np.stack([precisions[0]] * 5))
    np.testing.assert_allclose(equal, draws[0], rtol=1e-11, atol=1e-12)


def test_consensus_lets_a_client_know_nothing_of_a_direction(problem) -> None:
    draws = problem[2][:2]
    precisions = np.stack([np.diag([1.0, 2.0, 0.0]), np.diag([1.0, 0.0, 5.0])])
    expected = np.stack([draws[:, :, 0].mean(axis=0), draws[0, :, 1], draws[1, :, 2]], axis=1)
    np.testing.assert_allclose(consensus(draws, precisions), expected, rtol=1e-13)


def test_consensus_does_not_depend_on_the_order_of_clients(problem) -> None:
    _, covariances, draws = problem
    precisions, order = np.linalg.inv(covariances), [2, 0, 3, 1]
    merged = consensus(draws, precisions)
    np.testing.assert_allclose(consensus(draws[order], precisions[order]), merged, rtol=1e-11, atol=1e-12)
    both = jax.vmap(consensus)(np.stack([draws, 2.0 * draws]), np.stack([precisions, precisions]))
    np.testing.assert_allclose(both[1], 2.0 * merged, rtol=1e-11, atol=1e-12)


# Wasserstein barycentre


def optimal_map(start, end):
    root = sqrtm(start)
    inverse = np.linalg.inv(root)
    return np.real(inverse @ sqrtm(root @ end @ root) @ inverse)


def test_barycentre_of_commuting_covariances() -> None:
    rng = np.random.default_rng(0)
    turn = np.linalg.qr(rng.normal(size=(4, 4)))[0]
    levels, weights = np.exp(2.0 * rng.normal(size=(6, 4))), rng.dirichlet(np.ones(6))
    means = rng.normal(size=(6, 4))
    mean, covariance = wasserstein_barycentre(means, (turn * levels[:, None]) @ turn.T, weights)
    np.testing.assert_allclose(mean, weights @ means, rtol=1e-14)
    np.testing.assert_allclose(covariance, (turn * (weights @ np.sqrt(levels)) ** 2) @ turn.T, rtol=1e-9, atol=1e-11)


@pytest.mark.parametrize(("condition", "precision"), [(1e1, 1e-11), (1e4, 1e-9), (1e8, 1e-5)])
def test_barycentre_of_two_is_on_their_geodesic(condition: float, precision: float) -> None:
    rng = np.random.default_rng(1)
    scales = np.geomspace(1.0, condition**-0.5, 5)
    first, second = scales[:, None] * random_covariances(rng, 2, 5) * scales
    _, covariance = wasserstein_barycentre(np.zeros((2, 5)), np.stack([first, second]), np.array([0.3, 0.7]))
    step = 0.3 * np.eye(5) + 0.7 * optimal_map(first, second)
    exact = step @ first @ step.T
    gap = np.linalg.solve(np.linalg.cholesky(exact), np.asarray(covariance) - exact)
    gap = np.linalg.solve(np.linalg.cholesky(exact), gap.T)
    assert np.max(np.abs(gap)) < precision  # in the barycentre's own scale, in its narrowest directions too


@pytest.mark.parametrize(("num_clients", "size", "condition"), [(3, 2, 1e3), (8, 6, 1e2), (16, 20, 1e4)])
def test_barycentre_is_where_the_optimal_maps_average_to_the_identity(num_clients, size, condition) -> None:
    rng = np.random.default_rng(3)
    covariances, weights = random_covariances(rng, num_clients, size, condition), rng.dirichlet(np.ones(num_clients))
    _, covariance = wasserstein_barycentre(np.zeros((num_clients, size)), covariances, weights)
    maps = [weight * optimal_map(covariance, own) for weight, own in zip(weights, covariances, strict=True)]
    np.testing.assert_allclose(sum(maps), np.eye(size), atol=1e-8)
    arithmetic = np.einsum("k,kij->ij", weights, covariances)  # the check can fail
    maps = [weight * optimal_map(arithmetic, own) for weight, own in zip(weights, covariances, strict=True)]
    assert np.max(np.abs(sum(maps) - np.eye(size))) > 0.1


def test_barycentre_of_one_or_of_equal_clients_is_the_client() -> None:
    rng = np.random.default_rng(4)
    mean, covariance = rng.normal(size=3), 1e-6 * random_covariances(rng, 1, 3, 1e4)[0]
    for num in (1, 5):
        merged = wasserstein_barycentre(np.stack([mean] * num), np.stack([covariance] * num), np.full(num, 1 / num))
        np.testing.assert_allclose(merged[0], mean, rtol=1e-13)
        np.testing.assert_allclose(merged[1], covariance, rtol=1e-9, atol=1e-17)


def test_barycentre_follows_rotations_and_the_order_of_clients() -> None:
    rng = np.random.default_rng(5)
    means, covariances, weights = rng.normal(size=(4, 3)), random_covariances(rng, 4, 3), rng.dirichlet(np.ones(4))
    mean, covariance = wasserstein_barycentre(means, covariances, weights)
    order = [3, 1, 0, 2]
    shuffled = wasserstein_barycentre(means[order], covariances[order], weights[order])
    np.testing.assert_allclose(shuffled[0], mean, rtol=1e-13)
    np.testing.assert_allclose(shuffled[1], covariance, rtol=1e-9, atol=1e-11)
    turn = 7.0 * np.linalg.qr(rng.normal(size=(3, 3)))[0]
    both = jax.vmap(wasserstein_barycentre, (0, 0, None))(
        np.stack([means, means @ turn.T]), np.stack([covariances, turn @ covariances @ turn.T]), weights
    )
    np.testing.assert_allclose(both[0][1], turn @ mean, rtol=1e-12, atol=1e-12)
    np.testing.assert_allclose(both[1][0], covariance, rtol=1e-9, atol=1e-11)
    np.testing.assert_allclose(both[1][1], turn @ covariance @ turn.T, rtol=1e-9, atol=1e-9)


def test_barycentre_of_an_indefinite_covariance_is_not_finite() -> None:
    covariances = np.stack([np.eye(2), np.diag([1.0, -1.0])])
    assert not np.all(np.isfinite(wasserstein_barycentre(np.zeros((2, 2)), covariances, np.array([0.9, 0.1]))[1]))


# density product


def enumerated_moments(draws, semiparametric):
    """Mean and covariance of the mixture over all choices of a draw per client, written as in the paper."""
    num_clients, num, size = draws.shape
    bandwidth = num ** (-1.0 / (4 + size))
    means, covariances = sample_moments(draws)
    centre, narrow = gaussian_product(means, covariances)
    precisions = np.linalg.inv(covariances)
    weights, components = [], []
    for choice in product(range(num), repeat=num_clients):
        chosen = draws[np.arange(num_clients), choice]
        mean = narrow @ np.einsum("kij,kj->i", precisions, chosen)
        log_weight = sum(
            multivariate_normal.logpdf(chosen[k], mean, bandwidth**2 * covariances[k]) for k in range(num_clients)
        )
        if semiparametric:
            log_weight += multivariate_normal.logpdf(mean, centre, (1.0 + bandwidth**2) * narrow)
            log_weight -= sum(
                multivariate_normal.logpdf(chosen[k], means[k], covariances[k]) for k in range(num_clients)
            )
            mean = (mean + bandwidth**2 * centre) / (1.0 + bandwidth**2)
        weights.append(log_weight)
        components.append(mean)
    weights = np.exp(np.array(weights) - np.max(weights))
    weights, components = weights / weights.sum(), np.array(components)
    mean = weights @ components
    own = bandwidth**2 / (1.0 + bandwidth**2) if semiparametric else bandwidth**2
    return mean, (components - mean).T @ (weights[:, None] * (components - mean)) + own * narrow


@pytest.mark.slow
@pytest.mark.parametrize("semiparametric", [False, True])
@pytest.mark.parametrize(
    ("num_clients", "num", "size"),
    [
        pytest.param(2, 24, 1, marks=pytest.mark.statistical(key=0, numbers=2, errors=5.0)),
        pytest.param(3, 9, 2, marks=pytest.mark.statistical(key=0, numbers=4, errors=5.0)),
    ],
)
def test_density_product_is_the_mixture_over_all_choices(key, semiparametric, num_clients, num, size) -> None:
    rng = np.random.default_rng(6)
    draws = rng.gumbel(size=(num_clients, num, size)) @ rng.normal(size=(size, size))
    mean, covariance = enumerated_moments(draws, semiparametric)
    merged = density_product(draws, key, 12_500, semiparametric=semiparametric, num_sweeps=100)
    assert agrees(merged, mean, covariance)
    other = enumerated_moments(draws, not semiparametric)  # the check can fail
    assert not agrees(merged, *other)


@pytest.mark.slow
@pytest.mark.parametrize("num_clients", [2, 10])
@pytest.mark.statistical(key=0, numbers=8, errors=5.0)
def test_density_product_of_gaussian_subposteriors(key, num_clients: int) -> None:
    """The semiparametric product is unbiased, the other one wider by `1 + h^2`; the allowance is for n = 2,000: five
    errors beyond the bias."""
    rng, num = np.random.default_rng(7), 2_000
    means, covariances = rng.normal(size=(num_clients, 2)), random_covariances(rng, num_clients, 2)
    means = 0.3 * np.einsum("kij,kj->ki", np.linalg.cholesky(covariances), means)
    draws = exact_gaussian_draws(rng, means, covariances, num)
    mean, covariance = gaussian_product(means, covariances)
    merged = density_product(draws, key, 1_600)
    assert agrees(merged, mean, covariance, allowance=0.1)
    merged = density_product(draws, key, 1_600, semiparametric=False)
    assert agrees(merged, mean, (1.0 + num ** (-2.0 / 6.0)) * covariance, allowance=0.1)


def log_gamma(shape, rate, num):
    """Quantiles of the log of a gamma variable: draws without sampling noise; its log density is `a x - b exp(x)`."""
    return np.log(gammaincinv(shape, (np.arange(num) + 0.5) / num) / rate)


def mirrored(num):
    """Subposteriors skewed to both sides, and the product's mean and variance by quadrature."""
    draws = np.stack([log_gamma(0.7, 0.3, num), -log_gamma(1.5, 2.0, num)])

    def moment(power):
        return quad(lambda x: x**power * np.exp(0.7 * x - 0.3 * np.exp(x) - 1.5 * x - 2.0 * np.exp(-x)), -8.0, 9.0)[0]

    mean = moment(1) / moment(0)
    return draws, mean, moment(2) / moment(0) - mean**2


def same_side(num):
    """Two log gammas: the product is one again."""
    draws = np.stack([log_gamma(0.5, 0.5, num), log_gamma(0.5, 3.0, num)])
    return draws, digamma(1.0) - np.log(3.5), polygamma(1, 1.0)


@pytest.mark.slow
@pytest.mark.parametrize("semiparametric", [False, True])
@pytest.mark.parametrize("skewed", [mirrored, same_side])
@pytest.mark.statistical(key=0, numbers=2, errors=5.0)
def test_density_product_of_skewed_subposteriors_is_right_where_the_gaussian_is_wrong(
    key, skewed, semiparametric
) -> None:
    draws, mean, variance = skewed(4_000)
    draws = draws[:, :, None]
    gauss, narrow = gaussian_product(*sample_moments(draws))
    assert np.sqrt(narrow[0, 0] / variance) > 1.15
    assert not agrees(gauss + np.sqrt(narrow) * np.random.default_rng(0).normal(size=(6_250, 1)), mean, variance, 0.03)
    merged = np.asarray(density_product(draws, key, 6_250, semiparametric=semiparametric))
    assert agrees(merged, mean, variance, allowance=0.03)


def test_density_product_follows_shifts_and_scales(key) -> None:
    rng = np.random.default_rng(8)
    draws, scales = rng.gumbel(size=(3, 100, 2)), np.array([1e-4, 1e4])
    merge = partial(density_product, num=50, num_sweeps=100)
    np.testing.assert_allclose(merge(5.0 + draws, key) - 5.0, merge(draws, key), rtol=1e-9, atol=1e-10)
    np.testing.assert_allclose(merge(scales * draws, key) / scales, merge(draws, key), rtol=1e-9, atol=1e-10)


@pytest.mark.slow
@pytest.mark.statistical(key=0, numbers=2, errors=5.0)
def test_density_product_does_not_depend_on_the_order_of_clients(key) -> None:
    rng = np.random.default_rng(9)
    draws = rng.gumbel(size=(2, 4_000, 1)) + rng.normal(size=(2, 1, 1))
    one, other = (density_product(own, key, 6_250) for own in (draws, draws[::-1]))
    error = np.sqrt((np.var(one) + np.var(other)) / 6_250)
    assert abs(np.mean(one) - np.mean(other)) < MULTIPLE * error
    np.testing.assert_allclose(np.std(one), np.std(other), rtol=MULTIPLE * np.sqrt(1.0 / 6_250))


@pytest.mark.slow
@pytest.mark.parametrize("semiparametric", [False, True])
@pytest.mark.statistical(key=0, numbers=2, errors=5.5)
def test_density_product_of_one_client_is_the_client(key, semiparametric: bool) -> None:
    draws = exact_gaussian_draws(np.random.default_rng(10), np.zeros((1, 1)), np.ones((1, 1, 1)), 1_000)
    merged = density_product(draws, key, 6_250, semiparametric=semiparametric)
    variance = 1.0 if semiparametric else 1.0 + 1_000 ** (-2.0 / 5.0)
    assert agrees(merged, np.zeros(1), np.full((1, 1), variance), allowance=0.03)


def test_density_product_can_be_mapped(key) -> None:
    draws = np.random.default_rng(11).normal(size=(2, 3, 100, 2))
    keys = jax.random.split(key, 2)
    merge = partial(density_product, num=50, num_sweeps=100)
    together = jax.jit(jax.vmap(merge))(draws, keys)
    assert together.shape == (2, 50, 2)
    for own, one, merged in zip(draws, keys, together, strict=True):
        np.testing.assert_allclose(merge(own, one), merged, rtol=1e-10, atol=1e-12)
