"""Pictures of clients side by side: who fares how, who disagrees, what each selects."""

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from fedbayes.results.conflict import LEVEL
from fedbayes.results.drawing import (
    CLIENT_COLORS,
    FAINT,
    INK,
    LINE,
    MARKERS,
    counted,
    list_rows,
    margin,
    new_axes,
    set_title,
)
from fedbayes.results.replicates import CLIENTS

if TYPE_CHECKING:
    import xarray as xr
    from matplotlib.axes import Axes

    from fedbayes.results.fit import FederatedFit


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


def plot_selection(
    selection: "FederatedFit | xr.Dataset",
    *,
    clients: Sequence[str] | None = None,
    labels: Mapping[str, str] | None = None,
    ax: "Axes | None" = None,
) -> "Axes":
    """Each client's coefficients, those that are included filled: a forest, or for more than eight clients a table.

    Parameters
    ----------
    selection
        From :meth:`fedbayes.FederatedFit.select`, or a fit, whose selection is then made by the defaults.
    clients
        Which clients to show; ``None``: all.
    labels
        Words for the coefficients, by their names in ``coords``.
    ax
        Where to draw; ``None``: a new figure.

    Returns
    -------
    matplotlib.axes.Axes
        The axes drawn on: means and credible intervals; or means over sds, by colour, with a dot where a coefficient is
        included.

    Raises
    ------
    ValueError
        There are no clients' coefficients in it, no such client, or more than one dimension of coefficients.
    """
    found: Any = selection if hasattr(selection, "data_vars") else selection.select()
    if "included" not in found:
        raise ValueError(
            "This selection is for the population alone; `plot_selection` shows the clients' coefficients."
        )
    if unknown := [name for name in clients or () if name not in found[CLIENTS].values]:
        raise ValueError(f"There are no clients {unknown}; the selection has {found[CLIENTS].values.tolist()}.")
    found = found if clients is None else found.sel({CLIENTS: list(clients)})
    dims = [dim for dim in found["included"].dims if dim != CLIENTS]
    if len(dims) != 1:
        raise ValueError(
            f"The coefficients have the dimensions {dims}; `plot_selection` shows one. Choose by `.sel(...)`."
        )
    names = [str(value) for value in found[dims[0]].values]
    words = [(labels or {}).get(name, name) for name in names]
    ordered = found.transpose(CLIENTS, dims[0], ...)
    draw = _forest if found.sizes[CLIENTS] <= len(CLIENT_COLORS) else _table
    ax = draw(ordered, words, ax)
    told = found.attrs.get("rule", "included")
    num = found.sizes[CLIENTS]
    set_title(
        ax,
        f"Coefficients that {counted(num, 'client')} include{'s' if num == 1 else ''}",
        f"Marked where {told}",
    )
    return ax


def _forest(found: "xr.Dataset", words: Sequence[str], ax: "Axes | None") -> "Axes":
    """A row for each coefficient, in it a line for each client."""
    num = found.sizes[CLIENTS]
    height = 1.6 + len(words) * max(0.3, 0.13 * num)
    ax = new_axes(ax, (7.5, height))
    list_rows(ax, words)
    ax.axvline(0.0, color=LINE, linewidth=1.0, zorder=0)
    for k, client in enumerate(found[CLIENTS].values):
        mine, color = found.sel({CLIENTS: client}), CLIENT_COLORS[k]
        rows = np.arange(len(words)) + (k - (num - 1) / 2) * 0.7 / max(num, 2)
        included = mine["included"].values
        ax.hlines(rows, mine["lower"], mine["upper"], color=color, linewidth=1.4, alpha=np.where(included, 1.0, 0.4))
        style: dict[str, Any] = {"color": color, "markersize": 5.5, "linestyle": "none"}
        mean = mine["mean"].values
        ax.plot(mean[included], rows[included], MARKERS[k], label=f"{client}: {included.sum()} included", **style)
        ax.plot(mean[~included], rows[~included], MARKERS[k], markerfacecolor="white", **style)
    ax.set_xlabel(f"coefficient: mean and {found.attrs.get('level', 0.9):.0%} credible interval")
    ax.legend(loc="upper center", bbox_to_anchor=(0.5, -0.6 / height), ncols=min(num, 3), frameon=False)
    return ax


def _table(found: "xr.Dataset", words: Sequence[str], ax: "Axes | None") -> "Axes":
    """A column for each client: coefficients in sds by colour, a dot where one is included."""
    num = found.sizes[CLIENTS]
    ax = new_axes(ax, (2.5 + 0.28 * num, 1.6 + 0.28 * len(words)))
    relative = (found["mean"] / found["sd"]).values.T
    image = ax.imshow(relative, cmap="RdBu_r", vmin=-4.0, vmax=4.0, aspect="auto")
    rows, columns = np.nonzero(found["included"].values.T)
    ax.plot(columns, rows, "o", color=INK, markersize=5, markeredgecolor="white")
    ax.set_yticks(np.arange(len(words)), words)
    ax.set_xticks(np.arange(num), [str(name) for name in found[CLIENTS].values], rotation=90)
    ax.tick_params(length=0)
    ax.figure.colorbar(image, ax=ax, label="mean in posterior sds", extend="both", fraction=0.05)
    return ax


def plot_conflict(
    conflict: "FederatedFit | xr.Dataset", *, labels: Mapping[str, str] | None = None, ax: "Axes | None" = None
) -> "Axes":
    """Who disagrees with all the others about what: a row for each client, a column for each global.

    Parameters
    ----------
    conflict
        From :meth:`fedbayes.FederatedFit.conflict`, or a fit.
    labels
        Words for the globals, by their names in ``coordinate``.
    ax
        Where to draw; ``None``: a new figure.

    Returns
    -------
    matplotlib.axes.Axes
        The axes drawn on: z by colour, grey where there is nothing to compare, and a dot where the adjusted p-value is
        below 0.05.

    Raises
    ------
    ValueError
        The fit knows no cavities, see :meth:`fedbayes.FederatedFit.conflict`.
    """
    found: Any = conflict if hasattr(conflict, "data_vars") else conflict.conflict()
    z = found["z"].values
    ax = new_axes(ax, (2.5 + 0.32 * z.shape[1], 1.9 + 0.3 * z.shape[0]))
    ax.set_facecolor(FAINT)
    most = max(4.0, float(np.max(np.abs(z), initial=0.0, where=np.isfinite(z))))
    image = ax.imshow(np.ma.masked_invalid(z), cmap="RdBu_r", vmin=-most, vmax=most, aspect="auto")
    rows, columns = np.nonzero(found["p_adjusted"].values < LEVEL)
    ax.plot(columns, rows, "o", color=INK, markersize=5, markeredgecolor="white", linestyle="none")
    names = [str(name) for name in found["coordinate"].values]
    every = max(1, -(-len(z) // 40))  # more names than that would lie on each other
    shown = np.arange(0, len(z), every)
    ax.set_xticks(np.arange(len(names)), [(labels or {}).get(name, name) for name in names], rotation=90)
    ax.set_yticks(shown, [str(found["client"].values[place]) for place in shown])
    ax.tick_params(length=0, colors=INK)
    ax.spines[:].set_visible(False)
    ax.figure.colorbar(image, ax=ax, label="z", fraction=0.05)
    set_title(
        ax,
        "Who disagrees with all the others",
        f"Red: the client pulls up; a dot where the adjusted p is below {LEVEL}",
    )
    return ax
