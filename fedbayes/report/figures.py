"""The report's pictures: the posterior's intervals, and how the rounds went."""

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from fedbayes.pictures.drawing import BLUE, ORANGE, counted, new_rows, plain, scales_of_rounds, shades
from fedbayes.report.facts import Facts
from fedbayes.report.markup import Markup, cleaned
from fedbayes.report.quantities import Quantity
from fedbayes.report.svg import inline_svg

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

_WIDTH = 5.2  # inches: on a phone the letters are about as large as drawn, on a laptop larger
_ROW, _AXIS = 0.28, 0.45  # inches
_SPANS = 15  # intervals that a panel may be wide: the shortest in it is still seen as one
_LONG = 26  # characters of a name
_TICKS = 6  # of an axis, at most


def forest(rows: Sequence[Quantity]) -> Markup:
    """Median and 90 percent interval of each quantity; those of like scale share an axis."""
    panels = _panels([row for row in rows if np.isfinite([row.low, row.median, row.high]).all()])
    heights = [_ROW * len(panel) + _AXIS for panel in panels]

    def draw(figure: "Figure") -> None:
        axes = figure.subplots(len(panels), 1, height_ratios=heights, squeeze=False)[:, 0]
        for ax, panel in zip(axes, panels, strict=True):
            _draw_panel(ax, panel)

    num = sum(map(len, panels))
    alt = f"Median and 90 percent interval in {counted(num, 'row')}; the table of the posterior has the numbers."
    return inline_svg(draw, "forest", (_WIDTH, sum(heights) + 0.1), alt)


def _panels(rows: Sequence[Quantity]) -> list[list[Quantity]]:
    """Neighbours on one axis, as long as no interval in it becomes a dot."""
    panels: list[list[Quantity]] = []
    for row in rows:
        if panels and _fits([*panels[-1], row]):
            panels[-1].append(row)
        else:
            panels.append([row])
    return panels


def _fits(rows: Sequence[Quantity]) -> bool:
    span = max(row.high for row in rows) - min(row.low for row in rows)
    return span <= _SPANS * min(row.high - row.low for row in rows)


def _draw_panel(ax: "Axes", rows: Sequence[Quantity]) -> None:
    from matplotlib.ticker import MaxNLocator

    new_rows(ax, [_short(cleaned(row.name)) for row in rows], width=_WIDTH, around=_AXIS, each=_ROW)
    ax.xaxis.set_major_locator(MaxNLocator(_TICKS))
    low, high = min(row.low for row in rows), max(row.high for row in rows)
    if low <= 0.0 <= high:
        ax.axvline(0.0, color=shades(ax).line, linewidth=1.0, zorder=0)
    at = np.arange(len(rows))
    ax.hlines(at, [row.low for row in rows], [row.high for row in rows], color=BLUE, linewidth=1.8)
    ax.plot([row.median for row in rows], at, "o", color=BLUE, markersize=4.5)


def _short(name: str) -> str:
    return name if len(name) <= _LONG else f"{name[: _LONG - 1]}\N{HORIZONTAL ELLIPSIS}"


def rounds(facts: Facts) -> Markup | None:
    """What the rounds are judged by, round by round; ``None`` where that is not known."""
    table, name = facts.tables.get("rounds"), facts.progress
    if table is None or not name:
        return None
    values = table[name].max([dim for dim in table[name].dims if dim != "round"]).values
    seen, number, phases = np.isfinite(values), table["round"].values, table["phase"].values
    if facts.falls:  # on a logarithmic axis, which has no zero
        seen &= values > 0.0
    if not seen.any():
        return None
    unit = str(table[name].attrs.get("units", ""))

    def draw(figure: "Figure") -> None:
        ax = figure.subplots()
        ax.plot(number[seen], values[seen], color=shades(ax).line, linewidth=1.5, zorder=1)
        for place, phase in enumerate(dict.fromkeys(phases.tolist())):
            here = seen & (phases == phase)
            style: dict[str, Any] = {"color": (BLUE, ORANGE)[place % 2], "markersize": 5}
            ax.plot(number[here], values[here], "os^D"[place % 4], label=cleaned(str(phase)), **style)
        if facts.falls and facts.tolerance is not None:
            ax.axhline(facts.tolerance, color=shades(ax).ink, linestyle="--", linewidth=1.0, label="tolerance")
        scales_of_rounds(ax, logarithmic=facts.falls)
        ax.set_xlabel("round")
        ax.set_ylabel(unit)
        plain(ax)
        ax.legend(frameon=False)

    last = f"{values[seen][-1]:.2g} {unit}".strip()
    alt = f"{name.replace('_', ' ')} by round, {counted(int(seen.sum()), 'point')}; the last one is {last}."
    return inline_svg(draw, "rounds", (_WIDTH, 2.9), alt)
