"""A fit in a folder: files that can be read without fedbayes, and what :func:`fedbayes.load_fit` needs beside them."""

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array

from fedbayes.contract.algorithm import Method
from fedbayes.contract.answer import shortened
from fedbayes.contract.state import RunState
from fedbayes.problem.roster import Roster
from fedbayes.results.arviz import from_netcdf
from fedbayes.results.checked import Checked
from fedbayes.results.presented import Presentation
from fedbayes.results.rounds import Communication
from fedbayes.results.saved.regression import Regressed
from fedbayes.rounds.checkpoint import Advice, Checkpoint, fingerprint
from fedbayes.rounds.executors import Executor

if TYPE_CHECKING:
    import xarray as xr


TABLES = ("rounds", "error", "conflict")


class Said(NamedTuple):
    """What a fit says of itself, for whoever reads it without the model and the clients.

    Attributes
    ----------
    summary, trouble
        Its ``repr``, and :meth:`~fedbayes.FederatedFit.trouble`.
    labels
        Names of the unconstrained globals.
    cost
        Of all exchanges.
    """

    summary: str
    trouble: str
    labels: list[str]
    cost: Communication


class Saved(NamedTuple):
    """What ``fit.json`` holds: all that is needed to make the fit again, except its state.

    Attributes
    ----------
    method, options
        Its name and options.
    key, dtype, shown
        As given to the fit.
    about
        What tells these clients from others, see :func:`about`.
    cost
        What ``posterior.nc`` has taken beyond the rounds; ``None`` if nothing.
    checked
        What the check of the answer has shown; ``None`` without a check, and in files of earlier versions.
    unchecked
        Why what follows the rounds has failed; empty if it has not.
    said
        What the fit says of itself.
    regression
        What was fitted, where that was a formula.
    put_out
        Sites over a network that the fit began with and does not hold, each with why.
    """

    method: str
    options: dict[str, Any]
    key: Array
    dtype: str
    shown: Presentation
    about: dict[str, Any]
    cost: Communication | None = None
    checked: Checked | None = None
    unchecked: str = ""
    said: Said | None = None
    regression: Regressed | None = None
    put_out: Mapping[str, str] = {}


def fit_folder(path: Path) -> Path:
    """The folder of a saved fit, also where ``fedbayes fit`` has put it into one with other files."""
    is_one = (path / "fit.json").is_file() or not (path / "fit").is_dir()
    return path if is_one else path / "fit"


def check_savable(method: Method) -> dict[str, Any]:
    """The method's options as JSON knows them.

    Raises
    ------
    ValueError
        An option is or holds a function.
    """
    options = asdict(method)  # type: ignore[call-overload]  # methods are dataclasses of plain values
    if functions := [name for name, value in options.items() if any(map(callable, jax.tree.leaves(value)))]:
        raise ValueError(
            f"`{functions[0]}` of the method is or holds a function, which can't be saved. Write the parts that you "
            "need: `fit.idata.to_netcdf(path)`, `fit.rounds.to_netcdf(path)`."
        )
    # by name, since a tree is sorted by the names, and options are printed in the method's own order
    return {name: jax.tree.map(_as_json, value) for name, value in options.items()}


def _as_json(value: Any) -> Any:
    return np.asarray(value).tolist() if hasattr(value, "dtype") else value


def write_fit(
    folder: Path,
    idata: Any,
    tables: Mapping[str, "xr.Dataset"],
    saved: Saved,
    clients: str,
    run: RunState,
    executor: Executor,
) -> None:
    """Write a fit; ``clients`` describes them, and belongs to the fingerprint of the state.

    ``tables`` are datasets by the name of their file, one of ``TABLES``.

    Raises
    ------
    ValueError
        The path is a file.
    """
    if folder.exists() and not folder.is_dir():
        raise ValueError(f"'{folder}' is a file; name a folder, which need not exist.")
    folder.mkdir(parents=True, exist_ok=True)
    idata.to_netcdf(str(folder / "posterior.nc"))
    for name in {*TABLES} - {*tables}:  # of a fit that was there before
        (folder / f"{name}.nc").unlink(missing_ok=True)
    for name, table in tables.items():
        flags = {key: int(value) for key, value in table.attrs.items() if isinstance(value, bool | np.bool_)}
        table.assign_attrs(flags).to_netcdf(folder / f"{name}.nc", engine="h5netcdf")
    meta = {
        "method": saved.method,
        "options": saved.options,
        "key": np.asarray(jax.random.key_data(saved.key)).tolist(),
        "key_impl": str(jax.random.key_impl(saved.key)),
        "dtype": saved.dtype,
        "shown": saved.shown.plain(),
        "about": saved.about,
        "cost": list(saved.cost or ()),
        "checked": None if saved.checked is None else saved.checked._asdict(),
        "unchecked": saved.unchecked,
        "said": None if saved.said is None else saved.said._asdict(),
        "regression": None if saved.regression is None else saved.regression.plain(),
        "put_out": dict(saved.put_out),
    }
    (folder / "fit.json").write_text(json.dumps(meta, indent=1, default=list))
    state_file(folder, clients).write(run, executor)


def read_table(folder: Path, name: str) -> "xr.Dataset | None":
    """One of ``TABLES``; ``None`` where the fit had none when it was saved."""
    import xarray as xr

    file = folder / f"{name}.nc"
    return xr.load_dataset(file, engine="h5netcdf", decode_timedelta=False) if file.is_file() else None


def read_meta(folder: Path) -> Saved:
    """What ``fit.json`` says.

    Raises
    ------
    FileNotFoundError
        There is none.
    ValueError
        It is cut short, or from another version.
    """
    file = folder / "fit.json"
    if not file.is_file():
        raise FileNotFoundError(
            f"'{folder}' holds no 'fit.json': it is not the folder of a saved fit. Give the path that `fit.save(path)` "
            "or `fedbayes fit --out` was given."
        )
    try:
        meta = json.loads(file.read_text())
        shown = Presentation(**meta["shown"])
        key = jax.random.wrap_key_data(jnp.asarray(meta["key"], jnp.uint32), impl=meta["key_impl"])
        return Saved(
            meta["method"],
            meta["options"],
            key,
            meta["dtype"],
            shown._replace(local=tuple(shown.local)),
            meta.get("about", {}),
            Communication(*meta["cost"]) if meta.get("cost") else None,
            None if meta.get("checked") is None else Checked.read(meta["checked"]),
            meta.get("unchecked", ""),
            _said(meta.get("said")),
            None if meta.get("regression") is None else Regressed.read(meta["regression"]),
            dict(meta.get("put_out", {})),
        )
    except (ValueError, KeyError, TypeError) as error:
        raise ValueError(
            f"'{file}' can't be read ({type(error).__name__}: {error}): it is cut short, or from another version of "
            "fedbayes. The draws in 'posterior.nc' can be read without it, by `arviz.from_netcdf`."
        ) from error


def _said(read: Mapping[str, Any] | None) -> Said | None:
    return None if read is None else Said(**{**read, "cost": Communication(*read["cost"])})


def state_file(folder: Path, clients: str) -> Checkpoint:
    """The saved state, which must be loaded with the same clients and globals."""
    path = folder / "state.npz"
    advice = Advice(
        other=(
            f"These are not the data of the fit saved in '{folder}': names, rows and globals are the same, the values "
            "differ (or their order). Load it with the clients that it was fitted to, or fit these anew. Nothing was "
            "changed."
        ),
        broken=(
            f"The state of the saved fit, '{path}', can't be read: it is cut short, or no file of fedbayes. Fit again, "
            "and save it again. The draws in 'posterior.nc' can be read without it, by `arviz.from_netcdf`."
        ),
    )
    return Checkpoint(path, fingerprint(clients, "saved", np.zeros(0)), advice)


def about(roster: Roster) -> dict[str, Any]:
    """What the server knows of the clients, to say how others differ from them."""
    return {
        "clients": [list(pair) for pair in zip(roster.names, np.asarray(roster.rows).tolist(), strict=True)],
        "globals": {name: list(shape) for name, shape in roster.globals.shapes},
    }


def check_same(folder: Path, saved: Mapping[str, Any], now: Mapping[str, Any]) -> None:
    """Whether the clients are those of a saved fit, as far as the server knows them.

    Raises
    ------
    ValueError
        Other names, numbers of rows, or globals.
    """
    if not saved or saved == now:
        return
    raise ValueError(
        f"These are not the clients and the model of the fit saved in '{folder}': {_differences(saved, now)}. Load it "
        "with those that it was fitted to, or fit these anew. Nothing was changed."
    )


def _differences(saved: Mapping[str, Any], now: Mapping[str, Any]) -> str:
    """The first kind of difference, in words."""
    then, here = dict(saved["clients"]), dict(now["clients"])
    lacking, new = [name for name in then if name not in here], [name for name in here if name not in then]
    if lacking or new:
        both = (f"lacking: {shortened(lacking)}" if lacking else "", f"new: {shortened(new)}" if new else "")
        return "; ".join(filter(None, both))
    if saved["globals"] != now["globals"]:
        return f"the globals were {saved['globals']}, and are {now['globals']}"
    if then != here:
        changed = [
            f"'{name}' had {then[name]:g} rows, and has {here[name]:g}" for name in then if then[name] != here[name]
        ]
        return "; ".join(changed[:3])
    return f"the clients' order was {shortened(list(then))}"


@dataclass(frozen=True)
class SavedPosterior:
    """The ArviZ object of a saved fit, read when it is asked for.

    Attributes
    ----------
    folder
        Of the fit.
    cost
        What it has taken beyond the rounds; ``None`` if nothing.
    checked
        What the check of the answer had shown.
    """

    folder: Path
    cost: Communication | None
    checked: Checked | None

    def error(self) -> "xr.Dataset | None":
        """What was found of its error, where that is in the folder."""
        return read_table(self.folder, "error")

    def read(self) -> Any | None:
        """The ArviZ object; ``None`` where the file is not there any more.

        Raises
        ------
        ValueError
            It can't be read.
        """
        file = self.folder / "posterior.nc"
        if not file.is_file():
            return None
        try:
            return from_netcdf(file)
        except Exception as error:  # of whichever engine
            raise ValueError(
                f"'{file}' can't be read ({type(error).__name__}: {error}). Move it away: without it `fit.idata` is "
                "computed from the fit's state."
            ) from error
