"""What is fitted: the model and the method, which server and clients must have in common, down to the source text."""

import builtins
import difflib
import hashlib
import inspect
import json
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, fields, is_dataclass
from functools import cached_property, partial
from types import FunctionType, ModuleType
from typing import Any

import numpy as np

from fedbayes.algorithm import Method
from fedbayes.fit import DEFAULT_METHOD, method_of
from fedbayes.problem.problem import Options
from fedbayes.problem.program import Model

_DEEPEST = 20  # functions within functions that are looked into
_LINES = 40  # of a difference that are shown


@dataclass(frozen=True)
class Study:
    """A model and a method, the same on the server and on every client.

    Parameters
    ----------
    model
        One client's NumPyro program.
    method
        Its name, or configured, as for :func:`fedbayes.fit_federated`.
    local
        Names of client-local latents, for a model that does not use ``fedbayes.local()``.
    dtype
        Precision in which the model runs.
    """

    model: Model
    method: str | Method = DEFAULT_METHOD
    local: Sequence[str] = ()
    dtype: Any = np.float64

    @cached_property
    def configured(self) -> Method:
        """The method with its options."""
        return method_of(self.method)

    @property
    def options(self) -> Options:
        """What the split of the model depends on."""
        return Options(self.model, tuple(self.local), np.dtype(self.dtype))

    @cached_property
    def description(self) -> dict[str, str]:
        """All that must be the same everywhere, as text: version of fedbayes, method, and the model's source."""
        from fedbayes import __version__

        return {
            "fedbayes": __version__,
            "method": described(self.configured),
            "model": described(self.model),
            "local": str(sorted(self.local)),
            "dtype": str(np.dtype(self.dtype)),
        }

    @cached_property
    def digest(self) -> str:
        """Of the description; every message carries it."""
        return hashlib.sha256(json.dumps(self.description, sort_keys=True).encode()).hexdigest()


def difference(ours: Mapping[str, str], theirs: Mapping[str, str], name: str) -> str:
    """What differs between the server's description of a study and a client's, for a person to read."""
    found = []
    for part in ours:
        one, two = ours[part], theirs.get(part, "")
        if one != two:
            lines = difflib.unified_diff(one.splitlines(), two.splitlines(), "server", name, lineterm="", n=1)
            found.append(f"The {part} differs:\n" + "\n".join(list(lines)[:_LINES]))
    return "\n".join(found)


def described(value: Any, depth: int = 0) -> str:
    """A model, a method or one of its options as text: functions by the source of all of theirs, arrays by a digest."""
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
    if isinstance(value, FunctionType):
        return "\n".join(_sources(value, set()))
    if hasattr(value, "__array__"):
        array = np.asarray(value)
        digest = hashlib.sha256(array.tobytes()).hexdigest()
        return f"array({array.shape}, {array.dtype}, {digest[:16]})" if array.ndim else repr(array.item())
    return re.sub(r" at 0x[0-9a-f]+", "", repr(value))


def _sources(function: FunctionType, seen: set[int], depth: int = 0) -> Iterator[str]:
    """The function's source, then what it uses of its own package: functions by theirs, other values by text."""
    if id(function) in seen or depth > _DEEPEST:
        return
    seen.add(id(function))
    yield _source(function)
    known = dict(zip(function.__code__.co_freevars, function.__closure__ or (), strict=True))
    used = {name: cell.cell_contents for name, cell in known.items()}
    for name in _names(function.__code__):
        if name in function.__globals__ and not hasattr(builtins, name):
            used.setdefault(name, function.__globals__[name])
    used |= _of_modules(used, function)
    for name, value in sorted(used.items()):
        if isinstance(value, ModuleType | type):
            continue
        inner = inspect.unwrap(value) if callable(value) else value
        if isinstance(inner, FunctionType):
            if _same_package(inner.__module__, function):
                yield from _sources(inner, seen, depth + 1)
        elif isinstance(value, partial) or not callable(value):
            yield f"{name} = {described(value, depth + 1)}"


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
