"""Everybody's data in one place, and clients' sizes."""

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
from examples.example import Clients


def rows_of(clients: Clients, count: str = "", places: str = "") -> dict[str, Any]:
    """The clients' rows one after the other; scalars become one number a client, sizes stay.

    Parameters
    ----------
    clients
        Their data.
    count, places
        The argument that counts a client's own units, such as ``"wards"``, and the argument that gives each row's unit:
        units of all clients are numbered through.
    """
    data = [dict(one) for one in clients.values()]
    if count:
        before = np.cumsum([0] + [one[count] for one in data])
        data = [
            one | {places: one[places] + start, count: int(before[-1])}
            for one, start in zip(data, before[:-1], strict=True)
        ]
    return {name: _joined([one[name] for one in data]) for name in data[0]}


def by_client(clients: Clients, **units: str) -> dict[str, Any]:
    """The same, with each row's ``client`` and the number of ``clients``."""
    sizes = [max(np.shape(value)[0] for value in one.values() if np.ndim(value)) for one in clients.values()]
    return {**rows_of(clients, **units), "client": np.repeat(np.arange(len(sizes)), sizes), "clients": len(sizes)}


def same(model: Callable[..., Any], **units: str) -> Callable[[Clients], tuple[Callable[..., Any], Mapping[str, Any]]]:
    """The client's own program on everybody's rows: where latents belong to rows or to units, and not to clients."""
    return lambda clients: (model, rows_of(clients, **units))


def gathered(
    model: Callable[..., Any], **units: str
) -> Callable[[Clients], tuple[Callable[..., Any], Mapping[str, Any]]]:
    """A program that knows each row's client, on everybody's rows."""
    return lambda clients: (model, by_client(clients, **units))


def unequal(random: np.random.Generator, number: int, low: int, high: int) -> np.ndarray:
    """Rows of the clients: log-uniform, the smallest and the largest among them."""
    between = np.exp(random.uniform(np.log(low), np.log(high), size=number - 2)).astype(int)
    return random.permutation([low, high, *between])


def _joined(values: list[Any]) -> Any:
    if isinstance(values[0], int):
        return values[0]
    return np.concatenate(values) if np.ndim(values[0]) else np.array(values)
