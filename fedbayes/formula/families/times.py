"""Laws of times until an event, some of which are cut off before it (censored on the right)."""

from typing import ClassVar

import jax
import jax.numpy as jnp
import numpy as np
import numpyro.distributions as dist
from jax import Array
from jax.scipy.special import gammaln
from jax.typing import ArrayLike
from numpyro.distributions import constraints
from numpyro.distributions.util import promote_shapes

_PANELS, _NODES = 16, 6  # of the integral of a survival


class Times(dist.Distribution):
    """A time with hazard ``h`` and cumulative hazard ``H``: ``log p(t) = d log h(t) - H(t)``.

    Here ``d`` is 1 where the event was seen and 0 where the time is censored, so that the event came later. Draws are
    times of events.
    """

    support = constraints.positive

    def __init__(self, observed: ArrayLike | None, shape: tuple[int, ...], validate_args: bool | None = None) -> None:
        batch = shape if observed is None else jnp.broadcast_shapes(shape, jnp.shape(observed))
        self.observed = None if observed is None else promote_shapes(observed, shape=batch)[0]
        super().__init__(batch, validate_args=validate_args)

    def log_hazard(self, time: ArrayLike) -> Array:
        """At each row's time."""
        raise NotImplementedError

    def cumulative_hazard(self, time: ArrayLike) -> Array:
        """From zero to each row's time."""
        raise NotImplementedError

    def time_at(self, cumulative: Array) -> Array:
        """When the cumulative hazard reaches a value."""
        raise NotImplementedError

    def log_prob(self, value: ArrayLike) -> Array:
        """Of times, by row."""
        log_hazard = self.log_hazard(value)
        seen = log_hazard if self.observed is None else jnp.where(jnp.asarray(self.observed) > 0, log_hazard, 0.0)
        return seen - self.cumulative_hazard(value)

    def sample(self, key: Array, sample_shape: tuple[int, ...] = ()) -> Array:
        """Times of events, by inverting the cumulative hazard."""
        return self.time_at(jax.random.exponential(key, self.shape(sample_shape)))

    @property
    def mean(self) -> Array:
        """The expected time of the event."""
        raise NotImplementedError

    def restricted_mean(self, horizon: float) -> Array:
        """The expected time until the event or a horizon, whichever is first: the integral of the survival from zero.

        By Gauss' rule in pieces that are the narrower the nearer they are to zero, where a hazard may be infinite.
        """
        nodes, weights = np.polynomial.legendre.leggauss(_NODES)
        edges = np.linspace(0.0, 1.0, _PANELS + 1)[:-1, None]
        u = (edges + (nodes + 1.0) / (2.0 * _PANELS)).ravel()
        weights = np.tile(weights / (2.0 * _PANELS), _PANELS) * 3.0 * u**2 * horizon
        return jnp.tensordot(weights, jax.vmap(self.survival)(horizon * u**3), axes=1)

    def survival(self, time: ArrayLike) -> Array:
        """The probability that the event comes later."""
        return jnp.exp(-self.cumulative_hazard(time))


class Weibull(Times):
    """Proportional hazards: ``H(t) = exp(eta) (t / unit)^shape``."""

    arg_constraints: ClassVar = {"eta": constraints.real, "concentration": constraints.positive}
    pytree_data_fields = ("eta", "concentration", "observed")
    pytree_aux_fields = ("unit",)

    def __init__(
        self, eta: ArrayLike, concentration: ArrayLike, unit: float, observed: ArrayLike | None = None, *,
        validate_args: bool | None = None,
    ) -> None:  # fmt: skip
        shape = jnp.broadcast_shapes(jnp.shape(eta), jnp.shape(concentration))
        self.eta, self.concentration, self.unit = jnp.asarray(eta), jnp.asarray(concentration), unit
        super().__init__(observed, shape, validate_args)

    def log_hazard(self, time: ArrayLike) -> Array:
        """See :class:`Times`."""
        k = self.concentration
        return self.eta + jnp.log(k / self.unit) + (k - 1.0) * jnp.log(time / self.unit)

    def cumulative_hazard(self, time: ArrayLike) -> Array:
        """See :class:`Times`."""
        return jnp.exp(self.eta + self.concentration * jnp.log(time / self.unit))

    @property
    def mean(self) -> Array:
        """See :class:`Times`."""
        scale = self.unit * jnp.exp(-self.eta / self.concentration)
        return scale * jnp.exp(gammaln(1.0 + 1.0 / self.concentration))

    def time_at(self, cumulative: Array) -> Array:
        """See :class:`Times`."""
        return self.unit * jnp.exp((jnp.log(cumulative) - self.eta) / self.concentration)


class LogLogistic(Times):
    """Accelerated failure: ``H(t) = log(1 + (t / exp(eta))^shape)``, so that ``exp(eta)`` is the median time."""

    arg_constraints: ClassVar = {"eta": constraints.real, "concentration": constraints.positive}
    pytree_data_fields = ("eta", "concentration", "observed")

    def __init__(
        self, eta: ArrayLike, concentration: ArrayLike, observed: ArrayLike | None = None, *,
        validate_args: bool | None = None,
    ) -> None:  # fmt: skip
        shape = jnp.broadcast_shapes(jnp.shape(eta), jnp.shape(concentration))
        self.eta, self.concentration = jnp.asarray(eta), jnp.asarray(concentration)
        super().__init__(observed, shape, validate_args)

    def _log_odds(self, time: ArrayLike) -> Array:
        return self.concentration * (jnp.log(time) - self.eta)

    def log_hazard(self, time: ArrayLike) -> Array:
        """See :class:`Times`."""
        z = self._log_odds(time)
        return jnp.log(self.concentration) - jnp.log(time) + z - jax.nn.softplus(z)

    def cumulative_hazard(self, time: ArrayLike) -> Array:
        """See :class:`Times`."""
        return jax.nn.softplus(self._log_odds(time))

    @property
    def mean(self) -> Array:
        """See :class:`Times`; infinite with a shape of at most 1."""
        finite = jnp.where(self.concentration > 1.0, self.concentration, 2.0)
        found = jnp.exp(self.eta) * (jnp.pi / finite) / jnp.sin(jnp.pi / finite)
        return jnp.where(self.concentration > 1.0, found, jnp.inf)

    def time_at(self, cumulative: Array) -> Array:
        """See :class:`Times`."""
        return jnp.exp(self.eta + jnp.log(jnp.expm1(cumulative)) / self.concentration)


class PiecewiseExponential(Times):
    """Proportional hazards with a hazard that is constant between given times: ``h(t) = exp(eta + log_hazard_j)``.

    Parameters
    ----------
    eta
        Linear predictor of each row.
    log_hazards
        Of each piece, shape ``(pieces,)``; the last one goes on for ever.
    ends
        Where all pieces but the last end.
    observed
        As for all times.
    """

    arg_constraints: ClassVar = {"eta": constraints.real}
    pytree_data_fields = ("eta", "log_hazards", "observed")
    pytree_aux_fields = ("ends",)

    def __init__(
        self, eta: ArrayLike, log_hazards: ArrayLike, ends: tuple[float, ...], observed: ArrayLike | None = None, *,
        validate_args: bool | None = None,
    ) -> None:  # fmt: skip
        self.eta, self.log_hazards, self.ends = jnp.asarray(eta), jnp.asarray(log_hazards), tuple(ends)
        super().__init__(observed, jnp.shape(eta), validate_args)

    def _pieces(self) -> tuple[Array, Array]:
        """Starts and lengths of the pieces; the last one has no end."""
        starts = jnp.asarray((0.0, *self.ends))
        return starts, jnp.append(jnp.diff(starts), jnp.inf)

    def log_hazard(self, time: ArrayLike) -> Array:
        """See :class:`Times`."""
        place = (jnp.asarray(time)[..., None] > jnp.asarray(self.ends)).sum(axis=-1)
        return self.eta + self.log_hazards[place]

    def cumulative_hazard(self, time: ArrayLike) -> Array:
        """See :class:`Times`."""
        starts, lengths = self._pieces()
        exposed = jnp.clip(jnp.asarray(time)[..., None] - starts, 0.0, lengths)
        return jnp.exp(self.eta) * (exposed @ jnp.exp(self.log_hazards))

    @property
    def mean(self) -> Array:
        """See :class:`Times`."""
        return self.restricted_mean(jnp.inf)

    def restricted_mean(self, horizon: ArrayLike) -> Array:
        """See :class:`Times`; in each piece the survival falls exponentially."""
        starts, lengths = self._pieces()
        hazards = jnp.exp(self.eta)[..., None] * jnp.exp(self.log_hazards)
        inside = jnp.clip(horizon - starts, 0.0, lengths)
        before = jnp.cumsum(hazards[..., :-1] * lengths[:-1], axis=-1)
        reached = jnp.concatenate([jnp.zeros_like(before[..., :1]), before], axis=-1)
        return (jnp.exp(-reached) * -jnp.expm1(-hazards * inside) / hazards).sum(axis=-1)

    def time_at(self, cumulative: Array) -> Array:
        """See :class:`Times`."""
        starts, lengths = self._pieces()
        hazards = jnp.exp(self.log_hazards)
        reached = jnp.concatenate([jnp.zeros(1), jnp.cumsum(hazards[:-1] * lengths[:-1])])
        wanted = cumulative / jnp.exp(self.eta)
        place = (wanted[..., None] > reached[1:]).sum(axis=-1)
        return starts[place] + (wanted - reached[place]) / hazards[place]
