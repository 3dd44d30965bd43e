"""A client's locals given its globals: their mode and curvature, group by group where groups are independent."""

from collections.abc import Callable
from functools import partial
from typing import NamedTuple

import jax
import jax.numpy as jnp
from jax import Array
from jax.scipy.linalg import solve_triangular
from jaxtyping import Bool, Float, Int

from fedbayes.inference.local.density.tilted import Factor, cold_start
from fedbayes.numerics.derivatives import slope_along
from fedbayes.numerics.gaussian import LARGE, large_whitener, whitener, whitener_for

_LADDER = (0.0, 2.0, 30.0)  # Levenberg-Marquardt damping, of which each is a candidate for the next point
_PARTS = (1.0, 0.2, 0.02)  # of a Newton step: as many candidates in large groups, where each damping costs much
_TOLERANCE = 1e-9  # gain of a step, relative, that ends the search
_NEWTON = 25  # steps to the modes of single locals, most often one or two
_SEVERAL = 4.0  # sds: of a longer step nothing says that the next one will be shorter
NEAR = 0.3  # sds: after a step that is shorter a mode is near enough for a proposal
_LONGEST = 4.0  # sds, or units where an sd is less: the first step is no longer, and each next one so many times
_FLAT = 1e-8  # least curvature of a single local


class Conditional(NamedTuple):
    """The Laplace approximation of ``p(z | theta, data)``.

    Attributes
    ----------
    mode
        Of the locals.
    white
        Each group's :func:`~fedbayes.numerics.gaussian.whitener` of the curvature.
    """

    mode: Float[Array, " m"]
    white: Float[Array, "group size size"]

    def draw(self, noise: Float[Array, " m"], groups: Int[Array, "group size"]) -> Float[Array, " m"]:
        """The mode plus ``W' noise``."""
        offset = jnp.einsum("gij,gi->gj", self.white, noise[groups])
        return self.mode + jnp.zeros_like(noise).at[groups].set(offset)

    def covariance_times(self, rows: Float[Array, "row m"], groups: Int[Array, "group size"]) -> Float[Array, "row m"]:
        """Rows times the covariance."""
        found = jnp.einsum("gji,gjk,rgk->rgi", self.white, self.white, rows[:, groups])
        return jnp.zeros_like(rows).at[:, groups].set(found)

    def log_spread(self) -> Float[Array, ""]:
        """Half the log determinant of the covariance."""
        return jnp.sum(jnp.log(jnp.diagonal(self.white, axis1=1, axis2=2)))


def of_globals(
    factor: Factor, theta: Float[Array, " d"], z: Float[Array, " m"]
) -> tuple[Float[Array, "d d"], Float[Array, "d m"]]:
    """Second derivatives of a log factor, of the globals by the globals and by the locals: d derivatives of its slope.

    Parameters
    ----------
    factor
        A client's.
    theta, z
        Where.
    """
    slopes = jax.grad(lambda theta, z: factor.given(theta)(z), argnums=(0, 1))
    if factor.jacobian is jax.jacrev:
        found: tuple[Array, Array] = jax.jacrev(lambda *at: slopes(*at)[0], argnums=(0, 1))(theta, z)
        return found
    corner, across = factor.jacobian(lambda at: slopes(at, z))(theta)
    return corner, across.T


class Line(NamedTuple):
    """Where the locals' mode is expected: at ``z`` where the globals are at ``theta``, and from there on a line."""

    theta: Float[Array, " d"]
    z: Float[Array, " m"]
    slope: Float[Array, "m d"]

    def at(self, theta: Float[Array, "*draw d"]) -> Float[Array, "*draw m"]:
        """The locals expected at other globals."""
        return self.z + (theta - self.theta) @ self.slope.T


class _Search(NamedTuple):
    """The best point so far, the groups' precisions, its value, where it may go next, and the number of steps."""

    position: Array
    precision: Array
    value: Array
    candidates: Array
    steps: Array


class _Moves(NamedTuple):
    """Of a group: where it may go, how far in sds at first, squared, or infinite if damped, and by which precision."""

    moves: Float[Array, "candidate size"]
    square: Float[Array, ""]
    precision: Float[Array, "size size"]


def find_conditional(
    log_density: Callable[[Array], Array],
    start: Float[Array, " m"],
    groups: Int[Array, "group size"],
    *,
    max_steps: int,
    near: float = 0.0,
    jacobian: Callable = jax.jacfwd,
) -> Conditional:
    """Maximise over the locals by Newton steps, damped or shortened where that is better, until none gains anything.

    Beside :func:`~fedbayes.inference.local.density.laplace.find_mode` it solves for each group by itself, so that many
    groups cost no large matrix, and it tries few candidates a step, since it runs once for each draw of the globals.
    The curvature is that of the last point that was evaluated.

    Parameters
    ----------
    log_density
        Of the locals, up to a constant, ``(m,) -> ()``.
    start
        Where the search begins.
    groups
        Places of each group's locals; between groups all second derivatives are zero. A
        Hessian then costs ``size`` derivatives of the gradient, not ``m``.
    max_steps
        Most Newton steps.
    near
        In sds: an undamped step that is shorter in every group is taken unseen, and is the last. :data:`NEAR` is near
        enough for a proposal, whose mode may be off by a few hundredths of an sd.
    jacobian
        How the gradient is differentiated, see :attr:`fedbayes.problem.program.program.Program.jacobian`.
    """
    gradient = jax.grad(log_density)
    size = groups.shape[1]
    moves_of = partial(_damped, whitener) if size < LARGE else _moves_of_large

    def column(position: Array, which: Array) -> tuple[Array, Array]:
        """The gradient, and one column of all groups' curvatures at once, shape ``(groups, size)``."""
        probe = jnp.zeros_like(position).at[groups].set(which)
        slope, along = slope_along(gradient, position, probe, jacobian)
        return slope, -along[groups]

    def newton(carry: _Search) -> _Search:
        values = jax.vmap(log_density)(carry.candidates)
        values = jnp.where(jnp.isfinite(values), values, -jnp.inf)
        best = jnp.argmax(values)
        better, gain = values[best] > carry.value, _TOLERANCE * (1.0 + jnp.abs(carry.value))
        position = jnp.where(better, carry.candidates[best], carry.position)
        stalls = (carry.steps > 0) & ~(values[best] > carry.value + gain)
        slope, curvature = jax.vmap(column, (None, 0), (None, 2))(position, jnp.eye(size))
        found = jax.vmap(moves_of)(0.5 * (curvature + jnp.swapaxes(curvature, 1, 2)), slope[groups])
        candidates = position + jnp.zeros_like(carry.candidates).at[:, groups].set(jnp.swapaxes(found.moves, 0, 1))
        arrives = jnp.all(found.square < near**2)
        position = jnp.where(arrives, candidates[0], position)
        steps = jnp.where(stalls | arrives, max_steps + 1, carry.steps + 1)
        return _Search(position, found.precision, jnp.maximum(values[best], carry.value), candidates, steps)

    # the start is the first candidate: one evaluation in the program serves it and all later ones
    precision = jnp.broadcast_to(jnp.eye(size), (groups.shape[0], size, size))
    candidates = jnp.broadcast_to(start, (len(_LADDER), *start.shape))
    begin = _Search(start, precision, jnp.full((), -jnp.inf, start.dtype), candidates, jnp.asarray(0))
    found = jax.lax.while_loop(lambda carry: carry.steps <= max_steps, newton, begin)
    return Conditional(found.position, jax.vmap(whitener_for(size))(found.precision))


def _damped(whiten: Callable[[Array], Array], curvature: Array, slope: Array) -> _Moves:
    """A Newton step for each damping; where it leaves no precision, for the least damping that does."""
    identity = jnp.eye(len(slope))
    diagonal = jnp.abs(jnp.diagonal(curvature)) + 1e-8
    damped = curvature + jnp.asarray(_LADDER)[:, None, None] * (diagonal[:, None] * identity)
    whites = jax.vmap(whiten)(damped)
    proper = jnp.all(jnp.isfinite(whites), axis=(1, 2))
    taken = jnp.maximum(jnp.argmax(proper), jnp.arange(len(_LADDER)))
    whites, damped = (jnp.where(jnp.any(proper), each[taken], identity) for each in (whites, damped))
    in_sds = whites @ slope
    square = jnp.where(proper[0], jnp.sum(in_sds[0] ** 2), jnp.inf)
    return _Moves(jnp.einsum("lij,li->lj", whites, in_sds), square, damped[0])


@jax.custom_batching.sequential_vmap
def _moves_of_large(curvature: Array, slope: Array) -> _Moves:
    """Parts of the Newton step, by one decomposition; damped steps where the curvature is no precision."""
    factor = jnp.linalg.cholesky(curvature)
    in_sds = solve_triangular(factor, slope, lower=True)
    step = solve_triangular(factor, in_sds, lower=True, trans=1)

    def newton() -> _Moves:
        return _Moves(jnp.asarray(_PARTS)[:, None] * step, jnp.sum(in_sds**2), curvature)

    return jax.lax.cond(jnp.all(jnp.isfinite(step)), newton, lambda: _damped(large_whitener, curvature, slope))


class _Singles(NamedTuple):
    """Where each local is, its sd, between which points its mode is, where it was finite last, and its last step."""

    position: Array
    scale: Array
    low: Array
    high: Array
    safe: Array
    newton: Array
    moved: Array
    far: Array
    steps: Array


def find_singles(
    log_density: Callable[[Array], Array], start: Float[Array, " m"], *, jacobian: Callable = jax.jacfwd
) -> tuple[Float[Array, " m"], Float[Array, " m"], Bool[Array, ""]]:
    """Modes and sds of locals that are independent of each other, and whether all were found.

    By safeguarded Newton steps of each by itself, which take two derivatives of the sum of all and none of its values.
    Where a step of several sds is more than half as long as the last one, as down the exponential cliff of a Poisson
    likelihood, on which each step gains a factor of e, the next is twice as long as the last; or it ends in the middle
    once the mode lies between two known points. From where derivatives are not finite it goes half of the way back, and
    from a start half of the way to zero. The modes are off by a few hundredths of an sd: near enough for a proposal.

    Parameters
    ----------
    log_density
        Of the locals, up to a constant, ``(m,) -> ()``, with no second derivative between two of them.
    start
        Where the search begins.
    jacobian
        How the gradient is differentiated, see :attr:`fedbayes.problem.program.program.Program.jacobian`.
    """
    gradient = jax.grad(log_density)
    ones = jnp.ones_like(start)

    def newton(carry: _Singles) -> _Singles:
        slope, second = slope_along(gradient, carry.position, ones, jacobian)
        lost = ~(jnp.isfinite(slope) & jnp.isfinite(second))
        away = carry.position - carry.safe
        slope, second = jnp.where(lost, -away, slope), jnp.where(lost, -1.0, second)
        scale = 1.0 / jnp.sqrt(jnp.maximum(jnp.abs(second), _FLAT))
        step = scale * slope  # in sds; uphill where the density is not concave, too
        low = jnp.where(slope > 0.0, carry.position, carry.low)
        high = jnp.where(slope < 0.0, carry.position, carry.high)
        longest = _LONGEST ** (carry.steps + 1.0) * jnp.maximum(scale, 1.0)
        move = jnp.clip(scale * step, -longest, longest)
        newton = jnp.abs(move)
        slow = ~lost & (jnp.abs(step) > _SEVERAL) & (newton > 0.5 * carry.newton)
        between = jnp.isfinite(low) & jnp.isfinite(high)
        move = jnp.where(slow & ~between, jnp.sign(move) * jnp.maximum(newton, 2.0 * carry.moved), move)
        position = carry.position + move
        outside = (position < low) | (position > high) | (slow & between)
        position = jnp.where(outside & between, 0.5 * (low + high), position)
        position = jnp.where(lost, carry.position - 0.5 * away, position)
        far = ~jnp.all((jnp.abs(step) < NEAR) & (second < 0.0) & ~lost)
        safe = jnp.where(lost, carry.safe, carry.position)
        moved = jnp.abs(position - carry.position)
        return _Singles(position, scale, low, high, safe, newton, moved, far, carry.steps + 1)

    nowhere = jnp.inf * ones
    begin = _Singles(
        start, ones, -nowhere, nowhere, cold_start(len(start)), 0.0 * ones, 0.0 * ones, jnp.array(True), jnp.asarray(0)
    )
    found = jax.lax.while_loop(lambda at: at.far & (at.steps < _NEWTON), newton, begin)
    return found.position, found.scale, ~found.far
