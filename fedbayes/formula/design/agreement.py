"""Agreement on levels, means, sds, knots and bounds by sums, so that every client makes the same columns.

Sums are told up to three times, each time what the next needs: counts of levels and moments of whatever is scaled;
binned counts and powers, only for splines and polynomials without declared knots; moments and products of the finished
columns, for centring, default priors and the search for collinear columns.
"""

from collections.abc import Iterable, Mapping, Sequence, Sized
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any

import numpy as np

from fedbayes.errors import ClientDataError, FormulaError, did_you_mean
from fedbayes.formula.design.everybody import Everybody
from fedbayes.formula.design.factors import Factor, Levels, Numbers, Polynomial, Scales, Spline, numbers_of
from fedbayes.formula.design.imputed import Imputed, mean_and_sd_of_seen, numbers_to_impute
from fedbayes.formula.design.tables import Table, label_text
from fedbayes.formula.design.totals import binned, mean_and_sd, moments, orthonormal, powers, quantiles
from fedbayes.formula.grammar.expressions import Expression, column, read_expression
from fedbayes.formula.grammar.terms import Terms

MOST_LEVELS = 40
_SHARE_OF_ROWS = 1 / 3
_LARGEST_DEGREE = 6


@dataclass(frozen=True)
class Agreement:
    """What holds at every client.

    Attributes
    ----------
    levels
        Of each column of text, in order.
    counts
        Rows of each level over all clients, and clients that have it, by column.
    scales
        Centre and scale of each part that is scaled, by its text.
    shapes
        Knots or coefficients of each spline and polynomial, by its name.
    rows
        Of all clients.
    """

    levels: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    counts: Mapping[str, Mapping[str, tuple[int, int]]] = field(default_factory=dict)
    scales: Scales = field(default_factory=dict)
    shapes: Mapping[str, Spline | Polynomial] = field(default_factory=dict)
    rows: int = 0

    def factor(self, expression: Expression) -> Factor:
        """An expression, or a column of numbers or levels, with what was agreed."""
        if expression.kind == "C":
            contrast, base = expression.options.get("contrast", ("treatment", None))
            return self._levels(expression.inner, contrast == "sum", base)
        if expression.kind == "numbers":
            if expression.name in self.levels:
                return self._levels(expression.name, False, None)
            return Numbers(expression, self.scales)
        if expression.kind == "mi":
            return Imputed(expression.name, expression.inner, *self.scales[expression.name])
        return self.shapes[expression.name]

    def _levels(self, name: str, sums: bool, base: Any) -> Levels:
        levels = self.levels[name]
        chosen = levels[-1 if sums else 0] if base is None else label_text(base)
        if chosen not in levels:
            raise FormulaError(f"The level {chosen!r} to compare with is none of those of '{name}': {list(levels)}.")
        return Levels(name, levels, chosen, sums)


def expressions_of(terms: Iterable[Terms]) -> dict[str, Expression]:
    """The factors of all terms, by how they are written."""
    found: dict[str, Expression] = {}
    for each in terms:
        for term in each.terms:
            for factor in term.factors:
                found[factor.name] = column(factor.name) if factor.is_column else read_expression(factor.name)
    return found


def check_columns(everybody: Everybody, expressions: Iterable[Expression]) -> None:
    """Refuse columns that a client lacks, or has with missing values or as another kind than the others."""
    expressions = list(expressions)
    names = list(dict.fromkeys(name for each in expressions for name in each.columns))
    imputed = [each.inner for each in expressions if each.kind == "mi"]
    everybody.look(lambda table: table.check_there(names, imputed))
    for name in names:
        everybody.is_labels(name)


def agree(
    everybody: Everybody,
    expressions: Mapping[str, Expression],
    declared: Mapping[str, Sequence[Any]],
    about: str = "columns",
) -> Agreement:
    """What all clients agree on, from sums of what each tells.

    Parameters
    ----------
    everybody
        All clients.
    expressions
        Every factor of the formula, by how it is written.
    declared
        Levels of columns that need not be asked for.
    about
        What the sums are named after.

    Raises
    ------
    ClientDataError
        A column has too many levels, or a scaled one does not vary.
    """
    coded = {each.inner: each for each in expressions.values() if each.kind == "C"}
    text = [name for name, each in expressions.items() if each.kind == "numbers" and _is_text(each, everybody)]
    fixed = {name: _declared(name, coded, declared) for name in dict.fromkeys([*text, *coded])}
    keys = {name: everybody.labels(name) if given is None else given for name, given in fixed.items()}
    plain = [each for each in expressions.values() if each.kind == "numbers" and each.name not in text]
    scaled = {key: Expression(key, "numbers", tree, {}) for each in plain for key, tree in each.scaled}
    based = {name: each for name, each in expressions.items() if each.kind in ("bs", "poly")}
    imputed = {each.name: each.inner for each in expressions.values() if each.kind == "mi"}
    sums = everybody.total(f"{about}: levels and moments", lambda table: _tell(table, keys, scaled, based, imputed))
    rows, told, moved = int(sums["rows"]), sums.get("levels", {}), sums.get("moments", {})
    levels = {name: _agreed_levels(name, everybody, told[name], rows, given) for name, given in fixed.items()}
    counts = {
        name: {level: _rows_and_clients(told[name].get(level, (0, 0))) for level in levels[name]} for name in levels
    }
    scales = {key: _scale_of(key, each, moved[key]) for key, each in scaled.items()}
    scales |= {name: mean_and_sd_of_seen(inner, moved[name]) for name, inner in imputed.items()}
    return Agreement(levels, counts, scales, _shapes(everybody, based, moved, about), rows)


def _is_text(expression: Expression, everybody: Everybody) -> bool:
    return expression.columns == (expression.name,) and everybody.is_labels(expression.name)


def _rows_and_clients(told: Sequence[float]) -> tuple[int, int]:
    rows, clients = told
    return int(rows), int(clients)


def _tell(
    table: Table,
    keys: Mapping[str, Sequence[str] | None],
    scaled: Mapping[str, Expression],
    based: Mapping[str, Expression],
    imputed: Mapping[str, str],
) -> dict[str, Any]:
    """A client's part of the first sum: rows, rows of each level and whether it has it, moments.

    Of levels that are known before all are told, so that the keys are everybody's; of imputed columns the values that
    are there.
    """
    found: dict[str, Any] = {"rows": float(table.num_rows), "levels": {}, "moments": {}}
    for name, given in keys.items():
        if given is not None:
            Levels(name, tuple(given), given[0]).codes(table)
        values, numbers = np.unique(table.labels(name).astype(str), return_counts=True)
        own = {str(value): np.array([n, 1.0]) for value, n in zip(values, numbers, strict=True)}
        found["levels"][name] = own if given is None else {level: own.get(level, np.zeros(2)) for level in given}
    for key, each in scaled.items():
        found["moments"][key] = moments(numbers_of(each, table, {}))
    for name, each in based.items():
        found["moments"][name] = moments(numbers_of(each, table, {}))
    for name, inner in imputed.items():
        values = numbers_to_impute(table, inner)
        found["moments"][name] = moments(values[~np.isnan(values)])
    return found


def _scale_of(key: str, call: Expression, summed: np.ndarray) -> tuple[float, float]:
    mean, sd = mean_and_sd(call.columns[0] if key.startswith("center") else key, summed)
    return mean, 1.0 if key.startswith("center") else sd


def _declared(
    name: str, coded: Mapping[str, Expression], declared: Mapping[str, Sequence[Any]]
) -> tuple[str, ...] | None:
    given = coded[name].options.get("levels") if name in coded else None
    given = declared.get(name) if given is None else given
    if given is None:
        return None
    if isinstance(given, str) or not isinstance(given, Iterable):
        raise FormulaError(f"`levels[{name!r}]` is {given!r}; write a list of levels.")
    found = tuple(label_text(level) for level in given)
    if len(set(found)) < len(found) or len(found) < 2:
        raise FormulaError(f"`levels[{name!r}]` is {list(given)}; write at least two levels, each once.")
    return found


def _agreed_levels(
    name: str, everybody: Everybody, counts: Mapping[str, Any], rows: int, declared: tuple[str, ...] | None
) -> tuple[str, ...]:
    """The declared levels, those of a categorical column on which all clients agree, or all that there are."""
    if declared is not None:
        return declared
    if (same := everybody.own_levels(name)) is not None and len(same) > 1:
        return same
    levels = sorted(counts, key=_place)
    limit = min(MOST_LEVELS, max(2, int(rows * _SHARE_OF_ROWS)))
    if len(levels) > limit:
        raise ClientDataError(
            f"'{name}' has {len(levels)} levels in {rows} rows; at most {limit} are agreed on. If it groups rows, "
            f"write `(1 | {name})`; if it is a covariate, declare `levels={{{name!r}: [...]}}`, or write it as a "
            "number."
        )
    if len(levels) < 2:
        raise ClientDataError(f"'{name}' has the level {levels[0]!r} in all rows of all clients. Leave it out.")
    return tuple(levels)


def _place(level: str) -> tuple[float, str]:
    """Numbers by their size, before texts."""
    try:
        return float(level), level
    except ValueError:
        return np.inf, level


def check_declared(declared: Mapping[str, Any], known: Iterable[str]) -> None:
    """Refuse levels of a column that the formula does not name, and lists without any."""
    if not isinstance(declared, Mapping):
        raise FormulaError(f"`levels` is a {type(declared).__name__}; write `levels={{'ward': ['a', 'b']}}`.")
    known = list(known)
    for name, given in declared.items():
        if name not in known:
            raise FormulaError(
                f"`levels` names '{name}', which is no column of the formula: {known}.{did_you_mean(str(name), known)}"
            )
        if isinstance(given, Sized) and not len(given):
            raise FormulaError(
                f"`levels[{name!r}]` is empty; write the levels, each once, or leave '{name}' out of it."
            )


def _shapes(
    everybody: Everybody, based: Mapping[str, Expression], summed: Mapping[str, np.ndarray], about: str
) -> dict[str, Spline | Polynomial]:
    """Splines and polynomials, from a second sum where the first and the formula do not settle them."""
    scales = {name: mean_and_sd(each.inner, summed[name]) for name, each in based.items()}
    asked = {name: each for name, each in based.items() if _asks_for_quantiles(each) or _asks_for_powers(each)}
    sums = (
        everybody.total(f"{about}: binned counts and powers", lambda table: _tell_shapes(table, asked, scales))
        if asked
        else {}
    )
    return {
        name: (_spline if each.kind == "bs" else _polynomial)(each, sums.get(name), scales[name])
        for name, each in based.items()
    }


def _tell_shapes(table: Table, based: Mapping[str, Expression], scales: Scales) -> dict[str, np.ndarray]:
    found = {}
    for name, each in based.items():
        values = numbers_of(each, table, {})
        if each.kind == "bs":
            found[name] = binned(values, *scales[name])
        else:
            found[name] = powers(values, *scales[name], _degree(each, 1))
    return found


def _asks_for_powers(expression: Expression) -> bool:
    return expression.kind == "poly" and not expression.options.get("raw", False)


def _asks_for_quantiles(spline: Expression) -> bool:
    if spline.kind != "bs":
        return False
    bounds = {"lower_bound", "upper_bound"} <= spline.options.keys()
    return not bounds or _num_knots(spline) > 0


def _num_knots(spline: Expression) -> int:
    """Inner knots that have to be found."""
    if "df" not in spline.options:
        return 0
    df, with_first = spline.options["df"], bool(spline.options.get("include_intercept", False))
    least = _degree(spline, 3) + with_first
    if "knots" in spline.options or isinstance(df, bool) or not isinstance(df, int) or not least <= df <= 30:
        raise FormulaError(
            f"`{spline.name}`: write either `knots=[...]`, or `df` as a whole number from {least} to 30."
        )
    return df - least


def _degree(expression: Expression, default: int) -> int:
    degree = expression.options.get("degree", default)
    if isinstance(degree, bool) or not isinstance(degree, int) or not 1 <= degree <= _LARGEST_DEGREE:
        raise FormulaError(
            f"`{expression.name}`: the degree is {degree!r}; write a number from 1 to {_LARGEST_DEGREE}."
        )
    return degree


def _spline(expression: Expression, counts: np.ndarray | None, scale: tuple[float, float]) -> Spline:
    degree, number = _degree(expression, 3), _num_knots(expression)
    options = expression.options
    levels = np.linspace(0.0, 1.0, number + 2)
    found = np.full(number + 2, np.nan) if counts is None else quantiles(counts, levels, *scale)
    lower, upper = options.get("lower_bound", found[0]), options.get("upper_bound", found[-1])
    knots = options.get("knots", found[1:-1])
    try:
        lower, upper, inner = float(lower), float(upper), [float(knot) for knot in knots]
    except (TypeError, ValueError) as error:
        raise FormulaError(f"`{expression.name}`: knots and bounds are numbers, such as `knots=[40, 60]`.") from error
    every = [lower, *inner, upper]
    if any(first >= second for first, second in pairwise(every)):
        raise FormulaError(f"`{expression.name}`: knots rise from bound to bound, but these are {every}.")
    padded = (*[lower] * degree, *every, *[upper] * degree)
    return Spline(expression, padded, degree, bool(options.get("include_intercept", False)))


def _polynomial(expression: Expression, sums: np.ndarray | None, scale: tuple[float, float]) -> Polynomial:
    degree = _degree(expression, 1)
    if sums is None:
        raw = np.eye(degree + 1)[1:]
        return Polynomial(expression, 0.0, 1.0, tuple(map(tuple, raw.tolist())))
    found = orthonormal(expression.inner, sums)
    return Polynomial(expression, *scale, tuple(map(tuple, found.tolist())))
