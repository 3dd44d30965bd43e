"""Random numbers of the simulators: NumPy generators whose seed is a JAX key."""

from collections.abc import Sequence

import jax
import numpy as np

from fedbayes.runtime.keys import typed_key


def generator(key: jax.Array, *path: int) -> np.random.Generator:
    """NumPy generator for the random numbers named by ``path`` under ``key``.

    Seeding by identity, as everywhere in fedbayes: client ``k`` draws from ``generator(key, 1, k)``, so more clients
    or other sizes leave the data of client ``k`` alone. NumPy draws in float64 whatever JAX's default precision is.

    Parameters
    ----------
    key
        A JAX random key, ``jax.random.key(seed)`` or ``jax.random.PRNGKey(seed)``.
    *path
        Integers folded into the seed, one after the other.

    Raises
    ------
    TypeError
        If ``key`` is not a JAX random key.
    """
    seed = jax.random.key_data(typed_key(key)).ravel().tolist()
    # spawn_key and not more entropy: entropy is padded with zeros, so (1,) and (1, 0) would be the same seed
    return np.random.default_rng(np.random.SeedSequence(seed, spawn_key=path))


def rows_of_each(num_clients: int, rows: int | Sequence[int]) -> list[int]:
    """Rows of each client, from one number for all of them or one for each.

    Raises
    ------
    ValueError
        If ``rows`` is not one number and not as many as there are clients.
    """
    sizes = [rows] * num_clients if isinstance(rows, int) else list(rows)
    if len(sizes) != num_clients:
        raise ValueError(f"rows has {len(sizes)} entries for num_clients={num_clients}; give one number or one each")
    return sizes
