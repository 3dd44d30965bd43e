"""A fit in a folder: files that can be read without fedbayes, and what :func:`fedbayes.load_fit` needs beside them."""

import json
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array

from fedbayes.algorithm import Method
from fedbayes.rounds.checkpoint import Checkpoint, fingerprint
from fedbayes.rounds.executors import Executor
from fedbayes.rounds.state import RunState

if TYPE_CHECKING:
    import xarray as xr


class Presentation(NamedTuple):
    """How the posterior is shown.

    Attributes
    ----------
    num_draws
        Posterior draws per chain.
    coords, dims
        ArviZ's.
    local
        Names of local latents that the model itself does not mark.
    """

    num_draws: int
    coords: dict[str, Any]
    dims: dict[str, Any]
    local: tuple[str, ...]


class Saved(NamedTuple):
    """What ``fit.json`` holds: all that is needed to make the fit again, except its state."""

    method: str
    options: dict[str, Any]
    key: Array
    dtype: str
    shown: Presentation


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
    return jax.tree.map(lambda value: np.asarray(value).tolist() if hasattr(value, "dtype") else value, options)


def write_fit(
    folder: Path,
    idata: Any,
    rounds: "xr.Dataset",
    saved: Saved,
    clients: str,
    run: RunState,
    executor: Executor,
) -> None:
    """Write a fit; ``clients`` describes them, and belongs to the fingerprint of the state."""
    folder.mkdir(parents=True, exist_ok=True)
    idata.to_netcdf(str(folder / "posterior.nc"))
    rounds.to_netcdf(folder / "rounds.nc", engine="h5netcdf")
    meta = {
        "method": saved.method,
        "options": saved.options,
        "key": np.asarray(jax.random.key_data(saved.key)).tolist(),
        "key_impl": str(jax.random.key_impl(saved.key)),
        "dtype": saved.dtype,
        "shown": saved.shown._asdict(),
    }
    (folder / "fit.json").write_text(json.dumps(meta, indent=1, default=list))
    state_file(folder, clients).write(run, executor)


def read_meta(folder: Path) -> Saved:
    """What ``fit.json`` says."""
    meta = json.loads((folder / "fit.json").read_text())
    shown = Presentation(**meta["shown"])
    key = jax.random.wrap_key_data(jnp.asarray(meta["key"], jnp.uint32), impl=meta["key_impl"])
    return Saved(meta["method"], meta["options"], key, meta["dtype"], shown._replace(local=tuple(shown.local)))


def state_file(folder: Path, clients: str) -> Checkpoint:
    """The saved state, which must be loaded with the same clients and globals."""
    return Checkpoint(folder / "state.npz", fingerprint(clients, "saved", np.zeros(0)))
