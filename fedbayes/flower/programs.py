"""A study's parts: given as they are, or as the name of the module that holds them, which is imported where needed."""

from collections.abc import Callable
from importlib import import_module
from typing import Any


def optional(model: Callable[..., Any] | str, name: str, given: Any) -> Any:
    """What is given; or else the attribute of this name of the model's module, where that is named and has one."""
    return getattr(import_module(model), name, None) if given is None and isinstance(model, str) else given


def parts(model: Callable[..., Any] | str, **others: Any) -> list[Any]:
    """The model and the others, in this order.

    Where the model is a text, it names a module. That module's ``model`` is meant, and whatever else is ``None`` is the
    module's attribute of that name.

    Raises
    ------
    TypeError
        A part is neither given nor in the module.
    """
    module = import_module(model) if isinstance(model, str) else None
    given = {"model": None if module else model, **others}
    found = {name: getattr(module, name, None) if part is None else part for name, part in given.items()}
    if missing := [name for name, part in found.items() if part is None]:
        where = f"the module {model!r} does not define" if module else "the app lacks"
        raise TypeError(
            f"{where} {' and '.join(missing)}: give them as arguments, or name a module that defines "
            f"{', '.join(given)}, as in client_app('my_study.program')"
        )
    return list(found.values())


def agreement_of(model: Callable[..., Any] | str) -> Any:
    """The ``agreement`` of the model's module, where it defines one and no ``model`` yet; ``None`` otherwise."""
    module = import_module(model) if isinstance(model, str) else None
    return None if module is None or hasattr(module, "model") else getattr(module, "agreement", None)
