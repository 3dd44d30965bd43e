"""A picture of an EP fit: who moves the others, and by how much."""

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import numpy as np

from fedbayes.pictures.drawing import (
    BLUE,
    margin,
    new_rows,
    set_title,
    shades,
)
from fedbayes.results.rounds import check_diagnostics

if TYPE_CHECKING:
    from matplotlib.axes import Axes

    from fedbayes.results.fit import FederatedFit


def plot_influence(
    fit: "FederatedFit", *, top: int = 20, labels: Mapping[str, str] | None = None, ax: "Axes | None" = None
) -> "Axes":
    """How far each client moves everybody else's mean, in the last round it took part in; the most influential first.

    The numbers on the right are the largest share that the client alone has of the information about any one direction
    of the parameters.

    Parameters
    ----------
    fit
        A fit by a method with the diagnostics ``influence`` and ``smallest_cavity_eigenvalue``, such as EP.
    top
        Most clients shown.
    labels
        Words for clients, by name.
    ax
        Where to draw, best in a figure with ``layout="constrained"``; ``None``: a new figure.

    Returns
    -------
    matplotlib.axes.Axes
        The axes drawn on.

    Raises
    ------
    ValueError
        The fit lacks these diagnostics, or they are NaN for all clients.

    See Also
    --------
    fedbayes.EP : The method.
    plot_conflict : Which clients disagree.

    Examples
    --------
    >>> import jax, fedbayes as fb
    >>> from fedbayes.models import linear
    >>> clients, _ = linear.simulate(jax.random.key(0))
    >>> fit = fb.fit_federated(linear.model, clients, key=jax.random.key(1), progress=False)
    >>> ax = fb.plots.plot_influence(fit)
    >>> ax.get_xlabel()
    'shift, sd (rms)'
    """
    check_diagnostics(fit.rounds, ["influence", "smallest_cavity_eigenvalue"], "plot_influence", fit.method)
    influence = _last(fit.rounds["influence"])
    alone = 1.0 - _last(fit.rounds["smallest_cavity_eigenvalue"])
    known = np.flatnonzero(np.isfinite(influence))
    if not len(known):
        raise ValueError("The diagnostic `influence` is NaN for every client in every round: there is nothing to show.")
    order = known[np.argsort(-influence[known], kind="stable")][:top]
    names = [fit.client_names[client] for client in order]
    ax = new_rows(ax, [(labels or {}).get(name, name) for name in names], width=7.5, around=1.6, each=0.36)
    shade, places = shades(ax), np.arange(len(order))
    ax.hlines(places, 0.0, influence[order], color=BLUE, linewidth=2.5, alpha=0.5)
    ax.plot(influence[order], places, "o", color=BLUE, markersize=9, markeredgecolor=shade.paper)
    ax.set_xlim(left=0.0)
    margin(
        ax, [f"{share:.0%}" if np.isfinite(share) else "" for share in alone[order]], "largest share\nof information"
    )
    ax.grid(axis="x", color=shade.faint, linewidth=0.6)
    ax.set_xlabel("shift, sd (rms)")
    more = f": the {len(order)} largest of {len(known)}" if len(order) < len(known) else ""
    set_title(ax, f"Influence of each client{more}", "How far the client moves the posterior mean of all the others")
    return ax


def _last(variable: Any) -> np.ndarray:
    """Mean over replicates at each client's last round with a value, ``(client,)``; NaN where there is none."""
    values = variable.mean("replicate").transpose("round", "client").to_numpy()
    known = np.isfinite(values)
    last = len(values) - 1 - np.argmax(known[::-1], axis=0)
    return np.where(known.any(axis=0), values[last, np.arange(values.shape[1])], np.nan)
