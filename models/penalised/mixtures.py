"""Priors of coefficients as scale mixtures: given a standard normal variable ``u``, a coefficient is normal.

``theta_j | u_j ~ N(0, variance(u_j))``. Each function maps ``u`` to the variance by the quantile function of the mixing
law, so that the latents of a program are standard normal whatever the penalty: nothing has heavy tails, and the
posterior of ``u_j`` is its prior where the data say little of the coefficient. A larger ``u_j`` is a larger variance.
"""

import jax
import jax.numpy as jnp
from jax import Array
from jax.scipy.special import log_ndtr, ndtr, ndtri

from fedbayes.numerics.gaussian import LOG_2PI

# by precision: the ratio of the elastic net's penalties up to which a normal's tail is computed, and the exponential
# variable below which a difference of squares would be rounding
_MOST = {"float64": 30.0, "float32": 8.0}
_NEAR = {"float64": 1e-5, "float32": 1e-2}


def standard_exponential(u: Array) -> Array:
    """``-log(1 - Phi(u))``, accurate in both tails."""
    low = -jnp.log1p(-ndtr(jnp.minimum(u, 0.0)))
    return jnp.where(u < 0.0, low, -log_ndtr(-jnp.maximum(u, 0.0)))


def laplace_variance(u: Array) -> Array:
    """Of a Laplace law with scale one: ``w ~ Exponential(1/2)``, ``theta ~ N(0, w)`` (Park and Casella 2008)."""
    return 2.0 * standard_exponential(u)


def elastic_net_variance(u: Array, l1: Array, l2: Array) -> Array:
    """Of the density ``exp(-l1 |theta| - l2 theta^2 / 2)``, normalised (Li and Lin 2010).

    ``1 / variance = l2 + 1 / w`` with ``1 + l2 w = (n / r)^2``, ``r = l1 / sqrt(l2)``, where ``n`` is standard normal
    and larger than ``r``. For ``r > 30`` (8 in single precision) the law of ``(n^2 - r^2) / 2`` is taken as
    exponential, as it is in the limit.
    """
    ratio = l1 / jnp.sqrt(l2)
    beyond = _squares_beyond(ratio, standard_exponential(u))
    return beyond / (beyond + ratio**2) / l2


def _hazard(x: Array) -> Array:
    """``phi(x) / Phi(-x)`` of the standard normal."""
    return jnp.exp(-0.5 * x**2 - 0.5 * LOG_2PI - log_ndtr(-x))


@jax.custom_jvp
def _squares_beyond(ratio: Array, exponential: Array) -> Array:
    """``n^2 - r^2`` where ``log Phi(-n) = log Phi(-r) - e``.

    Derivatives by ``dn = (de + h(r) dr) / h(n)``, with the hazard ``h``: those of the quantile function overflow.
    """
    most = _MOST[str(exponential.dtype)]
    near, far = jnp.minimum(ratio, most), jnp.maximum(ratio, most)
    tail = jnp.maximum(ndtr(-near) * jnp.exp(-exponential), jnp.finfo(exponential.dtype).tiny)
    hazard = _hazard(near)
    # n - r to second order, where n^2 - r^2 would cancel
    step = exponential / hazard * (1.0 - 0.5 * exponential * (hazard - near) / hazard)
    small = exponential < _NEAR[str(exponential.dtype)]
    within = jnp.where(small, step * (2.0 * near + step), ndtri(tail) ** 2 - near**2)
    return jnp.where(ratio < most, within, 2.0 * exponential * far**2 / (far**2 + 1.0))


@_squares_beyond.defjvp
def _squares_beyond_jvp(primals: tuple[Array, Array], tangents: tuple[Array, Array]) -> tuple[Array, Array]:
    (ratio, exponential), (moved, more) = primals, tangents
    beyond = _squares_beyond(ratio, exponential)
    n = jnp.sqrt(ratio**2 + beyond)
    return beyond, 2.0 * n * (more + _hazard(ratio) * moved) / _hazard(n) - 2.0 * ratio * moved


def half_cauchy(u: Array) -> Array:
    """A half-Cauchy variable of scale one, the horseshoe's local scale (Carvalho, Polson and Scott 2010)."""
    below = jnp.tan(0.5 * jnp.pi * ndtr(-jnp.abs(u)))
    return jnp.where(u < 0.0, below, 1.0 / below)


def horseshoe_variance(u: Array, tau: Array, slab: Array) -> Array:
    """Of the regularised horseshoe: ``1 / variance = 1 / (tau lambda)^2 + 1 / slab``, ``lambda`` half-Cauchy.

    Parameters
    ----------
    u
        Standard normal, shape ``(d,)``.
    tau
        Global scale.
    slab
        Variance of coefficients that are not shrunk, ``c^2`` (Piironen and Vehtari 2017, equation 2.8).
    """
    free = (tau * half_cauchy(u)) ** 2
    return free * slab / (free + slab)
