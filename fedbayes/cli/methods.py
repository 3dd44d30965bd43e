"""The method that a command was asked for: ``--method`` and ``--option``."""

import json
from collections.abc import Mapping, Sequence
from dataclasses import fields, replace
from typing import Any

from fedbayes.errors import ModelError, did_you_mean


def check_method(name: str) -> None:
    """Refuse a name that no method has.

    Raises
    ------
    ModelError
        With the names there are.
    """
    from fedbayes.fit import method_of

    try:
        method_of(name)
    except ValueError as error:
        raise ModelError(str(error).replace("`method`", "`--method`", 1)) from None


def options_of(texts: Sequence[str] | None) -> dict[str, Any]:
    """``damping=0.5`` as an option's name and value: a number, ``true``, ``false`` or ``null``, and else text.

    Raises
    ------
    ModelError
        A text has no name or no value, or names an option twice.
    """
    found: dict[str, Any] = {}
    for text in texts or []:
        name, _, value = (part.strip() for part in text.partition("="))
        if not (name and value):
            raise ModelError(f"`--option {text}` names no value. Write `--option damping=0.5`.")
        if name in found:
            raise ModelError(f"`--option {name}` is given twice. Leave one of them out.")
        found[name] = _value(value)
    return found


def configured(method: Any, options: Mapping[str, Any]) -> Any:
    """The method with these options; without options what was given.

    Raises
    ------
    ModelError
        It has no such option, or not with that value; with what to write.
    """
    from fedbayes.fit import method_of

    if not options:
        return method
    chosen: Any = method_of(method)  # of every method the configuration is a dataclass
    name, known = type(chosen).__name__, [field.name for field in fields(chosen)]
    renamed = getattr(chosen, "__refused_names__", {})  # of which the method says what to write
    if strange := [option for option in options if option not in {*known, *renamed}]:
        raise ModelError(
            f"`--option {strange[0]}`: {name} has no such option; it has {', '.join(known)}."
            f"{did_you_mean(strange[0], known)}"
        )
    try:
        return replace(chosen, **options)
    except (TypeError, ValueError) as error:
        raise ModelError(f"`--option`, of {name}: {error}") from None


def _value(text: str) -> Any:
    try:
        return json.loads(text)
    except ValueError:
        return text
