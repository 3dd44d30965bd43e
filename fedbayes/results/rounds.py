"""Diagnostics of the rounds as an xarray Dataset: what a method declares, and what holds for every method."""

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from fedbayes.contract.answer import CLIENT, COORDINATE, REPLICATE, Diagnostic
from fedbayes.contract.state import Record
from fedbayes.errors import ResultCode, usable
from fedbayes.problem.roster import Roster

if TYPE_CHECKING:
    import xarray as xr

_EVERY_FIT: Mapping[str, Diagnostic] = {
    "code": Diagnostic((CLIENT, REPLICATE), "result code"),
    "active": Diagnostic((CLIENT,), "whether the client took part"),
    "solver": Diagnostic((CLIENT,), "the client's update in this round"),
    "phase": Diagnostic((), "name of the phase"),
    "seconds": Diagnostic((), "wall time", "seconds"),
    "rounds": Diagnostic((), "communication rounds that the record stands for"),
    "bytes_down": Diagnostic((), "sent to each active client", "bytes"),
    "bytes_up": Diagnostic((), "sent by each active client", "bytes"),
    "staleness": Diagnostic((CLIENT,), "rounds since a message of the client was used last; 0 in such a round"),
}


_UNHEARD = (ResultCode.NO_REPLY, ResultCode.FAILED, ResultCode.REFUSED)


class Communication(NamedTuple):
    """What a fit has cost over a network.

    Attributes
    ----------
    exchanges
        Rounds of all phases: broadcasts that clients answered.
    bytes_down, bytes_up
        To and from one client that took part in all of them.
    """

    exchanges: int
    bytes_down: int
    bytes_up: int

    def __str__(self) -> str:
        return (
            f"{self.exchanges:,} exchange{'s' if self.exchanges != 1 else ''}, {_size(self.bytes_down)} to and "
            f"{_size(self.bytes_up)} from each client"
        )


def communication(history: Sequence[Record]) -> Communication:
    """Exchanges and bytes of all rounds."""
    totals = (sum(int(record[name]) for record in history) for name in ("rounds", "bytes_down", "bytes_up"))
    return Communication(*totals)


def _size(num_bytes: int) -> str:
    for unit, step in (("GB", 1e9), ("MB", 1e6), ("kB", 1e3)):
        if num_bytes >= step:
            return f"{num_bytes / step:.3g} {unit}"
    return f"{num_bytes} bytes"


def rounds_dataset(history: Sequence[Record], roster: Roster, diagnostics: Mapping[str, Diagnostic]) -> "xr.Dataset":
    """Diagnostics of each round or block of rounds: dimensions round, client, replicate and coordinate.

    The coordinate ``round`` counts the rounds done by then.

    Parameters
    ----------
    history
        One record of arrays per round or block.
    roster
        Of the clients.
    diagnostics
        What the method declares; NaN where a round has none.

    Raises
    ------
    ValueError
        A record holds what was not declared.
    """
    import xarray as xr

    known = {**diagnostics, **_EVERY_FIT}
    found = list(dict.fromkeys(name for record in history for name in record))
    if undeclared := [name for name in found if name not in known]:
        raise ValueError(f"The method reports {undeclared}, but declares {sorted(diagnostics)}: add to `diagnostics`.")
    replicates = max((record["code"].shape[-1] for record in history if record["code"].ndim > 1), default=1)
    sizes = {CLIENT: roster.num_clients, REPLICATE: replicates, COORDINATE: roster.size}
    variables: dict[str, Any] = {}
    for name in (name for name in known if name in found):
        dims = known[name].dims
        first = next(record[name] for record in history if name in record)
        sizes |= {dim: first.shape[axis] for axis, dim in enumerate(dims) if dim not in sizes}  # a method's own
        variables[name] = (("round", *dims), _gathered(history, name, tuple(sizes[dim] for dim in dims)))
    used = usable(variables["code"][1]).any(axis=2) & variables["active"][1]
    variables["staleness"] = (("round", CLIENT), _staleness(used, variables["rounds"][1]))
    coords: dict[str, Any] = {"round": np.cumsum(variables["rounds"][1]), CLIENT: list(roster.names)}
    if any(COORDINATE in dims for dims, _ in variables.values()):
        coords[COORDINATE] = np.arange(roster.size)
    dataset = xr.Dataset(variables, coords=coords).transpose("round", CLIENT, REPLICATE, ...)
    for variable, values in dataset.data_vars.items():
        values.attrs["long_name"] = known[str(variable)].meaning
        if unit := known[str(variable)].unit:
            values.attrs["units"] = unit
    dataset["code"].attrs["meanings"] = "; ".join(f"{int(code)}: {code.meaning}" for code in ResultCode)
    return dataset


def unheard(rounds: "xr.Dataset") -> str:
    """Who did not answer at the end, and for how long; empty if everybody did. For clients over a network."""
    last = rounds.isel(round=-1)
    found = []
    for name in rounds[CLIENT].values:
        code = ResultCode(int(last["code"].sel({CLIENT: name}).max()))
        if code in _UNHEARD:
            stale = int(last["staleness"].sel({CLIENT: name}))
            found.append(f"client '{name}' {code.meaning} (of {stale} round{'s' if stale != 1 else ''} ago)")
    return f"In the last round {'; '.join(found)}." if found else ""


def check_diagnostics(
    rounds: "xr.Dataset", names: Sequence[str], shows: str, method: object, instead: str = ""
) -> None:
    """Check that a fit has the diagnostics that a picture or table shows.

    Parameters
    ----------
    rounds
        The diagnostics.
    names
        Those that are needed.
    shows
        What needs them, for the message.
    method
        The fit's method.
    instead
        What to use for other fits, a sentence.

    Raises
    ------
    ValueError
        It names what is lacking, and what there is.
    """
    hint = f" {instead}" if instead else ""
    if missing := [name for name in names if name not in rounds]:
        own = ", ".join(str(name) for name in rounds.data_vars if name not in _EVERY_FIT)
        noun = "diagnostic" if len(missing) == 1 else "diagnostics"
        raise ValueError(
            f"`{shows}` needs the {noun} {', '.join(f'`{name}`' for name in missing)}, which a fit by "
            f"{type(method).__name__} does not have; it has: {own or 'none of its own'}.{hint}"
        )


def _staleness(used: np.ndarray, rounds: np.ndarray) -> np.ndarray:
    """Rounds since a message of each client was used last, shape ``(record, client)``."""
    stale, found = np.zeros(used.shape[1], int), np.empty(used.shape, int)
    for at, (heard, num) in enumerate(zip(used, rounds, strict=True)):
        stale = found[at] = np.where(heard, 0, stale + int(num))
    return found


def _gathered(history: Sequence[Record], name: str, shape: tuple[int, ...]) -> np.ndarray:
    """One array for all rounds."""
    first = next(record[name] for record in history if name in record)
    missing = np.full(shape, np.nan) if first.dtype.kind == "f" else np.zeros(shape, first.dtype)
    return np.stack([_fitted(record.get(name, missing), shape) for record in history])


def _fitted(value: np.ndarray, shape: tuple[int, ...]) -> np.ndarray:
    """A record's array in the wanted shape: without active clients the codes have no axis of replicates."""
    if value.shape == shape:  # of thousands of rounds, nearly always
        return value
    return np.broadcast_to(value.reshape(value.shape + (1,) * (len(shape) - value.ndim)), shape)
