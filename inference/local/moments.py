"""A client's Gaussian site from draws of its tilted density.

The tilted density is ``t(theta, z) = cavity(theta) f(theta, z)``. With ``g = d log f / d theta`` and ``s = d log f / d
z`` Stein's identity gives, exactly,

    Cov_t(g, theta) Cov_t(theta)^-1 = -Q_site,      shift_site = E_t[g] + Q_site E_t[theta],

so the moment-matched site is the weighted regression of ``g`` on ``theta``: no covariance is inverted and no cavity
subtracted. Whatever has zero mean given ``theta`` can join the regression without changing what is estimated
(``inference/ep/DESIGN.md`` derives both). Two such control variates go in: ``B s``, where ``B`` is the coupling of
globals and locals in the Laplace approximation, which makes the regression exact for linear-Gaussian clients, and
``sum_j (z_j - E[z_j | theta]) s_j + 1``, which carries the information on scales.
"""

from collections.abc import Callable
from typing import NamedTuple

import jax.numpy as jnp
from jax import Array

from fedbayes.gaussian import Gaussian, symmetrised, whitener


class TiltedDraws(NamedTuple):
    """Weighted draws of a tilted density, with the scores of the client's factor.

    Attributes
    ----------
    position
        Joint positions ``(theta, z)``, shape ``(n, d + m)``.
    score
        Gradient of the log factor there, shape ``(n, d + m)``.
    weight
        Sum to one, shape ``(n,)``.
    centre, curvature
        Laplace approximation of the tilted density: mode ``(d + m,)`` and negative Hessian ``(d + m, d + m)``.
    effective
        Effective number of draws.
    """

    position: Array
    score: Array
    weight: Array
    centre: Array
    curvature: Array
    effective: Array


class SiteEstimate(NamedTuple):
    """A site's natural parameters with the variance of their Monte Carlo errors.

    Attributes
    ----------
    shift, precision
        Shapes ``(d,)`` and ``(d, d)``.
    shift_variance, precision_variance
        Of the shift at fixed precision, ``(d,)``, and of each entry of the precision, ``(d, d)``.
    """

    shift: Array
    precision: Array
    shift_variance: Array
    precision_variance: Array


Estimator = Callable[[TiltedDraws, Gaussian], SiteEstimate]


def control_variates(draws: TiltedDraws, size: int) -> Array:
    """Columns with zero mean given the globals, shape ``(n, d + 1)``; no columns without local latents.

    Their number does not depend on the number of local latents, so these may outnumber the draws.
    """
    num_locals = draws.position.shape[1] - size
    if num_locals == 0:
        return jnp.zeros((draws.position.shape[0], 0))
    white = whitener(draws.curvature[size:, size:])
    coupling = draws.curvature[:size, size:] @ white.T @ white
    gap = draws.position - draws.centre
    residual = gap[:, size:] + gap[:, :size] @ coupling  # z - E[z | theta] under the Laplace approximation
    scores = draws.score[:, size:]
    return jnp.concatenate([scores @ coupling.T, jnp.sum(residual * scores + 1.0, axis=1, keepdims=True)], axis=1)


def score_regression(draws: TiltedDraws, cavity: Gaussian) -> SiteEstimate:
    """The site as minus the slope, and the line's value, of the regression of ``g`` on the globals.

    Exact, at any number of draws above ``d``, where the factor is linear-Gaussian. Needs more draws than ``2 d + 2``.

    Parameters
    ----------
    draws
        Weighted draws of the tilted density.
    cavity
        Gives the number d of globals; the estimate does not use its values.
    """
    size = cavity.size
    theta, response = draws.position[:, :size], draws.score[:, :size]
    mean = draws.weight @ theta
    design = jnp.concatenate([jnp.ones((theta.shape[0], 1)), theta - mean, control_variates(draws, size)], axis=1)
    scale = jnp.sqrt(draws.weight @ design**2)
    scale = jnp.where(scale > 0.0, scale, 1.0)  # a control variate that is zero everywhere
    design = design / scale
    weighted = draws.weight[:, None] * design
    ridge = jnp.where(jnp.arange(design.shape[1]) > size, 1e-12, 0.0)  # keeps collinear control variates from failing
    white = whitener(design.T @ weighted + jnp.diag(ridge))
    slopes = white.T @ (white @ (weighted.T @ response))
    spread = draws.weight @ (response - design @ slopes) ** 2 / draws.effective
    slopes = slopes / scale[:, None]
    leverage = (jnp.sum(white**2, axis=0) / scale**2)[1 : size + 1]
    raw = -slopes[1 : size + 1].T
    precision, variance = _symmetric(raw, spread[:, None] * leverage[None, :])
    return SiteEstimate(slopes[0] + precision @ mean, precision, spread, variance)


def _symmetric(raw: Array, variance: Array) -> tuple[Array, Array]:
    """The symmetric matrix that weighs each entry and its mirror image by their precision.

    A direction about which a client knows nothing has slope and error zero, and stays exactly zero: under a flat prior
    its cavity would otherwise become improper by noise alone.
    """
    floor = variance + 1e-30 * (1.0 + jnp.max(raw**2))
    mine = floor.T / (floor + floor.T)
    precision = symmetrised(mine * raw + (1.0 - mine) * raw.T)
    return precision, variance * variance.T / jnp.maximum(variance + variance.T, 1e-300)


def covariance_inversion(draws: TiltedDraws, cavity: Gaussian, *, corrected: bool = True) -> SiteEstimate:
    """The classical estimator: invert the draws' covariance, subtract the cavity (notes of Yue 2023, section 1.4).

    The inverse of a sample covariance over-estimates the precision by ``b = (n - 1) / (n - d - 2)``; in EP the bias
    accumulates to ``1 / (1 - (b - 1)(K - 1))`` with K clients. The correction ``(n - d - 2) / n`` removes it for
    Gaussian draws. Kept as a test oracle and for comparison: its error is ten to twenty times that of
    :func:`score_regression`.

    Parameters
    ----------
    draws
        Weighted draws of the tilted density; n is their effective number.
    cavity
        Subtracted from the tilted natural parameters.
    corrected
        ``False`` shows the bias.
    """
    size, num = cavity.size, draws.effective
    theta = draws.position[:, :size]
    mean = draws.weight @ theta
    gap = theta - mean
    scatter = gap.T @ (draws.weight[:, None] * gap)
    white = whitener(scatter)
    factor = (num - size - 2.0) / num if corrected else (num - 1.0) / num
    tilted = factor * white.T @ white
    spread = jnp.diagonal(tilted)
    site = symmetrised(tilted - cavity.precision)
    entry = (spread[:, None] * spread[None, :] + tilted**2) / num
    return SiteEstimate(tilted @ mean - cavity.shift, site, spread / num, entry)


def diagonal_regression(draws: TiltedDraws, cavity: Gaussian) -> SiteEstimate:
    """The diagonal site: regress each ``g_i`` on its own ``theta_i``.

    With a diagonal cavity the slope is ``Q_cavity,ii - 1 / Var_t(theta_i)``, the moment match of the marginal
    variances.
    """
    size = cavity.size
    theta, response = draws.position[:, :size], draws.score[:, :size]
    mean = draws.weight @ theta
    gap = theta - mean
    variance = draws.weight @ gap**2
    level = draws.weight @ response
    slope = draws.weight @ (gap * (response - level)) / variance
    spread = draws.weight @ (response - level - slope * gap) ** 2 / draws.effective
    return SiteEstimate(level - slope * mean, jnp.diag(-slope), spread, jnp.diag(spread / variance))


def shrunk_covariance(draws: TiltedDraws, cavity: Gaussian) -> SiteEstimate:
    """Inverse of the sample covariance shrunk towards the Laplace approximation's, as if that were d more draws.

    Proper at any number of draws: with one it is next to the Laplace approximation's covariance, around that draw.
    """
    size, num = cavity.size, draws.effective
    theta = draws.position[:, :size]
    mean = draws.weight @ theta
    gap = theta - mean
    white = whitener(draws.curvature)
    laplace = (white.T @ white)[:size, :size]
    covariance = (size * laplace + num * gap.T @ (draws.weight[:, None] * gap)) / (size + num)
    white = whitener(covariance)
    tilted = white.T @ white
    spread = jnp.diagonal(tilted)
    entry = (spread[:, None] * spread[None, :] + tilted**2) / (size + num)
    return SiteEstimate(tilted @ mean - cavity.shift, symmetrised(tilted - cavity.precision), spread / num, entry)


def proper_regression(draws: TiltedDraws, cavity: Gaussian) -> SiteEstimate:
    """:func:`score_regression`, or :func:`covariance_inversion` where the slope is no precision.

    For a density that has to stand alone, without a cavity: far from Gaussian, the regression may lose positive
    definiteness to noise.
    """
    regression, inversion = score_regression(draws, cavity), covariance_inversion(draws, cavity)
    proper = jnp.all(jnp.isfinite(whitener(regression.precision + cavity.precision)))
    return SiteEstimate(*(jnp.where(proper, one, other) for one, other in zip(regression, inversion, strict=True)))
