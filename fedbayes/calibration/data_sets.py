"""Many data sets of one shape side by side: each is a replicate with data of its own."""

from collections.abc import Sequence
from dataclasses import replace

import jax.numpy as jnp
import numpy as np

from fedbayes.calibration.simulators import Clients, check_same_shape
from fedbayes.errors import ClientDataError
from fedbayes.problem.buckets import Bucket
from fedbayes.problem.data.padding import pad
from fedbayes.problem.data.reading import ClientArrays, prepare_like
from fedbayes.problem.problem import Problem

DataSet = Sequence[ClientArrays]


def read_like_first(problem: Problem, number: int, clients: Clients) -> DataSet:
    """The clients of a later data set as arrays, in the kinds of numbers and shapes of the first one.

    Only the first data set goes through all the checks of a fit; a later one comes from the same simulator, and what
    could differ are clients, arguments and shapes.

    Parameters
    ----------
    problem
        Of the first data set.
    number
        Of this one.
    clients
        As the simulator returned them.

    Raises
    ------
    ClientDataError
        Clients, arguments or shapes differ from the first data set's, or a value can't be read.
    """
    names = tuple(map(str, clients))
    if names != problem.names:
        raise ClientDataError(
            f"Simulated data set {number} has the clients {list(names)}, but the first one has {list(problem.names)}. "
            "All simulated data sets need the same clients in one order."
        )
    dtype = np.dtype(problem.programs[0].dtype)
    read = []
    for (name, data), first in zip(clients.items(), problem.arrays, strict=True):
        client = prepare_like(str(name), data, str(name), first, dtype, partly=True)
        check_same_shape(number, str(name), first, client)
        read.append(client)
    return read


def side_by_side(problem: Problem, data_sets: Sequence[DataSet]) -> Problem:
    """The problem with every client's arrays of all data sets, leading axes client and data set.

    Masks, identities and programs are the first data set's.
    """
    return replace(problem, buckets=tuple(_stacked(bucket, data_sets) for bucket in problem.buckets))


def _stacked(bucket: Bucket, data_sets: Sequence[DataSet]) -> Bucket:
    clients = bucket.clients
    arguments, length = clients.program.row_arguments, clients.mask.shape[1]
    padded = [[pad(data[member].arrays, arguments, length) for data in data_sets] for member in bucket.members]
    arrays = {
        name: jnp.asarray(np.stack([np.stack([arrays[name] for arrays in mine]) for mine in padded]))
        for name in clients.data
    }
    return replace(bucket, clients=replace(clients, data=arrays))
