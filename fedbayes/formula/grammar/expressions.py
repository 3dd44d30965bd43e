"""Factors that are more than a column's name, read by Python's grammar and never run as Python.

An expression is a name, a number, arithmetic, a comparison, or a call of a function on the list below. Everything else
is refused when it is read, and what is left is computed here, node by node, with NumPy: there is no ``eval``.
"""

import ast
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from fedbayes.errors import FormulaError, did_you_mean

Numbers = np.ndarray

FUNCTIONS: Mapping[str, Callable[[Numbers], Numbers]] = {
    "abs": np.abs, "cos": np.cos, "exp": np.exp, "expm1": np.expm1, "I": np.asarray, "log": np.log, "log10": np.log10,
    "log1p": np.log1p, "log2": np.log2, "sin": np.sin, "sqrt": np.sqrt, "tanh": np.tanh,
}  # fmt: skip
SCALES = ("center", "scale", "standardize")
"""Functions that need a mean or an sd of all clients' rows; ``standardize`` is another name of ``scale``."""
BASES = ("bs", "poly")
"""Functions that give several columns."""
_CODES = ("C",)
_IMPUTED = ("mi",)
"""What stands for a column of which values are missing, and are latents."""
_OPTIONS = {
    "bs": ("df", "knots", "degree", "lower_bound", "upper_bound", "include_intercept"),
    "poly": ("degree", "raw"),
    "C": ("levels",),
}
_POSITIONS = {"bs": ("df",), "poly": ("degree",), "C": ("contrast",)}
_ARITHMETIC: Mapping[type, Callable[[Any, Any], Any]] = {
    ast.Add: np.add, ast.Sub: np.subtract, ast.Mult: np.multiply, ast.Div: np.true_divide, ast.Pow: np.power,
}  # fmt: skip
_COMPARED: Mapping[type, Callable[[Any, Any], Any]] = {
    ast.Lt: np.less, ast.LtE: np.less_equal, ast.Gt: np.greater, ast.GtE: np.greater_equal, ast.Eq: np.equal,
    ast.NotEq: np.not_equal,
}  # fmt: skip
_LARGEST_POWER = 10
_LARGEST_NUMBER = 1e100
_DEEPEST = 60


@dataclass(frozen=True)
class Expression:
    """A factor that was read.

    Attributes
    ----------
    name
        As it is written in the formula.
    kind
        ``"numbers"``, ``"bs"``, ``"poly"``, ``"C"`` or ``"mi"``.
    tree
        Of ``"numbers"`` the whole, of the others the first argument.
    options
        The others' further arguments, literals alone.
    """

    name: str
    kind: str
    tree: ast.expr
    options: Mapping[str, Any]

    @property
    def inner(self) -> str:
        """The text of what is computed, in one spelling."""
        return ast.unparse(self.tree)

    @property
    def columns(self) -> tuple[str, ...]:
        """The columns that it reads."""
        return columns_of(self.tree)

    @property
    def scaled(self) -> tuple[tuple[str, ast.expr], ...]:
        """The parts that need a mean or an sd: each as text, and what is scaled."""
        calls = [node for node in ast.walk(self.tree) if isinstance(node, ast.Call) and _called(node) in SCALES]
        return tuple({ast.unparse(call): call.args[0] for call in calls}.items())


def read_expression(text: str) -> Expression:
    """An expression from its text.

    Raises
    ------
    FormulaError
        It is none of those that are read, and names the part that is not.
    """
    try:
        tree = ast.parse(text.strip(), mode="eval").body
    except (SyntaxError, ValueError, RecursionError, MemoryError) as error:
        raise FormulaError(f"The expression {text.strip()!r} can't be read.") from error
    _check_depth(tree, text)
    name = _called(tree) if isinstance(tree, ast.Call) else ""
    if isinstance(tree, ast.Call) and name in (*BASES, *_CODES):
        return _with_options(text.strip(), tree, name)
    if isinstance(tree, ast.Call) and name in _IMPUTED:
        return _imputed(text.strip(), tree)
    _check(tree, text)
    if not columns_of(tree):
        raise FormulaError(f"The expression {text.strip()!r} names no column.")
    return Expression(text.strip(), "numbers", tree, {})


def column(name: str) -> Expression:
    """The expression of a column by itself, whatever its name."""
    return Expression(name, "numbers", ast.Name(name), {})


def compute(tree: ast.expr, columns: Mapping[str, Numbers], scales: Mapping[str, tuple[float, float]]) -> Numbers:
    """The numbers of an expression, shape ``(n,)``.

    Parameters
    ----------
    tree
        Of an :class:`Expression`, so that it was checked.
    columns
        The numbers of each column that it reads, shape ``(n,)``.
    scales
        Centre and scale of each part that is scaled, by its text.
    """
    match tree:
        case ast.Name(id=name):
            return columns[name]
        case ast.Constant(value=int() | float() as value):
            return np.asarray(float(value))
        case ast.UnaryOp(op=op, operand=operand):
            number = compute(operand, columns, scales)
            return np.negative(number) if isinstance(op, ast.USub) else number
        case ast.BinOp(left=left, op=op, right=right):
            return _ARITHMETIC[type(op)](compute(left, columns, scales), compute(right, columns, scales))
        case ast.Compare(left=left, ops=[op], comparators=[right]):
            found = _COMPARED[type(op)](compute(left, columns, scales), compute(right, columns, scales))
            return np.asarray(found, float)
        case ast.Call(args=[inner]) if _called(tree) in SCALES:
            centre, scale = scales[ast.unparse(tree)]
            return (compute(inner, columns, scales) - centre) / scale
        case ast.Call(args=[inner]):
            return FUNCTIONS[_called(tree)](compute(inner, columns, scales))
    raise FormulaError(f"`{ast.unparse(tree)}` can't be computed.")


def columns_of(tree: ast.expr) -> tuple[str, ...]:
    """The columns that an expression reads, in order."""
    return tuple(dict.fromkeys(_names(tree)))


def _names(tree: ast.expr) -> Iterator[str]:
    if isinstance(tree, ast.Name):
        yield tree.id
    elif isinstance(tree, ast.Call):
        for argument in tree.args:
            yield from _names(argument)
    else:
        for child in ast.iter_child_nodes(tree):
            if isinstance(child, ast.expr):
                yield from _names(child)


def _called(call: ast.Call) -> str:
    """The name of what is called; ``np.log`` is ``log``. Empty for what is no name."""
    match call.func:
        case ast.Name(id=name):
            return name
        case ast.Attribute(value=ast.Name(id="np" | "numpy"), attr=name) if name in FUNCTIONS and name != "I":
            return name
    return ""


def _check_depth(tree: ast.expr, text: str) -> None:
    """Refuse what is nested so deep that walking it would exhaust Python's stack."""
    level: list[ast.AST] = [tree]
    for _ in range(_DEEPEST):
        level = [child for node in level for child in ast.iter_child_nodes(node)]
        if not level:
            return
    raise FormulaError(f"The expression {text.strip()[:60]!r}... is nested more than {_DEEPEST} deep.")


def _check(tree: ast.expr, text: str, scaled: bool = False) -> None:
    """Refuse whatever is not on the lists, before anything is computed."""
    match tree:
        case ast.Name():
            return
        case ast.Constant(value=bool() | int() | float() as value) if abs(value) < _LARGEST_NUMBER:
            return
        case ast.UnaryOp(op=ast.USub() | ast.UAdd(), operand=operand):
            return _check(operand, text, scaled)
        case ast.BinOp(left=left, op=op, right=right) if type(op) in _ARITHMETIC:
            if isinstance(op, ast.Pow):
                _check_power(right, text)
            _check(left, text, scaled)
            return _check(right, text, scaled)
        case ast.Compare(left=left, ops=[op], comparators=[right]) if type(op) in _COMPARED:
            _check(left, text, scaled)
            return _check(right, text, scaled)
        case ast.Call():
            return _check_call(tree, text, scaled)
    raise FormulaError(
        f"`{ast.unparse(tree)}` in {text.strip()!r} is not read. An expression has columns, numbers, arithmetic, "
        f"comparisons, and calls of {_listed()}."
    )


def _check_power(power: ast.expr, text: str) -> None:
    negative = isinstance(power, ast.UnaryOp) and isinstance(power.op, ast.USub)
    value = power.operand if negative else power  # type: ignore[attr-defined]
    if not (isinstance(value, ast.Constant) and isinstance(value.value, int | float) and value.value <= _LARGEST_POWER):
        raise FormulaError(f"The power `{ast.unparse(power)}` in {text.strip()!r} is no number up to {_LARGEST_POWER}.")


def _check_call(call: ast.Call, text: str, scaled: bool) -> None:
    name = _called(call)
    if name in (*BASES, *_CODES, *_IMPUTED, "offset"):
        raise FormulaError(f"`{name}(...)` stands within {text.strip()!r}; it is a factor by itself.")
    if name not in FUNCTIONS and name not in SCALES:
        known = (*FUNCTIONS, *SCALES, *BASES, *_CODES, *_IMPUTED)
        raise FormulaError(
            f"`{ast.unparse(call.func)}` in {text.strip()!r} is no function that formulas know: {_listed()}."
            f"{did_you_mean(ast.unparse(call.func), known)} Nothing else is run; "
            "compute such a column before, in the same way at all clients."
        )
    if len(call.args) != 1 or call.keywords:
        raise FormulaError(f"`{ast.unparse(call)}` has other arguments than one expression, `{name}(x)`.")
    if name in SCALES and scaled:
        raise FormulaError(f"`{ast.unparse(call)}` in {text.strip()!r} is scaled twice; once is enough.")
    _check(call.args[0], text, scaled or name in SCALES)


def _with_options(text: str, call: ast.Call, name: str) -> Expression:
    """``bs``, ``poly`` or ``C``: an expression and literals."""
    if not call.args:
        raise FormulaError(f"`{text}` has no first argument; write `{name}(x)`.")
    inner, *rest = call.args
    if name in _CODES:
        if not isinstance(inner, ast.Name):
            raise FormulaError(f"`{text}`: the first argument of `C` is a column's name, not `{ast.unparse(inner)}`.")
    else:
        _check(inner, text, scaled=True)
    if len(rest) > len(_POSITIONS[name]):
        raise FormulaError(f"`{text}` has {len(call.args)} arguments without names; write `{_usage(name)}`.")
    given = dict(zip(_POSITIONS[name], rest, strict=False))
    for keyword in call.keywords:
        if keyword.arg not in _OPTIONS[name]:
            raise FormulaError(
                f"`{text}` has the argument `{keyword.arg or '**'}`; `{name}` has {', '.join(_OPTIONS[name])}."
                f"{did_you_mean(str(keyword.arg), _OPTIONS[name])}"
            )
        if keyword.arg in given:
            raise FormulaError(f"`{text}` has the argument `{keyword.arg}` twice.")
        given[keyword.arg] = keyword.value
    options = {
        key: _contrast(value, text) if key == "contrast" else _literal(value, text) for key, value in given.items()
    }
    return Expression(text, name, inner, options)


def _imputed(text: str, call: ast.Call) -> Expression:
    """``mi(x)``: a column by itself, as a missing value has a law on the column's own scale."""
    match call:
        case ast.Call(args=[ast.Name() as inner], keywords=[]):
            return Expression(f"mi({inner.id})", "mi", inner, {})
    raise FormulaError(
        f"`{text}`: `mi` takes a column's name alone, `mi(x)`, whose missing values are then latents with a normal "
        "law. Compute another column before, in the same way at all clients, and impute that one."
    )


def _literal(tree: ast.expr, text: str) -> Any:
    try:
        return ast.literal_eval(tree)
    except (ValueError, TypeError, SyntaxError, MemoryError, RecursionError) as error:
        raise FormulaError(f"`{ast.unparse(tree)}` in `{text}` is no number, text or list of these.") from error


def _contrast(tree: ast.expr, text: str) -> tuple[str, Any]:
    """``Treatment("b")`` or ``Sum``, also as ``contr.treatment("b")`` and ``contr.sum``."""
    call = tree if isinstance(tree, ast.Call) else None
    name = ast.unparse(call.func if call else tree).removeprefix("contr.").lower()
    arguments = [*(call.args if call else []), *(keyword.value for keyword in (call.keywords if call else []))]
    if name not in ("treatment", "sum") or len(arguments) > (name == "treatment"):
        raise FormulaError(
            f"`{ast.unparse(tree)}` in `{text}` is no contrast that formulas know; write `Treatment('b')`, with the "
            "level to compare with, or `Sum`."
        )
    return name, (_literal(arguments[0], text) if arguments else None)


def _usage(name: str) -> str:
    return {"bs": "bs(x, df=4)", "poly": "poly(x, 2)", "C": "C(x, Treatment('b'))"}[name]


def _listed() -> str:
    return ", ".join(sorted((*FUNCTIONS, *SCALES, *BASES, *_CODES, *_IMPUTED, "offset"), key=str.lower))
