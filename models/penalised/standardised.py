"""The evidence of a linear regression in the scales of its coefficients, with derivatives by closed forms.

With ``y = X theta + e``, unit noise, and ``theta = S z``, ``z ~ N(0, I)``, ``S = diag(s)``, the law of ``z`` given
``y`` is Gaussian with

    covariance  M = (I + S G S)^-1,      mean  e = M S b,      G = X'X,    b = X'y,

and the evidence, ``log p(y) = -y'y / 2 + F`` up to constants, has ``F = b'S e / 2 + log |M| / 2``. In ``l = log s``

    dF/dl_j = e_j^2 + M_jj - 1  (Fisher's identity: E[z_j^2 | y] - 1),      dF/db = S e,
    dM = 2 M D M - M D - D M,      de = (2 M - I) D e + M S db,             D = diag(dl).

Differentiated by the chain rule through a Cholesky factor, each column of a Hessian would cost ``d^3``; here it is
``d^2``, since ``dM`` is needed on the diagonal only, and what nobody needs is not computed.
"""

from typing import Any

import jax
import jax.numpy as jnp
from jax import Array
from jax.custom_derivatives import SymbolicZero

from fedbayes.numerics.gaussian import symmetrised, whitener_for

Moments = tuple[Array, Array, Array]


def whitener_of_coefficients(log_scale: Array, gram: Array) -> Array:
    """``W`` with ``W' W = M``, shape ``(d, d)``: ``W' noise`` has the covariance of the standardised coefficients."""
    scale = jnp.exp(log_scale)
    return whitener_for(len(scale))(jnp.eye(len(scale), dtype=gram.dtype) + scale[:, None] * gram * scale)


@jax.custom_jvp
def moments(log_scale: Array, gram: Array, projected: Array) -> Moments:
    """Mean ``e``, variances ``diag M`` and covariance ``M`` of the standardised coefficients.

    Parameters
    ----------
    log_scale
        ``log s``, shape ``(d,)``.
    gram
        ``X'X``, shape ``(d, d)``.
    projected
        ``X'y``, shape ``(d,)``.
    """
    white = whitener_of_coefficients(log_scale, gram)
    covariance = white.T @ white
    return covariance @ (jnp.exp(log_scale) * projected), jnp.sum(white**2, axis=0), covariance


def _moments_jvp(primals: tuple[Array, ...], tangents: tuple[Any, ...]) -> tuple[Moments, Moments]:
    log_scale, moved_gram, moved = tangents
    found = moments(*primals)
    mean, variance, covariance = found
    scale = jnp.exp(primals[0])
    d_mean, d_variance, d_covariance = jnp.zeros_like(mean), jnp.zeros_like(variance), jnp.zeros_like(covariance)
    if not isinstance(log_scale, SymbolicZero):
        d_mean += 2.0 * covariance @ (log_scale * mean) - log_scale * mean
        d_variance += 2.0 * (covariance**2 @ log_scale - variance * log_scale)
        turned = log_scale[:, None] * covariance
        d_covariance += 2.0 * covariance @ turned - turned - turned.T
    if not isinstance(moved, SymbolicZero):
        d_mean += covariance @ (scale * moved)
    if not isinstance(moved_gram, SymbolicZero):
        change = -covariance @ (scale[:, None] * moved_gram * scale)
        d_mean += change @ mean
        d_variance += jnp.sum(change * covariance, axis=1)
        d_covariance += change @ covariance
    return found, (d_mean, d_variance, d_covariance)


moments.defjvp(_moments_jvp, symbolic_zeros=True)


@jax.custom_jvp
def log_evidence(log_scale: Array, gram: Array, projected: Array) -> Array:
    """``F``, see above; parameters as for :func:`moments`."""
    white = whitener_of_coefficients(log_scale, gram)
    half = white @ (jnp.exp(log_scale) * projected)
    return 0.5 * half @ half + jnp.sum(jnp.log(jnp.diagonal(white)))


def _log_evidence_jvp(primals: tuple[Array, ...], tangents: tuple[Any, ...]) -> tuple[Array, Array]:
    log_scale, moved_gram, moved = tangents
    mean, variance, covariance = moments(*primals)
    scale, change = jnp.exp(primals[0]), jnp.zeros(())
    if not isinstance(log_scale, SymbolicZero):
        change += (mean**2 + variance - 1.0) @ log_scale
    if not isinstance(moved, SymbolicZero):
        change += (scale * mean) @ moved
    if not isinstance(moved_gram, SymbolicZero):
        second = scale[:, None] * symmetrised(covariance + jnp.outer(mean, mean)) * scale
        change -= 0.5 * jnp.sum(second * moved_gram)
    return log_evidence(*primals), change.astype(mean.dtype)


log_evidence.defjvp(_log_evidence_jvp, symbolic_zeros=True)
