"""A proposal for a client's locals that is as skewed, and as heavy in its tails, as their density.

The Laplace approximation puts ``z = mode + W' e`` with ``e`` standard normal. Where the density is skewed, importance
weights of such draws vary by some percent for each local, and by a factor of ten for thirty of them. Along each axis of
``e`` through the mode the density is a function of one number, of which quadrature's gradients at a handful of nodes
tell all (:mod:`~fedbayes.inference.local.density.quadrature`). Its quantiles at the levels of ``x ~ N(0, 1)`` give a
rising map ``e_i = T_i(x_i)``, linear between knots, by which the proposal's density is exactly
``prod_i phi(x_i) / T_i'(x_i)``: whatever the map, weights of its draws are unbiased. Where locals depend on each other
beyond their covariance it is no more than a better guess.
"""

from collections.abc import Callable
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array
from jaxtyping import Float, Int
from scipy.special import ndtr

from fedbayes.inference.local.density import quadrature
from fedbayes.inference.local.density.conditional import Conditional

_END, _STEP = 3.5, 0.25  # of the knots
_GAUSSIAN = 1e-6  # of an axis' slopes beside those of a Gaussian: up to here it is one, and its map the identity


class Axes(NamedTuple):
    """The maps ``T_i``: where each axis is at the knots."""

    knots: Float[Array, "m knot"]

    def at(self, x: Float[Array, " m"]) -> tuple[Float[Array, " m"], Float[Array, ""]]:
        """``T(x)``, and the log of its determinant; beyond the outer knots it goes on as it ends."""
        cell = jnp.clip(jnp.floor((x + _END) / _STEP).astype(int), 0, len(_places()) - 2)
        left, right = (jnp.take_along_axis(self.knots, cell[:, None] + i, 1)[:, 0] for i in (0, 1))
        slope = (right - left) / _STEP
        return left + slope * (x - (cell * _STEP - _END)), jnp.sum(jnp.log(slope))


def find_axes(
    log_density: Callable[[Array], Array], there: Conditional, groups: Int[Array, "group size"], nodes: int
) -> Axes:
    """The maps of all axes, by as many gradients as a group has locals, at each node.

    Parameters
    ----------
    log_density
        Of the locals, up to a constant, ``(m,) -> ()``.
    there
        Their Laplace approximation.
    groups
        Places of each group's locals, which are independent of all others.
    nodes
        Of quadrature.
    """
    zero = jnp.zeros(there.mode.shape[0])

    def along(places: Array) -> Array:
        """Residuals of one axis of each group."""
        axis = zero.at[places].set(1.0)
        whitened = lambda e: log_density(there.draw(e, groups))  # noqa: E731
        return axis * quadrature.reference_at(whitened, zero, axis, nodes=nodes).residual

    residual = jnp.sum(jax.lax.map(along, groups.T), axis=0)
    known = quadrature.Reference(zero, jnp.ones_like(zero), residual, jnp.array(True))
    levels = jnp.broadcast_to(ndtr(_places())[:, None], (len(_places()), len(zero)))
    found = quadrature.integrated_and_drawn(lambda _: jnp.zeros(()), known, levels).drawn
    fine = jnp.all(jnp.isfinite(found) & (jnp.diff(found, axis=0, append=jnp.inf) > 0.0), axis=0)
    skewed = fine & (jnp.max(jnp.abs(residual), axis=0) > _GAUSSIAN)
    return Axes(jnp.where(skewed, found, _places()[:, None]).T)


def _places() -> np.ndarray:
    """The knots as standard normal numbers."""
    return np.arange(-_END, _END + 0.5 * _STEP, _STEP)
