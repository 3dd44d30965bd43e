"""Whether a model can be called with a client's arguments."""

import inspect
from collections.abc import Collection, Iterable

from fedbayes.errors import did_you_mean
from fedbayes.problem.program.program import Model

_BY_NAME = (inspect.Parameter.POSITIONAL_OR_KEYWORD, inspect.Parameter.KEYWORD_ONLY)


def misfit(model: Model, arguments: Collection[str]) -> str:
    """Why a model can't be called with these keyword arguments, the end of a sentence; empty if it can."""
    try:
        signature = inspect.signature(model)
    except (TypeError, ValueError):  # it has none to look at
        return ""
    try:
        signature.bind(**dict.fromkeys(arguments))
        return ""
    except TypeError as error:
        words = [str(error)]
    free = {
        name: each for name, each in signature.parameters.items() if each.kind in _BY_NAME and name not in arguments
    }
    lacking = [name for name, each in free.items() if each.default is inspect.Parameter.empty]
    takes_any = any(each.kind is inspect.Parameter.VAR_KEYWORD for each in signature.parameters.values())
    unknown = [] if takes_any else [name for name in arguments if name not in signature.parameters]
    if unknown or lacking:
        words = [f"takes no argument {_listed(unknown)}"] if unknown else []
        words += [f"needs {_listed(lacking)}"] if lacking else []
    hint = did_you_mean(unknown[0], free) if unknown else ""
    return f"{' and '.join(words)}; it is `{getattr(model, '__name__', 'model')}{signature}`.{hint}"


def _listed(names: Iterable[str]) -> str:
    return ", ".join(f"`{name}`" for name in names)
