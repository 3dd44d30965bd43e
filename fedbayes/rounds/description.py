"""Functions and options as text: two that look alike differ in what they are made of."""

import builtins
import hashlib
import inspect
import re
from collections.abc import Iterator, Mapping
from dataclasses import fields, is_dataclass
from functools import partial
from types import FunctionType, MethodType, ModuleType
from typing import Any

import numpy as np

_DEEPEST = 40  # functions within functions that are looked into


def described(value: Any, depth: int = 0) -> str:
    """A model, a method or one of its options as text: functions by their sources, arrays by a digest.

    The text is the same in every process, and on every version of Python.
    """
    deeper = partial(described, depth=depth + 1)
    if depth > _DEEPEST:
        return "..."
    if is_dataclass(value) and not isinstance(value, type):
        inside = ", ".join(f"{field.name}={deeper(getattr(value, field.name))}" for field in fields(value))
        return f"{type(value).__name__}({inside})"
    if isinstance(value, Mapping):
        return str({str(name): deeper(each) for name, each in value.items()})
    if isinstance(value, tuple | list):
        return str([deeper(each) for each in value])
    if isinstance(value, set | frozenset):  # in an order that is the same in each process
        return f"{type(value).__name__}({sorted(deeper(each) for each in value)})"
    if isinstance(value, partial):
        return f"partial({deeper(value.func)}, {deeper(value.args)}, {deeper(value.keywords)})"
    if isinstance(value, MethodType):
        return f"{deeper(value.__func__)} of {deeper(value.__self__)}"
    if function := _function(value):
        return "\n".join(_sources(function, set(), depth))
    if hasattr(value, "__array__"):
        array = np.asarray(value)
        digest = hashlib.sha256(array.tobytes()).hexdigest()
        return f"array({array.shape}, {array.dtype}, {digest[:16]})" if array.ndim else repr(array.item())
    return without_places(value)


def without_places(value: object) -> str:
    """Its ``repr`` without memory addresses, which differ from run to run."""
    return re.sub(r" at 0x[0-9a-f]+", "", repr(value))


def _function(value: Any) -> FunctionType | None:
    """The Python function that a value is, or wraps, as one that is compiled does."""
    inner = inspect.unwrap(value) if callable(value) else value
    return inner if isinstance(inner, FunctionType) else None


def _sources(function: FunctionType, seen: set[int], depth: int) -> Iterator[str]:
    """The function's source, then what it holds, and what it uses of its own package.

    What it holds are the values that it closes over and its defaults, from wherever they are.
    """
    if id(function) in seen or depth > _DEEPEST:
        return
    seen.add(id(function))
    yield _source(function)
    held = _held(function)
    for name, value in sorted((held | _used(function, held)).items()):
        if isinstance(value, ModuleType | type):
            continue
        inner = _function(value)
        if inner is None and (name in held or not callable(value) or isinstance(value, partial)):
            yield f"{name} = {described(value, depth + 1)}"
        elif inner is not None and (name in held or _same_package(inner.__module__, function)):
            yield from _sources(inner, seen, depth + 1)


def _held(function: FunctionType) -> dict[str, Any]:
    """The values that a function closes over, and its defaults."""
    cells = dict(zip(function.__code__.co_freevars, function.__closure__ or (), strict=True))
    found = {}
    for name, cell in cells.items():
        try:
            found[name] = cell.cell_contents
        except ValueError:  # nothing was put there yet
            continue
    return found | {"__defaults__": (function.__defaults__, function.__kwdefaults__)}


def _used(function: FunctionType, held: dict[str, Any]) -> dict[str, Any]:
    """What a function uses by its name, or by that of a module of its own package."""
    names = _names(function.__code__)
    found = {
        name: value for name, value in function.__globals__.items() if name in names and not hasattr(builtins, name)
    }
    return found | _of_modules(held | found, function)


def _of_modules(used: Mapping[str, Any], function: FunctionType) -> dict[str, Any]:
    """What a function uses of its own package by the modules' names, as in ``constants.PRIOR_SD``."""
    names = _names(function.__code__)
    found: dict[str, Any] = {}
    modules = {id(value): value for value in used.values() if isinstance(value, ModuleType)}
    left = list(modules.values())
    while left:
        module = left.pop()
        if not _same_package(module.__name__, function):
            continue
        inside = {name: value for name, value in vars(module).items() if name in names}
        new = {
            id(value): value for value in inside.values() if isinstance(value, ModuleType) and id(value) not in modules
        }
        modules |= new
        left += new.values()
        found |= {f"{module.__name__}.{name}": value for name, value in inside.items()}
    return found


def _same_package(module: str, function: FunctionType) -> bool:
    return module.split(".")[0] == function.__module__.split(".")[0]


def _names(code: Any) -> set[str]:
    """Global names that a function, and the functions inside it, look up."""
    inner = (each for each in code.co_consts if hasattr(each, "co_names"))
    return set(code.co_names).union(*map(_names, inner))


def _source(function: FunctionType) -> str:
    try:
        return inspect.getsource(function)
    except (OSError, TypeError):  # typed into a terminal
        code = function.__code__
        constants = [each for each in code.co_consts if not hasattr(each, "co_code")]
        return f"{function.__qualname__} {code.co_names} {constants}"
