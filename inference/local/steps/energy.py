"""A client's energy in the federation's coordinates, and its gradient from all rows, a batch, or clipped rows.

``E_c(u, v) = -(log f_c(theta, z) + s_c log p(theta)) / p_c`` with weights ``p_c`` and shares of the prior ``s_c`` that
both sum to one: ``sum_c p_c E_c`` is the energy of the joint posterior, with the prior counted once.
"""

from collections.abc import Callable
from typing import NamedTuple

import jax
import jax.numpy as jnp
from jax import Array
from jaxtyping import Float, Key

from fedbayes.inference.local.steps.coordinates import Coordinates, LocalCoordinates
from fedbayes.problem.client import Client
from fedbayes.problem.program.prior import Prior


class Energy(NamedTuple):
    """One client's energy.

    Attributes
    ----------
    prior
        Of the globals.
    weight, share
        ``p_c`` and ``s_c``.
    client
        Gives the factor.
    shared, own
        Coordinates of the globals and of the client's locals.
    batch_size
        Rows per gradient, drawn without replacement; ``None``: all.
    clip
        Largest norm of one row's gradient; ``None``: none.
    """

    prior: Prior
    weight: Float[Array, ""]
    share: Float[Array, ""]
    client: Client
    shared: Coordinates
    own: LocalCoordinates
    batch_size: int | None = None
    clip: float | None = None

    def slopes(
        self, u: Float[Array, " d"], v: Float[Array, " m"], key: Key[Array, ""]
    ) -> tuple[Float[Array, " d"], Float[Array, " m"]]:
        """Gradient of the energy in ``u``, and of minus the log factor in ``v``."""
        size = self.prior.size
        slope = self._of_data(u, v, key)
        return -(slope[:size] + self.share * self._of_prior(u)) / self.weight, -slope[size:]

    def clipped_slopes(
        self, u: Float[Array, " d"], v: Float[Array, " m"], key: Key[Array, ""]
    ) -> tuple[Float[Array, " d"], Float[Array, " d"]]:
        """The gradient of the energy in ``u`` in its two terms: of the data, and of the prior.

        The first is bounded, as each row's gradient is. Noise that hides a row has to be added to it alone: beside the
        prior's term, which may be of any size, both could be rounded away.
        """
        slope = self._of_data(u, v, key)[: self.prior.size]
        return -slope / self.weight, -self.share * self._of_prior(u) / self.weight

    def _of_prior(self, u: Array) -> Array:
        """Gradient of the prior's log-density in ``u``."""
        return jax.grad(lambda u: self.prior.log_density(self.shared.globals_at(u)))(u)

    def _of_data(self, u: Array, v: Array, key: Array) -> Array:
        """Gradient of the log factor in ``(u, v)``."""
        size, x = self.prior.size, _joined(u, v)

        def position(x: Array) -> Array:
            u, v = x[:size], x[size:]
            return _joined(self.shared.globals_at(u), self.own.locals_at(u, v))

        if self.batch_size is None and self.clip is None:
            return jax.grad(lambda x: self.client.log_factor(position(x)))(x)
        return self._batch_slope(position, x, key)

    def _batch_slope(self, position: Callable[[Array], Array], x: Array, key: Array) -> Array:
        """Unbiased gradient of the log factor from a batch, with each row's gradient clipped where asked for."""
        client = self.client
        num_rows = jnp.sum(client.mask)
        rows, real, scale = jnp.arange(client.mask.shape[0]), client.mask, jnp.ones(())
        if self.batch_size is not None:
            _, rows = jax.lax.top_k(
                jnp.where(client.mask, jax.random.uniform(key, client.mask.shape, jnp.float32), -1.0), self.batch_size
            )
            real, scale = jnp.ones(rows.shape, bool), num_rows / self.batch_size
        if self.clip is None:
            return jax.grad(lambda x: client.log_factor_of_rows(position(x), rows, scale))(x)
        each = jax.vmap(lambda row: jax.grad(lambda x: client.log_factor_of_rows(position(x), row[None], 1.0))(x))(rows)
        of_client = jnp.zeros(x.shape)
        if not client.program.enumerated:  # terms that are no row's, such as an outcome of the client itself
            no_row = jnp.zeros(1, bool)
            of_client = jax.grad(lambda x: client.log_factor_of_rows(position(x), rows[:1], 1.0, no_row))(x)
            # masked out, a row still makes it NaN where its own slope overflows: by that a code would tell of the row
            of_client = jnp.where(jnp.isfinite(of_client), of_client, 0.0)
            each = each - of_client
        return of_client + scale * jnp.sum(jnp.where(real[:, None], clipped(each, self.clip), 0.0), axis=0)


def _joined(globals_: Array, locals_: Array) -> Array:
    """Both as one vector; of no locals nothing is joined, which XLA takes badly on one core (DESIGN.md, "Traps")."""
    return jnp.concatenate([globals_, locals_]) if locals_.size else globals_


def clipped(each: Float[Array, "row d"], norm: float) -> Float[Array, "row d"]:
    """Rows that are no longer than ``norm``: longer ones are shortened to it, and one that is not finite is zero.

    Squares of huge numbers overflow, and of tiny ones vanish, so lengths are taken relative to the largest entry.
    """
    each = jnp.where(jnp.all(jnp.isfinite(each), axis=1, keepdims=True), each, 0.0)
    largest = jnp.max(jnp.abs(each), axis=1, keepdims=True)
    direction = each / jnp.where(largest > 0.0, largest, 1.0)  # entries up to one
    length = jnp.sqrt(jnp.sum(direction**2, axis=1, keepdims=True))
    return direction * jnp.minimum(largest, norm / jnp.maximum(length, 1.0))
