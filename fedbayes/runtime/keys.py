"""What a key is folded for: every purpose of random numbers has a number of its own, and they all stand here.

A fit has one key. Its phases have ``fold_in(key, 0)``, ``fold_in(key, 1)``, and so on, and the rounds of a phase the
same of its key. Whatever else is drawn from the key of a fit, a phase or a round goes through :func:`key_for`. Two
purposes with one number would share their random numbers, and no result would show it.
"""

import zlib
from collections.abc import Mapping
from enum import IntEnum, unique

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array


@unique
class Purpose(IntEnum):
    """Of random numbers. Far above the number of any phase, client, step or replicate."""

    DRAWS = 1_000_001  # of the global posterior
    ASKED = 1_000_002  # clients, once the rounds are over
    REPLICATES = 1_000_003  # of the clients' outcomes, from the posterior
    SECRETS = 1_000_004  # of the clients in one process: nothing is ever sampled with these themselves
    RESAMPLED = 1_000_005  # draws of the correction
    STRATA = 1_000_006  # of the clients of an ensemble
    PLAN = 1_000_007  # which mode a stratum trains, round by round
    TAKEN = 1_000_008  # clients that an algorithm draws for a round, of a stratum or of all
    EXACT = 1_000_009  # chains of `fit.exact`
    LEFT_OUT = 1_000_010  # draws of the clients' cavities
    PRIOR = 1_000_011  # draws of the prior, and outcomes from them
    PREDICTIONS = 1_000_012  # outcomes of a client's new rows
    NEWCOMER = 1_000_013  # a client that joins after the fit
    INTEGRATED = 1_000_014  # draws of what the rounds have integrated out
    ALONE = 1_000_015  # fits to one client's data
    TOLD = 1_000_016  # clients over a network, when their fit ends
    PARTICIPATION = 1_000_017  # clients that take part in a round


def typed_key(key: object) -> Array:
    """A user's key, from ``jax.random.key(seed)`` or as ``jax.random.PRNGKey(seed)`` writes it.

    Raises
    ------
    TypeError
        It is none.
    """
    if isinstance(key, jax.Array) and key.dtype == np.uint32 and key.shape == _words():
        return jax.random.wrap_key_data(key)
    if isinstance(key, jax.Array) and jnp.issubdtype(key.dtype, jax.dtypes.prng_key) and key.shape == ():
        return key
    raise TypeError(f"`key` is {key!r}; write a typed JAX key, such as `jax.random.key(0)`.")


def _words() -> tuple[int, ...]:
    """The shape of the data of a key of the default kind."""
    shape: tuple[int, ...] = jax.eval_shape(lambda: jax.random.key_data(jax.random.key(0))).shape
    return shape


def key_for(key: Array, purpose: Purpose, *places: int) -> Array:
    """The key of a purpose, and within it of a client's place or another number."""
    for number in (purpose, *places):
        key = jax.random.fold_in(key, np.uint32(number))
    return key


def fingerprint(arrays: Mapping[str, np.ndarray]) -> int:
    """A number that tells data sets apart, for clients that have no place in a fit."""
    found = 0
    for name in sorted(arrays):
        array = np.ascontiguousarray(arrays[name])
        found = zlib.crc32(f"{name}{array.dtype.str}{array.shape}".encode(), found)
        found = zlib.crc32(array.tobytes(), found)
    return found
