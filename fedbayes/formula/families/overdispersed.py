"""Counts that vary more than binomial and Poisson ones, with densities that stay right where they hardly do.

As the concentration grows, the laws become binomial and Poisson, and their usual densities differences of huge numbers:
from 1e16 on ``a + 1`` is ``a`` in floating point, and what is left out then makes every outcome look likelier by a
constant. A search or a wide draw that meets such values would take that for a second mode.
"""

import jax.numpy as jnp
import numpyro.distributions as dist
from jax import Array
from jax.typing import ArrayLike
from numpyro.distributions.util import validate_sample

from fedbayes.numerics.gamma import log_gamma, log_rising


class BetaBinomial(dist.BetaBinomial):
    """NumPyro's, with a density that is right for any concentrations."""

    @validate_sample
    def log_prob(self, value: ArrayLike) -> Array:
        """Of counts, by row."""
        n, a, b = self.total_count, self.concentration1, self.concentration0
        ways = log_gamma(n + 1.0) - log_gamma(value + 1.0) - log_gamma(n - value + 1.0)
        return ways + log_rising(a, value) + log_rising(b, n - value) - log_rising(a + b, n)


class NegativeBinomial(dist.NegativeBinomial2):
    """NumPyro's with mean and concentration, with a density that is right for any of these.

    Parameters
    ----------
    mean
        Of the counts.
    concentration
        Their variance is ``mean + mean^2 / concentration``.
    """

    pytree_data_fields = ("mean_of_counts",)

    def __init__(self, mean: ArrayLike, concentration: ArrayLike, *, validate_args: bool | None = None) -> None:
        self.mean_of_counts = jnp.asarray(mean)
        super().__init__(mean, concentration, validate_args=validate_args)

    @validate_sample
    def log_prob(self, value: ArrayLike) -> Array:
        """Of counts, by row."""
        mean, alpha = self.mean_of_counts, self.concentration
        scaled = log_rising(alpha, value) - value * jnp.log(alpha)
        dispersed = jnp.log1p(mean / alpha)
        return scaled - log_gamma(value + 1.0) + value * (jnp.log(mean) - dispersed) - alpha * dispersed
