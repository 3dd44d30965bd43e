"""Jacobians in other ways than ``jax.jacfwd``: some columns at a time, and by differences."""

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
from jax import Array

from fedbayes.numerics.batches import in_batches


def by_columns(function: Callable[..., Any], has_aux: bool = False, *, at_once: int) -> Callable[..., Any]:
    """``jax.jacfwd(function, has_aux=has_aux)`` with at most ``at_once`` columns side by side.

    The function is then linearised once, and its linear part is applied to the columns' tangents, part by part.

    Parameters
    ----------
    function
        Of a vector, and of more arguments that stay as they are.
    has_aux
        As for ``jax.jacfwd``: the function gives a pair, of which the second part is handed on.
    at_once
        Columns.
    """
    pair = function if has_aux else lambda *arguments: (function(*arguments), None)

    def jacobian(point: Array, *others: Any) -> Any:
        if point.size <= at_once:
            return jax.jacfwd(function, has_aux=has_aux)(point, *others)
        _, along, aux = jax.linearize(lambda at: pair(at, *others), point, has_aux=True)
        columns = in_batches(along, jnp.eye(point.size, dtype=point.dtype), at_once)
        found = jax.tree.map(lambda leaf: jnp.moveaxis(leaf, 0, -1), columns)
        return (found, aux) if has_aux else found

    return jacobian


def by_differences(function: Callable[..., Any], has_aux: bool = False) -> Callable[..., Any]:
    """The same by central differences, of functions whose derivatives are not finite though their values are.

    In float64 the step is 6e-6: the error is some 1e-10 of the function's own scale where that changes over distances
    near one, as over a posterior whose sds are far above the step.

    Parameters
    ----------
    function, has_aux
        See :func:`by_columns`.
    """
    pair = function if has_aux else lambda *arguments: (function(*arguments), None)

    def jacobian(point: Array, *others: Any) -> Any:
        step, size = jnp.finfo(point.dtype).eps ** (1.0 / 3.0), point.size
        moves = step * jnp.eye(size, dtype=point.dtype)
        # one evaluation in the program, where the point's own would be one more
        values, aux = jax.vmap(lambda at: pair(at, *others))(
            jnp.concatenate([point + moves, point - moves, point[None]])
        )
        found = jax.tree.map(
            lambda leaf: jnp.moveaxis((leaf[:size] - leaf[size : 2 * size]) / (2.0 * step), 0, -1), values
        )
        return (found, jax.tree.map(lambda leaf: leaf[-1], aux)) if has_aux else found

    return jacobian
