"""A Jacobian some columns at a time, where all of them side by side would take too much memory."""

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
