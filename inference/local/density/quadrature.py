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

from fedbayes.inference.local.density.conditional import find_singles

NODES, NODES_FINER = 15, 29  # of the derivative; every second of the finer ones is one of the others
_REACH = 5.5  # up to so many sds of the Laplace approximation
_END = 8.0  # of the grid; beyond the outer nodes the derivative keeps its distance from that of the reference
_STEP, _FINE_STEP = 0.4, 1.0 / 16.0  # of the grid for integrals, and for draws


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


def reference(
    log_density: Callable[[Array], Array],
    start: Float[Array, " m"],
    *,
    jacobian: Callable = jax.jacfwd,
    nodes: int = NODES,
) -> Reference:
    """The locals' modes, and the derivatives at the nodes around them.

    Parameters
    ----------
    log_density
        Of the locals, up to a constant, ``(m,) -> ()``, with no second derivative between two of them.
    start
        Near the modes.
    jacobian
        How the gradient is differentiated, see :attr:`fedbayes.problem.program.program.Program.jacobian`.
    nodes
        Their number, odd.
    """
    centre, scale, found = find_singles(log_density, start, jacobian=jacobian)
    return reference_at(log_density, centre, scale, nodes=nodes)._replace(found=found)


def reference_at(
    log_density: Callable[[Array], Array],
    centre: Float[Array, " m"],
    scale: Float[Array, " m"],
    *,
    nodes: int = NODES,
) -> Reference:
    """The same where the modes and sds are known, or near enough.

    Parameters
    ----------
    log_density
        As for :func:`reference`.
    centre, scale
        Modes and sds.
    nodes
        Their number, odd.
    """
    gradient, places = jax.grad(log_density), jnp.asarray(_nodes(nodes))
    slopes = jax.vmap(lambda x: gradient(centre + scale * x))(places)
    return Reference(centre, scale, scale * slopes + places[:, None], jnp.array(True))


def log_integral(log_density: Callable[[Array], Array], known: Reference) -> tuple[Float[Array, ""], Float[Array, ""]]:
    """Log integral over all locals, and its difference from the one that uses every second node.

    The difference is larger than the error: eight nodes are off by some ten times as much as fifteen, or more.
    """
    grid, every, second = _matrices(_STEP, len(known.residual))
    at_centre = log_density(known.centre) + jnp.sum(jnp.log(known.scale)) + known.centre.shape[0] * np.log(_STEP)

    def integral(matrix: np.ndarray, residual: Array) -> Array:
        return jnp.sum(jax.nn.logsumexp(matrix @ residual - 0.5 * grid[:, None] ** 2, axis=0))

    fine = integral(every, known.residual)
    return at_centre + fine, fine - integral(second, known.residual[::2])


def drawn(known: Reference, levels: Float[Array, " m"]) -> Float[Array, " m"]:
    """The quantile of each local at its level, a uniform random number: a draw."""
    grid, every, _ = _matrices(_FINE_STEP, len(known.residual))
    density = jax.nn.softmax(every @ known.residual - 0.5 * grid[:, None] ** 2, axis=0)
    ends = jnp.cumsum(0.5 * (density[1:] + density[:-1]), axis=0)  # by trapezes
    level = levels * ends[-1]
    cell = jnp.sum(ends < level, axis=0)
    before = jnp.where(cell > 0, jnp.take_along_axis(ends, jnp.maximum(cell - 1, 0)[None], 0)[0], 0.0)
    within = (level - before) / jnp.maximum(jnp.take_along_axis(ends, cell[None], 0)[0] - before, 1e-300)
    return known.centre + known.scale * (-_END + _FINE_STEP * (cell + within))


def _nodes(number: int) -> np.ndarray:
    """Two and a half times as dense in the middle as at the ends."""
    even = np.linspace(-1.0, 1.0, number)
    return _REACH * (even + 0.5 * even**3) / 1.5


@cache
def _matrices(step: float, number: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """The grid, and what turns the residuals at all nodes, or every second, into their integral up to its points."""
    half = round(_END / step)
    grid = step * np.arange(-half, half + 1)
    nodes = _nodes(number)
    return grid, _integration(nodes, grid), _integration(nodes[::2], grid)


def _integration(nodes: np.ndarray, grid: np.ndarray) -> np.ndarray:
    """Integral from zero to each point of the grid of the cubic spline through values at the nodes, ``(grid, node)``.

    Beyond the outer nodes the value there goes on.
    """
    integral = CubicSpline(nodes, np.eye(len(nodes))).antiderivative()
    found = integral(np.clip(grid, nodes[0], nodes[-1])) - integral(0.0)
    found[:, -1] += np.maximum(grid - nodes[-1], 0.0)
    found[:, 0] += np.minimum(grid - nodes[0], 0.0)
    return np.asarray(found)
