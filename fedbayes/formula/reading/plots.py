"""Pictures of what is read of a fit: medians with their intervals, and survival curves."""

from typing import TYPE_CHECKING, Any

import numpy as np

from fedbayes.formula.reading.survival import SurvivalCurves
from fedbayes.pictures.drawing import BLUE, client_colors, legend_below, new_axes, new_rows, plain, set_title, shades
from fedbayes.questions.regression.estimates import Estimates

if TYPE_CHECKING:
    from matplotlib.axes import Axes

_MOST = 60  # rows of a picture
_CURVES = 8  # that can be told apart


def plot_estimates(estimates: Estimates, *, ax: "Axes | None" = None) -> "Axes":
    """A row for each quantity: the median and the interval, and a line at the value of no effect.

    Ratios are drawn on a logarithmic axis, where 1/2 is as far from 1 as 2 is.

    Parameters
    ----------
    estimates
        Of ``fb.predictions``, ``fb.comparisons``, ``fb.slopes``, ``fb.random_effects``, ``fb.heterogeneity`` or a
        contrast; at most 60 quantities. Of ``fb.summary_table`` those that have a value of no effect, all on one scale.
    ax
        Where to draw, best in a figure with ``layout="constrained"``; ``None``: a new figure.

    Returns
    -------
    matplotlib.axes.Axes
        The axes drawn on.

    Raises
    ------
    ValueError
        There are too many quantities, none, or differences and ratios.

    See Also
    --------
    fedbayes.predictions : Outcomes of new rows.
    fedbayes.comparisons : Differences.
    plot_survival : Draws survival curves.

    Examples
    --------
    >>> fb.plots.plot_estimates(fit.random_effects())  # doctest: +SKIP
    """
    names, median, lower, upper, reference = _rows(estimates)
    ax = new_rows(ax, names, width=7.0, around=1.5, each=0.28)
    at, shade = np.arange(len(names)), shades(ax)
    if not np.isnan(reference):
        ax.axvline(reference, color=shade.line, linewidth=1.0, zorder=0)
    ax.hlines(at, lower, upper, color=BLUE, linewidth=1.6)
    ax.plot(median, at, "o", color=BLUE, markersize=5.0)
    if reference == 1.0 and (lower > 0).all():
        _of_ratios(ax)
    set_title(ax, estimates.title, f"Medians and {estimates.level:.0%} intervals")
    return ax


def plot_survival(curves: SurvivalCurves, *, ax: "Axes | None" = None) -> "Axes":
    """The survival curve of each row, with a band that holds at each time by itself.

    Parameters
    ----------
    curves
        Of ``fb.survival_curves``, of at most eight rows.
    ax
        Where to draw, best in a figure with ``layout="constrained"``; ``None``: a new figure.

    Returns
    -------
    matplotlib.axes.Axes
        The axes drawn on.

    Raises
    ------
    ValueError
        They are no survival curves, or too many.

    See Also
    --------
    fedbayes.survival_curves : The numbers.
    plot_estimates : Other quantities.

    Examples
    --------
    >>> fb.plots.plot_survival(fb.survival_curves(reg, fit, rows, range(0, 366)))  # doctest: +SKIP
    """
    if not isinstance(curves, SurvivalCurves):
        raise ValueError(f"`curves` is a {type(curves).__name__}; write what `fb.survival_curves` has returned.")
    if curves.draws.sizes["row"] > _CURVES:
        raise ValueError(
            f"`curves` has {curves.draws.sizes['row']} rows, of which at most {_CURVES} can be told apart. Ask for the "
            "curves of fewer rows."
        )
    ax = new_axes(ax, (7.0, 4.2))
    plain(ax)
    summary, colors = curves.summary, client_colors(ax)
    times = curves.draws["time"].values
    for place, row in enumerate(curves.draws["row"].values):
        mine, color = summary.isel(row=place), colors[place % len(colors)]
        ax.plot(times, mine["median"], color=color, linewidth=1.6, label=f"row {row}")
        ax.fill_between(times, mine["lower"], mine["upper"], color=color, alpha=0.18, linewidth=0.0)
    ax.set_ylim(0.0, 1.02)
    ax.set_xlabel("time")
    ax.set_ylabel("probability that the event comes later")
    if curves.draws.sizes["row"] > 1:
        legend_below(ax)
    set_title(ax, curves.title, f"Medians and {curves.level:.0%} bands at each time")
    return ax


def _of_ratios(ax: "Axes") -> None:
    """A logarithmic axis whose ticks are halves and doubles, in plain numbers."""
    from matplotlib.ticker import FixedLocator, FuncFormatter, NullFormatter, NullLocator

    low, high = np.log2(ax.get_xlim() if ax.get_xlim()[0] > 0 else (min(ax.dataLim.x0, 1.0), ax.dataLim.x1))
    step = max(1, int(np.ceil((high - low) / 8.0)))
    powers = np.arange(np.floor(low / step), np.ceil(high / step) + 1) * step
    ax.set_xscale("log")
    ax.xaxis.set_major_locator(FixedLocator((2.0**powers).tolist()))
    ax.xaxis.set_major_formatter(FuncFormatter(lambda value, place: f"{value:g}"))
    ax.xaxis.set_minor_locator(NullLocator())
    ax.xaxis.set_minor_formatter(NullFormatter())


def _rows(estimates: Any) -> tuple[list[str], np.ndarray, np.ndarray, np.ndarray, float]:
    """Names, medians, bounds and the common reference of what is drawn."""
    if not isinstance(estimates, Estimates):
        raise ValueError(
            f"`estimates` is a {type(estimates).__name__}; write what `fb.predictions` and its like have returned."
        )
    table = estimates.to_pandas()
    references = np.broadcast_to(np.asarray(estimates.reference, float), estimates.summary["median"].shape).ravel()
    if np.isnan(references).any() and not np.isnan(references).all():
        table, references = table[~np.isnan(references)], references[~np.isnan(references)]
    if not 0 < len(table) <= _MOST:
        raise ValueError(f"`estimates` has {len(table)} quantities to draw; from 1 to {_MOST} are drawn.")
    if len(np.unique(references)) > 1:
        raise ValueError(
            "`estimates` has differences as well as ratios, which have no axis in common. Draw those of one formula."
        )
    labels = [name for name in estimates._columns() if name in ("unit", "effect", *map(str, estimates.draws.dims))]
    if "effect" in labels and (table["effect"] == "Intercept").all():
        labels.remove("effect")
    names = [" ".join(map(str, line)) for line in table[labels].itertuples(index=False)] if labels else [""]
    median, lower, upper = (table[name].to_numpy() for name in ("median", "lower", "upper"))
    return names, median, lower, upper, float(references[0])
