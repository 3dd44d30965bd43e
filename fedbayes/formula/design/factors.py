"""What one factor of a term makes of a client's rows: a column, the columns of a basis, or those of levels."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Protocol

import numpy as np

from fedbayes.errors import ClientDataError
from fedbayes.formula.design.tables import Table
from fedbayes.formula.grammar.expressions import Expression, compute

Scales = Mapping[str, tuple[float, float]]


class Factor(Protocol):
    """A factor whose levels, knots and scales are settled."""

    @property
    def categorical(self) -> bool:
        """Whether it has levels, so that its columns add up to one."""

    @property
    def reads(self) -> tuple[str, ...]:
        """The columns of a table that it reads."""

    def labels(self, full: bool) -> tuple[str, ...]:
        """One for each column, empty for a single one without levels; ``full`` has a column of every level."""

    def values(self, table: Table, full: bool) -> np.ndarray:
        """The columns of a client's rows, shape ``(n, k)``."""


def numbers_of(expression: Expression, table: Table, scales: Scales) -> np.ndarray:
    """What is computed first in an expression, shape ``(n,)``.

    Raises
    ------
    ClientDataError
        A column holds no numbers, or the result is not finite.
    """
    columns = {name: table.numbers(name, expression.name) for name in expression.columns}
    with np.errstate(all="ignore"):
        found = np.broadcast_to(compute(expression.tree, columns, scales), (table.num_rows,))
    if bad := int((~np.isfinite(found)).sum()):
        raise ClientDataError(
            f"Client '{table.client}': `{expression.name}` is no finite number in {bad} of {table.num_rows} rows, "
            "such as the logarithm of zero. Correct these rows, or write another expression."
        )
    return np.asarray(found, float)


@dataclass(frozen=True)
class Numbers:
    """An expression: one column."""

    expression: Expression
    scales: Scales
    categorical = False

    @property
    def reads(self) -> tuple[str, ...]:
        """See :class:`Factor`."""
        return self.expression.columns

    def labels(self, full: bool) -> tuple[str, ...]:
        """A single one, empty."""
        return ("",)

    def values(self, table: Table, full: bool) -> np.ndarray:
        """Shape ``(n, 1)``."""
        return numbers_of(self.expression, table, self.scales)[:, None]


@dataclass(frozen=True)
class Levels:
    """A column of text: one column for each level, or for each but one.

    Attributes
    ----------
    column
        Its name.
    levels
        All levels, in order.
    base
        The level that has no column of its own.
    sums
        Whether levels are compared with the mean of all, the last level's column being minus all others'.
    """

    column: str
    levels: tuple[str, ...]
    base: str
    sums: bool = False
    categorical = True

    @property
    def reads(self) -> tuple[str, ...]:
        """See :class:`Factor`."""
        return (self.column,)

    def labels(self, full: bool) -> tuple[str, ...]:
        """The levels that have a column."""
        return self.levels if full else tuple(level for level in self.levels if level != self.base)

    def values(self, table: Table, full: bool) -> np.ndarray:
        """Shape ``(n, levels)``, or one column less.

        Raises
        ------
        ClientDataError
            A row has another level.
        """
        there = (self.codes(table)[:, None] == np.arange(len(self.levels))).astype(float)
        if full:
            return there
        place = self.levels.index(self.base)
        others = np.delete(there, place, axis=1)
        return others - there[:, [place]] if self.sums else others

    def codes(self, table: Table) -> np.ndarray:
        """Each row's level as its place among all, shape ``(n,)``."""
        labels = table.labels(self.column)
        place = {level: number for number, level in enumerate(self.levels)}
        unknown = [label for label in labels if label not in place]
        if unknown:
            raise ClientDataError(
                f"Client '{table.client}': {len(unknown)} of {table.num_rows} rows have a level of '{self.column}' "
                f"that is none of the declared ones, such as {unknown[0]!r}; these are {list(self.levels)[:20]}. Add "
                f"it to `levels={{{self.column!r}: [...]}}`, or recode these rows."
            )
        return np.asarray([place[label] for label in labels])


@dataclass(frozen=True)
class Spline:
    """A basis of B-splines; beyond its bounds the outer polynomials go on.

    Source: de Boor (1978), A Practical Guide to Splines. With given knots and bounds the columns are those of
    ``splines::bs`` of R, and of ``bs`` of patsy and formulaic.

    Attributes
    ----------
    expression
        Whose numbers it is of.
    knots
        All of them, bounds included, each as often as the basis needs.
    degree
        Of the polynomials.
    with_first
        Whether the first column is kept, so that the columns add up to one.
    """

    expression: Expression
    knots: tuple[float, ...]
    degree: int
    with_first: bool
    categorical = False

    @property
    def reads(self) -> tuple[str, ...]:
        """See :class:`Factor`."""
        return self.expression.columns

    def labels(self, full: bool) -> tuple[str, ...]:
        """Numbers from one on."""
        return tuple(map(str, range(1, self._width + 1)))

    @property
    def bounds(self) -> tuple[float, float]:
        """The outer knots."""
        return self.knots[0], self.knots[-1]

    def outside(self, table: Table) -> np.ndarray:
        """In which rows the argument is beyond the bounds, shape ``(n,)``."""
        found, (lower, upper) = numbers_of(self.expression, table, {}), self.bounds
        return (found < lower) | (found > upper)

    @property
    def _width(self) -> int:
        return len(self.knots) - self.degree - 1 - (not self.with_first)

    def values(self, table: Table, full: bool) -> np.ndarray:
        """Shape ``(n, k)``."""
        from scipy.interpolate import BSpline

        found = numbers_of(self.expression, table, {})
        basis = BSpline.design_matrix(found, np.asarray(self.knots), self.degree, extrapolate=True).toarray()
        return basis if self.with_first else basis[:, 1:]


@dataclass(frozen=True)
class Polynomial:
    """Powers, or polynomials that are orthonormal over all clients' rows together, as ``poly`` of R.

    Attributes
    ----------
    expression
        Whose numbers it is of.
    centre, scale
        By which these are standardised first.
    coefficients
        Of the polynomials, one row each, lowest power first, shape ``(degree, degree + 1)``.
    """

    expression: Expression
    centre: float
    scale: float
    coefficients: tuple[tuple[float, ...], ...]
    categorical = False

    @property
    def reads(self) -> tuple[str, ...]:
        """See :class:`Factor`."""
        return self.expression.columns

    def labels(self, full: bool) -> tuple[str, ...]:
        """The degrees."""
        return tuple(str(degree + 1) for degree in range(len(self.coefficients)))

    def values(self, table: Table, full: bool) -> np.ndarray:
        """Shape ``(n, degree)``."""
        z = (numbers_of(self.expression, table, {}) - self.centre) / self.scale
        return np.vander(z, len(self.coefficients) + 1, increasing=True) @ np.asarray(self.coefficients).T
