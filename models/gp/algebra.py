"""The log density of a Gaussian in its covariance matrix, with derivatives by closed forms.

Differentiated twice by the chain rule, a Cholesky factor costs several triangular solves for each parameter. Here the
inverse is formed once, and every derivative is a product of matrices:

    d C^-1 = -C^-1 dC C^-1,    d log |C| = tr(C^-1 dC),    d (r' C^-1 r) = 2 a' dr - a' dC a,    a = C^-1 r.
"""

import jax
import jax.numpy as jnp
from jax import Array
from jax.scipy.linalg import solve_triangular

from fedbayes.numerics.gaussian import LOG_2PI, large_whitener


@jax.custom_jvp
def inverse(covariance: Array) -> Array:
    """Of a covariance matrix, shape ``(n, n)``."""
    white = large_whitener(covariance)
    return white.T @ white


@inverse.defjvp
def _inverse_jvp(primals: tuple[Array], tangents: tuple[Array]) -> tuple[Array, Array]:
    found = inverse(*primals)
    return found, -found @ tangents[0] @ found


@jax.custom_batching.sequential_vmap
def _by_factor(covariance: Array, rest: Array) -> Array:
    """:func:`log_normal_density` without derivatives: a triangular solve in place of the inverse."""
    factor = jnp.linalg.cholesky(covariance)
    scaled = solve_triangular(factor, rest, lower=True)
    return -0.5 * (scaled @ scaled + len(rest) * LOG_2PI) - jnp.sum(jnp.log(jnp.diag(factor)))


@jax.custom_jvp
def log_normal_density(covariance: Array, rest: Array) -> Array:
    """``-1/2 [ r' C^-1 r + log |C| + n log 2 pi ]``.

    Parameters
    ----------
    covariance
        ``C``, shape ``(n, n)``.
    rest
        ``r``: the outcomes less their means, shape ``(n,)``.
    """
    return _by_factor(covariance, rest)


@jax.custom_jvp
def _by_inverse(covariance: Array, rest: Array) -> Array:
    """:func:`log_normal_density` where derivatives are asked: by what the inverse is made of."""
    white = large_whitener(covariance)
    scaled = white @ rest
    return -0.5 * (scaled @ scaled + len(rest) * LOG_2PI) + jnp.sum(jnp.log(jnp.diag(white)))


@log_normal_density.defjvp
@_by_inverse.defjvp
def _log_normal_density_jvp(primals: tuple[Array, Array], tangents: tuple[Array, Array]) -> tuple[Array, Array]:
    (covariance, rest), (change, moved) = primals, tangents
    found = inverse(covariance)
    weights = found @ rest
    slope = 0.5 * (jnp.outer(weights, weights) - found)
    return _by_inverse(covariance, rest), jnp.sum(slope * change) - weights @ moved
