"""Priors as they are typed, ``Normal(0, 1)``: read by Python's grammar, and never run."""

import ast
from typing import Any

import numpyro.distributions as dist

from fedbayes.errors import FormulaError, did_you_mean

_SHAPED = ("expand", "to_event")  # by which a regression gives a prior of one number its parameter's shape


def prior_of(text: str) -> dist.Distribution:
    """The distribution of one number that a text names, with numbers or further distributions as its parameters.

    Parameters
    ----------
    text
        Such as ``Normal(0, 1)``, or ``dist.StudentT(3.0, 0.0, scale=2.5)``. A shape behind it is left out.

    Raises
    ------
    FormulaError
        It is something else.
    """
    try:
        node = ast.parse(text.strip(), mode="eval").body
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        raise _refusal(text) from None
    while isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr in _SHAPED:
        node = node.func.value
    return _distribution(node, text)


def _distribution(node: ast.expr, text: str) -> dist.Distribution:
    if not isinstance(node, ast.Call):
        raise _refusal(text)
    name = ast.unparse(node.func).removeprefix("dist.")
    kind = getattr(dist, name) if name in dist.__all__ else None
    if not (isinstance(kind, type) and issubclass(kind, dist.Distribution)):
        raise FormulaError(f"`{text}` names no distribution of NumPyro.{did_you_mean(name, dist.__all__)}")
    if any(each.arg is None for each in node.keywords):
        raise _refusal(text)
    values = [_value(each, text) for each in node.args]
    named = {str(each.arg): _value(each.value, text) for each in node.keywords}
    try:
        found: dist.Distribution = kind(*values, **named, validate_args=True)
    except (TypeError, ValueError) as error:
        raise FormulaError(f"`{text}` is no distribution: {error}") from None
    return found


def _value(node: ast.expr, text: str) -> Any:
    if isinstance(node, ast.Call):
        return _distribution(node, text)
    negative = isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.USub)
    number = node.operand if isinstance(node, ast.UnaryOp) and negative else node
    value = number.value if isinstance(number, ast.Constant) else None
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise _refusal(text)
    return -value if negative else value


def _refusal(text: str) -> FormulaError:
    return FormulaError(f"`{text}` is no prior. Write a distribution of NumPyro with its numbers, `Normal(0, 2.5)`.")
