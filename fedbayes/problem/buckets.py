"""Clients of one padded shape, side by side."""

from collections.abc import Sequence
from dataclasses import dataclass

import jax
import numpy as np

from fedbayes.problem.client import Client
from fedbayes.problem.data.padding import num_rows, pad
from fedbayes.problem.data.reading import ClientArrays
from fedbayes.problem.program.program import Program


def own_program(program: Program, client: ClientArrays) -> Program:
    """A bucket's program for one of its clients without padding."""
    rows = num_rows(client, program.row_arguments) if program.row_locals else None
    return program if rows is None else program.with_rows(rows)


@dataclass(frozen=True)
class Bucket:
    """Clients of one padded shape.

    Attributes
    ----------
    clients
        One ``Client`` whose leaves have a leading axis of the bucket's clients.
    members
        Their places among all clients.
    """

    clients: Client
    members: np.ndarray


def make_bucket(
    program: Program,
    group: Sequence[ClientArrays],
    members: Sequence[int],
    arguments: Sequence[str] = (),
    length: int | None = None,
) -> Bucket:
    """Stack the clients' arrays.

    Parameters
    ----------
    program
        The split program of this shape.
    group, members
        The clients' arrays, and their places among all clients.
    arguments, length
        Pad these arguments' rows to this length; ``None``: the clients already have one shape.
    """
    if length is None:
        padded = [client.arrays for client in group]
        mask = np.ones((len(group), 1), bool)
    else:
        program = program.with_rows(length)
        padded = [pad(client.arrays, arguments, length) for client in group]
        counts = np.asarray([num_rows(client, arguments) for client in group])
        mask = np.arange(length) < counts[:, None]
    # not `jnp.asarray`, which compiles a program for each shape
    data = {name: jax.device_put(np.stack([arrays[name] for arrays in padded])) for name in padded[0]}
    place = np.asarray(members)
    return Bucket(Client(data, jax.device_put(mask), jax.device_put(place), program), place)
