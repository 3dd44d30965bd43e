"""A picture of who disagrees with all the others about what."""

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import numpy as np

from fedbayes.pictures.drawing import (
    ON_IMAGE,
    beginnings,
    inches,
    literal,
    new_axes,
    set_title,
    shades,
)
from fedbayes.questions.conflict.words import LEVEL

if TYPE_CHECKING:
    import xarray as xr
    from matplotlib.axes import Axes

    from fedbayes.results.fit import FederatedFit


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
        Where to draw, best in a figure with ``layout="constrained"``; ``None``: a new figure.

    Returns
    -------
    matplotlib.axes.Axes
        The axes drawn on: z by colour, grey where there is nothing to compare, and a dot where the adjusted p-value is
        below 0.05.

    Raises
    ------
    ValueError
        The fit knows no cavities, see :meth:`fedbayes.FederatedFit.conflict`.

    See Also
    --------
    fedbayes.FederatedFit.conflict : The numbers.
    plot_influence : How far each client moves the others.

    Examples
    --------
    >>> import jax, fedbayes as fb
    >>> from fedbayes.models import linear
    >>> clients, _ = linear.simulate(jax.random.key(0))
    >>> fit = fb.fit_federated(linear.model, clients, key=jax.random.key(1), progress=False)
    >>> ax = fb.plots.plot_conflict(fit.conflict())
    >>> ax.figure.savefig("conflict.png")  # doctest: +SKIP
    """
    found: Any = conflict if hasattr(conflict, "data_vars") else conflict.conflict()
    z = found["z"].values
    names = beginnings(ax, [(labels or {}).get(str(name), str(name)) for name in found["coordinate"].values])
    clients = beginnings(ax, [str(name) for name in found["client"].values])
    width = max(4.0, 1.7 + 0.32 * len(names)) + inches(clients)  # the title needs some
    ax = new_axes(ax, (width, 1.2 + inches(names) + 0.3 * len(clients)))
    ink, ground = shades(ax).ink, shades(ax).faint
    ax.set_facecolor(ground)
    most = max(4.0, float(np.max(np.abs(z), initial=0.0, where=np.isfinite(z))))
    image = ax.imshow(np.ma.masked_invalid(z), cmap="RdBu_r", vmin=-most, vmax=most, aspect="auto")
    rows, columns = np.nonzero(found["p_adjusted"].values < LEVEL)
    ax.plot(columns, rows, "o", **ON_IMAGE)
    every = max(1, -(-len(z) // 40))  # more names than that would lie on each other
    shown = np.arange(0, len(z), every)
    ax.set_xticks(np.arange(len(names)), list(map(literal, names)), rotation=90)
    ax.set_yticks(shown, [literal(clients[place]) for place in shown])
    ax.tick_params(length=0, colors=ink)
    ax.spines[:].set_visible(False)
    ax.figure.colorbar(image, ax=ax, label="z", fraction=0.05)
    set_title(
        ax,
        "Who disagrees with all the others",
        f"Red: the client pulls up; a dot where the adjusted p is below {LEVEL}",
    )
    return ax
