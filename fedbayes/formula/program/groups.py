"""Effects of groups: the client itself, groups within a client, and groups that cross clients by declared levels."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from enum import Enum

import numpy as np

from fedbayes.errors import ClientDataError, FormulaError
from fedbayes.formula.design.design import Design
from fedbayes.formula.design.everybody import Everybody
from fedbayes.formula.design.tables import Table, label_text
from fedbayes.formula.grammar.terms import Terms
from fedbayes.formula.grammar.text import GroupText


class Kind(Enum):
    """Whose effects they are."""

    CLIENT = "the client's own"
    WITHIN = "groups within a client"
    ACROSS = "groups that cross clients"


@dataclass(frozen=True)
class Grouping:
    """Which groups a term is about.

    Attributes
    ----------
    name
        As it is written, ``"site:ward"``.
    kind
        Whose they are.
    columns
        Whose values together name a group; none where the group is the client.
    levels
        Of groups that cross clients.
    """

    name: str
    kind: Kind
    columns: tuple[str, ...]
    levels: tuple[str, ...] = ()

    def labels(self, table: Table) -> np.ndarray:
        """Each row's group by name, shape ``(n,)``."""
        parts = [table.labels(name) for name in self.columns]
        return np.asarray([", ".join(map(str, each)) for each in zip(*parts, strict=True)], dtype=object)

    def names(self, table: Table) -> tuple[str, ...]:
        """Of a client's groups, in the order of their numbers."""
        return self.levels if self.kind is Kind.ACROSS else tuple(sorted(set(self.labels(table))))

    def codes(self, table: Table, names: Sequence[str]) -> np.ndarray:
        """Each row's group as its place among these names, shape ``(n,)``.

        Raises
        ------
        ClientDataError
            A row is of none of these groups.
        """
        place = {name: number for number, name in enumerate(names)}
        labels = self.labels(table)
        if unknown := [label for label in labels if label not in place]:
            raise ClientDataError(
                f"Client '{table.client}': {len(unknown)} of {table.num_rows} rows are of a group of '{self.name}' "
                f"that is not there, such as {unknown[0]!r}; there are {len(place)}. "
                + (
                    "Declare it among the levels."
                    if self.kind is Kind.ACROSS
                    else "`new_groups=True` of `fb.predictions`, or `--new-groups` of `fedbayes predict`, draws the "
                    "effects of new ones."
                )
            )
        return np.asarray([place[label] for label in labels], dtype=np.int64)


@dataclass(frozen=True)
class Group:
    """A term ``(effects | group)``.

    Attributes
    ----------
    grouping
        Which groups.
    design
        The columns whose coefficients differ between groups; the first is the intercept, where there is one.
    joint
        Whether a group's effects are correlated.
    """

    grouping: Grouping
    design: Design
    joint: bool

    @property
    def effects(self) -> tuple[str, ...]:
        """Names of a group's effects."""
        return ("1", *self.design.names) if self.design.intercept else self.design.names

    @property
    def name(self) -> str:
        """The site's, as in Bambi: ``1|site``, ``1 + age|site``."""
        written = ["1"] if self.design.intercept else []
        written += [block.name for block in self.design.blocks]
        return f"{' + '.join(written)}|{self.grouping.name}"

    def values(self, table: Table) -> np.ndarray:
        """The columns of a client's rows, shape ``(n, effects)``."""
        columns = self.design.values(table)
        return np.column_stack([np.ones(table.num_rows), columns]) if self.design.intercept else columns


def groupings_of(term: GroupText, site: str, levels: Mapping[str, Sequence]) -> list[Grouping]:
    """The groups of a term; ``a/b`` is ``a`` and ``a:b``."""
    parts = [part.strip().strip("`") for part in term.group.split("/")]
    found = []
    for number in range(len(parts)):
        names = tuple(name.strip().strip("`") for part in parts[: number + 1] for name in part.split(":"))
        found.append(_grouping(names, site, levels))
    return found


def _grouping(names: tuple[str, ...], site: str, levels: Mapping[str, Sequence]) -> Grouping:
    written = ":".join(names)
    columns = tuple(name for name in dict.fromkeys(names) if name != site)
    if not columns:
        return Grouping(written, Kind.CLIENT, ())
    if len(names) == 1 and names[0] in levels:
        return Grouping(written, Kind.ACROSS, columns, tuple(label_text(level) for level in levels[names[0]]))
    return Grouping(written, Kind.WITHIN, columns)


def check_once(terms: Iterable[tuple[GroupText, Terms]], site: str, levels: Mapping[str, Sequence]) -> None:
    """Refuse an effect that the same groups have twice, in two terms: nothing tells its two sds apart.

    Raises
    ------
    FormulaError
        There is one; the message has the terms as one.
    """
    seen: dict[tuple[Kind, frozenset[str]], list[list[str]]] = {}
    for text, effects in terms:
        parts = [*(["1"] if effects.intercept else []), *(term.name for term in effects.terms)]
        for grouping in groupings_of(text, site, levels):
            before = seen.setdefault((grouping.kind, frozenset(grouping.columns)), [])
            for others in before:
                if twice := [part for part in parts if part in others]:
                    raise _twice(grouping.name, others, parts, twice[0])
            before.append(parts)


def _twice(name: str, first: list[str], second: list[str], effect: str) -> FormulaError:
    """The refusal of an effect in two terms of one group."""
    one, two = (f"({' + '.join(parts)} | {name})" for parts in (first, second))
    if first == second:
        return FormulaError(f"The term '{one}' stands twice in the formula. Write it once.")
    both = " + ".join(sorted({*first, *second}, key=["1", *first, *second].index))
    what = "an intercept" if effect == "1" else f"the effect of `{effect}`"
    meant = f" '(x | {name})' has an intercept, unless it is written '(0 + x | {name})'." if effect == "1" else ""
    return FormulaError(
        f"The terms '{one}' and '{two}' both have {what} of each '{name}', and nothing tells the two apart. Write one "
        f"term, '({both} | {name})', or '({both} || {name})' for effects without correlations.{meant}"
    )


def check_grouping(grouping: Grouping, site: str, everybody: Everybody) -> None:
    """Refuse groups that the clients' tables do not have, and labels of which nobody knows whether they are one group.

    Raises
    ------
    FormulaError, ClientDataError
        The group is no column, or an expression; two clients have the same label.
    """
    everybody.look(lambda table: _check_columns(grouping, site, table))
    if grouping.kind is not Kind.WITHIN or site in grouping.name.split(":"):
        return

    def refusal(label: str, first: str, second: str) -> ClientDataError:
        """It may be one group or two, and only the analyst knows which."""
        return ClientDataError(
            f"The group '{grouping.name}' has the label {label!r} at the clients '{first}' and '{second}'. If these "
            f"are different groups, write `(... | {site}:{grouping.name})`. If they are the same, declare the labels, "
            f"`levels={{{grouping.name!r}: [...]}}`: the groups' effects are then shared by all clients."
        )

    everybody.look_across(grouping.labels, refusal)


def whole_client(site: str) -> str:
    """How a formula speaks of the client itself, for somebody who has looked for a column of its name."""
    return f" If the client itself is meant, write `(... | {site})`: no column is needed."


def _check_columns(grouping: Grouping, site: str, table: Table) -> None:
    for name in grouping.columns:
        if name not in table.names and (name.isidentifier() is False or name in ("client", "site")):
            raise FormulaError(
                f"The group '{name}' in '(... | {grouping.name})' is no column. A group is a column's name, `a:b`, "
                f"`a/b`, or '{site}' for the client itself; with `site={name!r}` another word stands for the client."
            )
    table.check_there(grouping.columns, instead=whole_client(site))
