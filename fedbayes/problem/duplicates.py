"""One data holder under two names: its rows would count twice."""

import hashlib
import warnings
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np

from fedbayes.problem.data.reading import ClientArrays
from fedbayes.problem.program.program import Model
from fedbayes.problem.program.sites import trace_sites

_CHANCE = np.log(1e5)  # nats beyond what the number of pairs needs
_DECIMALS = 1e4  # a value that is not whole in this unit is hardly met twice


def warn_of_twins(
    model: Model, clients: Mapping[str, Mapping[str, Any]], arrays: Sequence[ClientArrays], stacklevel: int
) -> None:
    """Warn once of clients that are the same objects, or hold the same rows in whatever order.

    Equal data may also be honest: few discrete values, or one design with a rare outcome, agree by chance. Rows count
    as copied only if their outcomes are too varied for that.

    Parameters
    ----------
    model
        Says which arguments are outcomes.
    clients, arrays
        The clients as given, and as read, in the same order.
    stacklevel
        Of the warning, as seen from the caller.
    """
    names, given, num = [str(name) for name in clients], list(clients.values()), len(arrays)
    outcomes: set[str | None] | None = None
    pairs = []
    for group in _equal(arrays):
        client = arrays[group[0]]
        if outcomes is None:
            sites = trace_sites(model, client.static, client.arrays).values()
            outcomes = {site.argument for site in sites if site.kind == "observed"}
        surprise = _surprise(client, outcomes)
        for other in group[1:]:
            one_object = all(given[group[0]][argument] is given[other][argument] for argument in client.arrays)
            # one object is no coincidence, unless it is a single number or a constant
            if surprise > (0.0 if one_object else _CHANCE + np.log(num * (num - 1) / 2)):
                pairs.append((names[group[0]], names[other]))
    if pairs:
        (one, other_name), more = pairs[0], len(pairs) - 1
        others = f", and so do {more} more pairs" if more > 1 else ", and so does another pair" if more else ""
        warnings.warn(
            f"Clients '{one}' and '{other_name}' hold the same rows, in whatever order{others}. If this is one data "
            "holder under two names, its data count twice and the posterior is too narrow: leave one of them out.",
            stacklevel=stacklevel + 1,
        )


def _equal(arrays: Sequence[ClientArrays]) -> list[list[int]]:
    """Places of clients that hold the same, the order of rows aside; cheap looks come first."""
    groups: Iterable[list[int]] = [list(range(len(arrays)))]
    for look in (_extremes, _digest):
        finer: dict[Any, list[int]] = {}
        for number, group in enumerate(groups):
            for place in group:
                finer.setdefault((number, look(arrays[place])), []).append(place)
        groups = [group for group in finer.values() if len(group) > 1]
    return list(groups)


def _extremes(client: ClientArrays) -> tuple:
    """What any order of rows leaves as it is, and few others share."""
    numbers = tuple((array.shape, array.min(), array.max()) for array in client.arrays.values())
    return (*numbers, repr(client.static))


def _digest(client: ClientArrays) -> bytes:
    """A digest of a client's rows, in sorted order; arrays of one length share their rows."""
    by_length: dict[int, list[np.ndarray]] = {}
    for array in client.arrays.values():
        by_length.setdefault(len(array) if array.ndim else 0, []).append(array)
    digest = hashlib.sha256()
    for length, group in by_length.items():
        rows = np.concatenate([_bytes_of_rows(array) for array in group], axis=1)
        digest.update(np.sort(_as_one(rows)).tobytes() + f"{length} {rows.shape}".encode())
    return digest.digest()


def _bytes_of_rows(array: np.ndarray) -> np.ndarray:
    """Each row as bytes, shape ``(rows, bytes)``; a number is one row."""
    rows = np.ascontiguousarray(array).reshape(max(1, len(array) if array.ndim else 1), -1)
    return rows.view(np.uint8)


def _as_one(rows: np.ndarray) -> np.ndarray:
    return np.ascontiguousarray(rows).view(np.dtype((np.void, rows.shape[1]))).reshape(-1)


def _surprise(client: ClientArrays, outcomes: set[str | None]) -> float:
    """How little likely it is that someone else has the same data by chance, in nats.

    The outcomes decide, because clients may share all the rest: a design. Where an outcome is computed, from whichever
    arguments, the least surprising argument does.
    """
    known = [_surprise_of(array) for argument, array in client.arrays.items() if argument in outcomes]
    if known and None not in outcomes:
        return sum(known)
    return min(_surprise_of(array) for array in client.arrays.values())


def _surprise_of(array: np.ndarray) -> float:
    """Minus the log probability of the same rows by chance, as far as their variety tells."""
    rows, counts = np.unique(_as_one(_bytes_of_rows(array)), return_counts=True)
    if len(rows) < 2:
        return 0.0
    surprise = -float(counts @ np.log(counts / counts.sum()))
    if array.dtype.kind == "f":
        flat = array.reshape(len(array), -1)
        tens = flat * _DECIMALS
        precise = (np.abs(tens - np.rint(tens)) > 1e-3).any(axis=1)
        surprise += len(np.unique(flat[precise], axis=0)) * np.log(_DECIMALS)
    return surprise
