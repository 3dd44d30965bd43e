"""A picture of a merge: the clients' own posteriors beside the merged one."""

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from fedbayes.pictures.drawing import (
    MARKERS,
    client_colors,
    legend_below,
    margin,
    new_rows,
    set_title,
    shades,
)
from fedbayes.results.rounds import check_diagnostics

if TYPE_CHECKING:
    from matplotlib.axes import Axes

    from fedbayes.results.fit import FederatedFit

_WIDTH = 1.88  # of a 94% interval to each side, in sds
_ENOUGH = 6.0  # sds of the merged posterior that are always worth showing


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
    The axis ends where most clients do; an arrow marks an interval that goes on beyond it, with the mean beside the
    arrow where that lies outside as well. The numbers on the right are the effective number of clients that decide the
    parameter. Globals with the largest shifts first.

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
        Where to draw, best in a figure with ``layout="constrained"``; ``None``: a new figure.

    Returns
    -------
    matplotlib.axes.Axes
        The axes drawn on.

    Raises
    ------
    ValueError
        The fit merged no posteriors, and so lacks the diagnostics of a merge.

    See Also
    --------
    fedbayes.OneShot : The method.
    plot_comparison : Two posteriors beside each other.

    Examples
    --------
    >>> import jax, fedbayes as fb
    >>> from fedbayes.models import linear
    >>> clients, _ = linear.simulate(jax.random.key(0))
    >>> fit = fb.fit_federated(linear.model, clients, method=fb.OneShot(), key=jax.random.key(1), progress=False)
    >>> ax = fb.plots.plot_merge(fit, top=3)
    >>> ax.get_title(loc="left")
    "The clients' own posteriors"
    """
    needed = ["client_mean", "client_sd", "shift", "effective_clients"]
    check_diagnostics(fit.rounds, needed, "plot_merge", fit.method, _INSTEAD)
    merge = _merged(fit)
    shown = [name for name in fit.client_names if clients is None or name in clients][:8]
    order = np.argsort(-np.abs(merge["shift"].to_numpy()).max(axis=0), kind="stable")[:top]
    words = [(labels or {}).get(fit.global_labels[j], fit.global_labels[j]) for j in order]
    ax = new_rows(ax, words, width=8.0, around=1.7, each=0.11 * (len(shown) + 2))
    shade, colors = shades(ax), client_colors(ax)
    center, covariance = fit.moments()
    sd = np.sqrt(np.diagonal(covariance[0]))
    mine = merge.sel(client=shown).isel(coordinate=order)
    means = (mine["client_mean"].to_numpy() - center[0][order]) / sd[order]
    spreads = _WIDTH * mine["client_sd"].to_numpy() / sd[order]
    limit = _limit(np.abs(means) + spreads)
    ax.axvspan(-_WIDTH, _WIDTH, color=shade.faint, zorder=0, linewidth=0, label="merged posterior")
    ax.axvline(0.0, color=shade.line, linewidth=1.0, zorder=0)
    gap = 0.7 / max(len(shown), 1)
    for i, (name, mean, spread) in enumerate(zip(shown, means, spreads, strict=True)):
        at, color = np.arange(len(order)) - 0.35 + (i + 0.5) * gap, colors[i]
        ax.hlines(at, mean - spread, mean + spread, color=color, linewidth=1.6)
        style: dict[str, Any] = {"color": color, "markersize": 4.5, "markeredgecolor": shade.paper, "label": name}
        ax.plot(mean, at, MARKERS[i], **style)
        _mark_beyond(ax, limit, mean, spread, at, color)
    ax.set_xlim(-limit, limit)
    margin(ax, [f"{number:.1f}" for number in merge["effective_clients"].to_numpy()[order]], "effective\nclients")
    ax.set_xlabel("distance from the merged mean, in sds of the merged posterior")
    legend_below(ax)
    hidden = f": {len(shown)} of {len(fit.client_names)} clients" if len(shown) < len(fit.client_names) else ""
    beyond = "; arrows lead to what lies outside" if np.any(np.abs(means) + spreads > limit) else ""
    set_title(ax, f"The clients' own posteriors{hidden}", f"Mean and 94% interval of each, unconstrained space{beyond}")
    return ax


def _limit(reach: np.ndarray) -> float:
    """Where the axis ends, in sds of the merged posterior: whoever knows little would leave all others a dot."""
    return 1.05 * min(float(np.max(reach)), max(_ENOUGH, 2.0 * float(np.median(reach))))


def _mark_beyond(ax: "Axes", limit: float, mean: np.ndarray, spread: np.ndarray, at: np.ndarray, color: str) -> None:
    """An arrow on the axis' edge for each interval that goes on, and the mean where it is not on the axis."""
    for side, arrow in ((-1.0, "<"), (1.0, ">")):
        for row in at[side * mean + spread > limit]:
            ax.plot(side * limit, row, arrow, color=color, markersize=5, clip_on=False)
        for place in np.flatnonzero(side * mean > limit):
            ax.annotate(
                f"{mean[place]:.0f}".replace("-", "\N{MINUS SIGN}"),
                (side * limit, at[place]),
                (-7.0 * side, 0.0),
                textcoords="offset points",
                ha="right" if side > 0.0 else "left",
                va="center",
                color=color,
                fontsize="x-small",
            )


_INSTEAD = (
    "It shows how `OneShot` or `FedPA` has merged the clients' own posteriors; who disagrees in another fit is shown "
    "by `plots.plot_conflict(fit)`."
)


def _merged(fit: "FederatedFit") -> Any:
    """The first replicate's picture of the clients in the last round that has one."""
    rounds = fit.rounds
    known = np.flatnonzero(rounds["client_mean"].notnull().any(("client", "replicate", "coordinate")))
    return rounds.isel(round=int(known[-1]), replicate=0)
