"""A picture of how evenly fits serve the clients."""

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import numpy as np

from fedbayes.pictures.drawing import (
    MARKERS,
    client_colors,
    legend_below,
    margin,
    new_rows,
    set_title,
)

if TYPE_CHECKING:
    from matplotlib.axes import Axes

_NORMAL = 1.645  # quantile of 95 percent


def plot_fairness(reports: Mapping[str, Any], *, ax: "Axes | None" = None) -> "Axes":
    """What fits predict of each client's held-out rows, group by group: a point a client, a bar the mean of its group.

    The line through a bar is the group's 90% interval, for the finite number of held-out outcomes: 1.64 standard errors
    (``group_error`` of the report) to each side. It needs two outcomes of every client in the group, and is there for
    every method, points included. It does not hold what the posterior leaves open, which the score has averaged over.
    The numbers on the right are the groups' sizes. What is narrow is fair, what is far to the right is accurate.

    Parameters
    ----------
    reports
        From a fit's name to its report by :func:`~fedbayes.fairness_report`, all of the same clients and groups.
    ax
        Where to draw, best in a figure with ``layout="constrained"``; ``None``: a new figure.

    Returns
    -------
    matplotlib.axes.Axes
        The axes drawn on.

    Raises
    ------
    ValueError
        What is given are no reports, or these are of different clients or groups.

    See Also
    --------
    fedbayes.fairness_report : The numbers.
    fedbayes.federation_gain : What each client has of the others.
    """
    # a report by itself is a mapping too, of arrays
    known = isinstance(reports, Mapping) and all("group_score" in report for report in reports.values())
    if not known or not reports:
        raise ValueError(
            '`reports` is no mapping from names to reports: write `plot_fairness({"my fit": '
            "fedbayes.fairness_report(fit, held_out, groups)})`."
        )
    first = next(iter(reports.values()))
    if any(not report["group_of"].equals(first["group_of"]) for report in reports.values()):
        raise ValueError("`reports` are not all of the same clients and groups: make them with the same arguments.")
    groups, home = first["group"].values, first["group_of"].values
    ax = new_rows(ax, [str(group) for group in groups], width=8.0, around=1.8, each=0.25 + 0.2 * len(reports))
    shift, colors = 0.7 / len(reports), client_colors(ax)
    for i, (label, report) in enumerate(reports.items()):
        color, marker = colors[i % len(colors)], MARKERS[i % len(MARKERS)]
        at = np.arange(len(groups)) - 0.35 + (i + 0.5) * shift
        places = at[[int(np.flatnonzero(groups == group)[0]) for group in home]]
        ax.plot(report["score"], places, marker, color=color, markersize=4.5, alpha=0.5, markeredgewidth=0, label=label)
        middle, half = report["group_score"].values, _NORMAL * report["group_error"].values
        ax.hlines(at, middle - half, middle + half, color=color, linewidth=1.2)
        ax.vlines(middle, at - 0.45 * shift, at + 0.45 * shift, color=color, linewidth=2.5)
    margin(ax, [str(int(np.sum(home == group))) for group in groups], "clients")
    ax.set_xlabel("held-out log predictive density, nats per outcome")
    legend_below(ax)
    about = "A point a client, a bar the mean of its group with its 90% interval: narrow is fair, right is accurate"
    set_title(ax, "Accuracy by group", about)
    return ax
