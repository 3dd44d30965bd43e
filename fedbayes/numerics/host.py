"""Gaussians once the rounds are over: a few small matrices, by NumPy, which compiles nothing.

Their leading axis is that of the replicates. What runs inside compiled programs is in
:mod:`fedbayes.numerics.gaussian`.
"""

from collections.abc import Callable

import jax
import numpy as np
from jax import Array
from jax.typing import ArrayLike
from jaxtyping import Float, Key, UInt32

from fedbayes.numerics.gaussian import LOG_2PI, Gaussian


def product_of(prior: Gaussian, sites: Gaussian) -> Gaussian:
    """Prior times the product of all sites."""
    return _symmetric(jax.tree.map(lambda own, all_: np.asarray(own) + np.asarray(all_), prior, sites))


def cavities_of(prior: Gaussian, sites: Gaussian) -> Gaussian:
    """Prior times the other clients' sites, leading axes replicate and client."""
    everybody = product_of(prior, jax.tree.map(lambda each: np.asarray(each).sum(axis=1), sites))
    return _symmetric(jax.tree.map(lambda total, each: total[:, None] - np.asarray(each), everybody, sites))


def _symmetric(gaussian: Gaussian) -> Gaussian:
    precision = 0.5 * (gaussian.precision + np.swapaxes(gaussian.precision, -1, -2))
    return Gaussian(gaussian.shift, precision, gaussian.log_scale)


def whiteners(precision: Float[ArrayLike, "replicate d d"]) -> Float[np.ndarray, "replicate d d"]:
    """Inverse Cholesky factors ``W``, ``W Q W' = I``, of a batch of matrices; NaN for those that are not precisions.

    After a fit a few small matrices are factorised once: NumPy does that without compiling a program.
    """
    matrices = np.asarray(precision)
    found = np.full(matrices.shape, np.nan)
    for place, matrix in enumerate(matrices):
        try:
            found[place] = np.linalg.inv(np.linalg.cholesky(matrix))
        except np.linalg.LinAlgError:
            continue
    return found


def gaussian_moments(
    posterior: Gaussian,
) -> tuple[Float[np.ndarray, "replicate d"], Float[np.ndarray, "replicate d d"]]:
    """Means and covariances; NaN for an improper Gaussian."""
    white = whiteners(posterior.precision)
    covariance = np.swapaxes(white, 1, 2) @ white
    return np.einsum("rij,rj->ri", covariance, np.asarray(posterior.shift)), covariance


def normal_from_moments(
    means: Float[np.ndarray, "replicate d"], covariances: Float[np.ndarray, "replicate d d"]
) -> Gaussian:
    """Normalised Gaussians with these moments."""
    white = whiteners(covariances)
    precision = np.swapaxes(white, 1, 2) @ white
    shift = np.einsum("rij,rj->ri", precision, means)
    scale = -0.5 * (np.einsum("ri,ri->r", means, shift) - _log_det(precision) + means.shape[1] * LOG_2PI)
    return Gaussian(shift, precision, scale)


def gaussian_draws(
    posterior: Gaussian, key: Key[Array, ""], num: int
) -> Float[np.ndarray, "replicate {num} {posterior.size}"]:
    """Independent draws."""
    mean, _ = gaussian_moments(posterior)
    return normal_draws(mean, whiteners(posterior.precision), np.asarray(jax.random.key_data(key)), num)


def normal_draws(
    means: Float[np.ndarray, "replicate d"],
    whites: Float[np.ndarray, "replicate d d"],
    words: UInt32[np.ndarray, " word"],
    num: int,
) -> Float[np.ndarray, "replicate {num} d"]:
    """Independent draws of Gaussians with these means and :func:`whiteners`; ``words`` are the data of a key."""
    noise = np.random.default_rng(words).standard_normal((len(means), num, means.shape[1]))
    return means[:, None] + noise @ whites


def gaussian_log_density(
    posterior: Gaussian, theta: Float[np.ndarray, "replicate draw {posterior.size}"]
) -> Float[np.ndarray, "replicate draw"]:
    """Log density of each replicate's Gaussian at its draws."""
    mean, _ = gaussian_moments(posterior)
    precision = np.asarray(posterior.precision)
    gap = np.asarray(theta) - mean[:, None]
    squared = np.einsum("rsi,rij,rsj->rs", gap, precision, gap)
    return 0.5 * (_log_det(precision)[:, None] - squared - mean.shape[1] * LOG_2PI)


def log_integrals(posterior: Gaussian) -> Float[np.ndarray, " replicate"]:
    """Log of the integral of each replicate's Gaussian."""
    mean, _ = gaussian_moments(posterior)
    half = np.einsum("ri,ri->r", mean, np.asarray(posterior.shift))
    scale = np.asarray(posterior.log_scale)
    return scale + 0.5 * (half - _log_det(np.asarray(posterior.precision)) + mean.shape[1] * LOG_2PI)


def log_joint(
    log_densities: Callable[[np.ndarray], Array],
    theta: Float[np.ndarray, "chain draw d"],
    log_likelihood: Float[np.ndarray, "chain draw client"],
) -> Float[np.ndarray, "chain draw"]:
    """Log joint density of draws, unnormalised, in unconstrained space.

    Parameters
    ----------
    log_densities
        Of the prior, at many points.
    theta
        The draws.
    log_likelihood
        Each client's.
    """
    prior = np.asarray(log_densities(theta.reshape(-1, theta.shape[-1])))
    return prior.reshape(theta.shape[:2]) + log_likelihood.sum(axis=-1)


def spread_of_means(posterior: Gaussian) -> float:
    """Spread of the replicates' means, in posterior sds (root mean square); NaN with one replicate."""
    mean, covariance = gaussian_moments(posterior)
    if len(mean) < 2:
        return float("nan")
    sd = np.sqrt(np.diagonal(covariance.mean(axis=0)))
    return float(np.sqrt(np.mean((mean.std(axis=0, ddof=1) / sd) ** 2)))


def _log_det(precision: np.ndarray) -> np.ndarray:
    """Log determinants; ``W Q W' = I``, so minus twice the sum of the logs of W's diagonal."""
    return -2.0 * np.log(np.diagonal(whiteners(precision), axis1=1, axis2=2)).sum(axis=1)
