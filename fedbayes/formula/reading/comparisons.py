"""How much the expected outcome changes with a variable: by a step, from level to level, or by its slope."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
from jax import Array

from fedbayes.errors import FormulaError
from fedbayes.formula.reading.reader import Outcomes, outcomes_of, warn_outside
from fedbayes.formula.reading.variables import check_step, comparison_of, spread, variable_of
from fedbayes.formula.regression import Regression
from fedbayes.questions.hypothesis import check_level
from fedbayes.questions.regression.estimates import Estimates, named_draws

_NARROW = 1e-4  # of a central difference, in the variable's sds: its error is of the order of the square


def _odds(values: np.ndarray) -> np.ndarray:
    return values / (1.0 - values)


_BY: dict[str, Callable[[np.ndarray, np.ndarray], np.ndarray]] = {
    "difference": lambda first, second: second - first,
    "ratio": lambda first, second: second / first,
    "odds ratio": lambda first, second: _odds(second) / _odds(first),
}


def comparisons(
    reg: Regression,
    fit: Any,
    rows: Any,
    variable: str | Mapping[str, Sequence[Any]],
    *,
    by: str = "difference",
    step: float | None = None,
    average: bool = True,
    where: Any = "average",
    scale: str = "response",
    level: float = 0.9,
    new_groups: bool = False,
    key: Array | None = None,
) -> Estimates:
    """How much the expected outcome differs between rows that are alike but for one variable.

    With ``m_i(v)`` the expected outcome of row ``i`` were its variable ``v``, at each draw of the parameters: the
    difference ``m_i(v') - m_i(v)``, the ratio ``m_i(v') / m_i(v)``, or the odds ratio. Averaged, ``m`` are the means
    over the rows, ``(1 / n) sum_i m_i``: the ratio is a ratio of means, and no mean of ratios.

    Parameters
    ----------
    reg, fit, rows, where, level, new_groups, key
        See :func:`fedbayes.predictions`. A new site's effects are the same on both sides.
    variable
        A column on the right of the formula. Of levels each other one is compared with the first, the one without a
        coefficient; of a column of yes and no, or of zeros and ones alone, the two; of other numbers ``step`` more with
        the value that a row has. ``{"stage": ["II", "III"]}`` compares two values of one column, the second with the
        first.
    by
        ``"difference"``, ``"ratio"``, or ``"odds ratio"``, which is for probabilities.
    step
        How much larger numbers are made, also zeros and ones; ``None``: by one.
    average
        Over the rows; else each row by itself.
    scale
        ``"response"``, or ``"link"`` for differences of the linear predictor.

    Returns
    -------
    Estimates
        ``.draws`` with the dimensions ``chain, draw, contrast``, then ``row`` unless averaged, then ``level`` of
        ordered and categorical outcomes.

    Raises
    ------
    FormulaError, ClientDataError
        As for :func:`fedbayes.predictions`; or the variable is none of the formula, or ``by`` means nothing here.

    See Also
    --------
    slopes : How fast the outcome changes with a predictor.
    predictions : The outcomes themselves.
    probability_of_direction : How sure the sign is.

    Examples
    --------
    >>> fb.comparisons(reg, fit, rows, "sex", by="ratio")  # doctest: +SKIP
    >>> fb.comparisons(reg, fit, rows, {"age": [50, 60]})  # doctest: +SKIP
    """
    level, step = check_level(level), check_step(step)
    found = comparison_of(reg, variable, step)
    outcomes = outcomes_of(reg, fit, where, scale, key, new_groups)
    _check_by(by, outcomes)
    table = outcomes.reader.table(rows)
    pairs = list(found.contrasts(table, step))
    warn_outside(reg, [each for _, *both in pairs for each in both])
    labels, values = [], []
    for label, first, second in pairs:
        labels.append(label)
        values.append(_BY[by](*(outcomes.at(each, average) for each in (first, second))))
    dims = {"contrast": labels, **_rows(table.num_rows, average), **outcomes.levels}
    title = f"{by.capitalize()} of the {outcomes.words} by {found.name} {outcomes.reader.place.words}"
    return Estimates(
        named_draws(np.stack(values, axis=2), dims),
        title + (f", mean over {table.num_rows} rows" if average else ""),
        level,
        0.0 if by == "difference" else 1.0,
    )


def slopes(
    reg: Regression,
    fit: Any,
    rows: Any,
    variable: str,
    *,
    average: bool = True,
    where: Any = "average",
    scale: str = "response",
    level: float = 0.9,
    new_groups: bool = False,
    key: Array | None = None,
) -> Estimates:
    """By how much the expected outcome changes with a variable of numbers, per unit of it.

    The central difference ``(m_i(v + h) - m_i(v - h)) / (2 h)`` of the expected outcome ``m_i`` at each draw of the
    parameters, with ``h`` a ten-thousandth of the variable's sd over the rows; where it does not vary, a millionth of
    its size.

    Parameters
    ----------
    reg, fit, rows, where, scale, level, new_groups, key
        See :func:`fedbayes.predictions`.
    variable
        A column of numbers on the right of the formula.
    average
        Over the rows; else each row by itself.

    Returns
    -------
    Estimates
        ``.draws`` with the dimensions ``chain, draw``, then ``row`` unless averaged, then ``level`` of ordered and
        categorical outcomes.

    Raises
    ------
    FormulaError, ClientDataError
        As for :func:`fedbayes.predictions`; or the variable is none of the formula, or has levels.

    See Also
    --------
    comparisons : Differences between two values of a predictor.
    predictions : The outcomes themselves.

    Examples
    --------
    >>> fb.slopes(reg, fit, rows, "age").summary["median"]  # doctest: +SKIP
    """
    level, found = check_level(level), variable_of(reg, variable)
    outcomes = outcomes_of(reg, fit, where, scale, key, new_groups)
    table = outcomes.reader.table(rows)
    warn_outside(reg, [table])
    numbers = found.numbers(table)
    half = _NARROW * spread(table, numbers)
    below, above = (outcomes.at(table.with_column(variable, numbers + move), average) for move in (-half, half))
    values = (above - below) / (2.0 * half)
    title = f"Slope of the {outcomes.words} along {variable} {outcomes.reader.place.words}"
    return Estimates(
        named_draws(values, {**_rows(table.num_rows, average), **outcomes.levels}),
        title + (f", mean over {table.num_rows} rows" if average else ""),
        level,
        0.0,
    )


def _rows(number: int, average: bool) -> dict[str, Any]:
    return {} if average else {"row": np.arange(number)}


def _check_by(by: Any, outcomes: Outcomes) -> None:
    if by not in _BY:
        raise FormulaError(f"`by` is {by!r}; write 'difference', 'ratio' or 'odds ratio'.")
    if outcomes.scale == "link" and by != "difference":
        raise FormulaError(
            f"`by` is {by!r} on the scale of the link, where only a 'difference' means something: its exponential is "
            "the ratio."
        )
    reading = outcomes.reader.reg.parts.family.reading
    if by == "odds ratio" and reading.response != "probability":
        raise FormulaError(
            f"`by` is 'odds ratio', and the {outcomes.words} is no probability. Write 'difference' or 'ratio'."
        )
