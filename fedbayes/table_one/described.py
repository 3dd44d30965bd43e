"""What ``describe`` returns: numbers of each column by client and over all, and the table that shows them."""

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple

from fedbayes.owner.rules import DisclosureRules
from fedbayes.owner.text import aligned

ALL = "all clients"
HIDDEN = "–"


class NumberSummary(NamedTuple):
    """A column of numbers in one group of rows.

    Attributes
    ----------
    rows, missing
        With a value, and without one.
    mean, sd
        NaN where they are hidden, or there are too few rows.
    quartiles
        25, 50 and 75 percent, to a twentieth of an sd; NaN likewise.
    """

    rows: int
    missing: int
    mean: float = math.nan
    sd: float = math.nan
    quartiles: tuple[float, float, float] = (math.nan, math.nan, math.nan)


class LevelSummary(NamedTuple):
    """A column of levels in one group of rows.

    Attributes
    ----------
    rows, missing
        With a value, and without one.
    counts
        Rows of each level; ``None`` where hidden.
    """

    rows: int
    missing: int
    counts: Mapping[str, int | None]


@dataclass(frozen=True)
class Description:
    """What the clients' columns are like: a table 1.

    Attributes
    ----------
    rows
        By client, and of ``"all clients"``.
    numbers, levels
        By column, and by client and ``"all clients"``.
    rules
        The limits below which cells are hidden.
    notes
        What was left out.
    """

    rows: Mapping[str, int]
    numbers: Mapping[str, Mapping[str, NumberSummary]]
    levels: Mapping[str, Mapping[str, LevelSummary]]
    rules: DisclosureRules
    notes: tuple[str, ...]

    @property
    def hidden(self) -> int:
        """How many cells are hidden."""
        means = [each for found in self.numbers.values() for each in found.values() if each.rows]
        counts = [n for found in self.levels.values() for each in found.values() for n in each.counts.values()]
        return sum(math.isnan(each.mean) for each in means) + counts.count(None)

    def table(self) -> list[tuple[str, ...]]:
        """The table as text: a head, and a row for each line, of which the first cell says what it is."""
        groups = list(self.rows)
        lines: list[tuple[str, ...]] = [("", *groups), ("rows", *(f"{n:,}" for n in self.rows.values()))]
        for name, numbers in self.numbers.items():
            lines += _of_numbers(name, [numbers[group] for group in groups])
        for name, levels in self.levels.items():
            lines += _of_levels(name, [levels[group] for group in groups])
        return lines

    def to_pandas(self) -> Any:
        """The numbers as a frame of pandas.

        Returns
        -------
        pandas.DataFrame
            A row for each column and statistic, ``("age", "mean")``, or level, ``("sex", "f")``, beside ``("sex",
            "(missing)")``; a column for each client, and one over all. Hidden cells are NaN.

        Examples
        --------
        >>> import fedbayes as fb
        >>> frame = fb.describe({"a": {"x": [1.0, 2.0, 3.0, 4.0, 5.0, 6.0]}}).to_pandas()
        >>> float(frame.loc[("x", "mean"), "all clients"])
        3.5
        """
        import pandas

        found: dict[tuple[str, str], list[float]] = {("rows", ""): [float(n) for n in self.rows.values()]}
        for name, numbers in self.numbers.items():
            for word, value in _STATISTICS.items():
                found[name, word] = [float(value(numbers[group])) for group in self.rows]
        for name, levels in self.levels.items():
            found[name, "(missing)"] = [float(levels[group].missing) for group in self.rows]
            for level in levels[ALL].counts:
                counts = [levels[group].counts[level] for group in self.rows]
                found[name, level] = [math.nan if n is None else float(n) for n in counts]
        index = pandas.MultiIndex.from_tuples(list(found), names=["column", "of"])
        return pandas.DataFrame(list(found.values()), index=index, columns=list(self.rows))

    def __repr__(self) -> str:
        return "\n".join([*aligned(self.table()), *self._below()])

    def _below(self) -> Iterator[str]:
        if self.hidden:
            yield (
                f"{HIDDEN}: hidden, since fewer than {self.rules.smallest_cell} rows would be told of, by themselves "
                "or by subtraction from what is shown"
            )
        if self.numbers:
            yield "quartiles are exact to a twentieth of the sd over all clients"
        yield from self.notes


_STATISTICS = {
    "missing": lambda each: each.missing,
    "mean": lambda each: each.mean,
    "sd": lambda each: each.sd,
    "25%": lambda each: each.quartiles[0],
    "50%": lambda each: each.quartiles[1],
    "75%": lambda each: each.quartiles[2],
}


def _of_numbers(name: str, groups: list[NumberSummary]) -> list[tuple[str, ...]]:
    places = _decimals([each.sd for each in groups])
    means, medians = [], []
    for each in groups:
        mean, sd, low, median, high = (f"{value:z,.{places}f}" for value in (each.mean, each.sd, *each.quartiles))
        shown, nothing = not math.isnan(each.mean), HIDDEN if each.rows else ""
        means.append(f"{mean} ({sd})" if shown and not math.isnan(each.sd) else mean if shown else nothing)
        medians.append(f"{median} [{low}, {high}]" if shown else nothing)
    lines = [(f"{name}, mean (sd)", *means), ("  median [quartiles]", *medians)]
    return [*lines, *_missing(groups)]


def _of_levels(name: str, groups: list[LevelSummary]) -> list[tuple[str, ...]]:
    lines = [(name, *("" for _ in groups))]
    for level in groups[-1].counts:
        lines.append((f"  {level}", *(_share(each.counts[level], each.rows) for each in groups)))
    return [*lines, *_missing(groups)]


def _missing(groups: list[Any]) -> list[tuple[str, ...]]:
    if not any(each.missing for each in groups):
        return []
    return [("  missing", *(_share(each.missing, each.rows + each.missing) for each in groups))]


def _share(count: int | None, rows: int) -> str:
    if count is None:
        return HIDDEN
    return f"{count:,} ({100.0 * count / rows:.1f}%)" if rows else ""


def _decimals(sds: list[float]) -> int:
    """Decimals by which the smallest sd has two digits."""
    known = [sd for sd in sds if sd > 0.0]
    return max(0, min(6, 1 - math.floor(math.log10(min(known))))) if known else 2
