"""The shapes in the signatures of `fedbayes.numerics` are those of what goes in and comes out."""

from collections.abc import Callable, Iterator
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jaxtyping import Array, Float, TypeCheckError

from fedbayes.numerics import chains, derivatives, gaussian, host, importance, low_rank
from fedbayes.numerics.gaussian import Gaussian
from fedbayes.numerics.low_rank import LowRankGaussian

KEY = jax.random.key(0)
D, N, R, K, L = 3, 16, 2, 4, 5


def proper(*batch: int, size: int = D) -> Gaussian:
    """Standard normals."""
    precision = np.broadcast_to(np.eye(size), (*batch, size, size))
    return Gaussian(*map(jnp.asarray, (np.ones((*batch, size)), precision, np.zeros(batch))))


def thin() -> LowRankGaussian:
    """A Gaussian of rank R."""
    return LowRankGaussian(jnp.ones(D), 0.1 * jnp.ones((R, D)), jnp.ones(()), jnp.ones(D), jnp.ones(()))


Arguments = tuple[Any, ...]
# each public function of the room: arguments that fit, and such that only the signature can refuse before work starts
CALLS: dict[str, tuple[Callable[[], Arguments], Callable[[], Arguments] | None]] = {
    "gaussian.whitener": (lambda: (jnp.eye(D),), lambda: (jnp.ones((D, D + 1)),)),
    "gaussian.large_whitener": (lambda: (jnp.eye(D),), lambda: (jnp.ones((1, D, D)),)),
    "gaussian.whitener_for": (lambda: (D,), None),
    "gaussian.eigenvectors": (lambda: (jnp.eye(D),), lambda: (jnp.ones((D, 1)),)),
    "gaussian.log_det": (lambda: (jnp.eye(D),), lambda: (jnp.ones(D),)),
    "gaussian.symmetrised": (lambda: (jnp.ones((R, D, D)),), lambda: (jnp.ones((R, D, 1)),)),
    "gaussian.packed": (lambda: (proper(),), None),
    "gaussian.unpacked": (lambda: (gaussian.packed(proper()),), None),
    "gaussian.gaussian_from_moments": (lambda: (jnp.ones(D), jnp.eye(D)), lambda: (jnp.ones(()), jnp.eye(D))),
    "gaussian.where": (lambda: (jnp.ones(R) > 0, proper(R), proper(R)), lambda: (jnp.ones(R), proper(R), proper(R))),
    "gaussian.Gaussian.scaled": (lambda: (proper(), 2.0), None),
    "gaussian.Gaussian.summed": (lambda: (proper(K),), None),
    "gaussian.Gaussian.symmetrised": (lambda: (proper(K),), None),
    "gaussian.Gaussian.log_value": (lambda: (proper(), jnp.ones(D)), lambda: (proper(), jnp.ones((D, 1)))),
    "gaussian.Gaussian.moments": (lambda: (proper(),), None),
    "gaussian.Gaussian.log_integral": (lambda: (proper(),), None),
    "gaussian.Gaussian.is_proper": (lambda: (proper(),), None),
    "gaussian.Gaussian.normalised": (lambda: (proper(),), None),
    "gaussian.Gaussian.sample": (lambda: (proper(), KEY, N), lambda: (proper(), jax.random.split(KEY), N)),
    "derivatives.slope_along": (
        lambda: (jnp.sin, jnp.ones(D), jnp.ones(D)),
        lambda: (jnp.sin, jnp.ones(D), jnp.ones(D + 1)),
    ),
    "low_rank.deflated": (lambda: (jnp.ones((R, D)), jnp.ones(D)), lambda: (jnp.ones((R, D)), jnp.ones((D, 1)))),
    "low_rank.spectrum": (lambda: (0.1 * jnp.ones((R, D)),), lambda: (jnp.ones(D),)),
    "low_rank.LowRankGaussian.is_proper": (lambda: (thin(),), None),
    "low_rank.LowRankGaussian.log_value": (lambda: (thin(), jnp.ones(D)), lambda: (thin(), jnp.ones(()))),
    "low_rank.LowRankGaussian.mean_of_globals": (lambda: (thin(),), None),
    "low_rank.LowRankGaussian.variances": (lambda: (thin(),), None),
    "low_rank.LowRankGaussian.covariance": (lambda: (thin(),), None),
    "low_rank.LowRankGaussian.moments": (lambda: (thin(),), None),
    "low_rank.LowRankGaussian.sample": (lambda: (thin(), KEY, N), lambda: (thin(), jax.random.split(KEY), N)),
    "importance.random_shift": (lambda: (KEY, D), lambda: (jax.random.split(KEY), D)),
    "importance.quasi_normal": (lambda: (jnp.ones(D), N), lambda: (jnp.ones((D, 1)), N)),
    "importance.fixed_normal": (lambda: (N, D), None),
    "importance.balanced_normal": (lambda: (N, D), None),
    "importance.pareto_smooth": (lambda: (jnp.linspace(0.0, 1.0, 100),), lambda: (jnp.ones((100, 2)),)),
    "importance.log_mean_exp": (lambda: (jnp.ones(N),), lambda: (jnp.ones((N, 1)),)),
    "chains.chain_diagnostics": (lambda: (np.ones((1, N, D)),), lambda: (np.ones((N, D)),)),
    "chains.worst_mixing": (lambda: (np.ones((1, N, D)),), lambda: (np.ones((N, D)),)),
    "host.product_of": (lambda: (proper(R), proper(R)), None),
    "host.cavities_of": (lambda: (proper(R), proper(R, K)), None),
    "host.whiteners": (lambda: (np.eye(D)[None],), lambda: (np.eye(D),)),
    "host.gaussian_moments": (lambda: (proper(R),), None),
    "host.normal_from_moments": (
        lambda: (np.ones((R, D)), np.eye(D)[None].repeat(R, axis=0)),
        lambda: (np.ones((1, D)), np.eye(D)[None].repeat(R, axis=0)),
    ),
    "host.gaussian_draws": (lambda: (proper(R), KEY, N), lambda: (proper(R), jax.random.split(KEY), N)),
    "host.normal_draws": (
        lambda: (np.ones((R, D)), np.ones((R, D, D)), np.ones(2, np.uint32), N),
        lambda: (np.ones((R, D)), np.ones((R, D, D - 1)), np.ones(2, np.uint32), N),
    ),
    "host.gaussian_log_density": (
        lambda: (proper(R), np.ones((R, N, D))),
        lambda: (proper(R), np.ones((1, N, D - 2))),
    ),
    "host.log_integrals": (lambda: (proper(R),), None),
    "host.log_joint": (
        lambda: (lambda points: jnp.zeros(len(points)), np.ones((L, N, D)), np.ones((L, N, K))),
        lambda: (lambda points: jnp.zeros(len(points)), np.ones((L, N, D)), np.ones((1, N, K))),
    ),
    "host.spread_of_means": (lambda: (proper(R),), None),
}


@pytest.fixture(scope="module")
def functions(shapes) -> dict[str, Callable]:
    modules = (gaussian, low_rank, importance, chains, derivatives, host)
    return dict(each for module in modules for each in shapes.members(module))


@pytest.fixture(autouse=True)
def _float64() -> Iterator[None]:
    with jax.enable_x64(True):
        yield


def test_every_public_function_is_called(functions) -> None:
    assert set(functions) == set(CALLS)


@pytest.mark.parametrize("name", CALLS)
def test_what_comes_out_has_the_shape_that_the_signature_says(shapes, functions, name) -> None:
    shapes.checked(functions[name])(*CALLS[name][0]())


@pytest.mark.parametrize("name", [name for name, (_, wrong) in CALLS.items() if wrong is not None])
def test_another_shape_is_refused(shapes, functions, name) -> None:
    with pytest.raises(TypeCheckError, match="checking the parameters"):
        shapes.checked(functions[name])(*CALLS[name][1]())


def test_a_whole_low_rank_gaussian_is_checked(shapes) -> None:
    arguments = 0.1 * jnp.ones((K, L, D)), jnp.ones(K), jnp.ones((K, D)), jnp.ones(K) / K
    product = shapes.checked(LowRankGaussian.product.__func__)
    assert product(LowRankGaussian, *arguments).basis.shape == (K * L, D)
    with pytest.raises(TypeCheckError, match="checking the parameters"):
        product(LowRankGaussian, *arguments[:3], jnp.ones(K + 1))


def test_clients_side_by_side_are_checked_one_by_one(shapes) -> None:
    """Under `vmap` and `jit` the shapes are those of one client."""
    batched = jax.jit(jax.vmap(shapes.checked(gaussian.whitener)))
    assert batched(jnp.eye(D)[None].repeat(K, axis=0)).shape == (K, D, D)
    with pytest.raises(TypeCheckError, match="checking the parameters"):
        batched(jnp.ones((K, D, D + 1)))


def test_a_planted_wrong_result_is_caught(shapes) -> None:
    @shapes.checked
    def moments(mean: Float[Array, " d"], covariance: Float[Array, "d d"]) -> Float[Array, "d d"]:
        return covariance @ mean

    with pytest.raises(TypeCheckError, match="checking the return value"):
        moments(jnp.ones(D), jnp.eye(D))
