"""The columns of one linear predictor, the same at every client."""

from collections.abc import Mapping
from dataclasses import dataclass, replace

import numpy as np

from fedbayes.errors import FormulaError
from fedbayes.formula.design.agreement import Agreement
from fedbayes.formula.design.coding import Block, blocks_of
from fedbayes.formula.design.factors import Factor, numbers_of
from fedbayes.formula.design.imputed import Imputed, LeftOut
from fedbayes.formula.design.tables import Table
from fedbayes.formula.grammar.expressions import Expression, column, read_expression
from fedbayes.formula.grammar.terms import Terms

MOST_COLUMNS = 500


@dataclass(frozen=True)
class Design:
    """The terms of a linear predictor with all that was agreed about their columns.

    Attributes
    ----------
    intercept
        Whether there is one. It has no column.
    blocks
        The terms.
    factors
        Their factors, by how these are written.
    offsets
        Expressions that are added as they are.
    scales
        Of scaled parts of offsets.
    """

    intercept: bool
    blocks: tuple[Block, ...]
    factors: Mapping[str, Factor]
    offsets: tuple[Expression, ...]
    scales: Mapping[str, tuple[float, float]]

    @property
    def names(self) -> tuple[str, ...]:
        """One for each column, ``age`` or ``sex[M]``."""
        return tuple(
            block.name if not label else f"{block.name}[{label}]" for block in self.blocks for label in block.labels
        )

    @property
    def width(self) -> int:
        """Number of columns."""
        return sum(block.width for block in self.blocks)

    @property
    def reads(self) -> tuple[str, ...]:
        """The columns of a table that it reads."""
        found = [name for factor in self.factors.values() for name in factor.reads]
        return tuple(dict.fromkeys([*found, *(name for each in self.offsets for name in each.columns)]))

    @property
    def imputed(self) -> dict[str, np.ndarray]:
        """By imputed factor, the places of the columns that it is in."""
        of_columns = [block.factors for block in self.blocks for _ in block.labels]
        return {
            factor.name: np.array([place for place, names in enumerate(of_columns) if name in names])
            for name, factor in self.factors.items()
            if isinstance(factor, Imputed)
        }

    @property
    def with_imputed(self) -> np.ndarray:
        """The places of the columns that any imputed factor is in, in order."""
        return np.unique(np.concatenate([*self.imputed.values(), np.zeros(0, int)])).astype(int)

    def without_imputed(self) -> "Design":
        """The same with ones in place of imputed factors."""
        factors = {name: LeftOut() if isinstance(factor, Imputed) else factor for name, factor in self.factors.items()}
        return replace(self, factors=factors)

    def seen(self, table: Table) -> np.ndarray:
        """Whether all imputed factors of the columns :attr:`with_imputed` have a value, shape ``(n, m)``."""
        found = np.ones((table.num_rows, self.width), bool)
        for factor in self.factors.values():
            if isinstance(factor, Imputed):
                found[:, self.imputed[factor.name]] &= factor.seen(table)[:, None]
        return found[:, self.with_imputed]

    def values(self, table: Table) -> np.ndarray:
        """The columns of a client's rows, shape ``(n, width)``."""
        if not self.blocks:
            return np.zeros((table.num_rows, 0))
        return np.concatenate([block.values(self.factors, table) for block in self.blocks], axis=1)

    def offset(self, table: Table) -> np.ndarray | None:
        """The sum of the offsets, shape ``(n,)``; ``None`` where there is none."""
        if not self.offsets:
            return None
        return np.sum([numbers_of(each, table, self.scales) for each in self.offsets], axis=0)


def design_of(terms: Terms, agreed: Agreement) -> Design:
    """The columns of these terms."""
    factors: dict[str, Factor] = {}
    for term in terms.terms:
        for each in term.factors:
            factors[each.name] = agreed.factor(column(each.name) if each.is_column else read_expression(each.name))
    offsets = tuple(read_expression(text) for text in terms.offsets)
    found = Design(terms.intercept, blocks_of(terms, factors), factors, offsets, agreed.scales)
    if found.width > MOST_COLUMNS:
        raise FormulaError(f"The terms have {found.width:,} columns; at most {MOST_COLUMNS} are made. Leave some out.")
    return found
