"""Everybody's rows over a network: as a site sees them, which has its own; and as the server does, which has none.

Both run the same agreement. A site is told the sums so far, follows the agreement to the first that it is not told, and
answers with its own part of that.

Where a column may be text and its levels are not declared, sites agree on its kind first: text at all, or at none. The
labels of all then come out of the sum of tables, see :mod:`~fedbayes.network.agreeing.labels`.
"""

import hashlib
import json
from collections.abc import Callable, Collection, Iterable, Mapping
from functools import partial
from typing import Any

import jax
import numpy as np

from fedbayes.errors import ClientDataError, FedbayesError
from fedbayes.formula.design.agreement import MOST_LEVELS
from fedbayes.formula.design.everybody import Tell
from fedbayes.formula.design.tables import Table
from fedbayes.network.agreeing.labels import MOST_BYTES, labels_in, table_of

KINDS, LABELS = "kinds of columns", "labels"  # the first sum, and what names of sums of labels begin with
MOST_NUMBERS = 1 << 20  # in one sum
_DIGITS = 3  # of a category's place
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


class _Elsewhere:
    """What is known of everybody's columns from the study, and from sums.

    Parameters
    ----------
    labelled
        The columns of text whose levels are declared.
    undeclared
        The others that may be text.
    num_clients
        How many sites there are.
    """

    def __init__(self, labelled: Collection[str], undeclared: Collection[str], num_clients: int) -> None:
        self._labelled, self._undeclared, self.num_clients = labelled, undeclared, num_clients
        self._kinds: dict[str, Any] = {}
        self._labels: dict[str, tuple[str, ...]] = {}

    def total(self, name: str, tell: Tell) -> dict[str, Any]:
        """The sum of a name."""
        raise NotImplementedError

    def is_labels(self, column: str) -> bool:
        """Whether its levels were declared, or all sites have text; refused where some have."""
        if column not in self._undeclared:
            return column in self._labelled
        return self._at_all(column, "text", "text", "numbers")

    def labels(self, column: str) -> tuple[str, ...]:
        """All sites' labels in a column, from the sum of their tables.

        Raises
        ------
        ClientDataError
            They can't be told from it.
        """
        if column not in self._labels:
            self._at_all(column, "words", "True and False", "other values")
            self._labels[column] = self._from_tables(column)
        return self._labels[column]

    def own_levels(self, column: str) -> tuple[str, ...] | None:
        """The levels of a categorical column where all sites' tables have the same; ``None`` where they do not."""
        return self.labels(column) if self._have_same_categories(column) else None

    def is_ordered(self, column: str) -> bool:
        """No: an order is declared."""
        return False

    def constant(self, columns: Iterable[str]) -> dict[str, list[str]]:
        """None: it would be said of single sites."""
        return {}

    def look_across(self, labels: Callable[[Table], Iterable[str]], refuse: Callable[..., Exception]) -> None:
        """Nothing: the study refuses what needs it."""

    def _at_all(self, column: str, kind: str, so: str, others: str) -> bool:
        """Whether a column is of a kind at all sites; refused where it is at some."""
        told = self._kinds_of(column)[kind]
        if not _are_alike(told, self.num_clients):
            raise ClientDataError(
                f"Column '{column}' holds {so} at {told[0, 0]:.0f} of {self.num_clients} sites, and {others} elsewhere."
                f" Write it in the same way at all sites, or {_declare(column)}"
            )
        return bool(told[0, 0])

    def _have_same_categories(self, column: str) -> bool:
        """Whether all sites' tables have categories in a column, the same in the same order."""
        told = self._kinds_of(column)["categories"]
        return _are_alike(told, self.num_clients) and bool(told.any())

    def _kinds_of(self, column: str) -> dict[str, np.ndarray]:
        """What a column is at how many sites, from one sum for all columns."""
        if not self._kinds:
            self._kinds = self.total(KINDS, lambda table: {name: _kinds(table, name) for name in self._undeclared})
        found: dict[str, np.ndarray] = self._kinds[column]
        return found

    def _from_tables(self, column: str) -> tuple[str, ...]:
        """By the second salt labels are told apart that have shared all their cells by the first."""
        in_order = self._have_same_categories(column)
        for salt, name in ((column, f"{LABELS} of '{column}'"), (f"{column} again", f"{LABELS} of '{column}', again")):
            told = self.total(name, partial(_tell_labels, column=column, salt=salt, in_order=in_order))
            if found := labels_in(told["table"], salt, self.num_clients):
                return tuple(label[_DIGITS:] if in_order else label for label in sorted(found))
        raise ClientDataError(
            f"The labels of '{column}' can't be told from the sum of the sites' tables: there are too many. Merge "
            f"some, or {_declare(column)}"
        )


class AtServer(_Elsewhere):
    """The server: it asks for each sum.

    Parameters
    ----------
    labelled, undeclared, num_clients
        The columns of text whose levels are declared, the others that may be text, and how many sites there are.
    ask
        For the sum of a name.
    """

    def __init__(
        self,
        labelled: Collection[str],
        undeclared: Collection[str],
        num_clients: int,
        ask: Callable[[str], dict[str, Any]],
    ) -> None:
        super().__init__(labelled, undeclared, num_clients)
        self._ask = ask

    def look(self, check: Callable[[Table], object]) -> None:
        """Nothing: each site looks at its own rows."""

    def total(self, name: str, tell: Tell) -> dict[str, Any]:
        """What the sites tell together."""
        return self._ask(name)

    def complete(self, columns: list[str]) -> tuple["AtServer", list[str]]:
        """The same; how many rows a site leaves out stays there."""
        return self, ["Rows that lack a value are left out; how many, each site knows."]


class AtSite(_Elsewhere):
    """A site: it has its own rows, and the sums that it was told.

    Parameters
    ----------
    labelled, undeclared, num_clients
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
        labelled: Collection[str],
        undeclared: Collection[str],
        num_clients: int,
        table: Table,
        known: Mapping[str, np.ndarray],
        check: Callable[[str, np.ndarray], None],
    ) -> None:
        super().__init__(labelled, undeclared, num_clients)
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

    def _kinds_of(self, column: str) -> dict[str, np.ndarray]:
        """As at the server; refused where it says of all sites what is not so at this one.

        Else a server could have numbers told as labels, to which the owner's rules were not applied.
        """
        found = super()._kinds_of(column)
        for kind, own in _kinds(self._table, column).items():
            if _are_alike(found[kind], self.num_clients) and not np.array_equal(found[kind], self.num_clients * own):
                raise ClientDataError(f"The server says of column '{column}' what is not so at this site.")
        return found

    def complete(self, columns: list[str]) -> tuple["AtSite", list[str]]:
        """The same without rows that lack a value."""
        table, _ = self._table.without_missing(columns)
        found = AtSite(self._labelled, self._undeclared, self.num_clients, table, self._known, self._check)
        found.read = self.read
        return found, []


def _kinds(table: Table, column: str) -> dict[str, np.ndarray]:
    """What a column is at one site: text, True and False, which categories; by numbers and their squares."""
    own = table.declared_levels(column)
    digest = hashlib.sha256(json.dumps(own).encode()).digest() if own else bytes(32)
    kinds = {
        "text": [table.is_labels(column)],
        "words": [table.is_true_or_false(column)],
        "categories": np.frombuffer(digest, "<u2"),  # squares of longer words are too large for a secure sum
    }
    return {name: np.asarray(found, float) ** np.array([[1], [2]]) for name, found in kinds.items()}


def _are_alike(told: np.ndarray, number: int) -> bool:
    """Whether all sites have told the same numbers, by the sums of these and of their squares: no variance is left."""
    return np.array_equal(told[0] ** 2, number * told[1])


def _tell_labels(table: Table, column: str, salt: str, in_order: bool) -> dict[str, np.ndarray]:
    """The labels of a site's rows; where all sites have the same categories these, each with its place before it."""
    found = sorted({str(label) for label in table.labels(column)})
    if in_order:
        found = [f"{place:0{_DIGITS}d}{label}" for place, label in enumerate(table.declared_levels(column) or ())]
    elif len(found) > MOST_LEVELS:
        raise ClientDataError(
            f"Column '{column}' has {len(found)} levels; at most {MOST_LEVELS} are agreed on. Merge some, or "
            f"{_declare(column)}"
        )
    longest = max(found, key=lambda label: len(label.encode()), default="")
    if len(longest.encode()) > MOST_BYTES:
        raise ClientDataError(
            f"Column '{column}' has the label {longest!r}, of {len(longest.encode())} bytes; over a network labels of "
            f"up to {MOST_BYTES} are agreed on. Shorten it, or {_declare(column)}"
        )
    return {"table": table_of(found, salt)}


def _declare(column: str) -> str:
    return f"declare its levels in the study, `levels={{{column!r}: [...]}}`."


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
