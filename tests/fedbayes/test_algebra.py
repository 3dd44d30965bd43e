"""Values with algebra: Gaussian factors, bytes on the wire, padded lengths, and importance weights."""

import io
from dataclasses import dataclass
from itertools import combinations

import arviz as az
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from fedbayes.numerics import importance
from fedbayes.numerics.gaussian import (
    Gaussian,
    eigenvectors,
    gaussian_from_moments,
    large_whitener,
    log_det,
    whitener,
    whitener_for,
)
from fedbayes.numerics.importance import log_mean_exp, pareto_smooth, quasi_normal, random_shift
from fedbayes.problem.data.padding import _WORTH_A_BUCKET, bucket_lengths, num_rows, pad, row_arguments
from fedbayes.problem.data.reading import ClientArrays
from fedbayes.rounds.wire import decode, encode, named_arrays


@pytest.fixture(autouse=True)
def _float64():
    with jax.enable_x64(True):
        yield


def make_gaussian(seed: int, size: int = 3) -> Gaussian:
    rng = np.random.default_rng(seed)
    half = rng.normal(size=(size, size + 2))
    return Gaussian(
        jnp.asarray(rng.normal(size=size)), jnp.asarray(half @ half.T + np.eye(size)), jnp.asarray(rng.normal())
    )


def assert_close(one: Gaussian, two: Gaussian, tolerance: float = 1e-13) -> None:
    for ours, theirs in zip(jax.tree.leaves(one), jax.tree.leaves(two), strict=True):
        np.testing.assert_allclose(ours, theirs, rtol=tolerance, atol=tolerance)


A, B, C = 0, 1, 2


def test_product_is_commutative_associative_and_has_a_neutral_element():
    a, b, c = (make_gaussian(seed) for seed in (A, B, C))
    assert_close(a + b, b + a, 0.0)
    assert_close((a + b) + c, a + (b + c))
    assert_close(a + Gaussian.neutral(3), a, 0.0)


def test_quotient_undoes_product():
    a, b = make_gaussian(A), make_gaussian(B)
    assert_close((a + b) - b, a)
    assert_close(a - a, Gaussian.neutral(3), 0.0)
    assert_close(a.scaled(2.0), a + a)


def test_sum_over_clients_is_the_product():
    parts = [make_gaussian(seed) for seed in (A, B, C)]
    stacked = jax.tree.map(lambda *leaves: jnp.stack(leaves), *parts)
    assert_close(stacked.summed(), parts[0] + parts[1] + parts[2])
    assert_close(Gaussian.neutral(3, (4,)).summed(), Gaussian.neutral(3), 0.0)


def test_product_multiplies_values():
    a, b, x = make_gaussian(A), make_gaussian(B), jnp.array([0.3, -1.0, 2.0])
    np.testing.assert_allclose((a + b).log_value(x), a.log_value(x) + b.log_value(x), rtol=1e-13)


@pytest.mark.parametrize("size", [1, 2, 3, 14, 33])
@pytest.mark.parametrize("graded", [0.0, 12.0])
def test_eigenvectors(size, graded):
    """Eigenvalues over many orders of magnitude, and zeros: to a small part of the largest."""
    rng = np.random.default_rng(size)
    axes = np.linalg.qr(rng.normal(size=(size, size)))[0]
    expected = 10.0 ** (-graded * rng.uniform(size=size))
    expected[: size // 3] = 0.0
    matrix = (axes * expected) @ axes.T
    values, vectors = jax.jit(eigenvectors)(0.5 * (matrix + matrix.T))
    np.testing.assert_allclose(np.sort(values), np.sort(expected), atol=1e-13)
    np.testing.assert_allclose(vectors.T @ vectors, np.eye(size), atol=1e-13)
    np.testing.assert_allclose((vectors * values) @ vectors.T, matrix, atol=1e-9)
    assert eigenvectors(jnp.zeros((0, 0)))[1].shape == (0, 0)


def test_moments_and_integral():
    g = make_gaussian(A)
    mean, covariance = g.moments()
    np.testing.assert_allclose(covariance, np.linalg.inv(g.precision), rtol=1e-11)
    np.testing.assert_allclose(mean, np.linalg.solve(g.precision, g.shift), rtol=1e-11)
    back = gaussian_from_moments(mean, covariance)
    assert_close(back, g.normalised(), 1e-11)
    np.testing.assert_allclose(back.log_integral(), 0.0, atol=1e-12)
    logpdf = -0.5 * (np.log(np.linalg.det(2 * np.pi * covariance)) + mean @ g.precision @ mean)
    np.testing.assert_allclose(back.log_value(jnp.zeros(3)), logpdf, rtol=1e-12)


def test_improper_factor_is_known():
    g = make_gaussian(A)
    improper = Gaussian(g.shift, jnp.diag(jnp.array([1.0, 0.0, -1.0])), g.log_scale)
    assert g.is_proper()
    assert not improper.is_proper()
    assert not np.all(np.isfinite(improper.moments()[0]))
    assert not Gaussian(g.shift * jnp.nan, g.precision, g.log_scale).is_proper()


def test_draws_have_the_moments():
    g = make_gaussian(B)
    mean, covariance = g.moments()
    draws = np.asarray(g.sample(jax.random.key(1), 100_000))
    assert np.max(np.abs(draws.mean(axis=0) - mean) / np.sqrt(np.diag(covariance))) < 5 / np.sqrt(1e5)
    np.testing.assert_allclose(np.cov(draws.T), covariance, atol=0.03 * np.max(np.abs(covariance)))


@pytest.mark.parametrize("size", [0, 1, 2, 5, 20])
def test_whitener(size):
    rng = np.random.default_rng(size)
    half = rng.normal(size=(size, size + 3))
    matrix = half @ half.T
    white = np.asarray(whitener(jnp.asarray(matrix)))
    np.testing.assert_allclose(
        white, np.linalg.inv(np.linalg.cholesky(matrix)) if size else white, rtol=1e-8, atol=1e-10
    )
    np.testing.assert_allclose(white @ matrix @ white.T, np.eye(size), atol=1e-9)
    np.testing.assert_allclose(log_det(jnp.asarray(white)), np.linalg.slogdet(matrix)[1], rtol=1e-10, atol=1e-12)


def test_whitener_of_what_is_no_precision():
    for bad in (np.diag([1.0, -1.0]), np.zeros((2, 2)), np.array([[1.0, 2.0], [2.0, 1.0]]), np.full((2, 2), np.nan)):
        assert not np.all(np.isfinite(whitener(jnp.asarray(bad))))


@jax.tree_util.register_dataclass
@dataclass(frozen=True)
class Message:
    site: Gaussian
    extra: dict


def make_message() -> Message:
    return Message(
        make_gaussian(A), {"count": np.arange(3), "empty": np.zeros((0, 2), np.float32), "yes": np.array(True)}
    )


def test_wire_round_trip_is_bit_identical():
    message = make_message()
    for template in (message, jax.eval_shape(lambda: message)):
        back = decode(encode(message), template)
        assert jax.tree.structure(back) == jax.tree.structure(message)
        for ours, theirs in zip(jax.tree.leaves(back), jax.tree.leaves(message), strict=True):
            assert ours.dtype == theirs.dtype
            np.testing.assert_array_equal(ours, theirs)
    np.testing.assert_array_equal(decode(encode(np.pi * np.ones(2)), np.zeros(2)), np.pi * np.ones(2))
    assert list(named_arrays(np.ones(2))) == ["value"]


def test_wire_refuses_other_messages():
    sent = encode({"a": np.zeros(2), "b": np.zeros(3)})
    with pytest.raises(ValueError, match=r"A message holds the arrays \[.*'b'.*\]; expected \[.*'a'.*\]"):
        decode(sent, {"a": np.zeros(2)})
    with pytest.raises(ValueError, match=r"A message holds the arrays"):
        decode(sent, {"a": np.zeros(2), "b": np.zeros(3), "c": np.zeros(1)})
    with pytest.raises(ValueError, match=r"has shape \(3,\) and dtype float64; expected \(4,\) and float64"):
        decode(sent, {"a": np.zeros(2), "b": np.zeros(4)})
    with pytest.raises(ValueError, match=r"has shape \(3,\) and dtype float64; expected \(3,\) and float32"):
        decode(sent, {"a": np.zeros(2), "b": np.zeros(3, np.float32)})


def test_wire_never_loads_pickles():
    buffer = io.BytesIO()
    np.savez(buffer, value=np.array([{"evil": print}], dtype=object))
    with pytest.raises(ValueError, match="no array of numbers"):
        decode(buffer.getvalue(), np.zeros(1))


def cost(rows: list[int], lengths: tuple[int, ...], power: int = 1) -> int:
    return sum(min(length for length in lengths if length >= n) ** power for n in rows)


@pytest.mark.parametrize("power", [1, 2])
@pytest.mark.parametrize("seed", range(6))
def test_bucket_lengths_are_optimal(seed, power):
    """Against brute force over all choices of up to three lengths; also where a client costs the square of its rows."""
    rows = (np.random.default_rng(seed).lognormal(5.0, 1.5, size=12).astype(int) + 1).tolist()
    chosen = bucket_lengths(rows, power=power)
    best = {
        k: min(cost(rows, (*others, max(rows)), power) for others in combinations(sorted(set(rows))[:-1], k - 1))
        for k in (1, 2, 3)
    }
    assert chosen == sorted(chosen)
    assert chosen[-1] == max(rows)
    assert cost(rows, tuple(chosen), power) == best[len(chosen)]
    if len(chosen) > 1:  # a bucket is opened only where it pays for its compilation
        assert min(best[k] for k in range(1, len(chosen))) - best[len(chosen)] > _WORTH_A_BUCKET


@pytest.mark.parametrize("rows", [[1], [5, 5, 5], [1, 2, 3], list(range(1, 200)), [10] * 50 + [100_000]])
def test_bucket_lengths_bound_the_waste(rows):
    chosen = bucket_lengths(rows)
    assert len(chosen) <= 3
    waste = cost(rows, tuple(chosen)) - sum(rows)
    assert waste <= max(len(rows) * max(rows) - sum(rows), 0)
    if rows[-1] == 100_000:
        assert chosen == [10, 100_000]
    if max(rows) * len(rows) <= _WORTH_A_BUCKET:
        assert chosen == [max(rows)]


def test_many_lengths_are_covered():
    rows = np.random.default_rng(9).integers(1, 100_000, size=500)
    chosen = bucket_lengths(rows)
    assert chosen[-1] == rows.max()
    assert cost(rows.tolist(), tuple(chosen)) < 1.6 * rows.sum()


def test_padding_repeats_real_rows():
    clients = [ClientArrays({"y": np.arange(n * 1.0), "w": np.ones(2)}, {}) for n in (2, 4)]
    arguments = row_arguments(clients)
    assert arguments == ["y"]
    assert [num_rows(client, arguments) for client in clients] == [2, 4]
    padded = pad(clients[0].arrays, arguments, 4)
    np.testing.assert_array_equal(padded["y"], [0.0, 1.0, 1.0, 1.0])
    np.testing.assert_array_equal(padded["w"], [1.0, 1.0])
    uneven = ClientArrays({"y": np.ones(3), "w": np.ones(4)}, {})
    assert num_rows(uneven, ["y", "w"]) is None


@pytest.mark.parametrize("shape", [0.1, 0.5, 0.8, 1.5])
@pytest.mark.parametrize("num", [64, 256, 1024])
def test_pareto_smoothing_is_arvizs(shape, num):
    """Same k-hat and weights as ArviZ's own implementation, for weights with a Pareto tail of a given shape."""
    log_weights = shape * np.random.default_rng(num).exponential(size=num)
    weights, k_hat = pareto_smooth(jnp.asarray(log_weights))
    assert weights.dtype == jnp.float64
    np.testing.assert_allclose(weights.sum(), 1.0, rtol=1e-12)
    if not hasattr(az, "psislw"):
        pytest.skip("ArviZ 1.x has moved its implementation")
    theirs, k_theirs = az.psislw(log_weights.copy())
    np.testing.assert_allclose(k_hat, k_theirs, rtol=1e-8, atol=1e-8)
    np.testing.assert_allclose(weights, np.exp(theirs), rtol=1e-8, atol=1e-14)


def test_pareto_smoothing_of_equal_and_of_impossible_draws():
    equal, k_hat = pareto_smooth(jnp.zeros(64))
    np.testing.assert_allclose(equal, 1 / 64, rtol=1e-12)
    assert k_hat == 0.0
    some = jnp.asarray(np.random.default_rng(0).normal(size=64)).at[:5].set(-jnp.inf)
    weights, _ = pareto_smooth(some)
    np.testing.assert_array_equal(weights[:5], 0.0)
    shifted, _ = pareto_smooth(some + 700.0)
    np.testing.assert_allclose(shifted, weights, rtol=1e-9, atol=1e-15)


def one_holds_all() -> np.ndarray:
    return np.where(np.arange(64) == 3, 60.0, 0.0)


def cauchy() -> np.ndarray:
    x = np.random.default_rng(1).standard_cauchy(size=256)
    return 0.15 * x**2


def steep() -> np.ndarray:
    return np.linspace(0.0, 300.0, 128)


@pytest.mark.parametrize("weights", [one_holds_all, cauchy, steep])
def test_the_worst_weights_are_not_trusted(weights):
    """A few draws hold all the weight: k-hat must say so."""
    _, k_hat = pareto_smooth(jnp.asarray(weights()))
    assert k_hat > 0.7


def test_log_mean_exp():
    np.testing.assert_allclose(log_mean_exp(jnp.array([800.0, 800.0])), 800.0)
    np.testing.assert_allclose(log_mean_exp(jnp.log(jnp.array([1.0, 3.0]))), np.log(2.0))


@pytest.mark.parametrize("size", [1, 3, 10])
def test_quasi_normal_moments(size):
    draws = np.asarray(quasi_normal(random_shift(jax.random.key(5), size), 1024))
    assert draws.shape == (1024, size)
    assert np.all(np.isfinite(draws))
    assert np.max(np.abs(draws.mean(axis=0))) < 0.01  # plain draws: 0.03
    np.testing.assert_allclose(draws.var(axis=0), 1.0, atol=0.03)
    np.testing.assert_allclose(np.corrcoef(draws.T).reshape(size, size), np.eye(size), atol=0.1)


def test_quasi_normal_depends_on_its_key_alone():
    one, same, other = (quasi_normal(random_shift(jax.random.key(k), 2), 64) for k in (1, 1, 2))
    np.testing.assert_array_equal(one, same)
    assert np.any(one != other)


@pytest.mark.parametrize("size", [3, 16, 25])
def test_whiteners_agree_whatever_the_size(size: int) -> None:
    rng = np.random.default_rng(size)
    factors = rng.standard_normal((5, size, 2 * size))
    with jax.enable_x64(True):
        matrices = jnp.asarray(factors @ np.swapaxes(factors, 1, 2))
        for found in (jax.jit(jax.vmap(whitener_for(size)))(matrices), jax.vmap(large_whitener)(matrices)):
            np.testing.assert_allclose(found, jax.vmap(whitener)(matrices), rtol=1e-9, atol=1e-12)
        assert not np.all(np.isfinite(large_whitener(-matrices[0])))


def test_draws_in_more_dimensions_than_a_sobol_sequence_has_are_spread_evenly(monkeypatch) -> None:
    monkeypatch.setattr(importance.qmc.Sobol, "MAXDIM", 5)
    importance._sobol.cache_clear()
    points = importance._sobol(8, 9)
    importance._sobol.cache_clear()
    assert points.shape == (8, 9)
    np.testing.assert_array_equal(np.sort((8 * points[:, 5:]).astype(int), axis=0), np.arange(8)[:, None] * np.ones(4))
