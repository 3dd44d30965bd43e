"""Clients' data: what users give, checked and turned into arrays; and what an algorithm sees of a client."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array

from fedbayes.errors import ClientDataError
from fedbayes.problem.program import Program

if TYPE_CHECKING:
    import pandas as pd


@partial(
    jax.tree_util.register_dataclass, data_fields=["data", "mask", "index"], meta_fields=["program", "independent"]
)
@dataclass(frozen=True)
class Client:
    """What an algorithm sees of a client: its factor. The data stay inside.

    A pytree: many clients of one shape are one ``Client`` with a leading axis, under ``vmap``.

    Attributes
    ----------
    data
        The model's arrays, rows padded to the bucket's length.
    mask
        True for real rows, shape ``(rows,)``.
    index
        The client's place among all clients: its identity, from which its randomness is drawn.
    program
        The split program for this shape of data.
    independent
        Whether the locals' groups, the rows of their first axis, are independent given the globals.
    """

    data: dict[str, Array]
    mask: Array
    index: Array
    program: Program
    independent: bool = False

    def log_factor(self, position: Array) -> Array:
        """Log factor at the joint position ``(theta, z)``, shape ``(d + m,)``."""
        size = self.program.globals.size
        return self.program.log_factor(position[:size], position[size:], self.data, self.mask)

    def log_factor_of_rows(self, position: Array, rows: Array, scale: Array | float) -> Array:
        """The same with the given rows alone, shape ``(batch,)``, their terms multiplied by ``scale``."""
        size, program = self.program.globals.size, self.program
        data = self.data | {name: self.data[name][rows] for name in program.row_arguments}
        return program.log_factor(position[:size], position[size:], data, jnp.ones(rows.shape, bool), scale)

    @property
    def num_locals(self) -> int:
        """Number m of unconstrained local latents."""
        return self.program.locals.size

    @property
    def groups(self) -> np.ndarray:
        """Places of the locals of each group, shape ``(groups, size)``; one group where they are not independent."""
        return self.program.locals.groups() if self.independent else np.arange(self.num_locals)[None]

    @property
    def jacobian(self) -> Callable:
        """How the gradient is differentiated, see :attr:`~fedbayes.problem.program.Program.jacobian`."""
        return self.program.jacobian


@dataclass(frozen=True)
class ClientArrays:
    """One client's arguments: arrays, and everything else (sizes, flags, names)."""

    arrays: dict[str, np.ndarray]
    static: dict[str, Any]


def prepare_clients(clients: Mapping[str, Mapping[str, Any]], dtype: np.dtype) -> dict[str, ClientArrays]:
    """Check the clients' data and turn them into arrays.

    Raises
    ------
    ClientDataError
        No clients; a client without rows; NaN or infinite values; other arguments, columns or dtypes than the rest.
    """
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
    varying = _varying_numbers(clients)
    prepared = {str(name): _arrays(str(name), data, varying, dtype) for name, data in clients.items()}
    first = next(iter(prepared))
    for name, client in prepared.items():
        check_like(first, prepared[first], name, client)
    return prepared


def _varying_numbers(clients: Mapping[str, Mapping[str, Any]]) -> set[str]:
    """Arguments given as Python integers that differ between clients: data, not sizes."""
    seen: dict[str, set[int]] = {}
    for data in clients.values():
        if isinstance(data, Mapping):
            for argument, value in data.items():
                if isinstance(value, int) and not isinstance(value, bool):
                    seen.setdefault(argument, set()).add(value)
    return {argument for argument, values in seen.items() if len(values) > 1}


def _arrays(name: str, data: Mapping[str, Any], varying: set[str], dtype: np.dtype) -> ClientArrays:
    if not isinstance(data, Mapping):
        raise ClientDataError(
            f"Client '{name}' is a {type(data).__name__}; write its data as the model's keyword arguments, "
            f"`dict(x=..., y=...)`."
        )
    arrays, static = {}, {}
    for argument, value in data.items():
        if value is None or isinstance(value, str | bool) or (isinstance(value, int) and argument not in varying):
            static[argument] = value
        else:
            arrays[argument] = _array(name, argument, value, dtype)
    if not arrays:
        raise ClientDataError(
            f"Client '{name}' has no arrays: its arguments are {dict(data)}. Write its data as arrays, also a single "
            "number: `np.asarray(3.0)`."
        )
    return ClientArrays(arrays, static)


def _array(name: str, argument: str, value: Any, dtype: np.dtype) -> np.ndarray:
    try:
        array = np.asarray(value)
    except ValueError as error:
        raise ClientDataError(f"Client '{name}': `{argument}` is not an array: {error}.") from error
    if array.dtype.kind not in "fiub":
        raise ClientDataError(
            f"Client '{name}': `{argument}` has dtype {array.dtype}, which no density can read. "
            "Write numbers: encode categories first, for instance with `pandas.get_dummies` or `pandas.factorize`."
        )
    if 0 in array.shape:
        raise ClientDataError(
            f"Client '{name}' has no rows: `{argument}` has shape {array.shape}. Leave the client out."
        )
    if array.dtype.kind == "f":
        bad = np.argwhere(~np.isfinite(array))
        if len(bad):
            where = tuple(int(i) for i in bad[0])
            raise ClientDataError(
                f"Client '{name}': `{argument}` holds {len(bad)} NaN or infinite values, the first {array[where]} at "
                f"{where}. Drop or impute these rows, or model them as latents."
            )
        array = array.astype(dtype)
    return array


def check_like(first: str, expected: ClientArrays, name: str, client: ClientArrays) -> None:
    """A client needs the same arguments, columns and kinds of numbers as the first one.

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
    for argument in expected.arrays:
        array, other = client.arrays[argument], expected.arrays[argument]
        if array.ndim != other.ndim or array.shape[1:] != other.shape[1:]:
            raise ClientDataError(
                f"Client '{name}': `{argument}` has shape {array.shape}, but client '{first}' has {other.shape}: "
                "all clients need the same columns (only the number of rows may differ)."
            )
        if array.dtype.kind != other.dtype.kind:
            raise ClientDataError(
                f"Client '{name}': `{argument}` has dtype {array.dtype}, but client '{first}' has {other.dtype}: "
                f"convert one of them, for instance with `.astype({other.dtype})`."
            )


def clients_from_dataframe(
    frame: "pd.DataFrame", by: str, **arguments: str | Sequence[str]
) -> dict[str, dict[str, np.ndarray]]:
    """Clients' data from one table: one client per value of the column ``by``.

    Parameters
    ----------
    frame
        The table.
    by
        Column whose values name the clients.
    **arguments
        The model's arguments: a column name gives an array ``(rows,)``, a list of names an array ``(rows, columns)``.

    Returns
    -------
    dict
        From client name to the model's keyword arguments, in order of first appearance.

    Raises
    ------
    ClientDataError
        A column is missing, or ``by`` has missing values.

    Examples
    --------
    >>> import pandas as pd, fedbayes as fb
    >>> frame = pd.DataFrame({"hospital": ["a", "b", "a"], "age": [61.0, 48.0, 55.0], "sick": [1, 0, 1]})
    >>> frame["bmi"] = [24.0, 31.0, 28.0]
    >>> clients = fb.clients_from_dataframe(frame, by="hospital", x=["age", "bmi"], y="sick")
    >>> {name: client["x"].shape for name, client in clients.items()}
    {'a': (2, 2), 'b': (1, 2)}
    """
    columns = [by, *(name for value in arguments.values() for name in ([value] if isinstance(value, str) else value))]
    if missing := [name for name in columns if name not in frame.columns]:
        raise ClientDataError(f"The table has no column {missing}; its columns are {list(frame.columns)}.")
    if frame[by].isna().any():
        raise ClientDataError(
            f"Column '{by}' names the clients, but {int(frame[by].isna().sum())} of its values are missing."
        )
    values = frame[by].unique()
    if len({str(value) for value in values}) < len(values):
        raise ClientDataError(f"Column '{by}' names two clients alike once written as text: {list(values)}.")
    groups = {str(name): rows for name, rows in frame.groupby(by, sort=False)}
    return {
        name: {
            argument: rows[value if isinstance(value, str) else list(value)].to_numpy()
            for argument, value in arguments.items()
        }
        for name, rows in groups.items()
    }
