"""Clients' data: what users give, checked and turned into arrays."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any

import numpy as np

from fedbayes.errors import ClientDataError
from fedbayes.problem.data.values import argument_place, is_table, needs_no_reading, read


@dataclass(frozen=True)
class ClientArrays:
    """One client's arguments: arrays, and everything else (sizes, flags, names).

    Attributes
    ----------
    arrays, static
        By argument.
    labels
        Names of the columns of those arrays that were tables.
    """

    arrays: dict[str, np.ndarray]
    static: dict[str, Any]
    labels: Mapping[str, tuple[str, ...]] = field(default_factory=dict)


def prepare_clients(clients: Mapping[str, Mapping[str, Any]], dtype: np.dtype) -> dict[str, ClientArrays]:
    """Check the clients' data and turn them into arrays.

    An argument is of one kind of numbers for all clients: decimals for all where one has integers and another decimals.

    Raises
    ------
    ClientDataError
        No clients; a client without rows; text, dates, missing or infinite values; other arguments or columns than the
        rest.
    """
    found = read_clients(clients)
    kinds = common_kinds(found.values())
    return {name: cast(name, client, kinds, dtype) for name, client in found.items()}


def common_kinds(clients: Iterable[ClientArrays]) -> dict[str, np.dtype]:
    """The kind of numbers of each argument that can hold every client's."""
    every = list(clients)
    return {
        argument: np.result_type(*{client.arrays[argument].dtype for client in every}) for argument in every[0].arrays
    }


def read_clients(clients: Mapping[str, Mapping[str, Any]]) -> dict[str, ClientArrays]:
    """The same, each client's numbers still of the kind that it gave."""
    if not isinstance(clients, Mapping):
        raise ClientDataError(
            f"`clients` is a {type(clients).__name__}; write a mapping from the client's name to the model's keyword "
            'arguments, `{"north": dict(x=..., y=...), "south": dict(x=..., y=...)}`, or use '
            "`fedbayes.clients_from_dataframe`."
        )
    if not clients:
        raise ClientDataError("`clients` is empty: there is nobody to learn from. Give at least one client's data.")
    names = [str(name) for name in clients]
    if len(set(names)) < len(names):
        raise ClientDataError(
            f"Two clients have the same name once written as text: {names}. Give them different names."
        )
    numbers = _numeric_arguments(clients)
    found = {str(name): _read(str(name), data, numbers, clients) for name, data in clients.items()}
    first = next(iter(found))
    for name, client in found.items():
        if not client.arrays:
            raise ClientDataError(
                f"Client '{name}' has no arrays: its arguments are {client.static}. Write its data as arrays, also a "
                "single number: `np.asarray(3.0)`."
            )
        check_like(first, found[first], name, client)
    return found


def prepare_like(
    name: str, data: Mapping[str, Any], first: str, expected: ClientArrays, dtype: np.dtype, *, partly: bool = False
) -> ClientArrays:
    """The same for one client that comes after the others, or for some arguments of one.

    Parameters
    ----------
    name, data
        The client.
    first, expected
        A client of the fit.
    dtype
        Of decimals.
    partly
        Arguments may be left out, and others given that the client of the fit has not as arrays.

    Raises
    ------
    ClientDataError
        As for :func:`prepare_clients`.
    """
    client = _with_sizes_of(expected, _read(name, data, set(expected.arrays), {name: data}))
    if partly:
        _check_columns(first, expected, name, client, client.arrays.keys() & expected.arrays.keys())
    else:
        check_like(first, expected, name, client)
    kinds = {
        argument: np.result_type(array.dtype, expected.arrays.get(argument, array).dtype)
        for argument, array in client.arrays.items()
    }
    return cast(name, client, kinds, dtype)


def _with_sizes_of(expected: ClientArrays, client: ClientArrays) -> ClientArrays:
    """The client, with NumPy's single integers as Python numbers where the fit's clients have these."""
    sizes = {
        argument: array.item()
        for argument, array in client.arrays.items()
        if array.ndim == 0 and array.dtype.kind in "iub" and argument in expected.static
    }
    arrays = {argument: array for argument, array in client.arrays.items() if argument not in sizes}
    return replace(client, arrays=arrays, static=client.static | sizes)


def _is_number(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool)


def _is_static(value: Any) -> bool:
    return value is None or isinstance(value, str | bool)


def _numeric_arguments(clients: Mapping[str, Mapping[str, Any]]) -> set[str]:
    """Arguments given as Python integers that are data, not sizes: they differ between clients, or some have arrays."""
    seen: dict[str, set[int]] = {}
    arrays = set()
    for data in clients.values():
        if isinstance(data, Mapping):
            for argument, value in data.items():
                if _is_number(value):
                    seen.setdefault(argument, set()).add(value)
                elif not _is_static(value):
                    arrays.add(argument)
    return {argument for argument, values in seen.items() if len(values) > 1 or argument in arrays}


def _read(name: str, data: Mapping[str, Any], numbers: set[str], clients: Mapping[str, Any]) -> ClientArrays:
    if not isinstance(data, Mapping):
        hint = "`dict(x=frame[['age', 'bmi']], y=frame['sick'])`" if is_table(data) else "`dict(x=..., y=...)`"
        raise ClientDataError(
            f"Client '{name}' is a {type(data).__name__}; write its data as the model's keyword arguments, {hint}."
        )
    arrays, static, labels = {}, {}, {}
    if wrong := [argument for argument in data if not isinstance(argument, str)]:
        raise ClientDataError(
            f"Client '{name}' has the argument {wrong[0]!r}, which is no name. Name the model's arguments, "
            "`dict(x=..., y=...)`."
        )
    for argument, value in data.items():
        if _is_static(value) or (_is_number(value) and argument not in numbers):
            static[argument] = value
            continue
        if needs_no_reading(value):
            arrays[argument] = value
            continue
        found = read(value, argument_place(name, argument, partial(_given, clients, argument)))
        arrays[argument] = found.array
        if found.labels is not None:
            labels[argument] = found.labels
    return ClientArrays(arrays, static, labels)


def _given(clients: Mapping[str, Any], argument: str) -> list:
    """What all clients have as this argument."""
    return [data[argument] for data in clients.values() if isinstance(data, Mapping) and argument in data]


def cast(name: str, client: ClientArrays, kinds: Mapping[str, np.dtype], dtype: np.dtype) -> ClientArrays:
    """The arrays in the kinds of numbers that all clients have, decimals in the fit's precision.

    Raises
    ------
    ClientDataError
        A value is too large for that precision.
    """
    arrays = {}
    for argument, array in client.arrays.items():
        kind = dtype if kinds[argument].kind == "f" else kinds[argument]
        if kind.itemsize >= array.dtype.itemsize:
            arrays[argument] = array.astype(kind)  # a copy: what the user does to the array later is not the fit's
            continue
        with np.errstate(over="ignore"):
            arrays[argument] = array.astype(kind)
        if not np.all(finite := np.isfinite(arrays[argument])):
            raise ClientDataError(
                f"Client '{name}': `{argument}` holds {np.sum(~finite)} values too large for {dtype}, the first "
                f"{array[~finite][0]}. Use other units, or `dtype=np.float64`."
            )
    return ClientArrays(arrays, client.static, client.labels)


def check_like(first: str, expected: ClientArrays, name: str, client: ClientArrays) -> None:
    """A client needs the same arguments and columns as the first one.

    Raises
    ------
    ClientDataError
        It has others.
    """
    mine, theirs = {*client.arrays, *client.static}, {*expected.arrays, *expected.static}
    if mine != theirs:
        raise ClientDataError(
            f"Client '{name}' has the arguments {sorted(mine)}, but client '{first}' has {sorted(theirs)}: "
            "all clients need the same ones."
        )
    for argument in {*expected.arrays} ^ {*client.arrays}:
        (bare, who), where = ((client, name), first) if argument in client.static else ((expected, first), name)
        raise ClientDataError(
            f"Client '{who}': `{argument}` is {bare.static[argument]!r}, but client '{where}' has an array there: all "
            f"clients need one, or none."
        )
    _check_columns(first, expected, name, client, expected.arrays.keys())


def _check_columns(
    first: str, expected: ClientArrays, name: str, client: ClientArrays, arguments: Iterable[str]
) -> None:
    for argument in arguments:
        array, other = client.arrays[argument], expected.arrays[argument]
        if array.ndim != other.ndim:
            raise ClientDataError(
                f"Client '{name}': `{argument}` has shape {array.shape}, but client '{first}' has {other.shape}. Write "
                f"{_with_axes(argument, array.shape, other.shape)}."
            )
        if array.shape[1:] != other.shape[1:]:
            raise ClientDataError(
                f"Client '{name}': `{argument}` has shape {array.shape}, but client '{first}' has {other.shape}: "
                "all clients need the same columns (only the number of rows may differ)."
            )
        mine, theirs = client.labels.get(argument), expected.labels.get(argument)
        if mine is not None and theirs is not None and mine != theirs:
            table = not any(label.startswith("axis ") for label in theirs)
            hint = f" Write `{argument}[{list(theirs)}]` for every client." if table else ""
            raise ClientDataError(
                f"Client '{name}': `{argument}` has the columns {list(mine)}, but client '{first}' has {list(theirs)}: "
                f"all clients need the same ones in one order.{hint}"
            )


def _with_axes(argument: str, shape: tuple[int, ...], expected: tuple[int, ...]) -> str:
    """What to write in place of an array with another number of axes."""
    if not expected:
        return "a single number"
    wanted = f"an array of shape ({', '.join(map(str, ('rows', *expected[1:])))}{',' * (len(expected) == 1)})"
    columns, whole = ([length for length in each if length != 1] for each in (expected[1:], shape))
    if len(whole) > len(columns) + 1 or whole[len(whole) - len(columns) :] != columns:
        return wanted  # what its axes mean can't be told
    return f"{wanted}: `numpy.reshape({argument}, {(-1, *expected[1:])})`"
