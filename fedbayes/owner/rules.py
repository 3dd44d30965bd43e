"""Disclosure rules: what an owner of data asks of them before anything that was computed on them leaves.

A sum over rows hides a row only among others. So the rules ask for enough rows in every group that a message can be
solved for: all rows against the globals, the rows at each value of a column, and those at each value of a column with
each outcome. The limits are those of statistical disclosure control, where every custodian sets its own.

References
----------
DataSHIELD's disclosure settings: ``nfilter.tab`` 3, ``nfilter.glm`` 0.33, ``nfilter.levels.max`` 40,
``nfilter.levels.density`` 0.33. OMOP and DARWIN EU ask for 5 rows in a cell, the UK's ONS for 10, the US CMS, TriNetX
and PCORnet for 11, N3C for 20.
"""

import math
from dataclasses import dataclass
from enum import Enum
from typing import NamedTuple


class Rule(Enum):
    """What can be found; the values are the words in which a table names it, and what to do."""

    ROWS = "few rows", "Use a model with fewer globals, or do without this client."
    CELL = "small cell", "Merge the value with another, or leave the column out."
    NEARLY_CONSTANT = "nearly constant", "Leave the column out: it says who the few rows are."
    RARE_OUTCOME = "rare outcome", "Do without this client, or take another outcome: few rows have this one."
    CROSS = "small cell with outcome", "Merge values of the column, or leave it out."
    SEPARATION = "separation", "Leave the column out: it tells the outcome of all these rows."
    ALIKE = "one outcome", "Leave it out: whoever knows that a row is there knows its outcome."
    CHANGED = "few rows changed", "Wait until more rows differ from those in an earlier study, or take these."
    LEVELS = "many levels", "Merge levels: a level with few rows is a row's own coefficient."

    @property
    def words(self) -> str:
        """What the rule has found, in two or three words."""
        return self.value[0]

    @property
    def advice(self) -> str:
        """What to do, as a sentence."""
        return self.value[1]


class Finding(NamedTuple):
    """Something that a rule does not let out.

    Attributes
    ----------
    rule
        Which one.
    column
        ``"x[age]"``, ``"y"``, ``"y by x[sex]"``; empty where it is about all rows.
    size
        Rows in the smallest such cell; rows that differ from all others; levels; rows that are told.
    limit
        What the rule asks for.
    cells
        How many such cells or groups there are in this column.
    """

    rule: Rule
    column: str
    size: int
    limit: float
    cells: int = 1


@dataclass(frozen=True)
class DisclosureRules:
    """An owner's limits.

    Attributes
    ----------
    smallest_cell
        Fewest rows at a value of a column with few values, at such a value with each outcome, and at none of the values
        of a factor's dummies; 1 lets everything pass. No row at all is no cell.
    globals_per_row
        Most unconstrained globals for each row.
    few_values
        A column with at most so many different values, and at most half as many as rows, is taken for a table. An index
        of the model always is. Outcomes that are no categories by their law, such as counts, are with two values.
    most_levels
        Most levels of an index of the model.
    levels_per_row
        Most levels of an index for each row.
    separation
        Refuse a value of a column at which all rows have the same outcome, and an outcome that all rows have.
    except_columns
        What the owner lets pass, as a table of findings names it: ``("x[sex]", "y by x[sex]")``. A column that passes
        is still looked at together with outcomes.

    Raises
    ------
    ValueError
        A limit is out of range.

    See Also
    --------
    disclosure : What the rules find.

    Examples
    --------
    >>> import fedbayes as fb
    >>> rules = fb.DisclosureRules(smallest_cell=10)  # for `fb.disclosure(model, clients, rules=rules)`
    >>> rules.globals_per_row
    0.33
    """

    smallest_cell: int = 5
    globals_per_row: float = 0.33
    few_values: int = 10
    most_levels: int = 40
    levels_per_row: float = 0.33
    separation: bool = True
    except_columns: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        for name in ("smallest_cell", "few_values", "most_levels"):
            value = getattr(self, name)
            if isinstance(value, bool) or not isinstance(value, int) or value < 1:
                raise ValueError(f"`{name}` is {value!r}; write a whole number from 1 on.")
        for name in ("globals_per_row", "levels_per_row"):
            value = getattr(self, name)
            if isinstance(value, bool) or not isinstance(value, int | float) or not 0.0 < value < math.inf:
                raise ValueError(f"`{name}` is {value!r}; write a positive number.")
        if not isinstance(self.separation, bool):
            raise ValueError(f"`separation` is {self.separation!r}; write true or false.")
        names = self.except_columns
        if not isinstance(names, list | tuple) or not all(isinstance(name, str) for name in names):
            raise ValueError(f'`except_columns` is {names!r}; write names in a list, ["x[sex]", "y by x[sex]"].')
        object.__setattr__(self, "except_columns", tuple(self.except_columns))
