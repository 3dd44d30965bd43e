"""A function of many points, so many of them side by side."""

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp


def in_batches(function: Callable[[Any], Any], points: Any, size: int) -> Any:
    """``function`` of each entry along the first axis, ``size`` of them side by side, one batch after the other.

    As ``jax.lax.map`` with ``batch_size``, which compiles the function twice where a smaller batch is left: here that
    one is filled up with copies of the last entry.

    Parameters
    ----------
    function
        Of one entry.
    points
        A pytree of arrays with the same first axis.
    size
        Of a batch.
    """
    num = jax.tree.leaves(points)[0].shape[0]
    if num <= size:
        return jax.vmap(function)(points)
    batches = -(-num // size)

    def cut(leaf: jax.Array) -> jax.Array:
        filled = jnp.concatenate([leaf, jnp.repeat(leaf[-1:], batches * size - num, axis=0)])
        return filled.reshape(batches, size, *leaf.shape[1:])

    found = jax.lax.map(jax.vmap(function), jax.tree.map(cut, points))
    return jax.tree.map(lambda leaf: leaf.reshape(batches * size, *leaf.shape[2:])[:num], found)
