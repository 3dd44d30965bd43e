"""Steps of an optax optimiser on a client, and the mini-batches that they may take their gradients from."""

from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import optax
from jax import Array
from jaxtyping import Bool, Float, Int, Key

# (step, position, carry) -> (value, slope, carry)
Evaluate = Callable[[Array, Any, Any], tuple[Array, Any, Any]]


class Descended(NamedTuple):
    """Where the steps ended, and what was seen on the way.

    Attributes
    ----------
    position
        After the last step.
    carry
        Of the last evaluation.
    slope
        At the start.
    value, mean_value
        At the start, and averaged over the positions that were evaluated.
    """

    position: Any
    carry: Any
    slope: Any
    value: Float[Array, ""]
    mean_value: Float[Array, ""]


def descend(
    evaluate: Evaluate,
    position: Any,
    carry: Any,
    *,
    optimizer: optax.GradientTransformation,
    num_steps: int | Int[Array, ""],
    scale: Float[Array, ""] | float = 1.0,
) -> Descended:
    """``x <- x + scale * optimizer(slope(x))``, ``num_steps`` times, from a new state of the optimiser.

    Parameters
    ----------
    evaluate
        ``(step, position, carry) -> (value, slope, carry)``: the loss, its gradient, and whatever goes on to the next
        evaluation.
    position
        Where the steps begin, a pytree.
    carry
        Of the first evaluation.
    optimizer
        Turns slopes into moves.
    num_steps
        One at least; it may differ between clients under ``vmap``.
    scale
        Factor of the moves.
    """
    shapes = jax.eval_shape(lambda x, c: evaluate(jnp.asarray(0), x, c), position, carry)
    nothing = jax.tree.map(lambda leaf: jnp.zeros(leaf.shape, leaf.dtype), shapes[:2])

    def step(i: Array, state: tuple) -> tuple:
        x, moving, carry, first, total = state
        value, slope, carry = evaluate(i, x, carry)
        first = jax.tree.map(lambda new, old: jnp.where(i == 0, new, old), (value, slope), first)
        moves, moving = optimizer.update(slope, moving, x)
        return jax.tree.map(lambda a, b: a + scale * b, x, moves), moving, carry, first, total + value

    begin = (position, optimizer.init(position), carry, nothing, nothing[0])
    position, _, carry, (value, slope), total = jax.lax.fori_loop(0, num_steps, step, begin)
    return Descended(position, carry, slope, value, total / num_steps)


class Batches(NamedTuple):
    """A client's rows in random orders, one for each pass, cut into batches.

    Attributes
    ----------
    orders
        The real rows come first, and as many more places as a batch has follow all rows.
    per_pass
        Batches in a pass, the last one smaller where the rows are no multiple of the size.
    num_rows
        Real rows.
    """

    orders: Int[Array, "pass place"]
    per_pass: Int[Array, ""]
    num_rows: Int[Array, ""]

    def at(
        self, i: Int[Array, ""], size: int
    ) -> tuple[Int[Array, " {size}"], Bool[Array, " {size}"], Float[Array, ""]]:
        """Rows of the i-th batch, which of them are real, and how many rows each stands for."""
        begin = size * (i % self.per_pass)
        rows = jax.lax.dynamic_slice_in_dim(self.orders[i // self.per_pass], begin, size)
        real = begin + jnp.arange(size) < self.num_rows
        return rows, real, self.num_rows / jnp.maximum(jnp.sum(real), 1)


def make_batches(mask: Bool[Array, " row"], key: Key[Array, ""], size: int, passes: int) -> Batches:
    """Fresh random orders of the rows where ``mask`` is true."""
    noise = jax.random.uniform(key, (passes, mask.shape[0]), jnp.float32)
    orders = jnp.argsort(jnp.where(mask, noise, jnp.inf), axis=1)
    num = jnp.sum(mask)
    return Batches(jnp.pad(orders, ((0, 0), (0, size))), -(-num // size), num)
