"""A client one of whose arguments is a row short."""

import re
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from itertools import combinations
from typing import Any

import numpy as np

from fedbayes.errors import ClientDataError, ModelError
from fedbayes.problem.clients import prepare_clients

_OF_SHAPES = re.compile(r"shape|broadcast|dimension|incompatible", re.IGNORECASE)

Lengths = dict[str, dict[str, int]]


@contextmanager
def explaining_lengths(clients: Mapping[str, Mapping[str, Any]]) -> Iterator[None]:
    """Say which client's arguments differ in length, if the model can't be run for their shapes.

    Arguments of different length are no mistake by themselves: rows, and beside them an array of the rows' groups. So
    they are refused only where the model itself fails.

    Raises
    ------
    ClientDataError
        In place of the model's error: a client's arguments differ in length where the others' do not.
    """
    try:
        yield
    except Exception as error:
        own = isinstance(error, ClientDataError) or (isinstance(error, ModelError) and error.__cause__ is None)
        if own or not _OF_SHAPES.search(str(error)):
            raise
        prepared = prepare_clients(clients, np.dtype(np.float64))
        lengths = {
            name: {argument: len(array) for argument, array in client.arrays.items() if array.ndim}
            for name, client in prepared.items()
        }
        found = odd_one_out(lengths)
        if found is None:
            raise
        name, pair = found
        reason = str(error).strip().splitlines()[0].rstrip(".")
        rows = " and ".join(f"`{argument}` has {lengths[name][argument]} rows" for argument in pair)
        others = "" if len(lengths) == 1 else ", which in every other client are equally many"
        raise ClientDataError(
            f"Client '{name}': {rows}{others}, and the model can't be run with them ({reason}). If both run over the "
            "same rows, give both all of them."
        ) from error


def odd_one_out(lengths: Lengths) -> tuple[str, tuple[str, str]] | None:
    """The client, and the two arguments, that differ in length for it alone; ``None`` without one.

    Parameters
    ----------
    lengths
        By client and argument.
    """
    for pair in combinations(next(iter(lengths.values())), 2):
        unequal = [name for name, each in lengths.items() if each[pair[0]] != each[pair[1]]]
        if len(unequal) == 1:
            return unequal[0], (pair[0], pair[1])
    return None
