"""The client's half of federated posterior averaging against dense linear algebra."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from fedbayes.inference.fedpa.shrinkage import shrinkage_weight, shrunk_delta, shrunk_factor, shrunk_precision

# draws, dimension, rho, scale, how often each draw is repeated; few shapes, as each is compiled
CASES = [
    (1, 5, 0.4, 1.0, 1),
    (2, 7, 0.4, 1.0, 1),
    (4, 1, 0.7, 1.0, 1),
    (8, 5, 1.0, 1.0, 1),
    (8, 5, 0.0, 1.0, 1),
    (30, 4, 0.1, 1.0, 1),
    (30, 4, 100.0, 1.0, 1),
    (5, 300, 0.4, 1.0, 1),
    (12, 30, 0.4, 3.0, 1),
    (12, 30, 2.0, 0.25, 1),
    (12, 30, 100.0, 1.0, 1),
    (4, 30, 0.4, 1.0, 3),
    (3, 30, 100.0, 1.0, 4),
    (1, 30, 0.4, 1.0, 12),
]
# those in which rho_l and l matter: not where rho is so large that hardly anything is left of the identity
ordinary = pytest.mark.parametrize("case", [case for case in CASES if case[0] > 1 and 0.0 < case[2] < 10.0], ids=str)
every = pytest.mark.parametrize("case", CASES, ids=str)
large = pytest.mark.parametrize("dtype", [jnp.float32, jnp.float64], ids=["float32", "float64"])


@pytest.fixture(autouse=True)
def _float64():
    with jax.enable_x64(True):
        yield


def make(case: tuple, dtype: type = np.float64) -> tuple[jax.Array, jax.Array]:
    """A position, and draws off the origin with unequal sds."""
    num, size, _, _, repeats = case
    rng = np.random.default_rng(num * size)
    samples = 3.0 + rng.normal(size=(num, size)) * np.linspace(0.5, 2.0, size)
    return jnp.asarray(rng.normal(size=size), dtype), jnp.asarray(np.repeat(samples, repeats, axis=0), dtype)


def dense(samples: jax.Array, rho: float, scale: float, mistake: str = "") -> np.ndarray:
    """The shrinkage covariance as the paper writes it, or with a mistake."""
    samples = np.asarray(samples, float)
    num, size = samples.shape
    weight = 1.0 / (1.0 + (num - (mistake != "l for l - 1 in rho_l")) * rho)
    gap = samples - samples.mean(axis=0)
    scatter = gap.T @ gap / max(num - (mistake != "divided by l"), 1)
    of_identity = 1.0 if mistake == "identity not weighted" else weight
    return of_identity * np.eye(size) + (1.0 - weight) * scale * scatter


def relative(found: jax.Array, exact: np.ndarray) -> float:
    return float(np.max(np.abs(np.asarray(found) - exact)) / np.max(np.abs(exact)))


@jax.jit
def found(position: jax.Array, samples: jax.Array, rho: jax.Array, scale: jax.Array) -> tuple[jax.Array, ...]:
    """Everything at once: delta, mean, basis, weight, precision."""
    delta, mean = shrunk_delta(position, samples, rho, scale)
    return delta, mean, *shrunk_factor(samples, rho, scale), shrunk_precision(samples, rho, scale)


@every
def test_recursion_woodbury_and_the_dense_solve_agree(case) -> None:
    _, _, rho, scale, _ = case
    position, samples = make(case)
    exact = np.linalg.inv(dense(samples, rho, scale))
    delta, mean, basis, weight, precision = found(position, samples, rho, scale)
    np.testing.assert_allclose(mean, samples.mean(axis=0), rtol=1e-13)
    assert relative(delta, np.linalg.solve(dense(samples, rho, scale), position - samples.mean(axis=0))) < 1e-10
    assert relative((np.eye(len(position)) - basis.T @ basis) / weight, exact) < 1e-10
    assert relative(precision, exact) < 1e-10
    assert basis.shape == samples.shape
    assert np.linalg.norm(basis, 2) < 1.0
    assert np.linalg.matrix_rank(basis, tol=1e-8) <= case[0] - 1


@ordinary
@pytest.mark.parametrize("mistake", ["l for l - 1 in rho_l", "divided by l", "identity not weighted"])
def test_planted_bugs_are_caught(case, mistake) -> None:
    """What the test above compares at 1e-10 tells these apart."""
    _, _, rho, scale, _ = case
    position, samples = make(case)
    delta, mean, *_, precision = found(position, samples, rho, scale)
    wrong = dense(samples, rho, scale, mistake)
    assert relative(delta, np.linalg.solve(wrong, position - mean)) > 1e-4
    assert relative(precision, np.linalg.inv(wrong)) > 1e-4


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_one_draw_is_federated_averaging_to_the_last_bit(dtype) -> None:
    position, samples = make((1, 50, 0.4, 1.0, 1), dtype)
    for run in (shrunk_delta, jax.jit(shrunk_delta)):
        delta, mean = run(position, samples, 0.4)
        np.testing.assert_array_equal(delta, position - samples[0])
        np.testing.assert_array_equal(mean, samples[0])
        assert delta.dtype == dtype
    basis, weight = shrunk_factor(samples, 0.4)
    assert not np.any(basis)
    assert weight == 1.0


def test_the_weight_of_the_identity() -> None:
    assert shrinkage_weight(1, 0.4) == 1.0
    assert shrinkage_weight(10, 0.0) == 1.0
    np.testing.assert_allclose(shrinkage_weight(11, 0.4), 0.2, rtol=1e-15)


def test_all_maps_over_clients() -> None:
    position, samples = make((8, 5, 0.4, 2.0, 1))
    clients, rhos = jnp.stack([samples, samples[::-1] ** 2]), jnp.array([0.4, 1.3])
    together = jax.vmap(found, (None, 0, 0, None))(position, clients, rhos, 2.0)
    for k in range(2):
        for alone, mapped in zip(found(position, clients[k], rhos[k], 2.0), together, strict=True):
            np.testing.assert_allclose(mapped[k], alone, rtol=1e-11, atol=1e-12)


@every
def test_float32_loses_what_the_docstring_says(case) -> None:
    """A small multiple of machine epsilon times the largest eigenvalue of ``Sigma / rho_l``."""
    _, _, rho, scale, _ = case
    position, samples = make(case, np.float32)
    covariance = dense(samples, rho, scale)
    exact = np.linalg.solve(covariance, np.asarray(position, float) - np.mean(np.asarray(samples, float), axis=0))
    delta, mean, *_ = found(
        position, samples, jnp.array(rho, float), scale
    )  # a rho of float64, as a server may send it
    assert delta.dtype == mean.dtype == np.float32
    largest = np.linalg.norm(covariance, 2) / shrinkage_weight(len(samples), rho)
    assert relative(delta, exact) < 8 * np.finfo(np.float32).eps * largest


@pytest.mark.parametrize("rho", [1e4, 1e8, 1e12])
def test_repeated_draws_under_a_large_rho_stay_finite(rho) -> None:
    """In float32 the repeats are lost in round-off, which must not become the square root of a negative number."""
    samples = np.random.default_rng(0).normal(size=(20, 4, 50)).repeat(8, axis=1)
    deltas, _ = jax.jit(jax.vmap(shrunk_delta, (None, 0, None)))(jnp.ones(50), jnp.asarray(samples, jnp.float32), rho)
    assert np.all(np.isfinite(deltas))


@large
def test_a_million_dimensions_take_memory_linear_in_them(dtype) -> None:
    """By XLA's own account: compiled, not run."""
    num, size = 32, 1_000_000
    shapes = [jax.ShapeDtypeStruct(shape, dtype) for shape in ((size,), (num, size), (), ())]
    for run, given in ((shrunk_delta, shapes), (shrunk_factor, shapes[1:])):
        lowered = jax.jit(run).lower(*given)
        usage = lowered.compile().memory_analysis()
        assert usage.temp_size_in_bytes < 1.5 * num * size * jnp.dtype(dtype).itemsize
        assert f"{size}x{size}" not in lowered.as_text()
    for leaf in jax.tree.leaves(jax.eval_shape(shrunk_delta, *shapes)):
        assert leaf.shape == (size,)
        assert leaf.dtype == dtype


def test_the_dense_precision_is_found_by_the_same_look_at_the_program() -> None:
    shapes = [jax.ShapeDtypeStruct(shape, jnp.float64) for shape in ((4, 1000), (), ())]
    assert "1000x1000" in jax.jit(shrunk_precision).lower(*shapes).as_text()
