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
from functools import partial
from typing import NamedTuple

import jax
import jax.numpy as jnp
from jax import Array
from jaxtyping import Float

from fedbayes.numerics.gaussian import Gaussian, eigenvectors, symmetrised, whitener


class TiltedDraws(NamedTuple):
    """Weighted draws of a tilted density, with the scores of the client's factor.

    Attributes
    ----------
    position
        Joint positions ``(theta, z)``, of ``p = d + m`` numbers.
    score
        Gradient of the log factor there.
    weight
        Sum to one.
    centre, precision, coupling
        Laplace approximation of the tilted density: the mode, and of the negative Hessian what
        :func:`locals_integrated_out` makes of it.
    effective
        Effective number of draws.
    sides
        Number of draws with the same globals, which lie ``n / sides`` apart.
    """

    position: Float[Array, "draw p"]
    score: Float[Array, "draw p"]
    weight: Float[Array, " draw"]
    centre: Float[Array, " p"]
    precision: Float[Array, "d d"]
    coupling: Float[Array, "d m"]
    effective: Float[Array, ""]
    sides: int = 1


class SiteError(NamedTuple):
    """The Monte Carlo error of a site.

    Attributes
    ----------
    level
        Covariance of the shift's error at fixed precision.
    basis, variance
        The precision's error is ``basis @ E @ basis.T``, where the entries of the symmetric ``E`` are uncorrelated and
        have these variances.
    """

    level: Float[Array, "d d"]
    basis: Float[Array, "d d"]
    variance: Float[Array, "d d"]

    @classmethod
    def none(cls, size: int) -> "SiteError":
        """Of a deterministic site."""
        zero = jnp.zeros((size, size))
        return cls(zero, zero, zero)

    def noise(self, covariance: Float[Array, "d d"]) -> Float[Array, ""]:
        """Expected squared error of the posterior that the site's error causes, in posterior sds, summed over globals.

        It is ``tr(Sigma R) + E|Sigma^1/2 dQ Sigma^1/2|^2 / 2`` with the level's covariance ``R``, the precision's error
        ``dQ`` and the posterior's covariance ``Sigma``: to first order twice the KL divergence.
        """
        gram = self.basis.T @ covariance @ self.basis
        scale = jnp.diagonal(gram)
        entries = jnp.sum(self.variance * (scale[:, None] * scale + gram**2))
        entries = entries - jnp.sum(jnp.diagonal(self.variance) * scale**2)  # a diagonal entry has no mirror image
        return jnp.sum(covariance * self.level) + 0.5 * entries


class SiteEstimate(NamedTuple):
    """A site's natural parameters with their Monte Carlo error."""

    shift: Float[Array, " d"]
    precision: Float[Array, "d d"]
    error: SiteError


Estimator = Callable[[TiltedDraws, Gaussian], SiteEstimate]


def locals_integrated_out(
    curvature: Float[Array, "p p"], size: int
) -> tuple[Float[Array, "{size} {size}"], Float[Array, "{size} {curvature.shape[0]-size}"]]:
    """The precision of the globals, and how they are coupled to the locals, in a joint Gaussian.

    Parameters
    ----------
    curvature
        The joint precision ``[[A, C], [C', H]]``, globals first.
    size
        Number d of globals.

    Returns
    -------
    precision
        Marginal, ``A - C H^-1 C'``.
    coupling
        ``B = C H^-1``: given the globals the locals' mean is ``z0 - B' (theta - theta0)``.
    """
    across, white = curvature[:size, size:], whitener(curvature[size:, size:])
    half = white @ across.T
    return symmetrised(curvature[:size, :size] - half.T @ half), half.T @ white


def control_variates(draws: TiltedDraws, size: int) -> Float[Array, "{draws.position.shape[0]} column"]:
    """``d + 1`` columns with zero mean given the globals; no columns without local latents.

    Their number does not depend on the number of local latents, so these may outnumber the draws.
    """
    num_locals = draws.position.shape[1] - size
    if num_locals == 0:
        return jnp.zeros((draws.position.shape[0], 0))
    gap = draws.position - draws.centre
    residual = gap[:, size:] + gap[:, :size] @ draws.coupling  # z - E[z | theta] under the Laplace approximation
    scores = draws.score[:, size:]
    return jnp.concatenate([scores @ draws.coupling.T, jnp.sum(residual * scores + 1.0, axis=1, keepdims=True)], axis=1)


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
    spread = _spread(response - design @ slopes, draws)
    slopes = slopes / scale[:, None]
    own = white[:, 1 : size + 1] / scale[1 : size + 1]
    precision, error = symmetric_slope(-slopes[1 : size + 1].T, spread, own.T @ own)
    return SiteEstimate(slopes[0] + precision @ mean, precision, error)


def _spread(residual: Array, draws: TiltedDraws) -> Array:
    """Covariance of the regression line's error, ``(d, d)``: draws with the same globals count together."""
    if draws.sides == 1:
        return residual.T @ (draws.weight[:, None] * residual) / draws.effective
    split = draws.weight.reshape(draws.sides, -1)
    weight = jnp.sum(split, axis=0)
    mean = jnp.sum(split[..., None] * residual.reshape(*split.shape, -1), axis=0) / jnp.maximum(weight, 1e-300)[:, None]
    return mean.T @ (weight[:, None] * mean) * jnp.sum(weight**2)


def symmetric_slope(
    raw: Float[Array, "d d"], spread: Float[Array, "d d"], leverage: Float[Array, "d d"]
) -> tuple[Float[Array, "d d"], SiteError]:
    """The symmetric matrix of least variance, given slopes with ``Cov(raw_ij, raw_kl) = spread_ik leverage_jl``.

    In coordinates with unit leverage and diagonal spread ``D`` all entries are uncorrelated, with ``Var(raw_ij) =
    D_i``; there each entry and its mirror image are weighed by their precisions. The estimate moves with a linear
    change of the globals. In any direction about which a client knows nothing it has neither value nor error, so that
    noise alone can't make a cavity improper under a flat prior (``inference/ep/DESIGN.md``).

    Parameters
    ----------
    raw
        Slope of the response's row i on the column's coordinate j.
    spread
        Of the residuals, over the effective number of draws.
    leverage
        Block of the inverse Gram matrix that belongs to the slopes.
    """
    white = whitener(leverage)
    values, vectors = eigenvectors(symmetrised(white @ spread @ white.T))
    there = white.T @ vectors
    back = leverage @ there  # the inverse transpose
    variance = jnp.maximum(values, 1e-30 * jnp.max(values) + 1e-300)
    total = variance[:, None] + variance[None, :]
    turned = there.T @ raw @ there
    mine = variance[None, :] / total
    precision = symmetrised(back @ (mine * turned + (1.0 - mine) * turned.T) @ back.T)
    # a diagonal entry is its own mirror image, and gains nothing by the average
    return precision, SiteError(spread, back, variance[:, None] * jnp.where(jnp.eye(len(raw)) > 0.0, 1.0, mine))


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
    site = symmetrised(tilted - cavity.precision)
    return SiteEstimate(tilted @ mean - cavity.shift, site, _error_of_inverse(white, num))


def _error_of_inverse(white: Array, num: Array) -> SiteError:
    """Of the inverse ``W'W`` of the covariance of n Gaussian draws: ``Var_ij = (1 + [i = j]) / n`` where it is one."""
    return SiteError(white.T @ white / num, white.T, (1.0 + jnp.eye(white.shape[0])) / num)


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
    error = SiteError(jnp.diag(spread), jnp.eye(size), jnp.diag(spread / variance))
    return SiteEstimate(level - slope * mean, jnp.diag(-slope), error)


def shrunk_covariance(draws: TiltedDraws, cavity: Gaussian) -> SiteEstimate:
    """Inverse of the sample covariance shrunk towards the Laplace approximation's, as if that were d more draws.

    Proper at any number of draws: with one it is next to the Laplace approximation's covariance, around that draw.
    """
    size, num = cavity.size, draws.effective
    theta = draws.position[:, :size]
    mean = draws.weight @ theta
    gap = theta - mean
    white = whitener(draws.precision)
    laplace = white.T @ white
    covariance = (size * laplace + num * gap.T @ (draws.weight[:, None] * gap)) / (size + num)
    white = whitener(covariance)
    tilted = white.T @ white
    site = symmetrised(tilted - cavity.precision)
    return SiteEstimate(tilted @ mean - cavity.shift, site, _error_of_inverse(white, size + num))


def proper_regression(draws: TiltedDraws, cavity: Gaussian) -> SiteEstimate:
    """:func:`score_regression`, or :func:`covariance_inversion` where the slope is no precision.

    For a density that has to stand alone, without a cavity: far from Gaussian, the regression may lose positive
    definiteness to noise.
    """
    regression, inversion = score_regression(draws, cavity), covariance_inversion(draws, cavity)
    proper = jnp.all(jnp.isfinite(whitener(regression.precision + cavity.precision)))
    return jax.tree.map(partial(jnp.where, proper), regression, inversion)
