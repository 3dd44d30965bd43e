"""Slice sampling of many scalars side by side (Neal 2003)."""

from collections.abc import Callable

import jax
import jax.numpy as jnp
from jax import Array

_MOST = 60  # shrinkages; after so many the interval is a billionth of a billionth of its width


def slice_step(log_density: Callable[[Array], Array], at: Array, key: Array, width: float) -> Array:
    """One step of each of many independent scalars, shape ``(n,)``.

    An interval of the given width lies at random around each scalar, and shrinks towards it until a uniform draw from
    it is likely enough. Without stepping out that leaves the density invariant at any width.

    Parameters
    ----------
    log_density
        Of all scalars at once, up to constants, ``(n,) -> (n,)``.
    at
        Where they are.
    key
        Of this step.
    width
        About twice the density's spread.
    """
    level_key, place_key, draw_key = jax.random.split(key, 3)
    level = log_density(at) + jnp.log1p(-jax.random.uniform(level_key, at.shape, at.dtype))
    low = at - width * jax.random.uniform(place_key, at.shape, at.dtype)
    uniforms = jax.random.uniform(draw_key, (_MOST, *at.shape), at.dtype)

    def unfinished(carry: tuple) -> Array:
        _, _, _, done, count = carry
        return ~jnp.all(done) & (count < _MOST)

    def shrink(carry: tuple) -> tuple:
        now, low, high, done, count = carry
        proposed = low + (high - low) * uniforms[count]
        accepted = log_density(proposed) >= level
        now = jnp.where(~done & accepted, proposed, now)
        low = jnp.where(proposed < at, proposed, low)
        high = jnp.where(proposed < at, high, proposed)
        return now, low, high, done | accepted, count + 1

    begin = at, low, low + width, jnp.zeros(at.shape, bool), jnp.zeros((), int)
    return jax.lax.while_loop(unfinished, shrink, begin)[0]
