"""A client's locals given its globals: their mode and curvature, group by group where groups are independent."""

from collections.abc import Callable
from typing import NamedTuple

import jax
import jax.numpy as jnp
from jax import Array
from jaxtyping import Bool, Float, Int

from fedbayes.numerics.gaussian import whitener_for

_LADDER = (0.0, 2.0, 30.0)  # Levenberg-Marquardt damping, of which each is a candidate for the next point
_TOLERANCE = 1e-9  # gain of a step, relative, that ends the search
_NEWTON = 15  # steps to the modes of single locals, most often one or two
_NEAR = 0.3  # sds: a step that is shorter is the last
_LONGEST = 4.0  # sds: the first step is no longer, and each next one may be so many times as long
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

    def log_spread(self) -> Float[Array, ""]:
        """Half the log determinant of the covariance."""
        return jnp.sum(jnp.log(jnp.diagonal(self.white, axis1=1, axis2=2)))


class _Search(NamedTuple):
    """The best point so far, the whitener there, its value, where it may go next, and the number of steps."""

    position: Array
    white: Array
    value: Array
    candidates: Array
    steps: Array


def find_conditional(
    log_density: Callable[[Array], Array],
    start: Float[Array, " m"],
    groups: Int[Array, "group size"],
    *,
    max_steps: int,
    jacobian: Callable = jax.jacfwd,
) -> Conditional:
    """Maximise over the locals by Newton steps, each damped where that is better, until none gains anything.

    Beside :func:`~fedbayes.inference.local.density.laplace.find_mode` it solves for each group by itself, so that many
    groups cost no large matrix, and it tries few candidates a step, since it runs once for each draw of the globals.
    The curvature is that of the last point.

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
    jacobian
        How the gradient is differentiated, see :attr:`fedbayes.problem.program.program.Program.jacobian`.
    """
    gradient = jax.grad(log_density)
    identity = jnp.eye(groups.shape[1])

    def column(position: Array, which: Array) -> tuple[Array, Array]:
        """The gradient, and one column of all groups' curvatures at once, shape ``(groups, size)``."""
        probe = jnp.zeros_like(position).at[groups].set(which)
        if jacobian is jax.jacrev:
            slope, along = jax.value_and_grad(lambda x: gradient(x) @ probe)(position)
            return gradient(position), -along[groups]
        slope, along = jax.jvp(gradient, (position,), (probe,))
        return slope, -along[groups]

    def curved(position: Array) -> tuple[Array, Array]:
        """The gradient and the groups' whiteners, the least damped first, shape ``(damping, groups, size, size)``."""
        slope, curvature = jax.vmap(column, (None, 0), (None, 2))(position, identity)
        curvature = 0.5 * (curvature + jnp.swapaxes(curvature, 1, 2))
        diagonal = jnp.abs(jnp.diagonal(curvature, axis1=1, axis2=2)) + 1e-8
        damped = curvature + jnp.asarray(_LADDER)[:, None, None, None] * (diagonal[:, :, None] * identity)
        whites = jax.vmap(jax.vmap(whitener_for(groups.shape[1])))(damped)
        proper = jnp.all(jnp.isfinite(whites), axis=(2, 3))
        # where a group's curvature is no precision, the least damped one that is takes its place
        damping = jnp.maximum(jnp.argmax(proper, axis=0), jnp.arange(len(_LADDER))[:, None])
        taken = jnp.take_along_axis(whites, damping[:, :, None, None], axis=0)
        return slope, jnp.where(jnp.any(proper, axis=0)[:, None, None], taken, identity)

    def newton(carry: _Search) -> _Search:
        values = jax.vmap(log_density)(carry.candidates)
        values = jnp.where(jnp.isfinite(values), values, -jnp.inf)
        best = jnp.argmax(values)
        better, gain = values[best] > carry.value, _TOLERANCE * (1.0 + jnp.abs(carry.value))
        position = jnp.where(better, carry.candidates[best], carry.position)
        stalls = (carry.steps > 0) & ~(values[best] > carry.value + gain)
        slope, whites = curved(position)
        moves = jnp.einsum("lgij,lgik,gk->lgj", whites, whites, slope[groups])
        candidates = position + jnp.zeros_like(carry.candidates).at[:, groups].set(moves)
        steps = jnp.where(stalls, max_steps + 1, carry.steps + 1)
        return _Search(position, whites[0], jnp.maximum(values[best], carry.value), candidates, steps)

    # the start is the first candidate: one evaluation in the program serves it and all later ones
    white = jnp.broadcast_to(identity, (groups.shape[0], *identity.shape))
    candidates = jnp.broadcast_to(start, (len(_LADDER), *start.shape))
    begin = _Search(start, white, jnp.full((), -jnp.inf, start.dtype), candidates, jnp.asarray(0))
    found = jax.lax.while_loop(lambda carry: carry.steps <= max_steps, newton, begin)
    return Conditional(found.position, found.white)


class _Singles(NamedTuple):
    """Where each local is, its sd there, between which two points its mode is, and whether one is still on its way."""

    position: Array
    scale: Array
    low: Array
    high: Array
    far: Array
    steps: Array


def find_singles(
    log_density: Callable[[Array], Array], start: Float[Array, " m"], *, jacobian: Callable = jax.jacfwd
) -> tuple[Float[Array, " m"], Float[Array, " m"], Bool[Array, ""]]:
    """Modes and sds of locals that are independent of each other, and whether all were found.

    By safeguarded Newton steps of each by itself, which take two derivatives of the sum of all and none of its values.
    The modes are off by a few hundredths of an sd: near enough for a proposal.

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

    def derivatives(position: Array) -> tuple[Array, Array]:
        """First and second of each local's own density."""
        if jacobian is jax.jacrev:
            return gradient(position), jax.grad(lambda z: gradient(z) @ ones)(position)
        return jax.jvp(gradient, (position,), (ones,))

    def newton(carry: _Singles) -> _Singles:
        slope, second = derivatives(carry.position)
        scale = 1.0 / jnp.sqrt(jnp.maximum(jnp.abs(second), _FLAT))
        step = scale * slope  # in sds; uphill where the density is not concave, too
        low = jnp.where(slope > 0.0, carry.position, carry.low)
        high = jnp.where(slope < 0.0, carry.position, carry.high)
        longest = _LONGEST ** (carry.steps + 1.0)
        position = carry.position + scale * jnp.clip(step, -longest, longest)
        position = jnp.where((position < low) | (position > high), 0.5 * (low + high), position)
        far = ~jnp.all((jnp.abs(step) < _NEAR) & (second < 0.0))
        return _Singles(position, scale, low, high, far, carry.steps + 1)

    begin = _Singles(start, ones, -jnp.inf * ones, jnp.inf * ones, jnp.array(True), jnp.asarray(0))
    found = jax.lax.while_loop(lambda at: at.far & (at.steps < _NEWTON), newton, begin)
    return found.position, found.scale, ~found.far
