"""Kernels, Gaussian processes and their sparse approximation: golden numbers, scikit-learn, SciPy, samples, refusals.

Golden numbers are of an independent program in float64; variances, not standard deviations, throughout.
"""

from collections.abc import Callable, Iterator
from functools import partial
from itertools import combinations
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from numpyro import handlers
from scipy import stats
from sklearn.gaussian_process import GaussianProcessRegressor
from sklearn.gaussian_process import kernels as sk

from fedbayes.errors import ModelError
from fedbayes.models import gp
from fedbayes.models.gp.algebra import inverse, log_normal_density

X = np.array([0.0, 0.25, 0.5, 0.75, 1.0])
Y = np.array([0.0, 1.0, 0.0, -1.0, 0.0])
THETA = np.array([0.3, 1.5, 0.2])  # length scale, variance, noise
NEW = np.array([0.3, 0.9])
# negative log marginal likelihood, its gradient; means and variances of the function at NEW
GOLDEN = {
    "rbf": (
        6.1601368547,
        [2.5472910156, 0.6000186874, 1.2677216677],
        [0.6952428918, -0.4813653283],
        [0.1293072211, 0.1276262493],
    ),
    "matern32": (
        6.2808608083,
        [-0.7138899996, 0.8538130511, 1.2353387157],
        [0.7552996181, -0.4165021654],
        [0.20232682, 0.2615424371],
    ),
}
KERNELS: dict[str, Callable[..., gp.Kernel]] = {"rbf": gp.RBF, "matern32": gp.Matern32}
# gradients of the negative log density of a row: of all 8 rows, and means over all batches of 4 and of 7 rows
BATCHES = {
    8: [0.0938285693, 0.0701530909, 1.1885593294],
    7: [0.0539501778, 0.0802323949, 1.0634957485],
    4: [-0.0719236742, 0.1252774908, 0.5741131872],
}
every_kernel = pytest.mark.parametrize("name", GOLDEN)


@pytest.fixture(autouse=True)
def _float64() -> Iterator[None]:
    with jax.enable_x64(True):
        yield


def law(theta: Any, name: str = "rbf", x: Any = X, **options: Any) -> gp.GaussianProcess:
    return gp.GaussianProcess(KERNELS[name](theta[0], theta[1]), x, theta[2], **({"jitter": 0.0} | options))


def energy(theta: Any, name: str = "rbf", x: Any = X, y: Any = Y) -> jax.Array:
    return -law(theta, name, x).log_prob(y)


def predicted(name: str, noise: float = THETA[2]) -> gp.Conditioned:
    return law(THETA, name, NEW).given(law([*THETA[:2], noise], name), Y)


def rows(num: int, dim: int, seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).uniform(size=(num, dim))


def outcomes(num: int, seed: int = 1) -> np.ndarray:
    return np.random.default_rng(seed).normal(size=num)


def z_scores(draws: np.ndarray, mean: np.ndarray, covariance: np.ndarray) -> np.ndarray:
    """Sample means and covariances of Gaussian draws ``(s, n)``, less the true ones, in standard errors."""
    rest, variances = draws - mean, np.diag(covariance)
    means = rest.mean(axis=0) / np.sqrt(variances / len(draws))
    errors = np.sqrt((np.outer(variances, variances) + covariance**2) / len(draws))
    return np.concatenate([means, ((rest.T @ rest / len(draws) - covariance) / errors)[np.tril_indices(len(mean))]])


# ---------------------------------------------------------------------------------------------------- golden numbers


@every_kernel
def test_golden_densities_and_gradients(name: str) -> None:
    value, slope = jax.jit(jax.value_and_grad(partial(energy, name=name)))(THETA)
    np.testing.assert_allclose(value, GOLDEN[name][0], atol=1e-9)
    np.testing.assert_allclose(slope, GOLDEN[name][1], atol=1e-9)


@every_kernel
def test_gradients_are_finite_differences(name: str) -> None:
    step = 1e-5 * np.eye(3)
    value = jax.jit(partial(energy, name=name))
    found = [(value(THETA + h) - value(THETA - h)) / 2e-5 for h in step]
    np.testing.assert_allclose(found, GOLDEN[name][1], atol=1e-8)


def golden_predictions(name: str, **options: Any) -> None:
    found = predicted(name, **options)
    np.testing.assert_allclose(found.mean, GOLDEN[name][2], atol=1e-9)
    np.testing.assert_allclose(found.signal_variance, GOLDEN[name][3], atol=1e-9)
    np.testing.assert_allclose(found.variance, np.array(GOLDEN[name][3]) + THETA[2], atol=1e-9)


@every_kernel
def test_golden_predictions(name: str) -> None:
    golden_predictions(name)


@every_kernel
def test_golden_predictions_catch_a_covariance_without_noise(name: str) -> None:
    with pytest.raises(AssertionError, match="Not equal to tolerance"):
        golden_predictions(name, noise=0.0)


@every_kernel
def test_golden_predictions_catch_a_standard_deviation_for_a_variance(name: str) -> None:
    with pytest.raises(AssertionError, match="Not equal to tolerance"):
        golden_predictions(name, noise=THETA[2] ** 2)


@pytest.mark.parametrize("size", BATCHES)
def test_golden_gradients_of_mini_batches_are_biased(size: int) -> None:
    """The mean over all batches of the gradient of a batch's density, per row: it is not that of all rows."""
    x = np.arange(8) / 8
    batches = x[np.array(list(combinations(range(8), size)))]
    slopes = jax.jit(jax.vmap(lambda x: jax.grad(energy)(jnp.asarray(THETA), "rbf", x, jnp.sin(2 * np.pi * x))))(
        batches
    )
    np.testing.assert_allclose(slopes.mean(axis=0) / size, BATCHES[size], atol=1e-9)


# ----------------------------------------------------------------------------------------------------------- kernels

PAIRS = {
    "rbf": (gp.RBF(0.3, 1.7), 1.7 * sk.RBF(0.3)),
    "rbf, ARD": (gp.RBF(np.array([0.3, 2.0]), 1.7), 1.7 * sk.RBF([0.3, 2.0])),
    "matern12": (gp.Matern12(0.3, 0.5), 0.5 * sk.Matern(0.3, nu=0.5)),
    "matern32": (gp.Matern32(0.3), sk.Matern(0.3, nu=1.5)),
    "matern32, ARD": (gp.Matern32(np.array([0.3, 2.0])), sk.Matern([0.3, 2.0], nu=1.5)),
    "matern52": (gp.Matern52(0.3, 2.5), 2.5 * sk.Matern(0.3, nu=2.5)),
    "matern52, ARD": (gp.Matern52(np.array([0.3, 2.0])), sk.Matern([0.3, 2.0], nu=2.5)),
    "sum": (gp.RBF(0.3, 1.7) + gp.Matern12(2.0, 0.1), 1.7 * sk.RBF(0.3) + 0.1 * sk.Matern(2.0, nu=0.5)),
    "product": (gp.RBF(0.3, 1.7) * gp.Matern52(0.5), 1.7 * sk.RBF(0.3) * sk.Matern(0.5, nu=2.5)),
}
every_pair = pytest.mark.parametrize("pair", PAIRS.values(), ids=PAIRS.keys())


@every_pair
def test_kernels_are_those_of_scikit_learn(pair: tuple[gp.Kernel, Any]) -> None:
    ours, theirs = pair
    x, other = rows(7, 2), rows(4, 2, seed=3)
    np.testing.assert_allclose(ours(x, other), theirs(x, other), rtol=1e-12)
    np.testing.assert_allclose(ours(x, x), theirs(x), rtol=1e-12)
    np.testing.assert_allclose(ours(x), theirs.diag(x), rtol=1e-12)


def test_periodic_kernels_are_those_of_scikit_learn() -> None:
    """Of one column; scikit-learn's takes the sine of the distance, ours is a product over the columns."""
    x, other = rows(7, 1), rows(4, 1, seed=3)
    ours, theirs = gp.Periodic(0.8, 0.4, 1.7), 1.7 * sk.ExpSineSquared(0.8, 0.4)
    np.testing.assert_allclose(ours(x, other), theirs(x, other), rtol=1e-12)
    np.testing.assert_allclose(ours(x), theirs.diag(x), rtol=1e-12)
    wide, scales = rows(5, 2), np.array([0.8, 0.5])
    parts = [1.0 * sk.ExpSineSquared(scale, 0.4)(wide[:, [j]]) for j, scale in enumerate(scales)]
    np.testing.assert_allclose(gp.Periodic(scales, 0.4)(wide, wide), parts[0] * parts[1], rtol=1e-12)


@pytest.mark.parametrize("kernel", [gp.Matern12, gp.Matern32, gp.Matern52, gp.RBF])
def test_kernels_of_equal_rows_have_finite_gradients(kernel: Callable[..., gp.Kernel]) -> None:
    """At distance zero a root has no derivative; the kernel's own is zero."""
    x = np.zeros((3, 2))
    slope = jax.jacfwd(lambda scale: kernel(scale)(x, x))(0.3)
    curvature = jax.jacfwd(jax.jacfwd(lambda scale: kernel(scale)(x, x)))(0.3)
    np.testing.assert_array_equal(np.stack([slope, curvature]), 0.0)


@every_pair
def test_densities_and_predictions_are_those_of_scikit_learn(pair: tuple[gp.Kernel, Any]) -> None:
    ours, theirs = pair
    x, new, y = rows(12, 2), rows(5, 2, seed=3), outcomes(12)
    reference = GaussianProcessRegressor(theirs, alpha=0.2, optimizer=None).fit(x, y)
    seen = gp.GaussianProcess(ours, x, 0.2, jitter=0.0)
    np.testing.assert_allclose(seen.log_prob(y), reference.log_marginal_likelihood(reference.kernel_.theta), rtol=1e-10)
    found = gp.GaussianProcess(ours, new, 0.2, jitter=0.0).given(seen, y)
    mean, covariance = reference.predict(new, return_cov=True)
    np.testing.assert_allclose(found.mean, mean, atol=1e-10)
    np.testing.assert_allclose(found.signal_variance, np.diag(covariance), atol=1e-10)
    np.testing.assert_allclose(found.factor @ found.factor.T, covariance + 0.2 * np.eye(5), atol=1e-10)


class Rational:
    """A rational quadratic kernel that shares nothing but the convention with ours, as tinygp's do."""

    def __init__(self, scale: Any, variance: Any) -> None:
        self.scale, self.variance = scale, variance

    def __call__(self, x: Any, other: Any = None) -> Any:
        if other is None:
            return jnp.full(x.shape[0], self.variance)
        return self.variance / (1.0 + jnp.sum((x[:, None] - other[None]) ** 2, axis=-1) / (2.0 * self.scale**2))


def test_any_callable_with_the_convention_is_a_kernel() -> None:
    x, new, y = rows(9, 2), rows(4, 2, seed=3), outcomes(9)
    theirs = 1.3 * sk.RationalQuadratic(0.4, alpha=1.0) + 0.5 * sk.RBF(0.3)
    reference = GaussianProcessRegressor(theirs, alpha=0.2, optimizer=None).fit(x, y)

    def density(scale: Any, law: Callable[..., Any] = gp.GaussianProcess, **options: Any) -> jax.Array:
        return law(gp.RBF(0.3, 0.5) + Rational(scale, 1.3), x, 0.2, jitter=0.0, **options).log_prob(y)  # type: ignore[operator]

    expected = reference.log_marginal_likelihood(reference.kernel_.theta)
    exactly, sparsely = jax.jit(density), jax.jit(partial(density, law=gp.SparseGaussianProcess, inducing=x))
    np.testing.assert_allclose(exactly(0.4), expected, rtol=1e-10)
    np.testing.assert_allclose(sparsely(0.4), expected, rtol=1e-8)
    slope = jax.jit(jax.grad(density))(0.4)
    np.testing.assert_allclose(slope, (exactly(0.40001) - exactly(0.39999)) / 2e-5, rtol=1e-6)
    alone = gp.GaussianProcess(Rational(0.4, 1.3), new, 0.2)
    assert alone.given(gp.GaussianProcess(Rational(0.4, 1.3), x, 0.2), y).mean.shape == (4,)


# ----------------------------------------------------------------------------------------------------------- algebra


def cholesky_density(covariance: jax.Array, rest: jax.Array) -> jax.Array:
    factor = jnp.linalg.cholesky(covariance)
    white = jax.scipy.linalg.solve_triangular(factor, rest, lower=True)
    return -0.5 * (white @ white + len(rest) * np.log(2 * np.pi)) - jnp.sum(jnp.log(jnp.diag(factor)))


def along(density: Callable[[Any, Any], jax.Array], at: jax.Array) -> jax.Array:
    """A density of three parameters, one of them of the mean."""
    x = jnp.asarray(rows(6, 1))
    covariance = gp.RBF(jnp.exp(at[0]), jnp.exp(at[1]))(x, x) + 0.1 * jnp.eye(6)
    return density(covariance, outcomes(6) - at[2] * x[:, 0])


def test_closed_forms_are_the_derivatives_of_the_cholesky_form() -> None:
    at = jnp.array([-1.0, 0.3, 0.4])
    for derivative in (lambda f: f, jax.grad, jax.hessian, lambda f: jax.jacrev(jax.grad(f))):
        found, expected = (
            jax.jit(derivative(partial(along, each)))(at) for each in (log_normal_density, cholesky_density)
        )
        np.testing.assert_allclose(found, expected, rtol=1e-9, atol=1e-11)


@pytest.mark.parametrize(("kind", "unit"), [("int16", 100), ("int32", 86_400), ("float64", 100)])
def test_inputs_may_be_whole_numbers(kind: str, unit: int) -> None:
    """Whose squares would wrap around: hundreds in two bytes, days as seconds in four."""
    x, scale = unit * np.arange(4, dtype=kind), 0.3 * unit
    expected = np.exp(-0.5 * ((np.arange(4.0)[:, None] - np.arange(4.0)) / 0.3) ** 2)
    np.testing.assert_allclose(gp.RBF(scale)(x, x), expected, rtol=1e-12)


def test_equal_inputs_have_the_whole_variance_at_any_length_scale() -> None:
    x = np.zeros(2, np.float32)
    np.testing.assert_array_equal(gp.RBF(np.float32(1e-30))(x, x), np.ones((2, 2)))


def test_closed_forms_are_finite_differences() -> None:
    at, step = jnp.array([-1.0, 0.3, 0.4]), 1e-5 * jnp.eye(3)
    density = jax.jit(partial(along, log_normal_density))
    slope, curvature = jax.jit(jax.grad(density)), jax.jit(jax.hessian(density))
    expected = [(density(at + h) - density(at - h)) / 2e-5 for h in step]
    np.testing.assert_allclose(slope(at), expected, rtol=1e-7, atol=1e-8)
    expected = [(slope(at + h) - slope(at - h)) / 2e-5 for h in step]
    np.testing.assert_allclose(curvature(at), expected, rtol=1e-6, atol=1e-7)


def test_hessians_of_many_clients_are_those_of_each() -> None:
    """Second derivatives under ``vmap``: of a batched Cholesky factor they could stand still for ever."""
    x, y, theta = rows(5, 8), rows(5, 8, seed=2), jnp.asarray(THETA)
    curvature = jax.jit(jax.hessian(lambda at, x, y: energy(at, "matern32", x, y)))
    found = jax.jit(jax.vmap(curvature, in_axes=(None, 0, 0)))(theta, x, y)
    for k in range(5):
        np.testing.assert_allclose(found[k], curvature(theta, x[k], y[k]), rtol=1e-9, atol=1e-10)


def test_the_inverse_has_its_derivatives() -> None:
    matrix, direction = (rows(4, 4, seed=s) for s in (0, 1))
    matrix, direction = matrix @ matrix.T + np.eye(4), direction + direction.T
    ours, plain = (lambda t, of=of: of(matrix + t * direction) for of in (inverse, jnp.linalg.inv))
    for derivative in (lambda f: f, jax.jacfwd, lambda f: jax.jacfwd(jax.jacfwd(f))):
        found, expected = (jax.jit(derivative(each))(0.05) for each in (ours, plain))
        np.testing.assert_allclose(found, expected, rtol=1e-9, atol=1e-11)


def test_the_sparse_law_bears_close_inducing_inputs() -> None:
    """Gradient and Hessian of the bound are those of the exact density, though ``K_mm`` is all but singular."""
    rng = np.random.default_rng(0)
    x = np.sort(rng.uniform(size=300))
    y = np.sin(20.0 * x) + 0.2 * rng.normal(size=300)
    at = jnp.log(jnp.array([0.1, 1.0, 0.05]))

    def bound(at: jax.Array) -> jax.Array:
        scale, variance, noise = jnp.exp(at)
        return gp.SparseGaussianProcess(gp.RBF(scale, variance), x, noise, np.linspace(0, 1, 40)).log_prob(y)

    def density(at: jax.Array) -> jax.Array:
        scale, variance, noise = jnp.exp(at)
        return gp.GaussianProcess(gp.RBF(scale, variance), x, noise).log_prob(y)

    for derivative in (jax.grad, jax.hessian):
        found, expected = (np.asarray(jax.jit(derivative(each))(at)) for each in (bound, density))
        np.testing.assert_allclose(found, expected, atol=2e-3 * np.max(np.abs(expected)))


# -------------------------------------------------------------------------------------------------------- masked rows

MASK = np.array([True, False, True, True, False, True, True])


def exact(theta: Any, x: np.ndarray, mean: Any = 0.3) -> gp.GaussianProcess:
    return gp.GaussianProcess(gp.Matern52(theta[0], theta[1]), x, theta[2], mean, jitter=0.0)


def sparse(theta: Any, x: np.ndarray, mean: Any = 0.3) -> gp.SparseGaussianProcess:
    return gp.SparseGaussianProcess(
        gp.Matern52(theta[0], theta[1]), x, theta[2], np.linspace(0, 1, 4), mean, jitter=0.0
    )


every_law = pytest.mark.parametrize("make", [exact, sparse])


@every_law
def test_masked_rows_leave_the_law_of_the_others(make: Callable[..., Any]) -> None:
    """Density, gradient, Hessian and prediction; whatever stands in the other rows of the outcome, here nothing."""
    x, y = rows(7, 1), np.where(MASK, outcomes(7), np.nan)

    def masked(theta: jax.Array) -> jax.Array:
        return make(theta, x).of_rows(MASK).log_prob(y)

    def alone(theta: jax.Array) -> jax.Array:
        return make(theta, x[MASK]).log_prob(y[MASK])

    def everything(density: Callable[[jax.Array], jax.Array]) -> Callable[[jax.Array], tuple[jax.Array, ...]]:
        return jax.jit(lambda theta: (density(theta), jax.grad(density)(theta), jax.hessian(density)(theta)))

    for found, expected in zip(everything(masked)(THETA), everything(alone)(THETA), strict=True):
        np.testing.assert_allclose(found, expected, rtol=1e-10, atol=1e-10)

    @jax.jit
    def predictions(theta: jax.Array) -> list[tuple[jax.Array, jax.Array]]:
        new = make(theta, rows(3, 1, seed=3))
        both = new.given(make(theta, x).of_rows(MASK), y), new.given(make(theta, x[MASK]), y[MASK])
        return [(each.mean, each.factor) for each in both]

    found, expected = predictions(THETA)
    np.testing.assert_allclose(found[0], expected[0], rtol=1e-10)
    np.testing.assert_allclose(found[1], expected[1], atol=1e-10)


@every_law
def test_masks_add_up(make: Callable[..., Any]) -> None:
    x, y, more = rows(7, 1), outcomes(7), np.arange(7) < 5
    twice = make(THETA, x).of_rows(MASK).of_rows(more)
    np.testing.assert_allclose(twice.log_prob(y), make(THETA, x).of_rows(MASK & more).log_prob(y), rtol=1e-14)


@every_law
def test_a_law_of_no_rows_has_a_density_of_one(make: Callable[..., Any]) -> None:
    nothing = make(THETA, rows(7, 1)).of_rows(np.zeros(7, bool))
    np.testing.assert_allclose(nothing.log_prob(outcomes(7)), 0.0, atol=1e-12)


@every_law
def test_a_mean_moves_outcomes_and_predictions(make: Callable[..., Any]) -> None:
    x, y, new = rows(7, 1), outcomes(7), rows(3, 1, seed=3)
    trend, ahead = 2.0 * x[:, 0] - 1.0, 2.0 * new[:, 0] - 1.0
    np.testing.assert_allclose(make(THETA, x, trend).log_prob(y), make(THETA, x, 0.0).log_prob(y - trend), rtol=1e-12)
    found = make(THETA, new, ahead).given(make(THETA, x, trend), y).mean
    plain = make(THETA, new, 0.0).given(make(THETA, x, 0.0), y - trend).mean
    np.testing.assert_allclose(found, plain + ahead, rtol=1e-10)


# ------------------------------------------------------------------------------------------------------------- sparse


def test_sparse_is_exact_at_inducing_inputs_that_are_the_rows() -> None:
    x, y, new = rows(10, 1), outcomes(10), rows(4, 1, seed=3)

    def approximate(x: np.ndarray, inducing: np.ndarray) -> gp.SparseGaussianProcess:
        return gp.SparseGaussianProcess(gp.Matern32(0.3, 1.5), x, 0.2, inducing, jitter=0.0)

    seen, same = law(THETA, "matern32", x), approximate(x, x)
    np.testing.assert_allclose(same.log_prob(y), seen.log_prob(y), rtol=1e-10)
    found, expected = approximate(new, x).given(same, y), law(THETA, "matern32", new).given(seen, y)
    np.testing.assert_allclose(found.mean, expected.mean, atol=1e-9)
    np.testing.assert_allclose(found.factor, expected.factor, atol=1e-9)


def test_sparse_is_a_lower_bound_that_rises_with_the_inducing_inputs() -> None:
    """Nested inducing inputs give rising bounds (Titsias 2009), here from 380 below to 3e-4."""
    x, y = rows(40, 1), np.sin(8 * rows(40, 1)[:, 0]) + 0.2 * outcomes(40)

    def bound(scale: float, inducing: np.ndarray) -> jax.Array:
        return gp.SparseGaussianProcess(gp.RBF(scale, 1.0), x, 0.05, inducing).log_prob(y)

    full, compiled = law([0.2, 1.0, 0.05], "rbf", x).log_prob(y), jax.jit(bound)
    gaps = [float(full - compiled(0.2, np.linspace(0, 1, num))) for num in (2, 3, 5, 9, 17)]
    assert np.all(np.diff(gaps) < 0.0)
    assert 0.0 < gaps[-1] < 1e-3


def test_sparse_predictions_are_close_with_enough_inducing_inputs() -> None:
    x, new = rows(60, 1), np.linspace(0, 1, 21)
    y = np.sin(8 * x[:, 0]) + 0.2 * outcomes(60)
    inducing = np.linspace(0, 1, 15)
    kernel = gp.RBF(0.2, 1.0)
    seen = gp.SparseGaussianProcess(kernel, x, 0.05, inducing)
    found = gp.SparseGaussianProcess(kernel, new, 0.05, inducing).given(seen, y)
    expected = law([0.2, 1.0, 0.05], "rbf", new).given(law([0.2, 1.0, 0.05], "rbf", x), y)
    np.testing.assert_allclose(found.mean, expected.mean, atol=1e-3)
    np.testing.assert_allclose(found.variance, expected.variance, rtol=1e-3)


@pytest.mark.parametrize("num", [17, 40])
def test_sparse_gradients_stay_accurate_with_many_inducing_inputs(num: int) -> None:
    """Their covariance is all but singular; with a jitter of 1e-9 the gradient at 40 was -27 in place of 15."""
    x, y = rows(40, 1), np.sin(8 * rows(40, 1)[:, 0]) + 0.2 * outcomes(40)

    def bound(scale: float) -> jax.Array:
        return gp.SparseGaussianProcess(gp.RBF(scale, 1.0), x, 0.05, np.linspace(0, 1, num)).log_prob(y)

    expected = jax.jit(jax.grad(lambda scale: law([scale, 1.0, 0.05], "rbf", x).log_prob(y)))(0.2)
    np.testing.assert_allclose(jax.jit(jax.grad(bound))(0.2), expected, rtol=2e-3)


def test_sparse_gradients_are_finite_differences() -> None:
    x, y = rows(12, 1), outcomes(12)
    density, step = jax.jit(lambda theta: sparse(theta, x).log_prob(y)), 1e-5 * np.eye(3)
    expected = [(density(THETA + h) - density(THETA - h)) / 2e-5 for h in step]
    np.testing.assert_allclose(jax.jit(jax.grad(density))(THETA), expected, rtol=1e-6, atol=1e-6)


# ------------------------------------------------------------------------------------------------------------ samples

DRAWS = 25_000
LIMIT = 5.0  # standard errors, of some 20 numbers


@pytest.mark.statistical(key=0, numbers=20, errors=5.0)
def test_samples_of_a_gaussian_process_have_its_moments(key: jax.Array) -> None:
    process = exact(THETA, rows(5, 1), mean=np.arange(5.0))
    draws = np.asarray(process.sample(key, (DRAWS,)))
    assert np.abs(z_scores(draws, np.arange(5.0), np.asarray(process.covariance))).max() < LIMIT
    np.testing.assert_allclose(np.diag(process.covariance), process.variance, rtol=1e-12)
    reference = stats.multivariate_normal(np.arange(5.0), process.covariance)
    np.testing.assert_allclose(process.log_prob(draws[0]), reference.logpdf(draws[0]), rtol=1e-12)


@pytest.mark.slow
@pytest.mark.optimised
@every_law
@pytest.mark.statistical(key=0, numbers=20, errors=5.0)
def test_samples_given_other_rows_have_their_moments(make: Callable[..., Any], key: jax.Array) -> None:
    x = rows(6, 1)
    law = make(THETA, rows(5, 1, seed=3)).given(make(THETA, x), outcomes(6))
    draws, covariance = np.asarray(law.sample(key, (DRAWS,))), np.asarray(law.factor @ law.factor.T)
    assert np.abs(z_scores(draws, np.asarray(law.mean), covariance)).max() < LIMIT
    np.testing.assert_allclose(np.diag(covariance), law.variance, rtol=1e-10)
    reference = stats.multivariate_normal(law.mean, covariance)
    np.testing.assert_allclose(law.log_prob(draws[0]), reference.logpdf(draws[0]), rtol=1e-10)
    np.testing.assert_allclose(law.marginals.variance, law.variance, rtol=1e-12)


@pytest.mark.statistical(key=0, numbers=20, errors=5.0)
def test_samples_of_the_sparse_law_have_its_moments(key: jax.Array) -> None:
    """The function's values between inducing inputs are drawn row by row: their variances are right, too."""
    process = sparse(THETA, rows(5, 1), mean=np.arange(5.0))
    low_rank = np.asarray(process.features.T @ process.features)
    covariance = low_rank + np.diag(np.asarray(process.variance) - np.diag(low_rank))
    draws = np.asarray(process.sample(key, (DRAWS,)))
    assert np.abs(z_scores(draws, np.arange(5.0), covariance)).max() < LIMIT


# a variance 9.8 errors off, less LIMIT; its error is 0.91 of the true one's
@pytest.mark.statistical(key=0, numbers=1, errors=5.3)
def test_the_moments_catch_a_noise_that_is_left_out(key: jax.Array) -> None:
    process = exact(THETA, rows(5, 1), mean=0.0)
    draws = np.asarray(exact([*THETA[:2], 0.05], rows(5, 1), mean=0.0).sample(key, (DRAWS,)))
    assert np.abs(z_scores(draws, np.zeros(5), np.asarray(process.covariance))).max() > LIMIT


@pytest.mark.statistical(key=3, alarm=1.7e-5)  # a level of 1e-5, and a variance to 4.5 errors
def test_simulated_clients_follow_the_model() -> None:
    """Whitened by the true covariance their outcomes are independent and standard: 2400 of them."""
    clients, truth = gp.simulate(jax.random.key(3), 40, 60, kernel="matern32", length_scale=0.3, variance=2.0)
    assert (truth["length_scale"], truth["variance"], truth["noise"]) == (0.3, 2.0, 0.05)
    for noise, model in ((0.05, True), (0.05**2, False)):  # planted: the noise's variance taken for its sd
        white = []
        for client in clients.values():
            process = gp.GaussianProcess(gp.Matern32(0.3, 2.0), client["x"], noise, jitter=0.0)
            white.append(np.linalg.solve(process.factor, client["y"]))
        found = stats.kstest(np.concatenate(white), "norm").pvalue
        assert found > 1e-5 if model else found < 1e-50
    rest = np.concatenate([clients[name]["y"] - f for name, f in truth["f"].items()])
    assert abs(rest.var() / 0.05 - 1.0) < 4.5 * np.sqrt(2 / len(rest))


# ----------------------------------------------------------------------------------------------- the program, refusals


@pytest.mark.parametrize("kernel", ["rbf", "matern12", "matern32", "matern52"])
@pytest.mark.parametrize("ard", [False, True])
def test_sites_of_the_model(kernel: str, ard: bool) -> None:
    program = handlers.seed(partial(gp.model, kernel=kernel, ard=ard), 0)
    trace = handlers.trace(program).get_trace(x=rows(6, 2), y=outcomes(6))
    shapes = {name: np.shape(site["value"]) for name, site in trace.items() if site["type"] == "sample"}
    assert shapes == {"length_scale": (2,) if ard else (), "variance": (), "noise": (), "y": (6,)}
    values = {name: trace[name]["value"] for name in ("length_scale", "variance", "noise")}
    matrix = trace["y"]["fn"].covariance
    np.testing.assert_allclose(np.diag(matrix), values["variance"] + values["noise"] + 1e-4, rtol=1e-7)


def test_two_dimensional_clients_have_the_columns_asked_for() -> None:
    clients, _ = gp.simulate(jax.random.key(0), 3, (4, 1, 9), dim=2)
    assert [client["x"].shape for client in clients.values()] == [(4, 2), (1, 2), (9, 2)]
    with pytest.raises(ValueError, match="rows has 2 entries for num_clients=3"):
        gp.simulate(jax.random.key(0), 3, (4, 1))


BAD = {
    "length scale": (lambda: gp.RBF(0.0), "`length_scale` is 0.0; a kernel's parameters are positive"),
    "one of them": (lambda: gp.Matern32(np.array([1.0, -1.0])), r"`length_scale` is \[1.0, -1.0\]"),
    "variance": (lambda: gp.Matern12(1.0, -2.0), "`variance` is -2.0; .* `dist.LogNormal"),
    "period": (lambda: gp.Periodic(1.0, np.inf), "`period` is inf"),
    "noise": (lambda: gp.GaussianProcess(gp.RBF(1.0), X, -0.1), "`noise` is -0.1"),
    "no noise": (lambda: gp.SparseGaussianProcess(gp.RBF(1.0), X, 0.0, X), "`noise` is 0.0"),
    "kernel": (lambda: handlers.seed(gp.model, 0)(X, kernel="cosine"), "`kernel` is 'cosine'; it is one of"),
}


@pytest.mark.parametrize(("build", "message"), BAD.values(), ids=BAD.keys())
def test_refused_parameters(build: Callable[[], Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        build()


def test_exact_processes_without_noise_are_allowed() -> None:
    """Of different inputs: the function itself is seen, and its predictions there are certain."""
    found = gp.GaussianProcess(gp.RBF(0.3), X, 0.0).given(gp.GaussianProcess(gp.RBF(0.3), X, 0.0), Y)
    np.testing.assert_allclose(found.mean, Y, atol=1e-6)
    np.testing.assert_allclose(found.signal_variance, 0.0, atol=1e-6)


def test_too_many_rows_are_refused_with_their_cost() -> None:
    with pytest.raises(ModelError) as refused:
        gp.GaussianProcess(gp.RBF(0.3), np.zeros(20_000), 0.1)
    text = str(refused.value)
    for needed in ("20,000 rows", "2.98 GiB", "2,667 billion operations", "SparseGaussianProcess", "`max_rows`"):
        assert needed in text
    with pytest.raises(ModelError, match="more than 3 rows"):
        gp.GaussianProcess(gp.RBF(0.3), X, 0.1, max_rows=3)
    assert gp.GaussianProcess(gp.RBF(0.3), np.zeros(20_000), 0.1, max_rows=20_000).event_shape == (20_000,)


def test_rows_of_one_law_are_not_predicted_from_another() -> None:
    one, other = exact(THETA, X), sparse(THETA, X)
    with pytest.raises(TypeError, match="rows seen have the law SparseGaussianProcess, and the new ones GaussianPro"):
        one.given(other, Y)
    with pytest.raises(TypeError, match="rows seen have the law GaussianProcess, and the new ones SparseGaussian"):
        other.given(one, Y)


def test_equal_inputs_with_different_outcomes_need_noise() -> None:
    x, y = np.array([0.0, 0.0, 1.0]), np.array([1.0, 2.0, 0.0])
    flags = [bool(flag) for flag in gp.GaussianProcess(gp.RBF(0.3), x, 0.0).defects(y).values()]
    assert flags == [True, False]
    for noise, outcome in ((0.1, y), (0.0, np.array([1.0, 1.0, 0.0]))):
        found = gp.GaussianProcess(gp.RBF(0.3), x, noise).defects(outcome)
        assert not any(bool(flag) for flag in found.values())
