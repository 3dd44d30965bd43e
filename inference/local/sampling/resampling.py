"""Draws of equal weight from weighted ones."""

from typing import NamedTuple

import jax
import jax.numpy as jnp
from jax import Array
from jaxtyping import Float, Int, Key

from fedbayes.inference.local.density.moments import TiltedDraws


class Resampling(NamedTuple):
    """The random numbers of :func:`equal_weights`.

    Attributes
    ----------
    level
        Between 0 and 1.
    order
        A permutation of the weighted draws.
    shuffle
        A permutation of the resampled ones.
    """

    level: Float[Array, ""]
    order: Int[Array, " draw"]
    shuffle: Int[Array, " num"]


def resampling(key: Key[Array, ""], pool: int, num: int) -> Resampling:
    """Random numbers for resampling ``num`` out of ``pool`` draws."""
    level_key, order_key, shuffle_key = jax.random.split(key, 3)
    order, shuffle = jax.random.permutation(order_key, pool), jax.random.permutation(shuffle_key, num)
    return Resampling(jax.random.uniform(level_key, dtype=jnp.float64), order, shuffle)


def pool_size(num: int) -> int:
    """Weighted draws from which ``num`` are resampled: about four times as many, a power of two."""
    return 1 << (4 * num - 1).bit_length()


def equal_weights(
    draws: TiltedDraws, inputs: Resampling
) -> Float[Array, "{inputs.shuffle.shape[0]} {draws.position.shape[1]}"]:
    """As many of the weighted draws as ``inputs.shuffle`` has places, shuffled.

    Systematic resampling: one uniform, evenly spaced levels, so that equal weights give distinct draws. The draws are
    walked through in random order, because every fourth point of a Sobol sequence lies in one quarter of the space.
    """
    num = inputs.shuffle.shape[0]
    levels = (inputs.level + jnp.arange(num)) / max(num, 1)
    picked = jnp.searchsorted(jnp.cumsum(draws.weight[inputs.order]), levels)
    picked = jnp.clip(picked, 0, draws.weight.shape[0] - 1)
    return draws.position[inputs.order[picked[inputs.shuffle]]]
