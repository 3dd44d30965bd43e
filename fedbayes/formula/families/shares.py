"""Shares between 0 and 1."""

import jax.numpy as jnp
import numpyro.distributions as dist
from jax import Array
from jax.typing import ArrayLike
from numpyro.distributions.util import validate_sample

from fedbayes.numerics.gamma import log_gamma


class Beta(dist.Beta):
    """NumPyro's, with a density that is differentiated twice at little cost."""

    @validate_sample
    def log_prob(self, value: ArrayLike) -> Array:
        """Of shares, by row."""
        a, b = self.concentration1, self.concentration0
        powers = (a - 1.0) * jnp.log(value) + (b - 1.0) * jnp.log1p(-jnp.asarray(value))
        total, first, second = log_gamma(jnp.stack(jnp.broadcast_arrays(a + b, a, b)))
        return powers + total - first - second
