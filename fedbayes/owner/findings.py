"""The disclosure rules on one client's rows."""

from collections.abc import Iterator, Sequence
from typing import NamedTuple

import numpy as np

from fedbayes.owner.columns import Columns, Labels, Roles, columns_of, num_rows
from fedbayes.owner.rules import DisclosureRules, Finding, Rule
from fedbayes.problem.data.reading import ClientArrays


class _Table(NamedTuple):
    """A column with few values: each row's value as a number from zero on, and the rows at each value."""

    name: str
    codes: np.ndarray
    counts: np.ndarray


class _Kinds(NamedTuple):
    """The columns of an argument by kind, and what is found in each by itself."""

    tables: list[_Table]
    measured: Columns
    found: list[Finding]


def findings_of(
    client: ClientArrays, roles: Roles, num_globals: int, rules: DisclosureRules, labels: Labels
) -> tuple[Finding, ...]:
    """What the rules do not let out of one client, in the order of :class:`~fedbayes.owner.rules.Rule`.

    The cost is that of sorting each column.

    Parameters
    ----------
    client
        Its own arrays, not padded.
    roles
        What the model does with them.
    num_globals
        Unconstrained globals of the model.
    rules
        The owner's.
    labels
        Names of columns, by argument, where the client's own tables have none.
    """
    rows = num_rows(client, roles)
    found = list(_of_rows(rows, num_globals, rules))
    if rows >= rules.smallest_cell:
        found += _of_columns(client, roles, rows, rules, labels)
    order = list(Rule)
    kept = [finding for finding in found if not finding.column or finding.column not in rules.except_columns]
    return tuple(sorted(kept, key=lambda finding: order.index(finding.rule)))


def looked_at(client: ClientArrays, roles: Roles, rules: DisclosureRules) -> list[str]:
    """The arguments that are long enough to be looked at."""
    least, rows = rules.smallest_cell, num_rows(client, roles)
    return [
        name
        for name, array in client.arrays.items()
        if array.ndim and name not in roles.groups and (len(array) >= least or rows in array.shape) and rows >= least
    ]


def _of_rows(rows: int, num_globals: int, rules: DisclosureRules) -> Iterator[Finding]:
    least = max(rules.smallest_cell, int(np.ceil(num_globals / rules.globals_per_row - 1e-9)))
    if rows < least:
        yield Finding(Rule.ROWS, "", rows, least)


def _of_columns(
    client: ClientArrays, roles: Roles, rows: int, rules: DisclosureRules, labels: Labels
) -> Iterator[Finding]:
    names = looked_at(client, roles, rules)
    covariates = [name for name in names if name not in roles.outcomes or name in roles.parts]
    kinds = [_kinds(each, roles, rules) for each in columns_of(client, covariates, rows, labels)]
    for each in kinds:
        yield from each.found
    for outcomes in columns_of(client, [name for name in names if name in roles.outcomes], rows, labels):
        mine = _kinds(outcomes, roles, rules)
        if outcomes.argument not in roles.parts:
            for finding in mine.found:
                yield finding._replace(rule=Rule.RARE_OUTCOME) if finding.rule is Rule.CELL else finding
        for outcome in mine.tables:
            if len(outcome.counts) == 1 and rules.separation and outcomes.argument not in roles.parts:
                yield Finding(Rule.ALIKE, outcome.name, len(outcome.codes), 0)
            elif len(outcome.counts) > 1:
                yield from _with(outcome, kinds, rules)


def _with(outcome: _Table, kinds: Sequence[_Kinds], rules: DisclosureRules) -> Iterator[Finding]:
    """An outcome with every other column of as many rows."""
    length = len(outcome.codes)
    for each in kinds:
        others = [table for table in each.tables if table.name != outcome.name and len(table.counts) > 1]
        yield from _crossed(outcome, [table for table in others if len(table.codes) == length], rules)
        if each.measured.names and each.measured.values.shape[1] == length:
            yield from _parted(outcome, each.measured, rules)


def _kinds(columns: Columns, roles: Roles, rules: DisclosureRules) -> _Kinds:
    """The columns with few values, unless one of these has few rows, and the others."""
    index, length = columns.argument in roles.indices, columns.values.shape[1]
    few = _most_values(columns.argument, roles, rules, length)
    ordered = np.sort(columns.values, axis=1)
    distinct = 1 + np.sum(ordered[:, 1:] != ordered[:, :-1], axis=1)
    is_table = np.full(len(distinct), index) | (distinct <= few)
    tables, found = [], []
    for place in np.flatnonzero(is_table):
        _, codes, counts = np.unique(columns.values[place], return_inverse=True, return_counts=True)
        table = _Table(columns.names[place], codes.reshape(-1), counts)
        problem = _too_many(table, rules) if index else None
        problem = problem or _small(table, rules)
        if problem:
            found.append(problem)
        if not problem or table.name in rules.except_columns:
            tables.append(table)
    if not index and columns.argument not in roles.outcomes:
        rest = list(_neither(columns, ordered, rules))
        found += [problem for table in rest if (problem := _small(table, rules))]
        tables += [table for table in rest if not _small(table, rules)]
    left = np.flatnonzero(~is_table)
    measured = Columns(columns.argument, tuple(columns.names[place] for place in left), columns.values[left])
    return _Kinds(tables, measured, found + list(_nearly_constant(measured.names, ordered[left], rules)))


def _most_values(argument: str, roles: Roles, rules: DisclosureRules, length: int) -> int:
    """With how many different values a column is a table; numbers that are outcomes are groups with two at most."""
    few = min(rules.few_values, max(2, length // 2))
    return few if roles.outcomes.get(argument, True) or argument in roles.parts else 2


def _too_many(table: _Table, rules: DisclosureRules) -> Finding | None:
    most = min(float(rules.most_levels), rules.levels_per_row * len(table.codes))
    return Finding(Rule.LEVELS, table.name, len(table.counts), most) if len(table.counts) > most else None


def _small(table: _Table, rules: DisclosureRules) -> Finding | None:
    small = table.counts[table.counts < rules.smallest_cell]
    return Finding(Rule.CELL, table.name, int(small.min()), rules.smallest_cell, len(small)) if len(small) else None


def _neither(columns: Columns, ordered: np.ndarray, rules: DisclosureRules) -> Iterator[_Table]:
    """The rows at the reference level of a factor that is written as dummies.

    Dummies are neighbours with two values, of which no row has the higher in two of them. Where they cover all rows but
    a few, these few can be read off as if they had a column of their own.
    """
    low, high = ordered[:, 0], ordered[:, -1]
    binary = (low < high) & np.all((ordered == low[:, None]) | (ordered == high[:, None]), axis=1)
    on = columns.values == high[:, None]
    total, rows, last = np.concatenate([[0], np.cumsum(on.sum(axis=1))]), on.shape[1], -1
    covered = np.zeros(rows, bool)  # by the dummies from `first` to `last`
    for first in np.flatnonzero(binary).tolist():
        before, last = last, max(last, first - 1)
        while last + 1 < len(binary) and binary[last + 1] and not np.any(covered & on[last + 1]):
            last += 1
            covered |= on[last]
        left = rows - (total[first + 2 : last + 2] - total[first])  # by two dummies, by three, ..., by all of them
        wanted = set(np.flatnonzero((left > 0) & (left < rules.smallest_cell)).tolist())
        if last > before and len(left) and 0 < left[-1] < rows // 2:
            wanted.add(len(left) - 1)  # to look at it together with outcomes
        for place in sorted(wanted):
            end = first + 1 + place
            name = f"neither {columns.names[first]} to {columns.names[end]}"
            codes = np.any(on[first : end + 1], axis=0).astype(int)
            yield _Table(name, codes, np.asarray([left[place], rows - left[place]]))
        covered &= ~on[first]


def _nearly_constant(names: Sequence[str], ordered: np.ndarray, rules: DisclosureRules) -> Iterator[Finding]:
    """Columns with the same value, whatever it is, in all but a few rows."""
    few = rules.smallest_cell - 1
    alike = ordered.shape[1] - few  # in a sorted column the commonest value fills a stretch of this length
    if not few or alike < 1:
        return
    for place in np.flatnonzero(np.any(ordered[:, alike - 1 :] == ordered[:, : few + 1], axis=1)):
        others = ordered.shape[1] - int(np.unique(ordered[place], return_counts=True)[1].max())
        if others:
            yield Finding(Rule.NEARLY_CONSTANT, names[int(place)], others, rules.smallest_cell)


def _crossed(outcome: _Table, tables: Sequence[_Table], rules: DisclosureRules) -> Iterator[Finding]:
    """Each column with the outcome: cells with few rows, or values at which all rows have one outcome."""
    for table in tables:
        name, sizes = f"{outcome.name} by {table.name}", (len(table.counts), len(outcome.counts))
        cells = np.bincount(table.codes * sizes[1] + outcome.codes, minlength=sizes[0] * sizes[1]).reshape(sizes)
        small = cells[(cells > 0) & (cells < rules.smallest_cell)]
        told = table.counts[(cells > 0).sum(axis=1) == 1]
        if len(small):
            yield Finding(Rule.CROSS, name, int(small.min()), rules.smallest_cell, len(small))
        elif len(told) and rules.separation:
            yield Finding(Rule.SEPARATION, name, int(told.min()), 0, len(told))


def _parted(outcome: _Table, measured: Columns, rules: DisclosureRules) -> Iterator[Finding]:
    """Measurements of which a threshold tells one outcome from all others."""
    if not rules.separation:
        return
    told: dict[str, int] = {}
    for code, count in enumerate(outcome.counts):
        mine = outcome.codes == code
        one, other = measured.values[:, mine], measured.values[:, ~mine]
        apart = (one.max(axis=1) < other.min(axis=1)) | (other.max(axis=1) < one.min(axis=1))
        for place in np.flatnonzero(apart):
            told.setdefault(measured.names[place], len(outcome.codes) if len(outcome.counts) == 2 else int(count))
    for name, rows in told.items():
        yield Finding(Rule.SEPARATION, f"{outcome.name} by {name}", rows, 0)
