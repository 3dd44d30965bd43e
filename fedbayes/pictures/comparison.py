"""A picture of two posteriors side by side."""

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from fedbayes.pictures.drawing import (
    BLUE,
    LINE,
    ORANGE,
    legend_below,
    list_rows,
    margin,
    new_axes,
    set_title,
    signed,
)
from fedbayes.questions.comparison import compare, flat_draws

if TYPE_CHECKING:
    from matplotlib.axes import Axes


def plot_comparison(
    idata: Any,
    reference: Any,
    *,
    names: tuple[str, str] = ("Federated", "NUTS on the pooled data"),
    var_names: Sequence[str] | None = None,
    labels: Mapping[str, str] | None = None,
    ax: "Axes | None" = None,
) -> "Axes":
    """Two posteriors side by side: median, central 50% and 94% interval of every parameter.

    The numbers on the right are the difference of the means in sds of the reference.

    Parameters
    ----------
    idata, reference
        ArviZ objects with a group ``posterior``.
    names
        What to call them.
    var_names
        Variables to show; ``None``: all that both have.
    labels
        Words for parameters, by their name in ``az.summary``, such as ``{"beta[age]": "Age"}``.
    ax
        Where to draw; ``None``: a new figure.

    Returns
    -------
    matplotlib.axes.Axes
        The axes drawn on.
    """
    rows = {row.name: row for row in compare(idata, reference).rows}
    shown = [name for name in flat_draws(idata, var_names) if name in rows]
    ax = new_axes(ax, (8.0, 1.5 + 0.36 * len(shown)))
    places = np.arange(len(shown))
    ax.axvline(0.0, color=LINE, linewidth=1.0, zorder=0)
    for source, label, color, marker, shift in (
        (idata, names[0], BLUE, "o", -0.16),
        (reference, names[1], ORANGE, "s", 0.16),
    ):
        draws = flat_draws(source)
        quantiles = np.quantile([draws[name].ravel() for name in shown], [0.03, 0.25, 0.5, 0.75, 0.97], axis=1)
        ax.hlines(places + shift, quantiles[0], quantiles[4], color=color, linewidth=1.4)
        ax.hlines(places + shift, quantiles[1], quantiles[3], color=color, linewidth=4.0)
        ax.plot(quantiles[2], places + shift, marker, color=color, markersize=5.5, markeredgecolor="white", label=label)
    margin(ax, [signed(rows[name].difference) for name in shown], "difference\nof means, sd")
    list_rows(ax, [(labels or {}).get(name, name) for name in shown])
    ax.set_xlabel("value of the parameter")
    set_title(ax, f"{names[0]} posterior against {names[1]}", "Median, central 50% and 94% of each parameter")
    legend_below(ax)
    return ax
