"""A function of many points, so many of them side by side."""

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp


def in_batches(function: Callable[[Any], Any], points: Any, size: int) -> Any:
    """``function`` of each entry along the first axis, at most ``size`` of them side by side, batch after batch.

    As ``jax.lax.map`` with ``batch_size``, which compiles the function twice where a smaller batch is left: here all
    have one size, and the last is filled up with copies of the last entry.

    Parameters
    ----------
    function
        Of one entry.
    points
        A pytree of arrays with the same first axis.
    size
        Largest of a batch.
    """
    num = jax.tree.leaves(points)[0].shape[0]
    if num <= size:
        return jax.vmap(function)(points)
    batches = -(-num // size)
    size = -(-num // batches)

    def cut(leaf: jax.Array) -> jax.Array:
        filled = jnp.concatenate([leaf, jnp.repeat(leaf[-1:], batches * size - num, axis=0)])
        return filled.reshape(batches, size, *leaf.shape[1:])

    found = jax.lax.map(jax.vmap(function), jax.tree.map(cut, points))
    return jax.tree.map(lambda leaf: leaf.reshape(batches * size, *leaf.shape[2:])[:num], found)
