"""Tables as plain text, for what is read in a terminal and in a log, and as HTML, for a notebook."""

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from html import escape
from typing import Any

DIRECTION = "probability_of_direction"  # the column of estimates
_NEAR_ONE = 0.1  # a ratio whose interval is this close to 1 is shown by its distance from 1
_MOST_DECIMALS = 9
_NEARLY_SURE = 0.999  # a probability of direction above it is no certainty, whatever it is rounded to


def aligned(table: Sequence[Sequence[str]]) -> Iterator[str]:
    """The lines of a table, each column as wide as its longest cell."""
    widths = [max(map(len, column)) for column in zip(*table, strict=True)]
    for line in table:
        yield "  ".join(cell.ljust(width) for cell, width in zip(line, widths, strict=True)).rstrip()


def as_html_table(title: str, table: Sequence[Sequence[str]], below: Iterable[str] = ()) -> str:
    """A table with its title above, and further lines below it."""
    style = ' style="text-align: left"'
    cells = ["".join(f"<td{style}>{escape(cell)}</td>" for cell in line) for line in table]
    body = "".join(f"<tr>{line}</tr>" for line in cells)
    further = "".join(f"<p>{escape(line.strip())}</p>" for line in below)
    return f"<table><caption{style}>{escape(title)}</caption>{body}</table>{further}"


def estimate_cells(line: Mapping[str, Any], *, is_ratio: bool) -> tuple[str, ...]:
    """A line of estimates by column, as text; a ratio near 1 is shown by its distance from 1, and not as 1."""
    numbers = [name for name in ("mean", "median", "lower", "upper") if name in line]
    decimals = _decimals_near_one([line[name] for name in numbers]) if is_ratio else None
    return tuple(_cell(name, value, decimals if name in numbers else None) for name, value in line.items())


def _decimals_near_one(values: Sequence[float]) -> int | None:
    """Decimals that show how far values are from 1; ``None`` where three digits show it."""
    apart = max((abs(value - 1.0) for value in values), default=0.0)
    if not all(map(math.isfinite, values)) or not 0.0 < apart < _NEAR_ONE:
        return None
    return min(1 - math.floor(math.log10(apart)), _MOST_DECIMALS)


def _cell(column: str, value: Any, decimals: int | None) -> str:
    if not isinstance(value, float):
        return str(value)
    if math.isnan(value):
        return ""
    if column == DIRECTION and value > _NEARLY_SURE:
        return f">{_NEARLY_SURE}"
    return f"{value:.3g}" if decimals is None else f"{value:.{decimals}f}"
