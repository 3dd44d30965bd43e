"""A client's data from the file that its node's configuration names."""

import importlib
import zipfile
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NoReturn

import numpy as np

from fedbayes.errors import ClientDataError, MissingColumnsError
from fedbayes.network.client.naming import Config
from fedbayes.problem.data.headers import check_header

Wanted = Mapping[str, str | Sequence[str]]
Arrays = dict[str, Any]

_SETTING = "data-path"


@dataclass(frozen=True)
class Columns:
    """A ``load_data`` that says which columns it reads: whoever has read the table already may give that.

    Parameters
    ----------
    wanted
        From the model's arguments to names of columns.
    """

    wanted: Wanted

    def __call__(self, config: Config) -> Arrays:
        """The model's arguments from the file that a node's configuration names."""
        path = _path(config)
        reader = _READERS.get(path.suffix.lower())
        if reader is None:
            raise ClientDataError(
                f"The file '{path}' ends in '{path.suffix}'; files are read that end in {', '.join(_READERS)}. "
                "Write one of these, or a function `load_data(config)` that reads yours."
            )
        return reader(path, self.wanted)

    def of_table(self, frame: Any, path: Path) -> Arrays:
        """The same from a table of pandas; ``path`` is for messages alone."""
        return _of_frame(frame, path, self.wanted)

    @property
    def names(self) -> tuple[str, ...]:
        """Of the columns, each once."""
        return tuple(_names(self.wanted))


def columns(**arguments: str | Sequence[str]) -> Columns:
    """A ``load_data`` that reads the columns of a table from the file ``data-path`` of the node's configuration.

    The file is a table (``.csv``, ``.parquet``) or holds arrays by name (``.npz``). Tables need pandas, and Parquet
    needs pyarrow beside it. For anything else write a function of your own, ``load_data(config) -> dict``.

    Parameters
    ----------
    **arguments
        The model's arguments: one name gives a vector of that column, a list of names a matrix of these columns, which
        keeps their names (a :class:`xarray.DataArray`). Of an
        NPZ file they are names of arrays; without any arguments all its arrays are read, each as the argument of its
        name.

    Returns
    -------
    Columns
        A function from the node's configuration to the model's keyword arguments. It raises
        :class:`~fedbayes.errors.ClientDataError` where the configuration names no file, or the file is not there, is of
        another kind, or lacks a column. Missing values are refused later, by the fit.

    Examples
    --------
    >>> import tempfile, numpy as np
    >>> from fedbayes.flower.data import columns
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     np.savez(f"{folder}/north.npz", age=[61.0, 48.0], bmi=[24.0, 31.0], sick=[1, 0])
    ...     load_data = columns(x=["age", "bmi"], y="sick")
    ...     data = load_data({"site-id": "north", "data-path": f"{folder}/north.npz"})
    >>> data["x"].shape, data["y"].shape
    ((2, 2), (2,))
    """
    wanted = {name: value if isinstance(value, str) else tuple(value) for name, value in arguments.items()}
    if empty := [name for name, value in wanted.items() if not value]:
        raise ClientDataError(
            f"`columns({empty[0]}=...)` names no column. Write a name, or a list of names: "
            f'`columns({empty[0]}=["age", "bmi"])`.'
        )

    return Columns(wanted)


def _path(config: Config) -> Path:
    given = str(config.get(_SETTING, "")).strip()
    if not given:
        raise ClientDataError(
            f"The node's configuration does not say where its data are. Write `--node-config 'site-id=\"north\" "
            f'{_SETTING}="/srv/study/north.csv"\'`; it has {sorted(config) or "no settings"}.'
        )
    path = Path(given).expanduser()
    if not path.is_file():
        relative = "" if path.is_absolute() else f" (looked for in '{Path.cwd()}'; a full path can't be misunderstood)"
        what = "is a folder" if path.is_dir() else "is not there"
        raise ClientDataError(
            f"`{_SETTING}` of the node's configuration is '{path}', which {what}{relative}. Write the path of a file "
            "that the user who runs the node can read."
        )
    return path


def _from_csv(path: Path, wanted: Wanted) -> Arrays:
    pandas = _imported("pandas", path)

    def read() -> Any:
        check_header(path, wanted=_names(wanted))
        return pandas.read_csv(path, skipinitialspace=True)

    return _from_table(read, path, wanted)


def _from_parquet(path: Path, wanted: Wanted) -> Arrays:
    pandas = _imported("pandas", path)
    _imported("pyarrow", path)
    return _from_table(lambda: pandas.read_parquet(path, engine="pyarrow"), path, wanted)


def _from_table(read: Callable[[], Any], path: Path, wanted: Wanted) -> Arrays:
    try:
        frame = read()
    except ClientDataError:
        raise
    except (ValueError, OSError) as error:  # what pandas and pyarrow raise derives from these
        _unreadable(path, error)
    return _of_frame(frame, path, wanted)


def _of_frame(frame: Any, path: Path, wanted: Wanted) -> Arrays:
    known = [str(name) for name in frame.columns]
    if not wanted:
        raise ClientDataError(
            f"No argument of the model is named, and the table '{path}' has the columns {known}. Say which columns the "
            'arguments are: `columns(x=["age", "bmi"], y="sick")`.'
        )
    _refuse_missing(path, wanted, known, "column")
    frame = frame.set_axis(known, axis=1)
    return _arranged({name: _numbers(frame[name], name, path) for name in _names(wanted)}, wanted)


def _numbers(series: Any, name: str, path: Path) -> np.ndarray:
    """A column as NumPy has it, missing values as NaN."""
    from pandas.api import types

    if getattr(series, "ndim", 1) != 1:
        raise ClientDataError(f"The table '{path}' has several columns named '{name}'. Rename or drop all but one.")
    if not (types.is_numeric_dtype(series) or types.is_bool_dtype(series)):
        raise ClientDataError(
            f"Column '{name}' of '{path}' holds something else than numbers ({series.dtype}). Code it as numbers in "
            "the file, or write a function `load_data(config)` that does."
        )
    if isinstance(series.dtype, np.dtype):
        return np.asarray(series.to_numpy())
    if types.is_float_dtype(series) or series.isna().any():
        return np.asarray(series.to_numpy(dtype=np.float64, na_value=np.nan))
    return np.asarray(series.to_numpy(dtype=np.bool_ if types.is_bool_dtype(series) else np.int64))


def _from_npz(path: Path, wanted: Wanted) -> Arrays:
    try:
        with np.load(path, allow_pickle=False) as file:
            found = {name: file[name] for name in file.files}
    except (
        ValueError,
        OSError,
        EOFError,
        AttributeError,
        zipfile.BadZipFile,
    ) as error:  # AttributeError: a single array
        _unreadable(path, error)
    if not wanted:
        return found
    _refuse_missing(path, wanted, list(found), "array")
    for name, value in wanted.items():
        shapes = {} if isinstance(value, str) else {each: found[each].shape for each in value}
        if len(set(shapes.values())) > 1 or any(len(shape) != 1 for shape in shapes.values()):
            raise ClientDataError(
                f"Argument '{name}' has the columns {list(shapes)}, which must be vectors of one length; in '{path}' "
                f"they have the shapes {list(shapes.values())}."
            )
    return _arranged(found, wanted)


def _refuse_missing(path: Path, wanted: Wanted, known: list[str], what: str) -> None:
    if missing := [name for name in _names(wanted) if name not in known]:
        raise MissingColumnsError(
            f"The file '{path}' has no {what} {', '.join(map(repr, missing))}; it has {known}. Rename it in the file, "
            "or read the file by a function `load_data(config)` of your own.",
            missing,
        )


def _arranged(found: Mapping[str, np.ndarray], wanted: Wanted) -> Arrays:
    """The arguments: vectors, and matrices of the kind of numbers that holds all their columns."""
    return {
        name: found[value] if isinstance(value, str) else _matrix([found[each] for each in value], value)
        for name, value in wanted.items()
    }


def _matrix(columns: Sequence[np.ndarray], names: Sequence[str]) -> Any:
    """A matrix that knows its columns, so that whatever is said of one has its name."""
    import xarray as xr

    return xr.DataArray(np.stack(columns, axis=1), dims=("row", "column"), coords={"column": list(names)})


def _names(wanted: Wanted) -> list[str]:
    names = [[value] if isinstance(value, str) else list(value) for value in wanted.values()]
    return list(dict.fromkeys(name for each in names for name in each))


def _imported(name: str, path: Path) -> Any:
    try:
        return importlib.import_module(name)
    except ImportError:
        raise ClientDataError(
            f"Reading '{path}' needs {name}: write `pip install {name}` where the node runs, or give the data as an "
            "NPZ file (`numpy.savez`)."
        ) from None


def _unreadable(path: Path, error: Exception) -> NoReturn:
    raise ClientDataError(
        f"The file '{path}' can't be read as its ending '{path.suffix}' promises ({type(error).__name__}). Write it "
        "anew, or read it by a function `load_data(config)` of your own."
    ) from error


_READERS: dict[str, Callable[[Path, Wanted], Arrays]] = {
    ".csv": _from_csv,
    ".parquet": _from_parquet,
    ".npz": _from_npz,
}
