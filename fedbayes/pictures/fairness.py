"""A picture of how evenly fits serve the clients."""

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import numpy as np

from fedbayes.pictures.drawing import (
    CLIENT_COLORS,
    MARKERS,
    list_rows,
    margin,
    new_axes,
    set_title,
)

if TYPE_CHECKING:
    from matplotlib.axes import Axes


def plot_fairness(reports: Mapping[str, Any], *, ax: "Axes | None" = None) -> "Axes":
    """What fits predict of each client's held-out rows, group by group: a point a client, a bar the mean of its group.

    The numbers on the right are the groups' sizes. What is narrow is fair, what is far to the right is accurate.

    Parameters
    ----------
    reports
        From a fit's name to its report by :func:`~fedbayes.fairness_report`, all of the same clients and groups.
    ax
        Where to draw; ``None``: a new figure.

    Returns
    -------
    matplotlib.axes.Axes
        The axes drawn on.

    Raises
    ------
    ValueError
        What is given are no reports, or these are of different clients or groups.
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
    ax = new_axes(ax, (8.0, 1.8 + (0.25 + 0.2 * len(reports)) * len(groups)))
    shift = 0.7 / len(reports)
    for i, (label, report) in enumerate(reports.items()):
        color, marker = CLIENT_COLORS[i % len(CLIENT_COLORS)], MARKERS[i % len(MARKERS)]
        at = np.arange(len(groups)) - 0.35 + (i + 0.5) * shift
        places = at[[int(np.flatnonzero(groups == group)[0]) for group in home]]
        ax.plot(report["score"], places, marker, color=color, markersize=4.5, alpha=0.5, markeredgewidth=0, label=label)
        ax.vlines(report["group_score"], at - 0.45 * shift, at + 0.45 * shift, color=color, linewidth=2.5)
    margin(ax, [str(int(np.sum(home == group))) for group in groups], "clients")
    list_rows(ax, [str(group) for group in groups])
    ax.set_xlabel("held-out log predictive density, nats per outcome")
    set_title(
        ax, "Accuracy by group", "A point a client, a bar the mean of its group: narrow is fair, right is accurate"
    )
    ax.legend(loc="upper center", bbox_to_anchor=(0.5, -0.3 / (0.6 + 0.3 * len(groups))), ncols=4, frameon=False)
    return ax
