"""Counts whose zeros have a probability of their own, and whose other values are a count given that it is not zero."""

from typing import ClassVar

import jax
import jax.numpy as jnp
import numpyro.distributions as dist
from jax import Array
from jax.typing import ArrayLike
from numpyro.distributions import constraints
from numpyro.distributions.util import promote_shapes, validate_sample

from fedbayes.formula.families.overdispersed import NegativeBinomial


class Hurdle(dist.Distribution):
    """Zero with probability ``psi``, else a Poisson or negative binomial count given that it is not zero.

    ``log p(0) = log psi``, ``log p(y) = log(1 - psi) + log q(y) - log(1 - q(0))``.

    Parameters
    ----------
    rate
        Mean of the count that was not cut off.
    psi
        Probability of zero.
    concentration
        Of a negative binomial count, whose variance is ``rate + rate^2 / concentration``; ``None``: Poisson.
    """

    support = constraints.nonnegative_integer
    arg_constraints: ClassVar = {"rate": constraints.positive, "psi": constraints.unit_interval}
    pytree_data_fields = ("rate", "psi", "concentration")

    def __init__(
        self,
        rate: ArrayLike,
        psi: ArrayLike,
        concentration: ArrayLike | None = None,
        *,
        validate_args: bool | None = None,
    ) -> None:
        shapes = [jnp.shape(rate), jnp.shape(psi), jnp.shape(concentration) if concentration is not None else ()]
        batch = jnp.broadcast_shapes(*shapes)
        self.rate, self.psi = promote_shapes(rate, psi, shape=batch)
        self.concentration = None if concentration is None else promote_shapes(concentration, shape=batch)[0]
        super().__init__(batch, validate_args=validate_args)

    @property
    def _count(self) -> dist.Distribution:
        if self.concentration is None:
            return dist.Poisson(self.rate)
        return NegativeBinomial(self.rate, self.concentration)

    def _log_zero(self) -> Array:
        """The count's log probability of zero."""
        if self.concentration is None:
            return -jnp.asarray(self.rate)
        return -self.concentration * jnp.log1p(self.rate / self.concentration)

    @validate_sample
    def log_prob(self, value: ArrayLike) -> Array:
        """Of counts, by row."""
        value = jnp.asarray(value)
        positive = jnp.where(value > 0, value, 1)
        above = jnp.log1p(-self.psi) + self._count.log_prob(positive) - jnp.log(-jnp.expm1(self._log_zero()))
        return jnp.where(value > 0, above, jnp.log(self.psi))

    def sample(self, key: Array, sample_shape: tuple[int, ...] = ()) -> Array:
        """Counts, drawn without rejection.

        A count that is not zero is the number of arrivals in a unit of time, given that there is one. The first of
        these is drawn by inverting its distribution function, the others arrive after it; of a negative binomial, the
        rate is a Gamma variable, whose law given the first arrival is a Gamma law again.
        """
        zero, first, rate, rest = jax.random.split(key, 4)
        shape = self.shape(sample_shape)
        uniform = jax.random.uniform(first, shape)
        if self.concentration is None:
            start = -jnp.log1p(uniform * jnp.expm1(-self.rate)) / self.rate
            mean = jnp.broadcast_to(self.rate, shape)
        else:
            beta = self.concentration / self.rate
            reached = -jnp.expm1(self._log_zero())  # probability of an arrival before time one
            start = beta * jnp.expm1(-jnp.log1p(-uniform * reached) / self.concentration)
            mean = jax.random.gamma(rate, jnp.broadcast_to(self.concentration + 1.0, shape)) / (beta + start)
        count = 1 + jax.random.poisson(rest, mean * jnp.clip(1.0 - start, 0.0, 1.0))
        return jnp.where(jax.random.uniform(zero, shape) < self.psi, 0, count)

    @property
    def mean(self) -> Array:
        """Of each row."""
        return (1.0 - self.psi) * self.rate / -jnp.expm1(self._log_zero())

    @property
    def variance(self) -> Array:
        """Of each row."""
        extra = 0.0 if self.concentration is None else self.rate / self.concentration
        second = (1.0 - self.psi) * self.rate * (1.0 + self.rate + extra) / -jnp.expm1(self._log_zero())
        return second - self.mean**2
