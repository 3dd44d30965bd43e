"""A study file on the command line: the same that serves a network, run by Python where its packages are found."""

import sys
import traceback
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from importlib import import_module
from importlib.machinery import SourceFileLoader
from importlib.util import module_from_spec, spec_from_loader
from pathlib import Path
from types import ModuleType
from typing import Any

from fedbayes.errors import ClientDataError, FedbayesError, FederatedError, ModelError, did_you_mean

_PARTS = ("model", "method", "load_data")


@dataclass(frozen=True)
class StudyFile:
    """What a study file defines.

    Attributes
    ----------
    path
        The file.
    model, method, load_data, coords, dims
        As in the ``app/study.py`` of a project; ``coords`` and ``dims`` may be left out.
    """

    path: Path
    model: Callable[..., Any]
    method: Any
    load_data: Callable[[Mapping[str, Any]], Any]
    coords: Mapping[str, Sequence[Any]]
    dims: Mapping[str, Sequence[str]]


def load_study(path: Path) -> StudyFile:
    """Run a study file, and take what it defines.

    Raises
    ------
    ClientDataError
        There is no such file.
    ModelError
        It can't be run, or lacks a part; the message has the line.
    """
    if not path.is_file():
        raise ClientDataError(f"There is no study file {path}.")
    with telling(path):
        found = vars(_run(path))
    if "model" not in found and "agreement" in found:
        raise ModelError(
            f"{path} defines an `agreement`, of which the sites of a network make a model. Where all tables are at "
            "hand, write the formula itself: `fedbayes fit DATA... --formula ...`."
        )
    for name in _PARTS:
        if name not in found:
            near = did_you_mean(name, [each for each in found if not each.startswith("_")])
            raise ModelError(
                f"{path} defines no `{name}`.{near} A study defines `model`, `method` and `load_data`, as that of "
                "`fedbayes new FOLDER` does."
            )
        if name != "method" and not callable(found[name]):
            raise ModelError(f"`{name}` of {path} is {found[name]!r}. Write a function.")
    for name in ("coords", "dims"):
        if not isinstance(found.get(name) or {}, Mapping):
            raise ModelError(f'`{name}` of {path} is {found[name]!r}. Write a mapping, such as `{{"beta": ["age"]}}`.')
    model, method, load_data = (found[name] for name in _PARTS)
    return StudyFile(path, model, method, load_data, found.get("coords") or {}, found.get("dims") or {})


def _run(path: Path) -> ModuleType:
    """The module of a file. Within packages it has its full name, so that it may import its neighbours."""
    folder, name = path.resolve().parent, path.stem
    while (folder / "__init__.py").is_file():
        folder, name = folder.parent, f"{folder.name}.{name}"
    sys.path.insert(0, str(folder))
    written, sys.dont_write_bytecode = sys.dont_write_bytecode, True  # bad input leaves nothing behind
    try:
        if "." in name:
            _forget_another(name.partition(".")[0], folder)
            import_module(name.rpartition(".")[0])
        else:
            name = f"study_{name}"  # a file may be called as a module that others import
        loader = SourceFileLoader(name, str(path.resolve()))
        module = sys.modules[name] = module_from_spec(spec_from_loader(name, loader))  # type: ignore[arg-type]
        loader.exec_module(module)
    finally:
        sys.dont_write_bytecode = written
    return module


def _forget_another(package: str, folder: Path) -> None:
    """A package of the same name that was imported from elsewhere, as every project of ``fedbayes new`` has an app."""
    known = getattr(sys.modules.get(package), "__path__", None)
    if known is not None and str(folder / package) not in map(str, known):
        for name in [each for each in sys.modules if each.partition(".")[0] == package]:
            del sys.modules[name]


@contextmanager
def telling(path: Path) -> Iterator[None]:
    """What goes wrong in a study's own code is said with its line, and fedbayes's refusals as they are.

    Raises
    ------
    ModelError
        In place of whatever the study's code, or fedbayes called with what the study says, has raised.
    """
    try:
        yield
    except SyntaxError as error:
        where = Path(error.filename or path)
        text = f": `{error.text.strip()}`" if error.text else ""
        raise ModelError(f"{where}, line {error.lineno}, is no Python ({error.msg}){text}. Correct it there.") from None
    except ModuleNotFoundError as error:
        if error.name == "flwr":  # it says what to install
            raise
        raise ModelError(f"{_where(error, path)}: {error}. Install it, or import something else.") from None
    except FederatedError:
        raise
    except FedbayesError as error:
        if _line(error, path) is None:
            raise
        raise ModelError(f"{_where(error, path)}: {error}") from error
    except (Exception, SystemExit) as error:
        if _line(error, path) is not None:
            raise ModelError(f"{_where(error, path)}, fails with {_words(error)}. Correct it there.") from error
        if _is_ours(error):
            raise ModelError(f"{path}: {error}") from error
        raise


@contextmanager
def refusing() -> Iterator[None]:
    """An argument that fedbayes refuses in its own words is bad input, and no failure of the command.

    Raises
    ------
    ModelError
        In place of a :class:`ValueError` or :class:`TypeError` of fedbayes itself.
    """
    try:
        yield
    except (ValueError, TypeError) as error:
        if isinstance(error, FedbayesError) or not _is_ours(error):
            raise
        raise ModelError(str(error)) from error


def _words(error: BaseException) -> str:
    first = str(error).strip().split("\n")[0].rstrip(".")
    return f"{type(error).__name__}: {first}" if first else type(error).__name__


def _where(error: BaseException, path: Path) -> str:
    line = _line(error, path)
    return str(path) if line is None else f"{path}, line {line}"


def _line(error: BaseException, path: Path) -> int | None:
    """The last line of the file that was running; ``None`` where it was not."""
    frames = traceback.extract_tb(error.__traceback__)
    return next((frame.lineno for frame in reversed(frames) if Path(frame.filename) == path.resolve()), None)


def _is_ours(error: BaseException) -> bool:
    """Whether fedbayes itself has refused an argument, and so in words that are meant for the user."""
    place = error.__traceback__
    while place is not None and place.tb_next is not None:
        place = place.tb_next
    module = "" if place is None else str(place.tb_frame.f_globals.get("__name__"))
    return isinstance(error, ValueError | TypeError) and module.startswith("fedbayes.")
