"""What a Gaussian process says of new rows, given a client's own."""

from typing import Any

import jax
import jax.numpy as jnp
from jax import Array
from jax.scipy.linalg import solve_triangular
from jax.typing import ArrayLike

from fedbayes.models.gp.normal import NormalRows
from fedbayes.numerics.gaussian import LOG_2PI


class Conditioned(NormalRows):
    """Outcomes of rows ``x``, shape ``(n,)``, given others: ``N(mean, kernel(x, x) - E' E + R' R + noise I)``.

    Parameters
    ----------
    prior
        The law of these rows by themselves, which has a kernel and a noise.
    mean
        Given the others, shape ``(n,)``.
    explained
        ``E``, shape ``(m, n)``: what knowing the function at m other places takes off its variance here.
    remaining
        ``R``, shape ``(m, n)``: what is not known at these places; ``None``: nothing.
    """

    pytree_data_fields = ("prior", "center", "explained", "remaining")

    def __init__(self, prior: Any, mean: Array, explained: Array, remaining: Array | None = None) -> None:
        self.prior, self.center, self.explained, self.remaining = prior, mean, explained, remaining
        super().__init__(batch_shape=(), event_shape=mean.shape, validate_args=False)

    @property
    def mean(self) -> Array:
        """Of each outcome, shape ``(n,)``."""
        return self.center

    @property
    def signal_variance(self) -> Array:
        """Of the function at each row, without noise, shape ``(n,)``."""
        variance = self.prior.kernel(self.prior.x) - jnp.sum(self.explained**2, axis=0)
        if self.remaining is not None:
            variance = variance + jnp.sum(self.remaining**2, axis=0)
        return jnp.maximum(variance, 0.0)

    @property
    def variance(self) -> Array:
        """Of each outcome, its noise included, shape ``(n,)``."""
        return self.signal_variance + self.prior.noise

    @property
    def factor(self) -> Array:
        """Lower Cholesky factor of the outcomes' covariance, shape ``(n, n)``."""
        prior = self.prior
        covariance = prior.kernel(prior.x, prior.x) - self.explained.T @ self.explained
        if self.remaining is not None:
            covariance = covariance + self.remaining.T @ self.remaining
        return jnp.linalg.cholesky(covariance + jnp.diag(prior.noise + prior.jitter_variance))

    def sample(self, key: Array, sample_shape: tuple[int, ...] = ()) -> Array:
        """Draws of the outcomes, shape ``sample_shape + (n,)``."""
        noise = jax.random.normal(key, sample_shape + self.event_shape, self.center.dtype)
        return self.center + noise @ self.factor.T

    def log_prob(self, value: ArrayLike) -> Array:
        """The joint log density of the outcomes, shape ``(n,)``."""
        factor = self.factor
        white = solve_triangular(factor, jnp.asarray(value) - self.center, lower=True)
        return -0.5 * (white @ white + len(white) * LOG_2PI) - jnp.sum(jnp.log(jnp.diag(factor)))
