"""The log density of a Gaussian in its covariance matrix, with derivatives by closed forms.

Differentiated twice by the chain rule, a Cholesky factor costs several triangular solves for each parameter. Here the
inverse is formed once, and every derivative is a product of matrices:

    d C^-1 = -C^-1 dC C^-1,    d log |C| = tr(C^-1 dC),    d (r' C^-1 r) = 2 a' dr - a' dC a,    a = C^-1 r.
"""

import jax
import jax.numpy as jnp
from jax import Array

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
    white = large_whitener(covariance)
    scaled = white @ rest
    return -0.5 * (scaled @ scaled + len(rest) * LOG_2PI) + jnp.sum(jnp.log(jnp.diag(white)))


@log_normal_density.defjvp
def _log_normal_density_jvp(primals: tuple[Array, Array], tangents: tuple[Array, Array]) -> tuple[Array, Array]:
    (covariance, rest), (change, moved) = primals, tangents
    found = inverse(covariance)
    weights = found @ rest
    slope = 0.5 * (jnp.outer(weights, weights) - found)
    return log_normal_density(covariance, rest), jnp.sum(slope * change) - weights @ moved
