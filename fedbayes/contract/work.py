"""How much an update computes, as far as the shapes of a client's program tell before it runs."""

from typing import NamedTuple, Self

# Evaluations of a client's log density that others are worth, by the programs of `benchmarks/FORETOLD.md`: its
# gradient, one more column of a Hessian, and an evaluation where globals stay, of which much is computed only once.
GRADIENT, COLUMN, GIVEN = 3.0, 0.5, 0.4
_PER_ROW = 100.0  # operations on matrices that take as long as the log density of a row


class Work(NamedTuple):
    """What one run of an update takes at one client, for one replicate.

    Attributes
    ----------
    evaluations
        Of the client's log density with all its rows.
    operations
        On matrices of locals by locals.
    matrices, draws
        Numbers in such matrices, and in draws of all locals, that are held at once: so many at least.
    """

    evaluations: float
    operations: float = 0.0
    matrices: float = 0.0
    draws: float = 0.0

    @property
    def numbers(self) -> float:
        """That are held at once, so many at least: matrices and draws need not be there at the same time."""
        return max(self.matrices, self.draws)

    def of_rows(self, rows: int) -> float:
        """Evaluations of a row's log density that take as long, where the client has so many rows."""
        return self.evaluations * rows + self.operations / _PER_ROW

    def times(self, number: float, at_once: float = 1.0) -> Self:
        """So many times as much, of which ``at_once`` are held side by side."""
        evaluations, operations = number * self.evaluations, number * self.operations
        return type(self)(evaluations, operations, at_once * self.matrices, at_once * self.draws)

    def and_then(self, other: "Work") -> Self:
        """One after the other."""
        evaluations, operations = self.evaluations + other.evaluations, self.operations + other.operations
        return type(self)(evaluations, operations, max(self.matrices, other.matrices), max(self.draws, other.draws))
