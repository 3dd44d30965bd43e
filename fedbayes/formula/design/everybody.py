"""Everybody's rows, as an agreement asks about them: by sums, and by looks that each client takes at its own.

An agreement is written once, and runs wherever the rows are: in one process over all tables; at a site, which answers
from its own and is told the sums; at a server, which has none and asks for the sums.
"""

from collections.abc import Callable, Iterable
from typing import Any, Protocol

from fedbayes.formula.design.tables import Table, check_kinds, check_words
from fedbayes.formula.design.totals import Tree, total

Tell = Callable[[Table], Tree]


class Everybody(Protocol):
    """All clients, of whom nothing is known but sums and what was declared."""

    @property
    def num_clients(self) -> int:
        """How many there are."""

    def look(self, check: Callable[[Table], object]) -> None:
        """Let each client check its own rows; what it raises is the client's own affair where it is elsewhere."""

    def total(self, name: str, tell: Tell) -> dict[str, Any]:
        """The sum over all clients of what each tells.

        Parameters
        ----------
        name
            Of the sum; each is asked for once.
        tell
            From a client's rows to numbers and arrays by keys, which depend on nothing but the formula and on earlier
            sums.
        """

    def is_labels(self, column: str) -> bool:
        """Whether a column holds text or categories, the same at all clients."""

    def labels(self, column: str) -> tuple[str, ...] | None:
        """All clients' labels in a column, where the keys of a sum have to be known before; ``None`` where not."""

    def own_levels(self, column: str) -> tuple[str, ...] | None:
        """The levels of a categorical column where all clients' tables have the same; ``None`` where they do not."""

    def is_ordered(self, column: str) -> bool:
        """Whether all clients' tables say that the levels have an order."""

    def look_across(
        self, labels: Callable[[Table], Iterable[str]], refuse: Callable[[str, str, str], Exception]
    ) -> None:
        """Refuse labels that two clients have.

        Parameters
        ----------
        labels
            Of a client's rows.
        refuse
            From a label and two clients to what is raised.
        """

    def constant(self, columns: Iterable[str]) -> dict[str, list[str]]:
        """Clients that have one value alone in a column, by column; empty where clients are elsewhere.

        Those columns are named in which fewer than half of the clients do, and others have more than two values: there
        it may be a code for a missing one.
        """

    def complete(self, columns: list[str]) -> tuple["Everybody", list[str]]:
        """The same without rows that lack a value in one of these columns, and notes on how many these are."""


class Tables(dict[str, Table]):
    """All clients' tables, in this process."""

    @property
    def num_clients(self) -> int:
        """See :class:`Everybody`."""
        return len(self)

    def look(self, check: Callable[[Table], object]) -> None:
        """See :class:`Everybody`."""
        for table in self.values():
            check(table)

    def total(self, name: str, tell: Tell) -> dict[str, Any]:
        """See :class:`Everybody`."""
        return total(tell(table) for table in self.values())

    def is_labels(self, column: str) -> bool:
        """See :class:`Everybody`; refused where it holds labels at some."""
        return check_kinds(self, column)

    def labels(self, column: str) -> None:
        """None: each client tells rows of its own levels, and a level that it does not tell counts as zero."""

    def own_levels(self, column: str) -> tuple[str, ...] | None:
        """See :class:`Everybody`; refused where one has True and False, and another numbers."""
        check_words(self, column)
        own = {table.declared_levels(column) for table in self.values()}
        return own.pop() if len(own) == 1 else None

    def is_ordered(self, column: str) -> bool:
        """See :class:`Everybody`."""
        return all(table.is_ordered(column) for table in self.values())

    def look_across(
        self, labels: Callable[[Table], Iterable[str]], refuse: Callable[[str, str, str], Exception]
    ) -> None:
        """See :class:`Everybody`."""
        seen: dict[str, str] = {}
        for client, table in self.items():
            for label in sorted(set(labels(table))):
                if label in seen:
                    raise refuse(label, seen[label], client)
                seen[label] = client

    def constant(self, columns: Iterable[str]) -> dict[str, list[str]]:
        """See :class:`Everybody`."""
        found = {}
        for column in columns:
            numbers = {client: table.num_values(column) for client, table in self.items()}
            single = [client for client, number in numbers.items() if number == 1 < self[client].num_rows]
            if 0 < 2 * len(single) < len(self) and max(numbers.values()) > 2:
                found[column] = single
        return found

    def complete(self, columns: list[str]) -> tuple["Tables", list[str]]:
        """See :class:`Everybody`."""
        found = {client: table.without_missing(columns) for client, table in self.items()}
        left_out = {client: number for client, (_, number) in found.items() if number}
        counts = ", ".join(f"{number} of '{client}'" for client, number in left_out.items())
        notes = [f"Rows that lack a value are left out: {counts}."] if left_out else []
        return Tables({client: table for client, (table, _) in found.items()}), notes
