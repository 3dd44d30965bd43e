"""How far a Gaussian is from the reference, in numbers that need no units."""

from typing import NamedTuple

import numpy as np


class Moments(NamedTuple):
    """Mean ``(d,)`` and covariance ``(d, d)`` of the globals."""

    mean: np.ndarray
    covariance: np.ndarray


class Score(NamedTuple):
    """A posterior against the reference.

    Attributes
    ----------
    rms
        Error of the means in posterior sds, root mean square over the globals.
    least_sd_ratio, largest_sd_ratio
        Its sds over the reference's.
    kl
        ``KL(Gaussian || reference Gaussian)``, nats.
    """

    rms: float
    least_sd_ratio: float
    largest_sd_ratio: float
    kl: float


def of_draws(draws: np.ndarray) -> Moments:
    """Moments of draws ``(n, d)``."""
    return Moments(draws.mean(axis=0), np.cov(draws, rowvar=False))


def kl(first: Moments, second: Moments) -> float:
    """``KL(first || second)`` of Gaussians; infinite where a covariance is not positive definite."""
    size = len(first.mean)
    if not np.all(np.isfinite(first.covariance)) or np.linalg.eigvalsh(first.covariance)[0] <= 0.0:
        return float("inf")
    gap = np.asarray(first.mean - second.mean)
    solved = np.linalg.solve(second.covariance, np.column_stack([first.covariance, gap]))
    log_dets = np.linalg.slogdet(second.covariance)[1] - np.linalg.slogdet(first.covariance)[1]
    return float(0.5 * (np.trace(solved[:, :size]) + gap @ solved[:, -1] - size + log_dets))


def score(found: Moments, reference: Moments) -> Score:
    """Compare with the reference."""
    sd = np.sqrt(np.diagonal(reference.covariance))
    ratios = np.sqrt(np.maximum(np.diagonal(found.covariance), 0.0)) / sd
    rms = float(np.sqrt(np.mean(((found.mean - reference.mean) / sd) ** 2)))
    return Score(rms, float(ratios.min()), float(ratios.max()), kl(found, reference))
