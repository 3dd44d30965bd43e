"""The low-rank Gaussian against dense linear algebra."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy.stats import multivariate_normal

from fedbayes.inference.fedpa.shrinkage import shrunk_factor, shrunk_precision
from fedbayes.numerics.low_rank import LowRankGaussian, deflated, spectrum

# rank, dimension, whether the stretch is a vector
SHAPES = [(1, 4, True), (3, 7, True), (3, 7, False), (9, 5, True), (2, 1, False)]
shapes = pytest.mark.parametrize("shape", SHAPES, ids=str)


@pytest.fixture(autouse=True)
def _float64():
    with jax.enable_x64(True):
        yield


def make(shape: tuple, largest: float = 0.97) -> LowRankGaussian:
    """A Gaussian whose basis has ``largest`` as its largest singular value."""
    rank, size, vector = shape
    rng = np.random.default_rng(10 * rank + size)
    basis = rng.normal(size=(rank, size))
    stretch = rng.uniform(0.3, 3.0, size=size) * (-1.0) ** np.arange(size) if vector else np.float64(1.7)
    leaves = rng.normal(size=size), largest * basis / np.linalg.norm(basis, 2), 2.5, rng.normal(size=size), stretch
    return LowRankGaussian(*(jnp.asarray(leaf) for leaf in leaves))


def dense(gaussian: LowRankGaussian) -> tuple[np.ndarray, np.ndarray]:
    """Mean and covariance by the definition."""
    basis, size = np.asarray(gaussian.basis), gaussian.size
    stretch = np.broadcast_to(gaussian.stretch, size)
    covariance = np.linalg.inv(gaussian.scale * (np.eye(size) - basis.T @ basis))
    return gaussian.center + stretch * gaussian.mean, stretch[:, None] * covariance * stretch


@shapes
def test_moments_and_density_are_those_of_the_dense_gaussian(shape) -> None:
    gaussian = make(shape)
    mean, covariance = dense(gaussian)
    for found, exact in zip(gaussian.moments(), (mean, covariance), strict=True):
        np.testing.assert_allclose(found, exact, rtol=1e-10, atol=1e-10)
    np.testing.assert_allclose(gaussian.mean_of_globals(), mean, rtol=1e-12)
    np.testing.assert_allclose(gaussian.variances(), np.diagonal(covariance), rtol=1e-10)
    for theta in (mean, np.zeros(gaussian.size), mean + 1.0):
        exact = multivariate_normal(mean, covariance).logpdf(theta)
        np.testing.assert_allclose(gaussian.log_value(jnp.asarray(theta)), exact, rtol=1e-10)


def test_it_is_a_pytree_that_compiles() -> None:
    gaussian = make(SHAPES[1])
    for method in (LowRankGaussian.variances, LowRankGaussian.covariance):
        np.testing.assert_allclose(jax.jit(method)(gaussian), method(gaussian), rtol=1e-12, atol=1e-13)


def largest_z(draws: np.ndarray, gaussian: LowRankGaussian) -> float:
    """Largest error of the draws' moments, in Monte Carlo standard errors."""
    mean, covariance = dense(gaussian)
    gap, variance = draws - mean, np.diagonal(covariance)
    z_mean = gap.mean(axis=0) / np.sqrt(variance / len(draws))
    error = np.sqrt((np.outer(variance, variance) + covariance**2) / len(draws))  # of a Gaussian's sample covariance
    return float(max(np.max(np.abs(z_mean)), np.max(np.abs(gap.T @ gap / len(draws) - covariance) / error)))


@pytest.mark.slow
@pytest.mark.parametrize(
    "shape",
    [
        pytest.param(shape, id=str(shape), marks=pytest.mark.statistical(key=0, numbers=d * (d + 3) // 2, errors=5.0))
        for shape in SHAPES
        for d in shape[1:2]
    ],
)
def test_draws_have_the_moments(shape, key) -> None:
    gaussian = make(shape)
    assert largest_z(gaussian.sample(key, 25_000), gaussian) < 5.0  # of at most 35 numbers; p < 3e-5


def no_basis(gaussian: LowRankGaussian) -> LowRankGaussian:
    return LowRankGaussian(gaussian.mean, 0 * gaussian.basis, gaussian.scale, gaussian.center, gaussian.stretch)


def covariance_for_its_root(gaussian: LowRankGaussian) -> LowRankGaussian:
    """Draws made by the covariance times noise: ``I - B' (2 I - G) B`` is the precision squared."""
    left, vectors = spectrum(gaussian.basis)
    basis = jnp.sqrt(1.0 + left)[:, None] * (vectors.T @ gaussian.basis)
    return LowRankGaussian(gaussian.mean, basis, gaussian.scale, gaussian.center, gaussian.stretch)


def stretched_twice(gaussian: LowRankGaussian) -> LowRankGaussian:
    return LowRankGaussian(gaussian.mean, gaussian.basis, gaussian.scale, gaussian.center, gaussian.stretch**2)


@pytest.mark.parametrize("bug", [no_basis, covariance_for_its_root, stretched_twice])
def test_draws_of_another_gaussian_are_told_apart(bug, key) -> None:
    gaussian = make(SHAPES[1])
    assert largest_z(bug(gaussian).sample(key, 20_000), gaussian) > 9.0


@shapes
def test_the_root_that_draws_are_made_with_is_exact(shape) -> None:
    """Draws are linear in the noise: a unit matrix of noise gives the root, whose square is the covariance."""
    gaussian = make(shape)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(jax.random, "normal", lambda key, shape, dtype: jnp.eye(shape[0], dtype=dtype))
        root = gaussian.sample(None, gaussian.size) - gaussian.mean_of_globals()
    np.testing.assert_allclose(root.T @ root, dense(gaussian)[1], rtol=1e-10, atol=1e-10)


def clients(num: int, rank: int, size: int) -> dict[str, jax.Array]:
    """What clients of unequal rho and weights send."""
    rng = np.random.default_rng(num * rank)
    basis, share = rng.normal(size=(num, rank, size)), rng.uniform(0.5, 2.0, size=num)
    largest = rng.uniform(0.5, 0.99, size=num) / np.linalg.norm(basis, 2, axis=(1, 2))
    sent = {
        "basis": basis * largest[:, None, None],
        "rho": rng.uniform(0.05, 1.0, size=num),
        "mean": rng.normal(size=(num, size)),
        "weight": share / share.sum(),
    }
    return {name: jnp.asarray(leaf) for name, leaf in sent.items()}


def product(**sent: jax.Array) -> LowRankGaussian:
    return jax.jit(LowRankGaussian.product)(**sent)


def dense_product(basis, rho, mean, weight) -> tuple[np.ndarray, np.ndarray]:
    """Mean and covariance of ``u``."""
    precisions = [(np.eye(mean.shape[1]) - b.T @ b) / r for b, r in zip(basis, rho, strict=True)]
    precision = sum(w * p for w, p in zip(weight, precisions, strict=True))
    shift = sum(w * p @ m for w, p, m in zip(weight, precisions, mean, strict=True))
    return np.linalg.solve(precision, shift), np.linalg.inv(precision)


FEDERATIONS = [(3, 4, 6), (4, 1, 5), (5, 3, 40), (6, 20, 3)]


@pytest.mark.parametrize("federation", FEDERATIONS, ids=str)
def test_the_product_of_clients_is_the_dense_product(federation) -> None:
    sent = clients(*federation)
    size = federation[-1]
    center, stretch = jnp.linspace(-1.0, 1.0, size), jnp.linspace(0.5, 2.0, size)
    combined = product(**sent, center=center, stretch=stretch)
    mean, covariance = dense_product(**sent)
    np.testing.assert_allclose(combined.mean, mean, rtol=1e-10, atol=1e-10)
    found = jax.jit(LowRankGaussian.moments)(combined)
    np.testing.assert_allclose(found[0], center + stretch * mean, rtol=1e-10, atol=1e-10)
    np.testing.assert_allclose(found[1], stretch[:, None] * covariance * stretch, rtol=1e-10, atol=1e-10)
    assert np.linalg.norm(combined.basis, 2) < 1.0  # a convex combination
    left, _ = spectrum(combined.basis)
    assert np.min(left) > 1e-6  # and so far from round-off that nothing was raised


def test_the_product_of_one_is_what_its_client_estimated() -> None:
    samples = jnp.asarray(np.random.default_rng(5).normal(size=(6, 9)) * np.linspace(0.2, 5.0, 9))
    basis, rho = shrunk_factor(samples, 0.4)
    mean, covariance = product(basis=basis[None], rho=rho, mean=samples[:1], weight=jnp.ones(1)).moments()
    np.testing.assert_allclose(mean, samples[0], rtol=1e-12)
    np.testing.assert_allclose(covariance, np.linalg.inv(shrunk_precision(samples, 0.4)), rtol=1e-10, atol=1e-10)


def test_without_a_map_the_values_are_those_of_u() -> None:
    sent = clients(3, 4, 6)
    for found, exact in zip(product(**sent).moments(), dense_product(**sent), strict=True):
        np.testing.assert_allclose(found, exact, rtol=1e-10, atol=1e-10)


def test_the_mean_is_where_the_clients_deltas_cancel() -> None:
    """The fixed point of posterior averaging: ``sum_k weight_k Sigma_k^-1 (mean - mean_k) = 0``."""
    sent = clients(5, 3, 40)
    mean = product(**sent).mean
    deltas = jax.vmap(lambda b, r, m: deflated(b, mean - m) / r)(sent["basis"], sent["rho"], sent["mean"])
    np.testing.assert_allclose(sent["weight"] @ deltas, np.zeros(40), atol=1e-11)


def test_what_a_product_may_be_told_in_other_words() -> None:
    """Clients of equal rho send one; a client split in two, or joined by one of weight zero, changes nothing."""
    sent = clients(3, 4, 6)
    sent["rho"] = jnp.full(3, 0.3)
    one = product(**sent)
    split = {name: jnp.concatenate([leaf, leaf[:1]]) for name, leaf in sent.items()}
    split["weight"] = split["weight"].at[jnp.array([0, 3])].mul(0.5)
    absent = {name: jnp.concatenate([leaf, 7.0 * leaf[:1]]) for name, leaf in sent.items()}
    absent["weight"] = absent["weight"].at[3].set(0.0)
    absent["basis"] = absent["basis"] / jnp.array([1.0, 1.0, 1.0, 7.0])[:, None, None]
    for other in (split, absent, sent | {"rho": jnp.asarray(0.3)}):
        for found, exact in zip(product(**other).moments(), one.moments(), strict=True):
            np.testing.assert_allclose(found, exact, rtol=1e-11, atol=1e-12)


def mean_of_means(basis, rho, mean, weight):
    return weight @ mean


def rho_forgotten(basis, rho, mean, weight):
    return LowRankGaussian.product(basis, jnp.ones_like(rho), mean, weight).mean


def weight_forgotten(basis, rho, mean, weight):
    return LowRankGaussian.product(basis, rho, mean, jnp.ones_like(weight)).mean


@pytest.mark.parametrize("bug", [mean_of_means, rho_forgotten, weight_forgotten])
def test_planted_bugs_of_the_product_are_caught(bug) -> None:
    sent = clients(3, 4, 6)
    assert np.max(np.abs(bug(**sent) - dense_product(**sent)[0])) > 1e-2


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_round_off_at_one_is_a_large_variance_and_not_an_improper_gaussian(dtype, key) -> None:
    for above in (0.0, np.finfo(dtype).eps):  # in the first column an eigenvalue of zero, or just below it
        basis = jnp.array([[1.0 + above, 0.0, 0.0], [0.0, 0.6, 0.0]], dtype=dtype)
        left, _ = spectrum(basis)
        np.testing.assert_allclose(np.sort(left), [2 * np.finfo(dtype).eps, 0.64], rtol=1e-6)
        numbers = (jnp.asarray(value, dtype) for value in (1.0, 0.0, 1.0))
        gaussian = LowRankGaussian(jnp.zeros(3, dtype), basis, *numbers)
        draws, variances = jax.jit(lambda gaussian: (gaussian.sample(key, 4), gaussian.variances()))(gaussian)
        for leaf in (draws, variances):
            assert np.all(np.isfinite(leaf))
            assert leaf.dtype == dtype
        np.testing.assert_allclose(variances[1:], [1.0 / 0.64, 1.0], rtol=1e-6)


def test_a_million_dimensions_take_memory_linear_in_them() -> None:
    """By XLA's own account: compiled, not run."""
    num, rank, size = 8, 32, 1_000_000
    shapes = ((size,), (rank, size), (), (size,), (size,))
    gaussian = LowRankGaussian(*(jax.ShapeDtypeStruct(shape, jnp.float64) for shape in shapes))
    key = jax.eval_shape(jax.random.key, 0)
    sent = [jax.ShapeDtypeStruct(shape, jnp.float64) for shape in ((4, 8, size), (4,), (4, size), (4,))]
    for run, given in (
        (lambda gaussian, key: gaussian.sample(key, num), (gaussian, key)),
        (LowRankGaussian.variances, (gaussian,)),
        (LowRankGaussian.log_value, (gaussian, gaussian.mean)),
        (LowRankGaussian.product, sent),
    ):
        lowered = jax.jit(run).lower(*given)
        assert lowered.compile().memory_analysis().temp_size_in_bytes < 4 * rank * size * 8
        assert f"{size}x{size}" not in lowered.as_text()
