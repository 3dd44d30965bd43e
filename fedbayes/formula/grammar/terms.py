"""The terms of a formula by formulaic's grammar, from which nothing is evaluated.

Formulaic reads ``a * b`` as ``a + b + a:b`` and so on, and gives factors as text. What it would do with these, which is
to run them as Python, is left to :mod:`fedbayes.formula.grammar.expressions`, which runs nothing.
"""

import ast
import re
from typing import Any, NamedTuple

from fedbayes.errors import FormulaError

MOST_TERMS = 200
_OPERATORS = ("+", "-", "*", ":", "/", "**", "^", "in")
_COLOURS = re.compile(r"\x1b\[[0-9;]*m|[⧛⧚]")


class Factor(NamedTuple):
    """One factor of a term: a column's name, or an expression; ``name`` is how it is written."""

    name: str
    is_column: bool


class Term(NamedTuple):
    """A product of factors."""

    factors: tuple[Factor, ...]

    @property
    def name(self) -> str:
        """As it is written."""
        return ":".join(factor.name for factor in self.factors)


class Terms(NamedTuple):
    """The terms of a formula, those of fewer factors first, and offsets.

    Attributes
    ----------
    intercept
        Whether there is one.
    terms
        All others.
    offsets
        Expressions of ``offset(...)``, which have the coefficient one.
    """

    intercept: bool
    terms: tuple[Term, ...]
    offsets: tuple[str, ...] = ()


def read_terms(text: str) -> Terms:
    """The terms of what stands right of ``~``, without groups.

    Raises
    ------
    FormulaError
        The text can't be read, has too many terms, or formulaic is not installed.
    """
    if not text.strip():
        return Terms(True, ())
    parser = _parser()
    try:
        tree = parser.get_ast(text, context={})
        _check(tree)
        found = list(parser.get_terms_from_ast(tree, context={}))
    except FormulaError:
        raise
    except Exception as error:  # of whatever kind: the text is anybody's
        reason = _COLOURS.sub("", str(error)).strip().split("\n")[0]
        raise FormulaError(f"The terms {text.strip()!r} can't be read: {reason or type(error).__name__}") from error
    return _sorted_out(found)


def _parser() -> Any:
    try:
        from formulaic.parser import DefaultFormulaParser
    except ImportError as error:
        raise FormulaError(
            "Formulas are read by formulaic, which is not installed: `pip install 'fedbayes[formula]'`."
        ) from error
    return DefaultFormulaParser(feature_flags=set())


def _sorted_out(found: list) -> Terms:
    intercept, terms, offsets = False, [], []
    for term in found:
        factors = [_factor(factor) for factor in term.factors]
        if [factor.name for factor in factors] == ["1"]:
            intercept = True
            continue
        if number := next((each.name for each in factors if each.name.replace(".", "", 1).isdigit()), None):
            raise FormulaError(
                f"The number {number} stands in the term '{term}'; write `I({number} * x)` for arithmetic."
            )
        inside = [_offset(factor.name) for factor in factors]
        if any(each is not None for each in inside):
            if len(factors) > 1:
                raise FormulaError(f"The term '{term}' multiplies an offset; an offset is a term by itself.")
            offsets.append(str(inside[0]))
            continue
        terms.append(Term(tuple(factors)))
    return Terms(intercept, tuple(sorted(terms, key=lambda term: len(term.factors))), tuple(offsets))


def _factor(factor: Any) -> Factor:
    is_column = factor.eval_method.value == "lookup"
    if is_column and "." in factor.expr and not _is_quoted(factor):
        raise FormulaError(
            f"'{factor.expr}' is no name of a column: one with a dot or a blank is written in backticks, as is "
            f"`{factor.expr}` here."
        )
    return Factor(factor.expr, is_column)


def _is_quoted(factor: Any) -> bool:
    token = factor.token
    return token.source[token.source_start : token.source_start + 1] == "`"


def _offset(name: str) -> str | None:
    """The argument of ``offset(...)``."""
    try:
        tree = ast.parse(name, mode="eval").body
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return None
    if not (isinstance(tree, ast.Call) and isinstance(tree.func, ast.Name) and tree.func.id == "offset"):
        return None
    if len(tree.args) != 1 or tree.keywords:
        raise FormulaError(f"`{name}` has other arguments than one expression, `offset(log(days))`.")
    return ast.get_source_segment(name, tree.args[0])


def _check(tree: Any) -> None:
    """Refuse operators that are not ours, and more terms than anybody reads, before they are multiplied out."""
    sizes: dict[int, int] = {}
    pending = [tree]
    while pending:
        node = pending[-1]
        children = [child for child in getattr(node, "args", ()) if hasattr(child, "operator")]
        unknown = [child for child in children if id(child) not in sizes]
        if unknown:
            pending.extend(unknown)
            continue
        pending.pop()
        sizes[id(node)] = _most(node, [sizes.get(id(child), 1) for child in getattr(node, "args", ())])
        if sizes[id(node)] > MOST_TERMS:
            raise FormulaError(
                f"The formula may have {sizes[id(node)]:,} terms once it is multiplied out; at most {MOST_TERMS} are "
                "read."
            )


def _most(node: Any, sizes: list[int]) -> int:
    """Most terms that a node has when its arguments have these."""
    if not hasattr(node, "operator"):
        return 1
    symbol = node.operator.symbol
    if symbol not in _OPERATORS:
        raise FormulaError(f"The operator '{symbol}' is not read; the operators are + - * : / ^ and %in%.")
    if len(sizes) == 1:
        return sizes[0]
    first, second = sizes
    if symbol in ("**", "^"):
        power = str(getattr(node.args[1], "token", ""))
        if not power.isdigit() or not 1 <= int(power) <= 5:
            raise FormulaError(f"The power '{power or node.args[1]}' is no whole number from 1 to 5.")
        return int(min(first ** int(power), 10**9))
    by_symbol = {"+": first + second, "-": first, "*": first + second + first * second, "/": first + second}
    return by_symbol.get(symbol, first * second)
