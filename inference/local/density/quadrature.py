"""A client's locals integrated out one by one, where they are independent given the globals: no draws, no noise.

A log density of independent locals is a sum ``sum_j f_j(z_j)``, of which a program tells the value alone; but the
derivative along ``z_j`` is ``f_j'``. So one gradient at ``z_j = c_j + s_j x`` tells ``f_j'`` at one node ``x`` for all
``j`` at once, and integrated along ``x`` a handful of them are each local's density: with its Laplace approximation
as reference,

    f_j(c_j + s_j x) = f_j(c_j) - x^2 / 2 + int_0^x (s_j f_j'(c_j + s_j t) + t) dt,

where the integrand is interpolated by a cubic spline through the nodes: a polynomial would swing where a steep item
response is a step. The rest is sums over a grid of ``x``: integrals, and draws by the inverse of the distribution
function. Adaptive quadrature, as of Liu and Pierce (1994), with as many evaluations for a thousand locals as for one.
"""

from collections.abc import Callable
from functools import cache
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array
from jaxtyping import Bool, Float
from scipy.interpolate import CubicSpline

_NODES, _REACH = 15, 5.5  # of the derivative, up to so many sds of the Laplace approximation
_END = 8.0  # of the grid; beyond the outer nodes the derivative keeps its distance from that of the reference
_STEP, _FINE_STEP = 0.4, 1.0 / 16.0  # of the grid for integrals, and for draws
_NEWTON = 15  # steps to the mode, most often one or two
_NEAR = 0.3  # sds: a step that is shorter is the last
_LONGEST = 4.0  # sds: the first step is no longer, and each next one may be so many times as long
_FLAT = 1e-8  # least curvature of the reference


class Reference(NamedTuple):
    """Each local's Laplace approximation, and how its density differs from it.

    Attributes
    ----------
    centre, scale
        Mode and sd.
    residual
        ``s f'(c + s x) + x`` at the nodes.
    found
        Whether all modes were found.
    """

    centre: Float[Array, " m"]
    scale: Float[Array, " m"]
    residual: Float[Array, "node m"]
    found: Bool[Array, ""]


class _Search(NamedTuple):
    """Where each local is, its sd there, between which two points its mode is, and whether one is still on its way."""

    position: Array
    scale: Array
    low: Array
    high: Array
    far: Array
    steps: Array


def reference(
    log_density: Callable[[Array], Array], start: Float[Array, " m"], *, jacobian: Callable = jax.jacfwd
) -> Reference:
    """The locals' modes by safeguarded Newton steps of each by itself, and the derivatives at the nodes around them.

    Parameters
    ----------
    log_density
        Of the locals, up to a constant, ``(m,) -> ()``, with no second derivative between two of them.
    start
        Near the modes.
    jacobian
        How the gradient is differentiated, see :attr:`fedbayes.problem.program.program.Program.jacobian`.
    """
    gradient = jax.grad(log_density)
    ones = jnp.ones_like(start)

    def derivatives(position: Array) -> tuple[Array, Array]:
        """First and second of each local's own density."""
        if jacobian is jax.jacrev:
            return gradient(position), jax.grad(lambda z: gradient(z) @ ones)(position)
        return jax.jvp(gradient, (position,), (ones,))

    def newton(carry: _Search) -> _Search:
        slope, second = derivatives(carry.position)
        scale = 1.0 / jnp.sqrt(jnp.maximum(jnp.abs(second), _FLAT))
        step = scale * slope  # in sds; uphill where the density is not concave, too
        low = jnp.where(slope > 0.0, carry.position, carry.low)
        high = jnp.where(slope < 0.0, carry.position, carry.high)
        longest = _LONGEST ** (carry.steps + 1.0)
        position = carry.position + scale * jnp.clip(step, -longest, longest)
        position = jnp.where((position < low) | (position > high), 0.5 * (low + high), position)
        far = ~jnp.all((jnp.abs(step) < _NEAR) & (second < 0.0))
        return _Search(position, scale, low, high, far, carry.steps + 1)

    begin = _Search(start, ones, -jnp.inf * ones, jnp.inf * ones, jnp.array(True), jnp.asarray(0))
    centre, scale, _, _, far, _ = jax.lax.while_loop(lambda at: at.far & (at.steps < _NEWTON), newton, begin)
    nodes = jnp.asarray(_nodes())
    slopes = jax.vmap(lambda x: gradient(centre + scale * x))(nodes)
    return Reference(centre, scale, scale * slopes + nodes[:, None], ~far)


def log_integral(log_density: Callable[[Array], Array], known: Reference) -> tuple[Float[Array, ""], Float[Array, ""]]:
    """Log integral over all locals, and its difference from the one that uses every second node.

    The difference is larger than the error: eight nodes are off by some ten times as much as fifteen, or more.
    """
    grid, every, second = _matrices(_STEP)
    at_centre = log_density(known.centre) + jnp.sum(jnp.log(known.scale)) + known.centre.shape[0] * np.log(_STEP)

    def integral(matrix: np.ndarray, residual: Array) -> Array:
        return jnp.sum(jax.nn.logsumexp(matrix @ residual - 0.5 * grid[:, None] ** 2, axis=0))

    fine = integral(every, known.residual)
    return at_centre + fine, fine - integral(second, known.residual[::2])


def drawn(known: Reference, levels: Float[Array, " m"]) -> Float[Array, " m"]:
    """The quantile of each local at its level, a uniform random number: a draw."""
    grid, every, _ = _matrices(_FINE_STEP)
    density = jax.nn.softmax(every @ known.residual - 0.5 * grid[:, None] ** 2, axis=0)
    ends = jnp.cumsum(0.5 * (density[1:] + density[:-1]), axis=0)  # by trapezes
    level = levels * ends[-1]
    cell = jnp.sum(ends < level, axis=0)
    before = jnp.where(cell > 0, jnp.take_along_axis(ends, jnp.maximum(cell - 1, 0)[None], 0)[0], 0.0)
    within = (level - before) / jnp.maximum(jnp.take_along_axis(ends, cell[None], 0)[0] - before, 1e-300)
    return known.centre + known.scale * (-_END + _FINE_STEP * (cell + within))


def _nodes() -> np.ndarray:
    """Two and a half times as dense in the middle as at the ends."""
    even = np.linspace(-1.0, 1.0, _NODES)
    return _REACH * (even + 0.5 * even**3) / 1.5


@cache
def _matrices(step: float) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """The grid, and what turns the residuals at all nodes, or every second, into their integral up to its points."""
    half = round(_END / step)
    grid = step * np.arange(-half, half + 1)
    return grid, _integration(_nodes(), grid), _integration(_nodes()[::2], grid)


def _integration(nodes: np.ndarray, grid: np.ndarray) -> np.ndarray:
    """Integral from zero to each point of the grid of the cubic spline through values at the nodes, ``(grid, node)``.

    Beyond the outer nodes the value there goes on.
    """
    integral = CubicSpline(nodes, np.eye(len(nodes))).antiderivative()
    found = integral(np.clip(grid, nodes[0], nodes[-1])) - integral(0.0)
    found[:, -1] += np.maximum(grid - nodes[-1], 0.0)
    found[:, 0] += np.minimum(grid - nodes[0], 0.0)
    return np.asarray(found)
