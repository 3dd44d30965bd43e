"""Random keys that nobody can search for: 256 bits, where JAX's own have 64.

A client's noise has to stay secret from a server that knows everything else. Of a key of 64 bits a server that has
``N`` answers to the same question, each with noise of its own, tries one candidate against all ``N`` at once. The bits
of a wide key are those of four keys of Threefry, added without carry: whoever tries candidates has to find all four.
"""

from collections.abc import Callable
from functools import reduce

import jax
import jax.numpy as jnp
from jax import Array
from jax.extend.random import define_prng_impl

Key = Array

PLAIN = "threefry2x32"
_KEYS = 4
_WORDS = 2  # 32 bits each, in one key of Threefry


def _plain(data: Array) -> Key:
    """The four keys within the data of a wide one."""
    return jax.random.wrap_key_data(data.reshape(_KEYS, _WORDS), impl=PLAIN)


def _of_each(change: Callable[[Key], Key], data: Array) -> Array:
    """What becomes of the data of a wide key where each of its keys is changed."""
    return jax.random.key_data(jax.vmap(change)(_plain(data))).reshape(-1)


def _seed(seed: Array) -> Array:
    return _fold_in(jnp.arange(_KEYS * _WORDS, dtype=jnp.uint32), seed)


def _fold_in(data: Array, number: Array | int) -> Array:
    return _of_each(lambda key: jax.random.fold_in(key, number), data)


def _split(data: Array, shape: tuple[int, ...]) -> Array:
    each = jax.random.key_data(jax.vmap(lambda key: jax.random.split(key, shape))(_plain(data)))
    return jnp.moveaxis(each, 0, -2).reshape(*shape, _KEYS * _WORDS)


def _random_bits(data: Array, bit_width: int, shape: tuple[int, ...]) -> Array:
    keys, kind = _plain(data), jnp.dtype(f"uint{bit_width}")
    each = [jax.random.fold_in(keys[place], place) for place in range(_KEYS)]  # so that equal ones don't cancel
    return reduce(jnp.bitwise_xor, [jax.random.bits(key, shape, kind) for key in each])


WIDE = define_prng_impl(
    key_shape=(_KEYS * _WORDS,),
    seed=_seed,
    split=_split,
    random_bits=_random_bits,
    fold_in=_fold_in,
    name="fedbayes_wide",
    tag="wide",
)


def wide_key(secret: str) -> Key:
    """All of a secret of 256 bits, in hexadecimal digits, as a key."""
    words = jnp.frombuffer(bytes.fromhex(secret), jnp.uint32)
    return jax.random.wrap_key_data(words, impl=WIDE)


def told_key(data: Array, own: Key) -> Key:
    """A key of which the server has told the data, of the same kind as a client's own, and plain where that is wide."""
    impl = jax.random.key_impl(own)
    return jax.random.wrap_key_data(data, impl=PLAIN if str(impl) == str(WIDE) else impl)
