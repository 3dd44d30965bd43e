"""Explains a model's failure by the client's data: a missing row, or decimals used as an index."""

import re
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from itertools import combinations
from typing import Any

import numpy as np

from fedbayes.errors import ClientDataError, ModelError
from fedbayes.problem.data.reading import ClientArrays, read_clients

_OF_SHAPES = re.compile(r"broadcast|incompatible|mismatch|contracting|(same|different|equal) shape", re.IGNORECASE)
_OF_INTEGERS = re.compile(r"integer", re.IGNORECASE)


@contextmanager
def explaining(clients: Mapping[str, Mapping[str, Any]]) -> Iterator[None]:
    """Where a model fails on the clients' data, say which argument of which client it may be.

    Arguments of different length are no mistake by themselves: rows, and beside them an array of the rows' groups. Nor
    are whole numbers written as decimals. So they are refused only where the model itself fails.

    Raises
    ------
    ClientDataError
        In place of the model's error: a client's arguments differ in length where the others' do not, or an argument
        holds whole decimals where the model needs integers.
    """
    try:
        yield
    except Exception as error:
        words = None if isinstance(error, ClientDataError | ModelError) else _explanation(str(error), clients)
        if words is None:
            raise
        raise ClientDataError(words) from error


def _explanation(said: str, clients: Mapping[str, Mapping[str, Any]]) -> str | None:
    reason = said.strip().split("\n")[0].rstrip(".")
    if _OF_INTEGERS.search(said) and (whole := _whole_decimals(read_clients(clients))):
        client, argument = whole
        return (
            f"Client '{client}': `{argument}` holds whole numbers as decimals, and so they are decimals for all "
            f"clients; the model can't be run with them ({reason}). If it is an index, write integers, "
            f"`numpy.asarray({argument}).astype(int)`."
        )
    if _OF_SHAPES.search(said) and (found := _short(read_clients(clients))):
        client, words = found
        return (
            f"Client '{client}': {words}, and the model can't be run with them ({reason}). If both run over the same "
            "rows, give both all of them."
        )
    return None


def _short(clients: Mapping[str, ClientArrays]) -> tuple[str, str] | None:
    lengths = {
        name: {argument: len(array) for argument, array in client.arrays.items() if array.ndim}
        for name, client in clients.items()
    }
    found = odd_one_out(lengths)
    if found is None:
        return None
    name, pair = found
    rows = " and ".join(f"`{argument}` has {lengths[name][argument]} rows" for argument in pair)
    return name, rows + ("" if len(lengths) == 1 else ", which in every other client are equally many")


def odd_one_out(lengths: Mapping[str, Mapping[str, int]]) -> tuple[str, tuple[str, str]] | None:
    """The client, and the two arguments, that differ in length for it alone; ``None`` without one.

    Parameters
    ----------
    lengths
        By client and argument.
    """
    for one, other in combinations(next(iter(lengths.values())), 2):
        unequal = [name for name, each in lengths.items() if each[one] != each[other]]
        if len(unequal) == 1:
            return unequal[0], (one, other)
    return None


def _whole_decimals(clients: Mapping[str, ClientArrays]) -> tuple[str, str] | None:
    """The first client that has decimals, and the argument, where all clients' values are whole numbers."""
    for argument in next(iter(clients.values())).arrays:
        arrays = {name: client.arrays[argument] for name, client in clients.items()}
        decimal = [name for name, array in arrays.items() if array.dtype.kind == "f"]
        if decimal and all(np.array_equal(array, np.rint(array)) for array in arrays.values()):
            return decimal[0], argument
    return None
