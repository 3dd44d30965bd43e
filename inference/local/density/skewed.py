"""A proposal for a client's locals that is as skewed as their density.

The Laplace approximation puts ``z = mode + W' e`` with ``e`` standard normal. Where the density is skewed, the
importance weights of such draws vary, and their variances multiply: a relative variance of 7 percent for each of thirty
locals is one of 6.6 for all. Along each axis of ``e`` through the mode the density is a function of one number, which
follows from its gradients at the nodes of quadrature (:mod:`~fedbayes.inference.local.density.quadrature`). Its
quantiles at the levels of ``x ~ N(0, 1)``, out to 3.5 sds, give an increasing map ``e_i = T_i(x_i)``, linear between
knots and beyond them, so that the proposal's density is exactly ``prod_i phi(x_i) / T_i'(x_i)``. Importance weights are
unbiased whatever the map is.

The map is found at one point of the globals. At other points, or where locals depend on each other beyond their
covariance, it is only a guess. Therefore one of eight draws is from the wide Gaussian without a map, and no weight is
more than eight times what it would be if all draws were from that Gaussian.
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
_GAUSSIAN = 1e-3  # of an axis' slopes beside those of a Gaussian: up to here it is one, and its map the identity
_PLAIN = 8  # of so many draws one is not skewed


class Axes(NamedTuple):
    """The maps ``T_i``: where each axis is at the knots."""

    knots: Float[Array, "m knot"]

    def at(self, x: Float[Array, " m"]) -> Float[Array, " m"]:
        """``T(x)``; beyond the outer knots it goes on as it ends."""
        cell = jnp.clip(jnp.floor((x + _END) / _STEP), 0, len(_places()) - 2).astype(int)
        left, slope = self._ends(cell)
        return left + slope * (x - (cell * _STEP - _END))

    def back(self, e: Float[Array, " m"]) -> tuple[Float[Array, " m"], Float[Array, ""]]:
        """``x`` with ``T(x) = e``, and the log determinant of ``T`` there."""
        cell = jnp.sum(e[:, None] >= self.knots[:, 1:-1], axis=1)
        left, slope = self._ends(cell)
        return (e - left) / slope + (cell * _STEP - _END), jnp.sum(jnp.log(slope))

    def _ends(self, cell: Int[Array, " m"]) -> tuple[Float[Array, " m"], Float[Array, " m"]]:
        """Left end and slope of a cell of each map."""
        left, right = (jnp.take_along_axis(self.knots, cell[:, None] + i, 1)[:, 0] for i in (0, 1))
        return left, (right - left) / _STEP


class Whitened(NamedTuple):
    """Draws of whitened locals ``e``, and two log densities there, both times ``(2 pi)^(m / 2)``.

    Attributes
    ----------
    e
        The draws; the first half is from the narrow proposal.
    narrow, mixture
        Log densities of the narrow proposal alone, and of all draws together.
    """

    e: Float[Array, "draw m"]
    narrow: Float[Array, " draw"]
    mixture: Float[Array, " draw"]


def whitened_draws(noise: Float[Array, "draw m"], wide: float, axes: Axes | None) -> Whitened:
    """Half of the draws have the sds of the Laplace approximation, the others have sds ``wide`` times as large.

    Where maps are given, all draws are skewed by them, except a quarter of the wide ones.
    """
    num, size = noise.shape
    x = noise * jnp.where(jnp.arange(num) < num // 2, 1.0, wide)[:, None]
    if axes is None:
        narrow = -0.5 * jnp.sum(x**2, axis=1)
        mixture = jnp.logaddexp(narrow, narrow / wide**2 - size * jnp.log(wide)) - jnp.log(2.0)
        return Whitened(x, narrow, mixture)
    counts = np.array([num // 2, num - num // 2 - num // _PLAIN, num // _PLAIN])
    last = jnp.arange(num) >= num - counts[2]
    e = jnp.where(last[:, None], x, jax.vmap(axes.at)(x))
    x, stretched = jax.vmap(axes.back)(e)
    squares, widened = 0.5 * jnp.sum(x**2, axis=1), size * jnp.log(wide)
    narrow = -squares - stretched
    skewed, plain = -squares / wide**2 - widened - stretched, -0.5 * jnp.sum((e / wide) ** 2, axis=1) - widened
    mixture = jax.nn.logsumexp(jnp.stack([narrow, skewed, plain]), axis=0, b=(counts / num)[:, None])
    return Whitened(e, narrow, mixture)


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
        residual = quadrature.reference_at(whitened, zero, axis, nodes=nodes).residual
        return jnp.where(axis > 0.0, residual, 0.0)  # another axis' may be NaN

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
