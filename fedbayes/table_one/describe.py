"""``describe``: what the clients' columns are like, before anything is modelled."""

import math
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from fedbayes.errors import ClientDataError, did_you_mean
from fedbayes.formula.design.factors import Levels
from fedbayes.formula.design.tables import Table, check_kinds, check_words, label_text, tables_of
from fedbayes.formula.design.totals import binned, moments, quantiles, total
from fedbayes.owner.rules import DisclosureRules
from fedbayes.table_one.described import ALL, Description, LevelSummary, NumberSummary
from fedbayes.table_one.hiding import hidden_cells, hidden_clients

OTHERS = "(other levels)"
_HARDLY = 1e-8  # of the mean: an sd below is lost in the rounding of sums
_ROUNDING = 1e-13  # of a sum of squares: what is left of rows that are all alike
_QUARTILES = np.array([0.25, 0.5, 0.75])


class _Column(NamedTuple):
    """A column of all clients: the rows that have a value, by client, and how many have none."""

    name: str
    tables: Mapping[str, Table]  # of clients that have any value
    missing: Mapping[str, int]


def describe(
    clients: Any,
    *,
    columns: Sequence[str] | None = None,
    levels: Mapping[str, Sequence[Any]] | None = None,
    site: str = "site",
    rules: DisclosureRules | None = None,
    by_client: bool = True,
) -> Description:
    """A table 1: rows, missing values, means, sds and quartiles, and counts of levels, by client and over all.

    Each client tells twice: first its rows, missing values, rows at each level, and sums and sums of squares of
    numbers; then, everybody's mean and sd being known, its rows in 402 bins of each number, from which quartiles are
    read to a twentieth of everybody's sd. No smallest or largest value is told, so that a quartile of numbers from zero
    on may lie a little below zero; where all rows of a client are alike, its quartiles are exact. Over all clients the
    sums of these are enough; a table by client shows each one's own.

    Cells of fewer rows than ``rules.smallest_cell`` are hidden, and as many others as it takes so that no hidden one is
    found by subtraction: with the largest number ``u`` that a small cell may have for whoever knows all that is shown,
    the solution of a linear program, ``u >= smallest_cell``. A column of numbers with few values is described, and
    hidden, as levels are. A mean and sd are hidden where too few rows have a value, or where all rows but a few have
    the same. Levels below the limit over all clients are counted together, unless they were declared, because their
    names are told, too. Missing values are counted as they are: such a row tells no value.

    Parameters
    ----------
    clients
        From client name to a table of pandas or polars, or to a mapping from columns to arrays ``(n,)``; or one table
        with a column that names each row's client.
    columns
        Which ones, in this order; ``None``: all that every client has.
    levels
        Levels of columns, in order, ``{"stage": ["I", "II", "III"]}``.
    site
        Of one table the column that names the client.
    rules
        The limits; ``None``: the defaults of :class:`fedbayes.DisclosureRules`.
    by_client
        Whether the table has a column for each client, and not only one over all.

    Returns
    -------
    Description
        Printed, the table; ``.numbers``, ``.levels`` and ``.to_pandas()`` have its numbers.

    Raises
    ------
    ClientDataError
        A column is at no client, of another kind at one client than at another, or, where it was asked for, has dates
        or too many levels; a row has a level that was not declared.

    See Also
    --------
    disclosure : What the owners' rules find in the same tables.
    regression : The next step.

    Examples
    --------
    >>> import fedbayes as fb
    >>> north = {"age": [61, 48, 55, 70, 52, 66, 43, 58, 64, 51, 47], "sex": list("fmmfmfmffmf")}
    >>> south = {"age": [35, 52, 44, 66, 59, 41, 38, 62, 57, 49, 60], "sex": list("mfmfmfmffff")}
    >>> fb.describe({"north": north, "south": south}, by_client=False)
                          all clients
    rows                  22
    age, mean (sd)        53.5 (9.7)
      median [quartiles]  55.0 [47.0, 61.1]
    sex
      f                   13 (59.1%)
      m                   9 (40.9%)
    quartiles are exact to a twentieth of the sd over all clients
    """
    if rules is not None and not isinstance(rules, DisclosureRules):
        raise TypeError(f"`rules` is {rules!r}; write `fedbayes.DisclosureRules(smallest_cell=5)`.")
    if isinstance(columns, str):
        raise ClientDataError(f"`columns` is {columns!r}; write a list, [{columns!r}].")
    tables, limits = tables_of(clients, site), rules or DisclosureRules()
    if ALL in tables:
        raise ClientDataError(f"A client has the name '{ALL}', under which the sums over all stand. Rename it.")
    shown = list(tables) if by_client and len(tables) > 1 else []
    numbers: dict[str, dict[str, NumberSummary]] = {}
    counts: dict[str, dict[str, LevelSummary]] = {}
    names, notes = _names(tables, columns, site)
    _check_declared(levels or {}, names)
    for name in names:
        column = _column(name, tables)
        try:
            labels = _levels_of(column, (levels or {}).get(name), limits)
        except ClientDataError as error:
            if columns is not None or name in (levels or {}):
                raise
            notes.append(f"'{name}' is left out. {error}")
            continue
        if labels is None:
            numbers[name] = _numbers(column, shown, limits)
        else:
            counts[name] = _counts(column, labels, shown, limits, declared=name in (levels or {}))
    rows = {name: tables[name].num_rows for name in shown}
    rows[ALL] = sum(table.num_rows for table in tables.values())
    return Description(rows, numbers, counts, limits, tuple(notes))


def _check_declared(levels: Mapping[str, Sequence[Any]], names: Sequence[str]) -> None:
    for name, given in levels.items():
        if name not in names:
            raise ClientDataError(
                f"`levels` names '{name}', which is none of the columns {list(names)}.{did_you_mean(name, names)}"
            )
        if isinstance(given, str):
            raise ClientDataError(f"The levels of '{name}' are {given!r}; write a list, {list(given)}.")


def _names(tables: Mapping[str, Table], columns: Sequence[str] | None, site: str) -> tuple[list[str], list[str]]:
    """The columns that are described, and notes on those that only some clients have."""
    every = list(dict.fromkeys(name for table in tables.values() for name in table.names if name != site))
    if columns is not None:
        for name in columns:
            if lacking := [client for client, table in tables.items() if name not in table.names]:
                raise ClientDataError(f"Client '{lacking[0]}' has no column '{name}'.{did_you_mean(name, every)}")
        return list(columns), []
    common = [name for name in every if all(name in table.names for table in tables.values())]
    notes = [f"'{name}' is left out, since not all clients have it." for name in every if name not in common]
    return common, notes


def _column(name: str, tables: Mapping[str, Table]) -> _Column:
    missing = {client: table.num_missing(name) for client, table in tables.items()}
    there = {client: table for client, table in tables.items() if missing[client] < table.num_rows}
    return _Column(name, {client: table.without_missing([name])[0] for client, table in there.items()}, missing)


def _levels_of(column: _Column, declared: Sequence[Any] | None, rules: DisclosureRules) -> tuple[str, ...] | None:
    """The levels of a column, in order; ``None`` where it is described as numbers."""
    tables, name = column.tables, column.name
    if declared is not None:
        found = tuple(map(label_text, declared))
        for table in tables.values():
            Levels(name, found, found[0]).codes(table)
        return found
    if not tables:
        return None
    text = check_kinds(tables, name)
    check_words(tables, name)
    rows = sum(table.num_rows for table in tables.values())
    own = {table.declared_levels(name) for table in tables.values()}
    if len(own) == 1 and (same := own.pop()) is not None:
        return same
    there = {str(label) for table in tables.values() for label in set(table.labels(name))}
    if not text and len(there) > _few(rows, rules):
        return None
    if text and len(there) > min(rules.most_levels, max(2.0, rules.levels_per_row * rows)):
        raise ClientDataError(f"It has {len(there)} levels in {rows} rows; declare `levels` to have it described.")
    return tuple(sorted(there, key=_place))


def _few(rows: int, rules: DisclosureRules) -> int:
    """How many different values a column of numbers may have to be taken for a table."""
    return min(rules.few_values, max(2, rows // 2))


def _place(level: str) -> tuple[float, str]:
    """Numbers by their size, before texts."""
    try:
        return float(level), level
    except ValueError:
        return math.inf, level


def _counts(
    column: _Column, levels: tuple[str, ...], shown: Sequence[str], rules: DisclosureRules, *, declared: bool
) -> dict[str, LevelSummary]:
    """Counts of levels by client, and over all, without those that are hidden."""
    table = np.array([[0] * len(column.missing) for _ in levels])
    for place, client in enumerate(column.missing):
        if client in column.tables:
            labels = column.tables[client].labels(column.name).astype(str)
            table[:, place] = [int((labels == level).sum()) for level in levels]
    if not declared:
        levels, table = _together(levels, table, rules.smallest_cell)
    if not shown:
        table = table.sum(axis=1, keepdims=True)
    hidden = hidden_cells(table, rules.smallest_cell)
    found = {}
    for place, client in enumerate(shown):
        counts = _visible(levels, table[:, place], hidden.cells[:, place])
        found[client] = LevelSummary(int(table[:, place].sum()), column.missing[client], counts)
    totals = hidden.totals if shown else hidden.totals | hidden.cells[:, 0]
    counts = _visible(levels, table.sum(axis=1), totals)
    found[ALL] = LevelSummary(int(table.sum()), sum(column.missing.values()), counts)
    return found


def _together(levels: tuple[str, ...], table: np.ndarray, smallest: int) -> tuple[tuple[str, ...], np.ndarray]:
    """Levels with few rows over all clients as one, without their names; one that nobody has tells of no row."""
    few = (table.sum(axis=1) > 0) & (table.sum(axis=1) < smallest)
    if not few.any():
        return levels, table
    kept = tuple(level for level, small in zip(levels, few, strict=True) if not small)
    return (*kept, OTHERS), np.vstack([table[~few], table[few].sum(axis=0)])


def _visible(levels: Sequence[str], counts: np.ndarray, hidden: np.ndarray) -> dict[str, int | None]:
    return {level: None if no else int(n) for level, n, no in zip(levels, counts, hidden, strict=True)}


def _numbers(column: _Column, shown: Sequence[str], rules: DisclosureRules) -> dict[str, NumberSummary]:
    """Mean, sd and quartiles by client, and over all, without those that are hidden."""
    values = {client: table.numbers(column.name, "a mean") for client, table in column.tables.items()}
    centre = sum(each.sum() for each in values.values()) / max(1, sum(map(len, values.values())))
    # squares about the mean, as those of large numbers lose their differences
    told = {client: moments(values.get(client, np.zeros(0)) - centre) for client in column.missing}
    summed = total({"moments": each} for each in told.values()).get("moments", np.zeros(3))
    mean, sd = _mean_and_sd(summed, centre)
    width = sd if sd > _HARDLY * abs(mean) else 1.0
    bins = {client: binned(values.get(client, np.zeros(0)), mean, width) for client in told} if summed[0] else {}
    rows = np.array([int(each[0]) for each in told.values()])
    small = np.array([_is_small(values.get(client, np.zeros(0)), rules) for client in told])
    hidden, nothing = hidden_clients(rows, small, rules.smallest_cell)
    if _is_small(np.concatenate([*values.values(), np.zeros(0)]), rules):
        hidden, nothing = np.ones_like(hidden), True  # the means of all clients would tell that over all
    found = {}
    for client, n, no in zip(told, rows, hidden, strict=True):
        if client in shown:
            own = _mean_and_sd(told[client], centre)
            known = () if no or not n else (*own, _quartiles(bins.get(client), mean, width, own))
            found[client] = NumberSummary(int(n), column.missing[client], *known)
    sum_of_bins = total({"bins": each} for each in bins.values()).get("bins")
    known = () if nothing or not rows.sum() else (mean, sd, _quartiles(sum_of_bins, mean, width, (mean, sd)))
    found[ALL] = NumberSummary(int(rows.sum()), sum(column.missing.values()), *known)
    return found


def _is_small(values: np.ndarray, rules: DisclosureRules) -> bool:
    """Whether a mean of these values would tell of few rows: few have one, or few have another than all others."""
    if not len(values):
        return False
    counts = np.unique(values, return_counts=True)[1]
    few = len(counts) <= _few(len(values), rules) and counts.min() < rules.smallest_cell
    return bool(len(values) < rules.smallest_cell or few or 0 < len(values) - counts.max() < rules.smallest_cell)


def _mean_and_sd(summed: np.ndarray, centre: float) -> tuple[float, float]:
    """From rows, sum and sum of squares about a centre; divisor n - 1, and NaN without enough rows."""
    rows, first, second = map(float, summed)
    if not rows:
        return math.nan, math.nan
    mean = first / rows
    spread = second - rows * mean**2
    spread = spread if spread > _ROUNDING * second else 0.0
    return centre + mean, math.sqrt(spread / (rows - 1.0)) if rows > 1 else math.nan


def _quartiles(
    counts: np.ndarray | None, mean: float, sd: float, own: tuple[float, float]
) -> tuple[float, float, float]:
    """Quartiles from counts in bins, within what the rows' own mean and sd leave possible (Cantelli's inequality).

    Both are shown beside them, so that this tells nothing more; rows that are all alike have their value as quartiles.
    """
    if counts is None or math.isnan(own[0]):
        return math.nan, math.nan, math.nan
    found = quantiles(counts, _QUARTILES, mean, sd)
    centre, spread = own[0], 0.0 if math.isnan(own[1]) else own[1]  # one row by itself has no sd
    below, above = np.sqrt((1.0 - _QUARTILES) / _QUARTILES), np.sqrt(_QUARTILES / (1.0 - _QUARTILES))
    low, median, high = np.clip(found, centre - below * spread, centre + above * spread)
    return float(low), float(median), float(high)
