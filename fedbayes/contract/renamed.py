"""Names that a caller may expect and that have another name here: refused with the one to write."""

from collections.abc import Callable, Mapping
from functools import wraps
from typing import Any, TypeVar

Named = TypeVar("Named", bound=Callable[..., Any])


def refused_names(**instead: str) -> Callable[[Named], Named]:
    """A decorator of a class or function: each of these keyword arguments is a ``TypeError`` that says what to write.

    It is for names of earlier versions, which must never go on to work with another meaning, and for another method's
    name of the same idea. A class has them as ``__refused_names__``, by which saved options are read
    (:func:`present_names`).

    Parameters
    ----------
    instead
        From each refused name to the one that stands for it.

    Examples
    --------
    >>> @refused_names(prob="level")
    ... def interval(level=0.9):
    ...     return level
    >>> interval(prob=0.5)
    Traceback (most recent call last):
        ...
    TypeError: `interval` has no argument `prob`: write `interval(level=0.5)`.
    """

    def decorate(named: Named) -> Named:
        if not isinstance(named, type):
            return _refusing(named, named.__name__, instead)
        named.__init__ = _refusing(named.__init__, named.__name__, instead)  # type: ignore[misc]
        named.__refused_names__ = instead  # type: ignore[attr-defined]
        return named

    return decorate


def present_names(named: Callable[..., Any], options: Mapping[str, Any]) -> dict[str, Any]:
    """Options as an earlier version has saved them, under the names that they have now."""
    instead: Mapping[str, str] = getattr(named, "__refused_names__", {})
    return {instead.get(name, name): value for name, value in options.items()}


def _refusing(called: Any, name: str, instead: Mapping[str, str]) -> Any:
    @wraps(called)
    def refusing(*args: Any, **given: Any) -> Any:
        for other in instead.keys() & given.keys():
            raise TypeError(f"`{name}` has no argument `{other}`: write `{name}({instead[other]}={given[other]!r})`.")
        return called(*args, **given)

    return refusing
