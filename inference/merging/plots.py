"""A picture of a merge: the clients' own posteriors beside the merged one."""

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from fedbayes.pictures.drawing import (
    CLIENT_COLORS,
    FAINT,
    LINE,
    MARKERS,
    legend_below,
    list_rows,
    margin,
    new_axes,
    set_title,
)
from fedbayes.results.rounds import check_diagnostics

if TYPE_CHECKING:
    from matplotlib.axes import Axes

    from fedbayes.results.fit import FederatedFit


def plot_merge(
    fit: "FederatedFit",
    *,
    top: int = 20,
    labels: Mapping[str, str] | None = None,
    clients: Sequence[str] | None = None,
    ax: "Axes | None" = None,
) -> "Axes":
    """The clients' own posteriors of every global beside the merged one: mean and 94% interval of each.

    All are on the scale of the merged posterior, in its sds from its mean, on which shifts and overlaps can be seen.
    The numbers on the right are the effective number of clients that decide the parameter. Globals with the largest
    shifts first.

    Parameters
    ----------
    fit
        A fit by ``OneShot`` or ``FedPA``.
    top
        Most globals shown.
    labels
        Words for globals, by their unconstrained name, such as ``{"beta[0]": "Age"}``.
    clients
        Names of the clients to show; ``None``: the first eight.
    ax
        Where to draw; ``None``: a new figure.

    Returns
    -------
    matplotlib.axes.Axes
        The axes drawn on.

    Raises
    ------
    ValueError
        The fit merged no posteriors, and so lacks the diagnostics of a merge.
    """
    needed = ["client_mean", "client_sd", "shift", "effective_clients"]
    check_diagnostics(fit.rounds, needed, "plot_merge", fit.method, _INSTEAD)
    merge = _merged(fit)
    shown = [name for name in fit.client_names if clients is None or name in clients][:8]
    order = np.argsort(-np.abs(merge["shift"].to_numpy()).max(axis=0), kind="stable")[:top]
    ax = new_axes(ax, (8.0, 1.7 + 0.11 * (len(shown) + 2) * len(order)))
    center, covariance = fit.moments()
    center, sd = center[0], np.sqrt(np.diagonal(covariance[0]))
    places = np.arange(len(order))
    ax.axvspan(-1.88, 1.88, color=FAINT, zorder=0, linewidth=0, label="merged posterior")
    ax.axvline(0.0, color=LINE, linewidth=1.0, zorder=0)
    gap = 0.7 / max(len(shown), 1)
    for i, name in enumerate(shown):
        mine = merge.sel(client=name)
        mean = (mine["client_mean"].to_numpy()[order] - center[order]) / sd[order]
        spread = 1.88 * mine["client_sd"].to_numpy()[order] / sd[order]
        at, color = places - 0.35 + (i + 0.5) * gap, CLIENT_COLORS[i % len(CLIENT_COLORS)]
        ax.hlines(at, mean - spread, mean + spread, color=color, linewidth=1.6)
        ax.plot(mean, at, MARKERS[i % len(MARKERS)], color=color, markersize=4.5, markeredgecolor="white", label=name)
    margin(ax, [f"{number:.1f}" for number in merge["effective_clients"].to_numpy()[order]], "effective\nclients")
    names = fit.global_labels
    list_rows(ax, [(labels or {}).get(names[j], names[j]) for j in order])
    ax.set_xlabel("distance from the merged mean, in sds of the merged posterior")
    hidden = f": {len(shown)} of {len(fit.client_names)} clients" if len(shown) < len(fit.client_names) else ""
    set_title(ax, f"The clients' own posteriors{hidden}", "Mean and 94% interval of each, unconstrained space")
    legend_below(ax, 5)
    return ax


_INSTEAD = (
    "It shows how `OneShot` or `FedPA` has merged the clients' own posteriors; who disagrees in another fit is shown "
    "by `plots.plot_conflict(fit)`."
)


def _merged(fit: "FederatedFit") -> Any:
    """The first replicate's picture of the clients in the last round that has one."""
    rounds = fit.rounds
    known = np.flatnonzero(rounds["client_mean"].notnull().any(("client", "replicate", "coordinate")))
    return rounds.isel(round=int(known[-1]), replicate=0)
