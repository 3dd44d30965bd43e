"""A variable of a formula, and tables in which it has other values."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from fedbayes.errors import ClientDataError, FormulaError, did_you_mean
from fedbayes.formula.design.design import Design
from fedbayes.formula.design.factors import Levels
from fedbayes.formula.design.tables import Table, label_text
from fedbayes.formula.regression import Regression


@dataclass(frozen=True)
class Variable:
    """A column on the right of a formula.

    Attributes
    ----------
    name
        Of the column.
    levels
        All of them in order, the one that others are compared with first; empty for numbers.
    pair
        The two values that are compared, the second with the first; empty where they follow from the column.
    """

    name: str
    levels: tuple[str, ...]
    pair: tuple[Any, ...] = ()

    def contrasts(self, table: Table, step: float | None) -> Iterator[tuple[str, Table, Table]]:
        """Pairs of tables that are alike but for the variable: a label, the first, and the second one.

        The two values that were named; else of levels each other one against the first, of yes and no, and of zeros
        and ones alone, the two, and of numbers ``step`` more, or one.
        """
        if self.pair:
            at = self._at if self.levels else self._with
            first, second = (at(table, value) for value in self.pair)
            yield " vs ".join(label_text(value) for value in reversed(self.pair)), first, second
        elif self.levels:
            first = self._at(table, self.levels[0])
            for level in self.levels[1:]:
                yield f"{level} vs {self.levels[0]}", first, self._at(table, level)
        elif table.is_true_or_false(self.name):
            no, yes = (table.with_column(self.name, value) for value in (False, True))
            yield "True vs False", no, yes
        else:
            numbers = self.numbers(table)
            if step is None and np.isin(numbers, (0.0, 1.0)).all():
                zero, one = (table.with_column(self.name, np.full_like(numbers, value)) for value in (0.0, 1.0))
                yield "1 vs 0", zero, one
            else:
                more = 1.0 if step is None else step
                yield f"+{more:g}", table, table.with_column(self.name, numbers + more)

    def numbers(self, table: Table) -> np.ndarray:
        """Its values, shape ``(n,)``.

        Raises
        ------
        FormulaError
            It has levels.
        ClientDataError
            They are no numbers.
        """
        if self.levels:
            raise FormulaError(
                f"`variable` is '{self.name}', which has the levels {list(self.levels)} and no slope. Write "
                "`fb.comparisons`."
            )
        return table.numbers(self.name, self.name)

    def between(self, values: Any) -> "Variable":
        """The same with two values to compare.

        Raises
        ------
        FormulaError
            These are not two, or no values of the variable.
        """
        example: list[Any] = list(self.levels[:2]) or [0.0, 1.0]
        if not isinstance(values, list | tuple | np.ndarray) or len(values) != 2:
            raise FormulaError(
                f"`variable` compares {values!r} of '{self.name}'; write the two values, {{{self.name!r}: {example}}}."
            )
        pair = tuple(map(label_text, values)) if self.levels else tuple(map(_number, values))
        if self.levels:
            bad = [value for value in pair if value not in self.levels]
        else:
            bad = [value for value, number in zip(values, pair, strict=True) if number is None]
        if bad:
            known = f"whose levels are {list(self.levels)}" if self.levels else "which is a number"
            raise FormulaError(
                f"`variable` compares {bad[0]!r} of '{self.name}', {known}.{did_you_mean(str(bad[0]), self.levels)}"
            )
        if pair[0] == pair[1]:
            raise FormulaError(f"`variable` compares {values[0]!r} of '{self.name}' with itself; write two values.")
        return replace(self, pair=pair)

    def _with(self, table: Table, value: float) -> Table:
        """All rows at a number; refused where the table has text."""
        self.numbers(table)
        return table.with_column(self.name, value)

    def _at(self, table: Table, level: str) -> Table:
        """All rows at a level, written as a number where the column has numbers."""
        if table.is_labels(self.name):
            return table.with_column(self.name, level)
        if level in ("True", "False"):
            return table.with_column(self.name, level == "True")
        return table.with_column(self.name, float(level))


def variable_of(reg: Regression, name: Any) -> Variable:
    """The variable of this name.

    Raises
    ------
    FormulaError
        It is no covariate of the formula.
    """
    designs = list(_designs(reg))
    known = list(dict.fromkeys(read for design in designs for read in design.reads))
    if not isinstance(name, str) or name not in known:
        groups = {
            part
            for predictor in reg.parts.predictors
            for group in predictor.groups
            for part in (*group.grouping.columns, group.grouping.name)
        }
        if isinstance(name, str) and name in groups:
            raise FormulaError(
                f"`variable` is '{name}', a group. Compare its effects by `fit.random_effects().contrast(...)`."
            )
        raise FormulaError(
            f"`variable` is {name!r}, which is no column on the right of the formula; these are "
            f"{', '.join(map(repr, known)) or 'none'}.{did_you_mean(str(name), known)}"
        )
    for design in designs:
        for factor in design.factors.values():
            if isinstance(factor, Levels) and factor.column == name:
                first = factor.levels[0] if factor.sums else factor.base
                return Variable(name, (first, *(level for level in factor.levels if level != first)))
    return Variable(name, ())


def comparison_of(reg: Regression, variable: Any, step: float | None) -> Variable:
    """What is compared: a variable by its name, or two of its values, ``{name: [first, second]}``.

    Raises
    ------
    FormulaError
        It is no covariate of the formula, or these are no two values of it; there is a step beside them.
    """
    if not isinstance(variable, Mapping):
        return variable_of(reg, variable)
    if len(variable) != 1:
        raise FormulaError(
            f"`variable` has {len(variable)} columns, {list(variable)}; write one, with the two values to compare, and "
            "ask again for another."
        )
    if step is not None:
        raise FormulaError(f"`step` is {step:g}, and `variable` names two values to compare. Leave one of them out.")
    [(name, values)] = variable.items()
    return variable_of(reg, name).between(values)


def _number(value: Any) -> float | None:
    """A finite number, yes and no as they are, or ``None``."""
    if isinstance(value, bool | np.bool_):
        return bool(value)
    try:
        found = float(value)
    except (TypeError, ValueError):
        return None
    return found if np.isfinite(found) else None


def _designs(reg: Regression) -> Iterator[Design]:
    for predictor in reg.parts.predictors:
        yield predictor.design
        yield from (group.design for group in predictor.groups)


def check_step(step: Any) -> float | None:
    """A difference of numbers that is compared, or ``None``.

    Raises
    ------
    ValueError
        It is none.
    """
    if step is None:
        return None
    try:
        found = float(step)
    except (TypeError, ValueError):
        found = np.nan
    if not np.isfinite(found) or found == 0.0:
        raise ValueError(f"`step` is {step!r}; write how much larger the variable is made, such as 1 or 10.")
    return found


def spread(table: Table, values: np.ndarray) -> float:
    """What a small difference is small beside: the sd of the values; of equal ones, a hundredth of their size.

    Raises
    ------
    ClientDataError
        There is no value.
    """
    if not len(values):
        raise ClientDataError(f"Client '{table.client}' has no rows.")
    return float(np.std(values)) or 0.01 * max(1.0, float(np.max(np.abs(values))))
