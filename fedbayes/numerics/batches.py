"""A function of many points, so many of them side by side."""

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
from jax import Array
from jaxtyping import Int


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
        return side_by_side(function, num)(points)
    batches, size = _even(num, size)

    def cut(leaf: Array) -> Array:
        return _filled(leaf, batches * size).reshape(batches, size, *leaf.shape[1:])

    found = jax.lax.map(side_by_side(function, size), jax.tree.map(cut, points))
    return jax.tree.map(lambda leaf: leaf.reshape(batches * size, *leaf.shape[2:])[:num], found)


def in_batches_up_to(num: Int[Array, ""], function: Callable[[Any], Any], points: Any, size: int) -> Any:
    """:func:`in_batches` for the first ``num`` entries, a number that is known only at run time.

    One program serves few and many entries. What is left of the last batch is computed too, and all further entries are
    zero.

    Parameters
    ----------
    num
        How many.
    function, points, size
        As there.
    """
    whole = jax.tree.leaves(points)[0].shape[0]
    batches, size = _even(whole, size)
    points = jax.tree.map(lambda leaf: _filled(leaf, batches * size), points)
    of_batch = side_by_side(function, size)

    def batch(number: Array, known: Any) -> Any:
        some = jax.tree.map(lambda leaf: jax.lax.dynamic_slice_in_dim(leaf, number * size, size), points)
        put = lambda leaf, values: jax.lax.dynamic_update_slice_in_dim(leaf, values, number * size, 0)  # noqa: E731
        return jax.tree.map(put, known, of_batch(some))

    shapes = jax.eval_shape(jax.vmap(function), points)
    nothing = jax.tree.map(lambda each: jnp.zeros(each.shape, each.dtype), shapes)
    found = jax.lax.fori_loop(0, -(-num // size), batch, nothing)
    return jax.tree.map(lambda leaf: leaf[:whole], found)


def _even(num: int, size: int) -> tuple[int, int]:
    """The number of batches of at most this size, and the size that all of them have."""
    batches = -(-num // size)
    return batches, -(-num // batches)


def _filled(leaf: Array, num: int) -> Array:
    """So many entries, of which those that are missing are copies of the last one."""
    return jnp.concatenate([leaf, jnp.repeat(leaf[-1:], num - len(leaf), axis=0)])


def side_by_side(function: Callable[[Any], Any], size: int) -> Callable[[Any], Any]:
    """The function of a batch, by ``vmap``; of a single entry as it is.

    A branch of a mapped function runs both sides, a loop of unequal length copies all that it carries, and an axis of
    one is a quarter of the time to trace.
    """
    if size != 1:
        return jax.vmap(function, axis_size=size)

    def of_one(points: Any) -> Any:
        alone = function(jax.tree.map(lambda leaf: jax.lax.squeeze(leaf, (0,)), points))
        return jax.tree.map(lambda leaf: jnp.asarray(leaf)[None], alone)

    return of_one
