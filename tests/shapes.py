"""The shapes in signatures, by jaxtyping: they are checked in tests alone."""

import inspect
import sys
from collections.abc import Callable, Iterator, Sequence
from functools import cache, wraps
from types import FunctionType, ModuleType
from typing import Any, Self

import beartype
import pytest
from jaxtyping import jaxtyped

_jaxtyped = jaxtyped(typechecker=beartype.beartype)


@cache
def checked(function: Callable) -> Callable:
    """The function with its signature checked at each call, but for protocols and `Self`."""
    hints = getattr(function, "__annotations__", {})
    known = {name: hint for name, hint in hints.items() if not _unknown(hint)}
    if not known:  # nothing to check; jaxtyping can't take a lambda
        return function
    return _jaxtyped(function if known == hints else _annotated(function, known))


def _annotated(function: FunctionType, hints: dict[str, Any]) -> FunctionType:
    """A copy of the function with these annotations."""
    parts = function.__code__, function.__globals__, function.__name__, function.__defaults__, function.__closure__
    copy = FunctionType(*parts)
    copy.__kwdefaults__, copy.__annotations__ = function.__kwdefaults__, hints
    copy.__module__, copy.__qualname__ = function.__module__, function.__qualname__
    return copy


def _unknown(hint: Any) -> bool:
    """Whether beartype can't check this outside its class, or not at all."""
    return hint is Self or getattr(hint, "_is_protocol", False)


def members(module: ModuleType) -> Iterator[tuple[str, Callable]]:
    """Public functions of a module, and public methods of its classes."""
    short = module.__name__.rpartition(".")[2]
    for name, value in vars(module).items():
        if name.startswith("_") or getattr(value, "__module__", "") != module.__name__:
            continue
        if inspect.isclass(value):
            methods = ((key, each) for key, each in vars(value).items() if isinstance(each, FunctionType))
            yield from ((f"{short}.{name}.{key}", each) for key, each in methods if not key.startswith("_"))
        elif callable(value):
            yield f"{short}.{name}", inspect.unwrap(value)


def check_fields(value: Any, rooms: frozenset[str]) -> None:
    """Raise where a named tuple of these modules, or inside of another, has a field that does not fit the others."""
    if not isinstance(value, tuple):
        return
    if hasattr(value, "_fields") and type(value).__module__ in rooms:
        checked(type(value).__new__)(type(value), *value)
    for each in value:
        check_fields(each, rooms)


def _watched(name: str, function: Callable, called: set[str], rooms: frozenset[str]) -> Callable:
    inner = checked(function)

    @wraps(function)
    def call(*args: Any, **kwargs: Any) -> Any:
        called.add(name)
        check_fields((*args, *kwargs.values()), rooms)
        result = inner(*args, **kwargs)
        check_fields(result, rooms)
        return result

    return call


def switch_on(patch: pytest.MonkeyPatch, modules: Sequence[ModuleType]) -> set[str]:
    """From now on the public functions of these modules are checked wherever they are known by their names.

    Checked are signatures, and the fields of these modules' own named tuples that go in and come out.

    Returns
    -------
    set of str
        Names, as :func:`members` gives them, of the functions that have been called since.
    """
    called: set[str] = set()
    rooms = frozenset(module.__name__ for module in modules)
    loaded = [module for name, module in sys.modules.items() if name.startswith("fedbayes.") and module is not None]
    for module in modules:
        for name, function in members(module):
            watched = _watched(name, function, called, rooms)
            _, *owner, last = name.split(".")
            if owner:
                patch.setattr(getattr(module, owner[0]), last, watched)
                continue
            for other in loaded:
                if vars(other).get(last) is function:
                    patch.setattr(other, last, watched)
    return called
