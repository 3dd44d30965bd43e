"""The mode and curvature of a log density by safeguarded Newton steps, batched by ``vmap``."""

from collections.abc import Callable
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array
from jaxtyping import Bool, Float

from fedbayes.numerics.gaussian import symmetrised, whitener_for

# Levenberg-Marquardt damping values, all tried at once: under vmap a search by backtracking would wait for the worst
# client
_LADDER = (0.0, 0.03, 1.0, 30.0, 1e3)
# a saddle needs damping, which makes steps short: for each value of too little damping a longer one is tried
_GROWTH = 2.0
# relative: of starts that are as good as each other the first is taken, or rounding would choose, and machines disagree
_TIE = 1e-9


class Mode(NamedTuple):
    """Where a log density peaks.

    Attributes
    ----------
    position
        The point.
    value
        The log density there.
    curvature
        Negative Hessian of the log density, damped where it was not positive definite.
    white
        Its :func:`~fedbayes.numerics.gaussian.whitener`.
    converged
        Whether the last Newton decrement, by the damped curvature, was below the tolerance: it is along a flat ridge as
        well, but not where the log density grows for ever.
    """

    position: Float[Array, " p"]
    value: Float[Array, ""]
    curvature: Float[Array, "p p"]
    white: Float[Array, "p p"]
    converged: Bool[Array, ""]


def find_mode(
    log_density: Callable[[Array], Array],
    starts: Float[Array, " p"] | Float[Array, "start p"],
    *,
    max_steps: int = 100,
    tolerance: float = 0.1,
    jacobian: Callable = jax.jacfwd,
) -> Mode:
    """Maximise ``log_density`` by Newton steps ``x + (H + lambda D)^-1 g`` with the best of a ladder of ``lambda``.

    Where ``H`` is no precision, the least damped step is also tried at twice, four, ... times its length.

    Parameters
    ----------
    log_density
        Twice differentiable, ``(p,) -> ()``.
    starts
        One start, or several, of which the best is taken.
    max_steps
        Upper bound of the Newton steps; a warm start needs one or two, a cold one far from the mode dozens.
    tolerance
        Stop once the Newton decrement ``g' H^-1 g``, in nats, is below it.
    jacobian
        How the gradient is differentiated, see :attr:`fedbayes.problem.program.program.Program.jacobian`.

    Returns
    -------
    Mode
        With the curvature of the last point at which it was evaluated.
    """

    def slope_of(position: Array) -> tuple[Array, Array]:
        slope = jax.grad(log_density)(position)
        return slope, slope

    ladder = jnp.asarray(_LADDER, starts.dtype)

    def newton(carry: tuple[Mode, Array, Array]) -> tuple[Mode, Array, Array]:
        mode, candidates, step = carry
        values = jax.vmap(log_density)(candidates)
        values = jnp.where(jnp.isfinite(values), values, -jnp.inf)
        ahead = jnp.where((step == 0) & jnp.isfinite(values[0]), _TIE * (1.0 + jnp.abs(values[0])), 0.0)
        best = jnp.argmax(values.at[0].add(ahead))
        improved = values[best] > mode.value
        position = jnp.where(improved, candidates[best], mode.position)
        hessian, slope = jacobian(slope_of, has_aux=True)(position)
        curvature = symmetrised(-hessian)
        diagonal = jnp.abs(jnp.diagonal(curvature)) + 1e-8
        damped = curvature + ladder[:, None, None] * jnp.diag(diagonal)
        whites = jax.vmap(whitener_for(starts.shape[1]))(damped)
        proper = jnp.all(jnp.isfinite(whites), axis=(1, 2))
        moves = jnp.einsum("lij,li->lj", whites, whites @ slope)
        first = jnp.argmax(proper)  # the least damped curvature that is a precision at all
        decrement = slope @ moves[first]
        done = proper[0] & (decrement < tolerance)
        longer = _GROWTH ** (first - jnp.arange(len(_LADDER)))
        moves = jnp.where(proper[:, None], moves, longer[:, None] * moves[first])
        after = jnp.where(proper[first], position + moves, position)
        # the last step is too short to need an evaluation: it gains half the decrement
        position = jnp.where(done, after[0], position)
        value = jnp.where(improved, values[best], mode.value) + jnp.where(done, 0.5 * decrement, 0.0)
        found = Mode(position, value, damped[first], whites[first], decrement < tolerance)
        return found, after, jnp.where(improved & ~done, step + 1, max_steps)

    starts = jnp.atleast_2d(starts)
    eye = jnp.eye(starts.shape[1], dtype=starts.dtype)
    nowhere = Mode(starts[0], jnp.full((), -jnp.inf, starts.dtype), eye, eye, jnp.array(False))
    # the starts are the first candidates: one evaluation in the program serves them and all later ones
    candidates = starts[np.minimum(np.arange(len(_LADDER)), len(starts) - 1)]
    mode, _, _ = jax.lax.while_loop(lambda carry: carry[2] < max_steps, newton, (nowhere, candidates, jnp.asarray(0)))
    return mode
