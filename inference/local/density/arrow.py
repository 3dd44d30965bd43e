"""The mode of locals of which many single ones are independent given the globals and a few others.

With the single locals ``v`` first and the others ``w`` last the curvature is an arrow,

    [ D   K ]
    [ K'  A ],

with a diagonal ``D``. One product of the Hessian for all single locals and one for each of the others tell all of it,
and the Schur complement ``S = A - K' D^-1 K`` solves for it: the cost of a step grows as the number of locals, and no
matrix of locals by locals is made.
"""

from collections.abc import Callable
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array
from jaxtyping import Float

from fedbayes.numerics.gaussian import whitener

_LADDER = (0.0, 2.0, 30.0)  # Levenberg-Marquardt damping, of which each is a candidate for the next point
_TOLERANCE = 1e-9  # gain of a step, relative, that ends the search
_FLAT = 1e-8  # least curvature of a single local


class Places(NamedTuple):
    """Where the single locals and the others are among all."""

    singles: np.ndarray
    others: np.ndarray

    def joined(self, v: Float[Array, " n"], w: Float[Array, " o"]) -> Float[Array, " m"]:
        """All locals."""
        size = len(self.singles) + len(self.others)
        return jnp.zeros(size, v.dtype).at[self.singles].set(v).at[self.others].set(w)


class Arrow(NamedTuple):
    """The Laplace approximation of ``p(z | theta, data)``.

    Attributes
    ----------
    mode
        Of all locals.
    scale
        Sds of the single locals given all others.
    across
        How the mode of the single locals moves with the others, ``-D^-1 K``.
    white
        :func:`~fedbayes.numerics.gaussian.whitener` of ``S``, the others' curvature.
    """

    mode: Float[Array, " m"]
    scale: Float[Array, " n"]
    across: Float[Array, "n o"]
    white: Float[Array, "o o"]

    def solve(self, slope: Float[Array, " m"], places: Places) -> Float[Array, " m"]:
        """The inverse of the curvature times ``slope``."""
        single = slope[places.singles]
        others = self.white.T @ (self.white @ (slope[places.others] + self.across.T @ single))
        return places.joined(self.scale**2 * single + self.across @ others, others)

    def log_spread(self) -> Float[Array, ""]:
        """Half the log determinant of the covariance."""
        return jnp.sum(jnp.log(self.scale)) + jnp.sum(jnp.log(jnp.diagonal(self.white)))


class _Search(NamedTuple):
    """The best approximation so far, the value at its mode, where it may go next, and the number of steps."""

    found: Arrow
    value: Array
    candidates: Array
    steps: Array


def find_arrow(
    log_density: Callable[[Array], Array],
    start: Float[Array, " m"],
    places: Places,
    *,
    max_steps: int,
    jacobian: Callable = jax.jacfwd,
) -> Arrow:
    """Maximise over all locals by Newton steps, each damped where that is better, until none gains anything.

    As :func:`~fedbayes.inference.local.density.conditional.find_conditional`, and as exact, where the curvature is an
    arrow. The curvature is that of the last point.

    Parameters
    ----------
    log_density
        Of the locals, up to a constant, ``(m,) -> ()``, with no second derivative between two single ones.
    start
        Where the search begins.
    places
        Which are the single ones.
    max_steps
        Most Newton steps.
    jacobian
        How the gradient is differentiated, see :attr:`fedbayes.problem.program.program.Program.jacobian`.
    """
    gradient, (singles, others) = jax.grad(log_density), places
    probes = np.zeros((1 + len(others), len(start)))
    probes[0, singles] = 1.0
    probes[1 + np.arange(len(others)), others] = 1.0

    def products(position: Array) -> tuple[Array, Array]:
        """The gradient, and the curvature times each probe."""
        if jacobian is jax.jacrev:
            along = jax.vmap(lambda probe: jax.grad(lambda z: gradient(z) @ probe)(position))(jnp.asarray(probes))
            return gradient(position), -along
        slope, product = jax.linearize(gradient, position)
        return slope, -jax.vmap(product)(jnp.asarray(probes, position.dtype))

    def approximations(position: Array) -> tuple[Array, Arrow]:
        """The gradient and the Laplace approximation, the least damped first."""
        slope, along = products(position)
        curvature = jnp.maximum(jnp.abs(along[0, singles]), _FLAT)
        coupling, block = along[1:, singles].T, along[1:, others]
        block = 0.5 * (block + block.T)
        damping, diagonal = jnp.asarray(_LADDER), jnp.abs(jnp.diagonal(block)) + _FLAT
        single = curvature * (1.0 + damping[:, None])
        across = -coupling / single[:, :, None]
        schur = block + damping[:, None, None] * jnp.diag(diagonal) + jnp.einsum("no,lnp->lop", coupling, across)
        whites = jax.vmap(whitener)(schur)
        proper = jnp.all(jnp.isfinite(whites), axis=(1, 2))
        # where this is no precision, the least damped one that is takes its place
        taken = jnp.maximum(jnp.argmax(proper), jnp.arange(len(_LADDER)))
        white = jnp.where(jnp.any(proper), whites[taken], jnp.diag(diagonal**-0.5))
        modes = jnp.broadcast_to(position, (len(_LADDER), len(position)))
        return slope, Arrow(modes, single**-0.5, across, white)

    def newton(carry: _Search) -> _Search:
        values = jax.vmap(log_density)(carry.candidates)
        values = jnp.where(jnp.isfinite(values), values, -jnp.inf)
        best = jnp.argmax(values)
        gain = _TOLERANCE * (1.0 + jnp.abs(carry.value))
        position = jnp.where(values[best] > carry.value, carry.candidates[best], carry.found.mode)
        stalls = (carry.steps > 0) & ~(values[best] > carry.value + gain)
        slope, each = approximations(position)
        candidates = position + jax.vmap(lambda arrow: arrow.solve(slope, places))(each)
        steps = jnp.where(stalls, max_steps + 1, carry.steps + 1)
        least = jax.tree.map(lambda leaf: leaf[0], each)
        return _Search(least, jnp.maximum(values[best], carry.value), candidates, steps)

    # the start is the first candidate: one evaluation in the program serves it and all later ones
    number, dtype = len(others), start.dtype
    nothing = Arrow(
        start, jnp.ones(len(singles), dtype), jnp.zeros((len(singles), number), dtype), jnp.eye(number, dtype=dtype)
    )
    candidates = jnp.broadcast_to(start, (len(_LADDER), *start.shape))
    begin = _Search(nothing, jnp.full((), -jnp.inf, dtype), candidates, jnp.asarray(0))
    return jax.lax.while_loop(lambda carry: carry.steps <= max_steps, newton, begin).found
