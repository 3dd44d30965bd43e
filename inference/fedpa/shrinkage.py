"""The shrinkage covariance of federated posterior averaging, and what clients compute with it.

From draws ``x_1 .. x_l`` of its posterior, with mean ``xbar`` and sample covariance ``S`` (divided by ``l - 1``), a
client of FedPA (Al-Shedivat, Gillenwater, Xing and Rostamizadeh, "Federated learning via posterior averaging", ICLR
2021, section 4 and appendix C) estimates

    Sigma = rho_l I + (1 - rho_l) scale S,    rho_l = 1 / (1 + (l - 1) rho),

and sends ``Sigma^-1 (position - xbar)``. The paper has ``scale = 1``. As ``1 - rho_l = (l - 1) rho rho_l``,

    Sigma / rho_l = I + rho scale sum_t (x_t - xbar)(x_t - xbar)'

is the identity plus one rank-one term a draw, and nothing here but :func:`shrunk_precision` makes a d x d matrix. With
one draw ``Sigma = I``, and the client is one of federated averaging.
"""

import jax
import jax.numpy as jnp
from jax import Array

from fedbayes.numerics.gaussian import whitener
from fedbayes.numerics.low_rank import deflated


def shrinkage_weight(num: int, rho: Array | float) -> Array | float:
    """Weight ``rho_l = 1 / (1 + (num - 1) rho)`` of the identity; one for a single draw."""
    return 1.0 / (1.0 + (num - 1) * rho)


def shrunk_delta(
    position: Array, samples: Array, rho: Array | float, scale: Array | float = 1.0
) -> tuple[Array, Array]:
    """A client's ``Sigma^-1 (position - xbar)`` in ``O(l^2 d)`` time and ``O(l d)`` memory.

    Draw by draw, ``Sigma / rho_l`` grows by ``rho scale (t - 1) / t u u'`` with ``u = x_t - xbar_{t-1}`` (Welford), and
    its inverse ``I - V' V`` loses one rank-one term (Sherman and Morrison): a row of ``V``. The relative error is
    machine epsilon times the largest eigenvalue of ``Sigma / rho_l``, its condition number where l is at most d.

    Parameters
    ----------
    position
        Where the client was told to start, shape ``(d,)``.
    samples
        Its draws, shape ``(l, d)`` with l at least one; the result has their dtype if ``position`` has.
    rho, scale
        At least zero, numbers or traced.

    Returns
    -------
    tuple[Array, Array]
        The delta and the mean ``xbar``, shapes ``(d,)``.
    """
    num = len(samples)
    strength = jnp.asarray(rho * scale, samples.dtype)

    def add(t: Array, carry: tuple[Array, Array]) -> tuple[Array, Array]:
        mean, basis = carry
        gap = samples[t] - mean
        gain = strength * t / (t + 1)
        solved = deflated(basis, gap)
        # gap' M gap >= |M gap|^2 for M = I - V' V, whose eigenvalues are at most one. The square root needs this, but
        # round-off may break it where draws repeat under a large rho.
        power = jnp.maximum(gap @ solved, solved @ solved)
        row = jnp.sqrt(gain / (1.0 + gain * power)) * solved
        return mean + gap / (t + 1), basis.at[t].set(row)

    mean, basis = jax.lax.fori_loop(1, num, add, (samples[0], jnp.zeros_like(samples)))
    weight = jnp.asarray(shrinkage_weight(num, rho), samples.dtype)
    return deflated(basis, position - mean) / weight, mean


def shrunk_factor(samples: Array, rho: Array | float, scale: Array | float = 1.0) -> tuple[Array, Array]:
    """The precision ``Sigma^-1 = (I - basis' basis) / rho_l`` without a d x d matrix, by Woodbury.

    With ``X`` the centred draws and ``W`` the whitener of ``I + rho scale X X'``, the basis is
    ``sqrt(rho scale) W X``. Its rank is ``l - 1`` at most, its singular values are below one.

    Parameters
    ----------
    samples, rho, scale
        See :func:`shrunk_delta`.

    Returns
    -------
    tuple[Array, Array]
        The basis, shape ``(l, d)``, and ``rho_l``: what
        :meth:`fedbayes.numerics.low_rank.LowRankGaussian.product` takes.
    """
    scaled, weight = _centred(samples, rho, scale)
    return whitener(jnp.eye(len(scaled), dtype=scaled.dtype) + scaled @ scaled.T) @ scaled, weight


def shrunk_precision(samples: Array, rho: Array | float, scale: Array | float = 1.0) -> Array:
    """The dense precision ``Sigma^-1``, shape ``(d, d)``: for small d, where draws may outnumber dimensions.

    Parameters
    ----------
    samples, rho, scale
        See :func:`shrunk_delta`.
    """
    scaled, weight = _centred(samples, rho, scale)
    white = whitener(jnp.eye(scaled.shape[1], dtype=scaled.dtype) + scaled.T @ scaled)
    return white.T @ white / weight


def _centred(samples: Array, rho: Array | float, scale: Array | float) -> tuple[Array, Array]:
    """``sqrt(rho scale) X``, whose Gram matrix on the d x d side is ``Sigma / rho_l - I``, and ``rho_l``."""
    strength = jnp.asarray(rho * scale, samples.dtype)
    weight = jnp.asarray(shrinkage_weight(len(samples), rho), samples.dtype)
    return jnp.sqrt(strength) * (samples - jnp.mean(samples, axis=0)), weight
