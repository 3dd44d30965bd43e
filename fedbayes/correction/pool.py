"""Draws of the globals with the log posterior there: their importance weights, and what these say."""

from collections.abc import Callable
from dataclasses import dataclass
from functools import cache, cached_property

import jax
import numpy as np
from scipy.special import logsumexp

from fedbayes.correction.proposal import Proposal, systematic
from fedbayes.correction.recipe import Recipe
from fedbayes.errors import K_HAT_LIMIT
from fedbayes.numerics.importance import pareto_smooth
from fedbayes.runtime.compiling import jit_cheaply
from fedbayes.runtime.precision import computing

LEAST = 100  # effective draws of all chains together, below which weighted moments say little
SHARE = 0.01  # of one draw in the sum of all weights, below which the tail's shape does not matter
NOISE = 1.0  # variance of the clients' estimates, relative, up to which they do little harm
HALVED = 0.3  # sd of `Pool.halved` over the weighted draws, up to which the clients' quadrature is precise enough
HALVED_OF_FEW = 0.1  # the same of the first answers, by fewer nodes: half of them may do nearly as well as all


@dataclass(frozen=True)
class Pool:
    """Draws of one or several proposals, chain by chain, with the log joint density at each.

    Draws of several proposals are weighed as those of their mixture (Cornuet, Marin, Mira and Robert 2012, adaptive
    multiple importance sampling).

    Attributes
    ----------
    theta
        Unconstrained globals, shape ``(chain, draw, d)``.
    log_likelihood
        Of each client, locals integrated out, shape ``(chain, draw, client)``.
    log_joint
        Of all clients and the prior, shape ``(chain, draw)``.
    proposals
        Of each chain, a proposal for each batch of draws.
    counts
        Draws in each batch.
    noise
        Relative variance of the estimate of all clients' likelihood, shape ``(chain, draw)``; zero without locals.
    halved
        Log-likelihood of all clients by quadrature with all nodes, less that with half of them, shape ``(chain,
        draw)``; zero without quadrature.
    recipes
        By which the clients have made the draws of each exchange; ``None``: they were sent.
    """

    theta: np.ndarray
    log_likelihood: np.ndarray
    log_joint: np.ndarray
    proposals: tuple[tuple[Proposal, ...], ...]
    counts: tuple[int, ...]
    noise: np.ndarray
    halved: np.ndarray
    recipes: tuple[Recipe | None, ...] = ()

    def extended(self, other: "Pool") -> "Pool":
        """With one more batch of draws."""
        return Pool(
            np.concatenate([self.theta, other.theta], axis=1),
            np.concatenate([self.log_likelihood, other.log_likelihood], axis=1),
            np.concatenate([self.log_joint, other.log_joint], axis=1),
            tuple((*mine, *new) for mine, new in zip(self.proposals, other.proposals, strict=True)),
            self.counts + other.counts,
            np.concatenate([self.noise, other.noise], axis=1),
            np.concatenate([self.halved, other.halved], axis=1),
            self.recipes + other.recipes,
        )

    @cached_property
    def log_weights(self) -> np.ndarray:
        """Log of posterior, unnormalised, over the mixture of the chain's proposals, shape ``(chain, draw)``."""
        shares = np.asarray(self.counts) / sum(self.counts)
        log_mixture = [
            logsumexp([each.log_density(points) for each in proposals], axis=0, b=shares[:, None])
            for points, proposals in zip(self.theta, self.proposals, strict=True)
        ]
        with np.errstate(invalid="ignore"):
            log_weights = self.log_joint - np.stack(log_mixture)
        return np.where(np.isfinite(log_weights), log_weights, -np.inf)

    @property
    def known(self) -> bool:
        """Whether the clients could answer at some of the draws."""
        return bool(np.any(np.isfinite(self.log_weights)))

    @cached_property
    def _smoothed(self) -> tuple[np.ndarray, float]:
        logs = self.log_weights
        if not self.known:
            return np.full(logs.shape, 1.0 / logs.size), float("inf")
        smoothed, k_hat = _smooth(logs)
        if self.largest <= SHARE:  # nothing to smooth, and what looks like a tail would be cut short
            return np.exp(logs - logsumexp(logs)), k_hat
        return smoothed.reshape(logs.shape), k_hat

    @property
    def weights(self) -> np.ndarray:
        """Pareto-smoothed where a few draws count for much, of all chains together one, shape ``(chain, draw)``."""
        return self._smoothed[0]

    @property
    def k_hat(self) -> float:
        """Shape of the weights' Pareto tail."""
        return self._smoothed[1]

    @property
    def effective(self) -> float:
        """Effective number of draws ``1 / sum w^2`` of all chains together."""
        return float(1.0 / np.sum(self.weights**2))

    @property
    def weighted_noise(self) -> float:
        """Relative variance of all clients' estimates, where the weights are: draws without weight do no harm.

        Quadrature adds the variance of ``halved`` over the weighted draws, divided by the largest that is accepted,
        ``HALVED^2``. An error that is the same at all draws changes no weight.
        """
        return weighted_noise(self.weights, self.noise, self.halved)

    @property
    def needs_finer(self) -> bool:
        """Whether the clients' first answers are too imprecise, so that they are asked for finer ones."""
        return weighted_noise(self.weights, self.noise, self.halved, HALVED_OF_FEW) > NOISE

    @property
    def largest(self) -> float:
        """Share of the largest weight, before smoothing, in the sum of all."""
        return largest_share(self.log_weights)

    @property
    def reliable(self) -> bool:
        """Whether the weights can be trusted: their tail, their number, and the noise of the clients' estimates."""
        tail = trusted(self.log_weights, self.k_hat)
        return tail and self.effective >= LEAST and self.weighted_noise <= NOISE

    def moments(self) -> tuple[np.ndarray, np.ndarray]:
        """Weighted mean ``(d,)`` and covariance ``(d, d)`` of the globals."""
        mean = np.einsum("rs,rsi->i", self.weights, self.theta)
        gap = self.theta - mean
        return mean, np.tensordot(self.weights[..., None] * gap, gap, axes=((0, 1), (0, 1)))

    def log_evidence(self) -> np.ndarray:
        """Log of the mean weight of each chain, shape ``(chain,)``."""
        found: np.ndarray = logsumexp(self.log_weights, axis=1) - np.log(self.log_weights.shape[1])
        return found

    def tempered(self, least: float) -> np.ndarray:
        """Weights to the largest power below one that leaves ``least`` effective draws, shape ``(chain * draw,)``."""
        logs = self.log_weights.reshape(-1)

        def powered(power: float) -> np.ndarray:
            with np.errstate(invalid="ignore"):
                found = np.where(np.isfinite(logs), power * (logs - np.max(logs)), -np.inf)
            weights: np.ndarray = np.exp(found - logsumexp(found))
            return weights

        power = 1.0
        while 1.0 / np.sum(powered(power) ** 2) < least and power > 1e-3:
            power *= 0.8
        return powered(power)

    def resampled(self, num: int, key: jax.Array) -> np.ndarray:
        """Places of ``num`` draws a chain, taken by their weights in it, in random order, shape ``(chain, num)``.

        Systematic resampling: a draw of weight ``w`` is taken ``num w`` times, rounded up or down. Before
        that, the draws are put in random order: every second point of a quasi-random sequence, in the sequence's own
        order, is not spread as the sequence is.
        """
        rng = np.random.default_rng(np.asarray(jax.random.key_data(key)))

        def places(weights: np.ndarray) -> np.ndarray:
            order = rng.permutation(len(weights))
            return order[systematic(weights[order], num, rng)]

        return np.stack([places(weights) for weights in self.weights])


def weighted_noise(weights: np.ndarray, noise: np.ndarray, halved: np.ndarray, most: float = HALVED) -> float:
    """See :attr:`Pool.weighted_noise`; all arrays have one shape; of ``halved`` an sd of ``most`` is accepted."""
    some = weights > 0.0
    weights, halved = weights[some], halved[some]
    of_quadrature = np.sum(weights * (halved - np.sum(weights * halved)) ** 2) / most**2
    return float(np.sum(weights * noise[some]) + of_quadrature)


def largest_share(log_weights: np.ndarray) -> float:
    """Share of the largest weight in the sum of all; one where all are zero."""
    top = np.max(log_weights)
    return float(np.exp(top - logsumexp(log_weights))) if np.isfinite(top) else 1.0


def tail_shape(log_weights: np.ndarray) -> float:
    """k-hat, the shape of the tail of weights ``(n,)``."""
    return _smooth(log_weights)[1]


@cache
def _smoothing() -> Callable:
    return jit_cheaply(pareto_smooth)


def _smooth(log_weights: np.ndarray) -> tuple[np.ndarray, float]:
    """Smoothed weights and k-hat, in double precision whoever asks: decimals of a log weight of -1e6 count."""
    with computing():
        smoothed, k_hat = _smoothing()(log_weights.reshape(-1))
        return np.asarray(smoothed), float(k_hat)


def trusted(log_weights: np.ndarray, k_hat: float) -> bool:
    """Whether the tail of the weights is short enough: k-hat is below 0.7, or no draw has a share that counts.

    Weights that are nearly equal but for a few percent, as those of a good proposal with heavy tails, may have a large
    k-hat, whose tail is none: they are bounded. Their largest share tells them from others, as it is small only where
    there are enough draws (Chatterjee and Diaconis 2018, "The sample size required in importance sampling"): of 5,000
    weights with a true tail shape of 0.7 one has a larger share in 99 of 100 samples.
    """
    return k_hat <= K_HAT_LIMIT or largest_share(log_weights) <= SHARE
