"""The largest of the clients' numbers from a sum, which does not show whose any number is.

A largest number is no sum, and steps are bounded by the largest curvature of any client. So a client with the number
``x`` sends a term at each point ``S_j`` of a fixed grid,

    (x / S_j)^q   where x < S_j,      a random number from 1 to 2^20   where not,

and at the points above all numbers the sum holds the ``q``-norm, which lies close above the largest of N numbers:

    max_c x_c  <=  S_j (sum_c (x_c / S_j)^q)^(1/q)  <=  N^(1/q) max_c x_c,      q = 128.

It is the largest to a millionth where the next is a tenth smaller, .9 percent above it for three clients with the same
number, and 3.7 percent for a hundred. At points below the largest random numbers hide the other clients' terms,
which add less than N there. How many clients are above a point can still be told from how large the sum is, over the
points of the grid: the others' numbers to a factor of 1.2 to 1.4, and not whose they are.
"""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array

from fedbayes.contract.state import RunState
from fedbayes.problem.roster import Roster

_POWER = 128
_EACH_OCTAVE, _OCTAVES = 4, 80
_GRID = 2.0 ** (np.arange(-_OCTAVES * _EACH_OCTAVE, _OCTAVES * _EACH_OCTAVE + 1) / _EACH_OCTAVE)
_HIDING = 2.0**20


def hiding(key: Array, shared: Any, num_locals: int) -> Array:
    """The random numbers of a client's terms: ``inputs`` of an :class:`~fedbayes.contract.algorithm.Update`.

    They are others wherever the client is asked elsewhere: a server that asks at two points by one key would see the
    difference of two sums, without them.
    """
    return jax.random.uniform(_about(key, shared), _GRID.shape, jnp.float64, 1.0, _HIDING)


def _about(key: Array, shared: Any) -> Array:
    """A key for what is asked: of each word of it a key of its own is made, and these are added without carry."""
    leaves = [jnp.ravel(jnp.asarray(leaf, jnp.float64)) for leaf in jax.tree.leaves(shared)]
    words = [jax.lax.bitcast_convert_type(leaf, jnp.uint32).ravel() for leaf in leaves if leaf.size]
    if not words:
        return key
    every = jnp.concatenate(words)
    keys = jax.vmap(jax.random.fold_in)(jax.random.split(key, len(every)), every)
    data = jax.lax.reduce(jax.random.key_data(keys), np.uint32(0), jax.lax.bitwise_xor, (0,))
    return jax.random.wrap_key_data(data, impl=jax.random.key_impl(key))


def terms_of(number: Array, random: Array) -> Array:
    """A client's terms; those of zero and of what is below are zero.

    Parameters
    ----------
    number
        Finite, shape ``()``.
    random
        From :func:`hiding`.
    """
    ratio = jnp.clip(number / _GRID, 0.0, 1.0)
    return jnp.where(number >= _GRID, random, ratio**_POWER)


def largest_of(total: Array) -> Array:
    """The largest number, from the sum of the terms; zero where all are below 8e-25, infinite where one is over 1e24.

    Parameters
    ----------
    total
        Of the clients' terms.
    """
    above = jnp.argmax(total < 1.0)  # the first point that can be above all numbers
    found = jnp.asarray(_GRID)[above] * total[above] ** (1.0 / _POWER)
    return jnp.where(total[-1] < 1.0, found, jnp.inf)


def largest_curvature_of(run: RunState, roster: Roster, bound: float) -> tuple[str, float]:
    """Which client has the largest ``curvature`` among the diagnostics, in words, and that.

    Over a network these stay with the clients, and nothing but the bound is known.
    """
    found = [np.asarray(record["curvature"]) for record in run.history if "curvature" in record]
    if not found or not np.any(np.isfinite(found[-1])):
        return "one of the clients", bound
    each = np.max(found[-1], axis=-1)
    worst = int(np.nanargmax(each))
    return f"client '{roster.names[worst]}'", float(each[worst])
