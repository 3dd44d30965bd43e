"""Priors as they are typed, ``Normal(0, 1)``: read by Python's grammar, and never run."""

import ast
from typing import Any

import numpy as np
import numpyro.distributions as dist

from fedbayes.errors import FormulaError, did_you_mean

_SHAPED = ("expand", "to_event")  # by which a regression gives a prior of one number its parameter's shape
_LONGEST, _DEEPEST = 500, 5  # characters, and brackets within each other
_LARGEST = {"LKJCholesky": 1000}  # of laws of matrices the largest number, which may be a size
_RANGE = float(np.finfo(np.float32).max)
NAMES = (
    "AsymmetricLaplace", "Beta", "BetaProportion", "Cauchy", "Chi2", "Exponential", "FoldedDistribution", "Gamma",
    "Gompertz", "Gumbel", "HalfCauchy", "HalfNormal", "InverseGamma", "Kumaraswamy", "LKJCholesky", "Laplace",
    "LeftTruncatedDistribution", "Levy", "LogNormal", "LogUniform", "Logistic", "Normal", "Pareto",
    "RightTruncatedDistribution", "SoftLaplace", "StudentT", "TruncatedCauchy", "TruncatedNormal",
    "TwoSidedTruncatedDistribution", "Uniform", "Weibull",
)  # fmt: skip


def prior_of(text: str, where: str = "`--prior`") -> dist.Distribution:
    """The distribution of one number that a text names, with numbers or further distributions as its parameters.

    Parameters
    ----------
    text
        Such as ``Normal(0, 1)``, or ``dist.StudentT(3.0, 0.0, scale=2.5)``. A shape behind it is left out.
    where
        Where it was written, and of which parameter it is, for messages.

    Raises
    ------
    FormulaError
        It is something else.
    """
    if len(text) > _LONGEST:
        raise FormulaError(f"{where}: the prior has {len(text)} characters, and may have {_LONGEST}.")
    if _depth(text) > _DEEPEST:
        raise FormulaError(f"{where}: `{text}` has more than {_DEEPEST} brackets within each other.")
    try:
        node = ast.parse(text.strip(), mode="eval").body
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        raise _refusal(text, where) from None
    while isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr in _SHAPED:
        node = node.func.value
    return _distribution(node, text, where)


def _depth(text: str) -> int:
    """How many brackets are open at most."""
    deepest = depth = 0
    for character in text:
        depth += (character in "([{") - (character in ")]}")
        deepest = max(deepest, depth)
    return deepest


def _distribution(node: ast.expr, text: str, where: str) -> dist.Distribution:
    if not isinstance(node, ast.Call) or any(each.arg is None for each in node.keywords):
        raise _refusal(text, where)
    name = ast.unparse(node.func).removeprefix("dist.")
    if name not in NAMES:
        raise FormulaError(
            f"{where}: `{text}` names no distribution that can be a prior here.{did_you_mean(name, NAMES)} There are "
            f"{', '.join(NAMES)}."
        )
    most = _LARGEST.get(name, _RANGE)
    values = [_value(each, text, where, most) for each in node.args]
    named = {str(each.arg): _value(each.value, text, where, most) for each in node.keywords}
    try:
        found: dist.Distribution = getattr(dist, name)(*values, **named, validate_args=True)
    except Exception as error:  # whatever NumPyro makes of these numbers
        raise FormulaError(f"{where}: `{text}` is no distribution: {error}") from None
    return found


def _value(node: ast.expr, text: str, where: str, most: float) -> Any:
    if isinstance(node, ast.Call):
        return _distribution(node, text, where)
    negative = isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.USub)
    number = node.operand if isinstance(node, ast.UnaryOp) and negative else node
    value = number.value if isinstance(number, ast.Constant) else None
    if not isinstance(value, int | float) or isinstance(value, bool):
        raise _refusal(text, where)
    if value > most:
        raise FormulaError(f"{where}: `{text}` has a number above {most:.3g}, which is too large.")
    return -value if negative else value


def _refusal(text: str, where: str) -> FormulaError:
    return FormulaError(
        f"{where}: `{text}` is no prior. Write a distribution of NumPyro with its numbers, `Normal(0, 2.5)`."
    )
