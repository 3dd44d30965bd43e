"""Where draws of the globals are proposed: mixtures of Gaussians and of multivariate t laws, on the host."""

import warnings
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from scipy.special import chdtri, gammaln, logsumexp, ndtri
from scipy.stats import qmc

from fedbayes.numerics.gaussian import LOG_2PI
from fedbayes.numerics.host import whiteners

_KERNELS = 48  # of a fitted proposal
_TAILS = 5.0  # degrees of freedom of the laws that are fitted to draws: heavier than a posterior's, with four moments


class Law(NamedTuple):
    """A Gaussian, or a multivariate t law.

    Attributes
    ----------
    mean
        Shape ``(d,)``.
    white
        ``W`` with ``W Q W' = I`` for the precision ``Q``, shape ``(d, d)``: draws are ``mean + noise @ W``.
    freedom
        Degrees of freedom; infinite for a Gaussian.
    """

    mean: np.ndarray
    white: np.ndarray
    freedom: float = np.inf

    @classmethod
    def of_moments(cls, mean: np.ndarray, covariance: np.ndarray, freedom: float = np.inf) -> "Law":
        """With this mean ``(d,)`` and this scale matrix ``(d, d)``; NaN where it is not positive definite."""
        white = whiteners(covariance[None])[0]  # L^-1 for the covariance L L'
        return cls(mean, np.linalg.inv(white).T if np.all(np.isfinite(white)) else white, freedom)

    def draws(self, rng: np.random.Generator, num: int, *, evenly: bool = False) -> np.ndarray:
        """Draws, shape ``(num, d)``: independent ones, or evenly spread by a scrambled Sobol sequence."""
        size = len(self.mean)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", UserWarning)  # of numbers that are no power of two
            uniform = qmc.Sobol(size + 1, rng=rng).random(num) if evenly else rng.random((num, size + 1))
        uniform = np.clip(uniform, 1e-12, 1.0 - 1e-12)
        noise = ndtri(uniform[:, :size])
        if np.isfinite(self.freedom):
            noise = noise / np.sqrt(chdtri(self.freedom, uniform[:, size:]) / self.freedom)
        return self.mean + noise @ self.white

    def log_density(self, points: np.ndarray) -> np.ndarray:
        """At each of the points ``(n, d)``, shape ``(n,)``."""
        size = len(self.mean)
        with np.errstate(over="ignore", invalid="ignore"):  # far out, or of a law that is none
            squares = np.sum(np.linalg.solve(self.white.T, (points - self.mean).T) ** 2, axis=0)
            log_det = np.linalg.slogdet(self.white)[1]
        if not np.isfinite(self.freedom):
            return -0.5 * (squares + size * LOG_2PI) - log_det
        half = 0.5 * (self.freedom + size)
        constant = gammaln(half) - gammaln(0.5 * self.freedom) - 0.5 * size * np.log(self.freedom * np.pi)
        return constant - log_det - half * np.log1p(squares / self.freedom)


class Proposal(NamedTuple):
    """A mixture of laws.

    Attributes
    ----------
    laws
        Of the same dimension.
    shares
        Of the draws, positive.
    """

    laws: Sequence[Law]
    shares: Sequence[float]

    def draws(self, rng: np.random.Generator, num: int) -> np.ndarray:
        """``num`` draws, evenly spread, of each law in proportion to its share, shape ``(num, d)``."""
        ends = np.round(num * np.cumsum(self.shares) / np.sum(self.shares)).astype(int)
        counts = np.diff(ends, prepend=0)
        return np.concatenate(
            [law.draws(rng, count, evenly=True) for law, count in zip(self.laws, counts, strict=True) if count]
        )

    def shuffled(self, rng: np.random.Generator, num: int) -> np.ndarray:
        """``num`` independent draws: a random number of each law, in random order, shape ``(num, d)``."""
        counts = rng.multinomial(num, np.asarray(self.shares) / np.sum(self.shares))
        parts = [law.draws(rng, count) for law, count in zip(self.laws, counts, strict=True)]
        found: np.ndarray = rng.permutation(np.concatenate(parts))
        return found

    def log_density(self, points: np.ndarray) -> np.ndarray:
        """At each of the points ``(n, d)``, shape ``(n,)``."""
        parts = np.stack([law.log_density(points) for law in self.laws])
        weights = np.asarray(self.shares)[:, None] / np.sum(self.shares)
        found: np.ndarray = logsumexp(parts, axis=0, b=weights)
        return found


def systematic(weights: np.ndarray, num: int, rng: np.random.Generator) -> np.ndarray:
    """Places of ``num`` draws, each taken ``num w`` times, rounded up or down, in random order."""
    ends = np.cumsum(weights) / np.sum(weights)
    places = np.minimum(np.searchsorted(ends, (np.arange(num) + rng.random()) / num), len(weights) - 1)
    return rng.permutation(places)


def fitted(points: np.ndarray, weights: np.ndarray, rng: np.random.Generator) -> Proposal:
    """A proposal like the weighted draws, with heavier tails, which also follows skewed laws and several modes.

    Two fifths of its draws are of the t law with the draws' moments, the others of a mixture of t kernels around some
    of the draws, which are taken by their weights (West 1993). The kernels' width is that of a kernel density estimate,
    ``(4 / ((d + 2) M))^(1 / (d + 4))`` times the draws' own.

    Parameters
    ----------
    points
        Shape ``(n, d)``.
    weights
        Sum to one, shape ``(n,)``.
    rng
        Chooses the kernels' centres.
    """
    size = points.shape[1]
    mean = weights @ points
    covariance = np.atleast_2d((points - mean).T @ (weights[:, None] * (points - mean)))
    width = (4.0 / ((size + 2) * _KERNELS)) ** (1.0 / (size + 4))
    whole = Law.of_moments(mean, covariance, _TAILS)
    kernel = Law.of_moments(mean, covariance * width**2, _TAILS)
    centres = points[systematic(weights, _KERNELS, rng)]
    laws = [whole, *(kernel._replace(mean=centre) for centre in centres)]
    return Proposal(laws, [0.4, *[0.6 / _KERNELS] * _KERNELS])
