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
from numpy.polynomial import Chebyshev, Polynomial
from scipy.interpolate import CubicSpline
from scipy.special import erfcx

from fedbayes.inference.local.density.conditional import find_singles

NODES, NODES_FINER = 15, 29  # of the derivative; every second of the finer ones is one of the others
_REACH = 5.5  # up to so many sds of the Laplace approximation
_END = 8.0  # of the grid
_STEEPEST = 30.0  # by sd, beside the reference's slope: where a log density falls so fast, there is nothing left of it
_LEAST_SLOPE = 1e-3  # of a log density beyond the outer nodes, outwards, in sds
_POLISH = 6  # safeguarded Newton steps to a quantile between two points of the grid
_TAIL = 0.5 * np.arange(1, 33)  # points beyond the grid for draws, in widths of the tail
_STEP, _FINE_STEP = 0.4, 1.0 / 16.0  # of the grid for integrals, and for draws
WIDE_STEP = 2.0 / 3.0  # of the grid for many integrals: as exact but where a density ends in less than an sd
_MILLS, _MILLS_DEGREE = 0.3, 8  # scale and degree of the series for the mass of tails, whose error is 2e-7


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
    return Reference(centre, scale, _bounded(scale * slopes + places[:, None]), jnp.array(True))


def _bounded(residual: Array) -> Array:
    """Slopes beside the reference's, bounded by 30, nearly the same below 20: a spline through a cliff would swing."""
    # clipped before its eighth power would overflow
    size = jnp.clip(residual, -1e6, 1e6) / _STEEPEST
    return _STEEPEST * size / (1.0 + size**8) ** 0.125


def log_integral(
    log_density: Callable[[Array], Array], known: Reference, step: float = _STEP
) -> tuple[Float[Array, ""], Float[Array, ""]]:
    """Log integral over all locals, and its difference from the one that uses every second node.

    With fifteen nodes the difference is most often ten times the error, or more. With eleven it may be a quarter of it.

    Parameters
    ----------
    log_density, known
        Of the locals, and what is known of it.
    step
        Of the grid, in sds of the Laplace approximation.
    """
    at_centre = log_density(known.centre) + jnp.sum(jnp.log(known.scale)) + known.centre.shape[0] * np.log(step)

    def integral(residual: Array) -> Array:
        return jnp.sum(jax.nn.logsumexp(_with_tails(step, *_log_densities(step, residual)), axis=0))

    fine = integral(known.residual)
    return at_centre + fine, fine - integral(known.residual[::2])


def drawn(known: Reference, levels: Float[Array, " m"]) -> Float[Array, " m"]:
    """The quantile of each local at its level, a uniform random number: a draw."""
    logs, ends = _log_densities(_FINE_STEP, known.residual)
    beyond = _TAIL[:, None, None] * ends.width()  # of the grid, shape (point, side, m)
    tails = logs[jnp.array([0, -1])] - ends.slope * beyond - 0.5 * ends.curvature * beyond**2
    inside = jnp.broadcast_to(_grid(_FINE_STEP)[:, None], logs.shape)
    x = jnp.concatenate([-_END - beyond[::-1, 0], inside, _END + beyond[:, 1]])
    density = jax.nn.softmax(jnp.concatenate([tails[::-1, 0], logs, tails[:, 1]]), axis=0)
    sums = jnp.cumsum(0.5 * (density[1:] + density[:-1]) * jnp.diff(x, axis=0), axis=0)  # by trapezes
    level = levels * sums[-1]
    cell = jnp.sum(sums < level, axis=0)
    at = lambda values, place: jnp.take_along_axis(values, place[None], 0)[0]  # noqa: E731
    before = jnp.where(cell > 0, at(sums, jnp.maximum(cell - 1, 0)), 0.0)
    within = (level - before) / jnp.maximum(at(sums, cell) - before, 1e-300)
    left = at(x, cell)
    return known.centre + known.scale * (left + (at(x, cell + 1) - left) * within)


class Integrated(NamedTuple):
    """What rounds need of a client's locals at a draw of the globals.

    Attributes
    ----------
    value, halved
        See :func:`log_integral`.
    drawn
        Quantiles at the levels.
    """

    value: Float[Array, ""]
    halved: Float[Array, ""]
    drawn: Float[Array, "side m"]


def integrated_and_drawn(
    log_density: Callable[[Array], Array], known: Reference, levels: Float[Array, "side m"]
) -> Integrated:
    """:func:`log_integral`, and quantiles at several levels from the same wide grid: cheap, for rounds.

    Between the points of the grid the density is a cubic by values and slopes, so that a quantile is within 1e-3 sds
    where the density is nearly Gaussian. Beyond the grid it falls exponentially, with the mass that the integral has.
    """
    value, halved = log_integral(log_density, known)
    logs, ends = _log_densities(_STEP, known.residual)
    density = jnp.exp(logs - jnp.max(logs, axis=0))
    rise_of_logs: Array = jnp.asarray(jnp.gradient(logs, axis=0))  # by steps of the grid
    rise_of_logs = rise_of_logs.at[0].set(_STEP * ends.slope[0]).at[-1].set(-_STEP * ends.slope[1])
    slope = density * jnp.clip(rise_of_logs, -3.0, 3.0)  # a cubic with steeper ends would fall below zero
    cells = 0.5 * (density[1:] + density[:-1]) + (slope[:-1] - slope[1:]) / 12.0
    sums, widths = jnp.cumsum(cells, axis=0), ends.mass() / _STEP
    below, above = density[0] * widths[0], density[-1] * widths[1]
    total = below + sums[-1] + above

    def quantile(level: Array) -> Array:
        wanted = level * total - below
        cell = jnp.minimum(jnp.sum(sums < wanted, axis=0), len(cells) - 1)
        at = lambda values: jnp.take_along_axis(values, cell[None], 0)[0]  # noqa: E731
        left, right, rise, fall, mass = (at(each) for each in (density, density[1:], slope, slope[1:], cells))
        inside = wanted - (at(sums) - mass)
        t = jnp.clip(inside / jnp.maximum(mass, 1e-300), 0.0, 1.0)
        low, high = jnp.zeros_like(t), jnp.ones_like(t)
        for _ in range(_POLISH):
            square, cube = t * t, t * t * t
            there = left * (t - cube + 0.5 * cube * t) + right * (cube - 0.5 * cube * t)
            there += rise * (0.5 * square - 2.0 / 3.0 * cube + 0.25 * cube * t) + fall * (0.25 * cube * t - cube / 3.0)
            height = left + (right - left) * (3.0 * square - 2.0 * cube)
            height += rise * (t - 2.0 * square + cube) + fall * (cube - square)
            low, high = jnp.where(there < inside, t, low), jnp.where(there < inside, high, t)
            newton = t - (there - inside) / jnp.maximum(height, 1e-300)
            t = jnp.where((newton < low) | (newton > high), 0.5 * (low + high), newton)
        x = cell + t
        x = jnp.where(wanted < 0.0, widths[0] * jnp.log(level * total / below), x)
        beyond = jnp.maximum((1.0 - level) * total, 1e-300) / above
        x = jnp.where(wanted > sums[-1], len(cells) - widths[1] * jnp.log(beyond), x)
        return known.centre + known.scale * (_STEP * x - _END)

    return Integrated(value, halved, jax.vmap(quantile)(levels))


def _with_tails(step: float, logs: Array, ends: "_Ends") -> Array:
    """Log terms of the sum over the grid, and beyond."""
    # half a trapeze ends the grid, with the first term of Euler and Maclaurin, and then comes the tail
    weights = 0.5 + step * ends.slope / 12.0 + ends.mass() / step
    return logs.at[jnp.array([0, -1])].add(jnp.log(weights))


def points_of_draws() -> int:
    """Values that :func:`drawn` takes of each local side by side."""
    return len(_grid(_FINE_STEP)) + 2 * len(_TAIL)


class _Ends(NamedTuple):
    """How the log densities go on from the two ends of the grid, by side: ``-slope t - curvature t^2 / 2``."""

    slope: Float[Array, "2 m"]
    curvature: Float[Array, "2 m"]

    def width(self) -> Float[Array, "2 m"]:
        """About how far each goes."""
        return jax.lax.stop_gradient(1.0 / (self.slope + jnp.sqrt(self.curvature)))

    def mass(self) -> Float[Array, "2 m"]:
        """``int_0^inf exp(-slope t - curvature t^2 / 2) dt``: Mills' ratio ``R(slope / sd) / sd``, to 1e-6."""
        curvature = jnp.maximum(self.curvature, 1e-14 * self.slope**2)  # the ratio ends where none is left
        sd = jnp.sqrt(curvature)
        t = 1.0 / (1.0 + _MILLS * self.slope / sd)
        return t * (_MILLS + t * (_MILLS + t * jnp.polyval(jnp.asarray(_mills_series()), t))) / sd


def _log_densities(step: float, residual: Float[Array, "node m"]) -> tuple[Float[Array, "grid m"], _Ends]:
    """Each local's log density on the grid, less that at its mode, and how it goes on.

    Beyond the outer nodes it keeps slope and curvature that it has there, so that a tail longer than that of the
    reference is not cut; it does not rise again.
    """
    integral, derivative = _matrices(step, len(residual))
    grid = _grid(step)[:, None]
    outer = residual[jnp.array([0, -1])] * np.array([[1.0], [-1.0]]) + _REACH
    slope, curvature = jnp.maximum(outer, _LEAST_SLOPE), jnp.maximum(1.0 - derivative @ residual, 0.0)
    beyond, right = np.maximum(np.abs(grid) - _REACH, 0.0), grid > 0.0
    inside = integral @ residual - 0.5 * np.clip(grid, -_REACH, _REACH) ** 2
    own = lambda sides: jnp.where(right, sides[1], sides[0])  # noqa: E731
    logs = inside - own(slope) * beyond - 0.5 * own(curvature) * beyond**2
    return logs, _Ends(slope + curvature * (_END - _REACH), curvature)


def _nodes(number: int) -> np.ndarray:
    """Two and a half times as dense in the middle as at the ends."""
    even = np.linspace(-1.0, 1.0, number)
    return _REACH * (even + 0.5 * even**3) / 1.5


def _grid(step: float) -> np.ndarray:
    half = round(_END / step)
    return step * np.arange(-half, half + 1)


@cache
def _mills_series() -> np.ndarray:
    """Of Mills' ratio ``sqrt(pi / 2) erfcx(x / sqrt(2)) = 0.3 t + 0.3 t^2 + t^3 (...)``, ``t = 1 / (1 + 0.3 x)``.

    With its first two terms exact, ``1 / x`` for large ``x``, derivatives are so, too.
    """

    def rest(t: np.ndarray) -> np.ndarray:
        x = (1.0 / t - 1.0) / _MILLS
        ratio = np.sqrt(np.pi / 2.0) * erfcx(x / np.sqrt(2.0))
        return (ratio / t - _MILLS - _MILLS * t) / t**2

    series = Chebyshev.interpolate(rest, _MILLS_DEGREE, [0.0, 1.0]).convert(kind=Polynomial)
    return np.asarray(series.coef[::-1])


@cache
def _matrices(step: float, number: int) -> tuple[np.ndarray, np.ndarray]:
    """What turns values at the nodes into the integral of the cubic spline through them, and its slopes at the ends.

    The integral is from zero to each point of the grid up to the outer nodes, shape ``(grid, node)``; the slopes are
    ``(2, node)``.
    """
    nodes = _nodes(number)
    spline = CubicSpline(nodes, np.eye(number))
    integral = spline.antiderivative()
    found = integral(np.clip(_grid(step), nodes[0], nodes[-1])) - integral(0.0)
    return np.asarray(found), np.asarray(spline.derivative()(nodes[[0, -1]]))
