"""Everybody's rows over a network: as a site sees them, which has its own; and as the server does, which has none.

Both run the same agreement. A site is told the sums so far, follows the agreement to the first that it is not told, and
answers with its own part of that.
"""

from collections.abc import Callable, Iterable, Mapping
from typing import Any

import jax
import numpy as np

from fedbayes.errors import ClientDataError, FedbayesError
from fedbayes.formula.design.everybody import Tell
from fedbayes.formula.design.tables import Table
from fedbayes.network.agreeing.study import to_declare

MOST_NUMBERS = 1 << 20  # in one sum
Layout = list[list[Any]]


class Asked(FedbayesError):
    """A site's part of the first sum that it was not told.

    Parameters
    ----------
    name
        Of the sum.
    tree
        What the site tells.
    """

    def __init__(self, name: str, tree: Mapping[str, Any]) -> None:
        super().__init__(name)
        self.name, self.tree = name, tree


class _Declared:
    """What is known of columns without looking at a table."""

    def __init__(self, labelled: frozenset[str], num_clients: int) -> None:
        self._labelled, self.num_clients = labelled, num_clients

    def own_levels(self, column: str) -> None:
        """None: declared levels are asked for first."""

    def is_ordered(self, column: str) -> bool:
        """No: an order is declared."""
        return False

    def constant(self, columns: Iterable[str]) -> dict[str, list[str]]:
        """None: it would be said of single sites."""
        return {}

    def look_across(self, labels: Callable[[Table], Iterable[str]], refuse: Callable[..., Exception]) -> None:
        """Nothing: the study refuses what needs it."""


class AtServer(_Declared):
    """The server: it asks for each sum.

    Parameters
    ----------
    labelled
        The columns of text.
    num_clients
        How many sites there are.
    ask
        For the sum of a name.
    """

    def __init__(self, labelled: frozenset[str], num_clients: int, ask: Callable[[str], dict[str, Any]]) -> None:
        super().__init__(labelled, num_clients)
        self._ask = ask

    def look(self, check: Callable[[Table], object]) -> None:
        """Nothing: each site looks at its own rows."""

    def total(self, name: str, tell: Tell) -> dict[str, Any]:
        """What the sites tell together."""
        return self._ask(name)

    def is_labels(self, column: str) -> bool:
        """Whether its levels were declared."""
        return column in self._labelled

    def complete(self, columns: list[str]) -> tuple["AtServer", list[str]]:
        """The same; how many rows a site leaves out stays there."""
        return self, ["Rows that lack a value are left out; how many, each site knows."]


class AtSite(_Declared):
    """A site: it has its own rows, and the sums that it was told.

    Parameters
    ----------
    labelled, num_clients
        As for :class:`AtServer`.
    table
        Its rows.
    known
        The sums so far by name, as :func:`flat` has them.
    check
        Called with the name and the numbers of each of them, before anything is made of it.
    """

    def __init__(
        self,
        labelled: frozenset[str],
        num_clients: int,
        table: Table,
        known: Mapping[str, np.ndarray],
        check: Callable[[str, np.ndarray], None],
    ) -> None:
        super().__init__(labelled, num_clients)
        self._table, self._known, self._check = table, known, check
        self.read: list[str] = []  # the sums that were read, in order

    def look(self, check: Callable[[Table], object]) -> None:
        """Check its own rows."""
        check(self._table)

    def total(self, name: str, tell: Tell) -> dict[str, Any]:
        """A sum that was told.

        Raises
        ------
        Asked
            It was not: the site's own part.
        """
        own = tell(self._table)
        if name not in self._known:
            raise Asked(name, own)
        self._check(name, self._known[name])
        self.read.append(name)
        return nested(layout(own), self._known[name])

    def is_labels(self, column: str) -> bool:
        """Whether its levels were declared; refused where they were not, and the site has text."""
        if column not in self._labelled and self._table.is_labels(column):
            raise ClientDataError(to_declare(column))
        return column in self._labelled

    def complete(self, columns: list[str]) -> tuple["AtSite", list[str]]:
        """The same without rows that lack a value."""
        table, _ = self._table.without_missing(columns)
        found = AtSite(self._labelled, self.num_clients, table, self._known, self._check)
        found.read = self.read
        return found, []


def layout(tree: Mapping[str, Any]) -> Layout:
    """Keys and shape of each array of a tree, as JSON has them."""
    leaves, _ = jax.tree_util.tree_flatten_with_path(tree)
    return [[[str(step.key) for step in path], list(np.shape(leaf))] for path, leaf in leaves]


def flat(tree: Mapping[str, Any]) -> np.ndarray:
    """All numbers of a tree, shape ``(n,)``."""
    leaves = [np.ravel(np.asarray(leaf, np.float64)) for leaf in jax.tree.leaves(tree)]
    return np.concatenate([*leaves, np.zeros(0)])


def nested(told: Layout, numbers: np.ndarray) -> dict[str, Any]:
    """The tree of a layout with these numbers.

    Raises
    ------
    ValueError
        There are more or fewer of them than the layout has.
    """
    sizes = [size_of(shape) for _, shape in told]
    if sum(sizes) != len(numbers):
        raise ValueError(f"A sum has {len(numbers)} numbers; expected {sum(sizes)}.")
    found: dict[str, Any] = {}
    for (keys, shape), part in zip(told, np.split(numbers, np.cumsum(sizes)[:-1]), strict=True):
        inner = found
        for key in keys[:-1]:
            inner = inner.setdefault(key, {})
        inner[keys[-1]] = part.reshape(shape) if shape else float(part[0])
    return found


def size_of(shape: list[int]) -> int:
    """Numbers in an array of this shape.

    Raises
    ------
    ValueError
        It is none, or too large.
    """
    if any(isinstance(each, bool) or not isinstance(each, int) or not 0 <= each <= MOST_NUMBERS for each in shape):
        raise ValueError("A sum has an array of no shape.")
    size = int(np.prod([float(each) for each in shape]))
    if size > MOST_NUMBERS:
        raise ValueError(f"A sum has more than {MOST_NUMBERS} numbers.")
    return size
