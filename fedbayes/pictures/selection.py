"""Pictures of which coefficients each client selects."""

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from fedbayes.pictures.drawing import (
    MARKERS,
    ON_IMAGE,
    beginnings,
    client_colors,
    counted,
    inches,
    legend_below,
    literal,
    new_axes,
    new_rows,
    set_title,
    shades,
)
from fedbayes.results.arviz import CLIENTS

if TYPE_CHECKING:
    import xarray as xr
    from matplotlib.axes import Axes

    from fedbayes.results.fit import FederatedFit


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
        Where to draw, best in a figure with ``layout="constrained"``; ``None``: a new figure.

    Returns
    -------
    matplotlib.axes.Axes
        The axes drawn on: means and credible intervals; or means over sds, by colour, with a dot where a coefficient is
        included.

    Raises
    ------
    ValueError
        There are no clients' coefficients in it, no such client, or more than one dimension of coefficients.

    See Also
    --------
    fedbayes.FederatedFit.select : The numbers.
    plot_estimates : Other quantities.

    Examples
    --------
    >>> plot_selection(fit.select(), labels={"x0": "Age"})  # doctest: +SKIP
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
    draw = _forest if found.sizes[CLIENTS] <= len(MARKERS) else _table
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
    ax = new_rows(ax, words, width=7.5, around=1.6, each=max(0.3, 0.13 * num))
    shade, colors = shades(ax), client_colors(ax)
    ax.axvline(0.0, color=shade.line, linewidth=1.0, zorder=0)
    for k, client in enumerate(found[CLIENTS].values):
        mine, color = found.sel({CLIENTS: client}), colors[k]
        rows = np.arange(len(words)) + (k - (num - 1) / 2) * 0.7 / max(num, 2)
        included = mine["included"].values
        ax.hlines(rows, mine["lower"], mine["upper"], color=color, linewidth=1.4, alpha=np.where(included, 1.0, 0.4))
        style: dict[str, Any] = {"color": color, "markersize": 5.5, "linestyle": "none"}
        mean = mine["mean"].values
        ax.plot(mean[included], rows[included], MARKERS[k], label=f"{client}: {included.sum()} included", **style)
        ax.plot(mean[~included], rows[~included], MARKERS[k], markerfacecolor=shade.paper, **style)
    ax.set_xlabel(f"mean and {found.attrs.get('level', 0.9):.0%} credible interval")
    legend_below(ax)
    return ax


def _table(found: "xr.Dataset", words: Sequence[str], ax: "Axes | None") -> "Axes":
    """A column for each client: coefficients in sds by colour, a dot where one is included."""
    num = found.sizes[CLIENTS]
    words, clients = beginnings(ax, words), beginnings(ax, [str(name) for name in found[CLIENTS].values])
    ax = new_axes(ax, (1.8 + inches(words) + 0.28 * num, 1.0 + inches(clients) + 0.28 * len(words)))
    relative = (found["mean"] / found["sd"]).values.T
    image = ax.imshow(relative, cmap="RdBu_r", vmin=-4.0, vmax=4.0, aspect="auto")
    rows, columns = np.nonzero(found["included"].values.T)
    ax.plot(columns, rows, "o", **ON_IMAGE)
    ax.set_yticks(np.arange(len(words)), list(map(literal, words)))
    ax.set_xticks(np.arange(num), list(map(literal, clients)), rotation=90)
    ax.tick_params(length=0, colors=shades(ax).ink)
    ax.figure.colorbar(image, ax=ax, label="mean in posterior sds", extend="both", fraction=0.05)
    return ax
