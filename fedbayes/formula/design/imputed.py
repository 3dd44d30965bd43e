"""A covariate whose missing values are imputed: its column, and what stands for it where the value is not known."""

from dataclasses import dataclass

import numpy as np

from fedbayes.errors import ClientDataError
from fedbayes.formula.design.tables import Table
from fedbayes.formula.design.totals import check_size


@dataclass(frozen=True)
class Imputed:
    """A column of numbers of which some are missing, written ``mi(x)``.

    Attributes
    ----------
    name
        As it is written.
    column
        Its name in a table.
    mean, sd
        Of the values that all clients have.
    """

    name: str
    column: str
    mean: float
    sd: float
    categorical = False

    @property
    def reads(self) -> tuple[str, ...]:
        """See :class:`~fedbayes.formula.design.factors.Factor`."""
        return (self.column,)

    def labels(self, full: bool) -> tuple[str, ...]:
        """A single one, empty."""
        return ("",)

    def values(self, table: Table, full: bool) -> np.ndarray:
        """The values, everybody's mean in place of missing ones, shape ``(n, 1)``."""
        found = numbers_to_impute(table, self.column)
        return np.where(np.isnan(found), self.mean, found)[:, None]

    def seen(self, table: Table) -> np.ndarray:
        """In which rows there is a value, shape ``(n,)``."""
        return ~np.isnan(numbers_to_impute(table, self.column))


@dataclass(frozen=True)
class LeftOut:
    """What stands for an imputed factor in a product whose other factors alone are wanted: ones."""

    categorical = False
    reads: tuple[str, ...] = ()

    def labels(self, full: bool) -> tuple[str, ...]:
        """A single one, empty."""
        return ("",)

    def values(self, table: Table, full: bool) -> np.ndarray:
        """Shape ``(n, 1)``."""
        return np.ones((table.num_rows, 1))


def numbers_to_impute(table: Table, column: str) -> np.ndarray:
    """A column's numbers, NaN where one is missing, shape ``(n,)``.

    Raises
    ------
    ClientDataError
        It holds text, or yes and no, for which a normal law is no model.
    """
    held = "text" if table.is_labels(column) else "True and False" if table.is_true_or_false(column) else ""
    if held:
        raise ClientDataError(
            f"Client '{table.client}': column '{column}' holds {held}, and `mi({column})` imputes numbers alone, by a "
            f"normal law. Write '{column}' by itself, and make missing values a level of their own, or leave their "
            "rows out by `missing='drop'`."
        )
    return table.numbers(column, f"mi({column})")


def mean_and_sd_of_seen(column: str, summed: np.ndarray) -> tuple[float, float]:
    """Everybody's mean and sd (divisor n - 1) of the values that are not missing.

    Raises
    ------
    ClientDataError
        There are none, they do not vary, are zeros and ones, or too large or too small.
    """
    rows, first, second = map(float, summed)
    if rows:
        check_size(f"mi({column})", first / rows, second / rows)
    spread = second / rows - (first / rows) ** 2 if rows else 0.0
    if rows < 2 or spread <= 1e-9 * second / rows:
        raise ClientDataError(
            f"`mi({column})`: all clients together have {rows:.0f} values of '{column}', which do not vary, so that "
            "nothing says what the missing ones are. Leave it out."
        )
    if first == second:  # the sum of x (x - 1)
        raise ClientDataError(
            f"`mi({column})`: all values of '{column}' are 0 or 1, for which a normal law is no model. Write it as "
            "text with a level for missing values, or leave their rows out by `missing='drop'`."
        )
    return first / rows, float(np.sqrt(spread * rows / (rows - 1.0)))
