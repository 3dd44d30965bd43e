"""The mode and curvature of a log density by safeguarded Newton steps, batched by ``vmap``."""

from collections.abc import Callable
from typing import NamedTuple

import jax
import jax.numpy as jnp
from jax import Array

from fedbayes.gaussian import symmetrised, whitener

# Levenberg-Marquardt damping values, all tried at once: under vmap a search by backtracking would wait for the worst
# client
_LADDER = (0.0, 0.03, 1.0, 30.0, 1e3)


class Mode(NamedTuple):
    """Where a log density peaks.

    Attributes
    ----------
    position
        Shape ``(p,)``.
    curvature
        Negative Hessian of the log density, shape ``(p, p)``, damped where it was not positive definite.
    white
        Its :func:`~fedbayes.gaussian.whitener`.
    converged
        Whether the last Newton decrement was below the tolerance.
    """

    position: Array
    curvature: Array
    white: Array
    converged: Array


def find_mode(
    log_density: Callable[[Array], Array], start: Array, *, max_steps: int = 30, tolerance: float = 0.1
) -> Mode:
    """Maximise ``log_density`` by Newton steps ``x + (H + lambda D)^-1 g`` with the best of a ladder of ``lambda``.

    Parameters
    ----------
    log_density
        Twice differentiable, ``(p,) -> ()``.
    start
        Shape ``(p,)``.
    max_steps
        Upper bound of the Newton steps; a warm start needs one or two.
    tolerance
        Stop once the Newton decrement ``g' H^-1 g``, in nats, is below it.

    Returns
    -------
    Mode
        With the curvature of the last point at which it was evaluated.
    """
    gradient = jax.grad(log_density)
    ladder = jnp.asarray(_LADDER, start.dtype)

    def newton(carry: tuple[Mode, Array, Array]) -> tuple[Mode, Array, Array]:
        mode, value, step = carry
        slope, curvature = gradient(mode.position), symmetrised(-jax.jacfwd(gradient)(mode.position))
        diagonal = jnp.abs(jnp.diagonal(curvature)) + 1e-8
        damped = curvature + ladder[:, None, None] * jnp.diag(diagonal)
        whites = jax.vmap(whitener)(damped)
        proper = jnp.all(jnp.isfinite(whites), axis=(1, 2))
        moves = jnp.einsum("lij,lik,k->lj", whites, whites, slope)
        candidates = jnp.where(proper[:, None], mode.position + moves, mode.position)
        values = jax.vmap(log_density)(candidates)
        values = jnp.where(proper & jnp.isfinite(values), values, -jnp.inf)
        best = jnp.argmax(values)
        first = jnp.argmax(proper)  # the least damped curvature that is a precision at all
        decrement = slope @ moves[first]
        improved = values[best] > value
        position = jnp.where(improved, candidates[best], mode.position)
        done = proper[0] & (decrement < tolerance)
        stuck = ~improved & ~done
        found = Mode(position, damped[first], whites[first], done)
        return found, jnp.where(improved, values[best], value), jnp.where(stuck, max_steps, step + 1)

    size = start.shape[0]
    eye = jnp.eye(size, dtype=start.dtype)
    initial = Mode(start, eye, eye, jnp.array(False))
    mode, _, _ = jax.lax.while_loop(
        lambda carry: (carry[2] < max_steps) & ~carry[0].converged,
        newton,
        (initial, log_density(start), jnp.asarray(0)),
    )
    return mode
