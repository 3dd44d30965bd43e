"""Pictures of clients that a covariance couples: who is alike, and who has learned from whom."""

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import numpy as np

from fedbayes.pictures.drawing import (
    BLUE,
    ORANGE,
    beginnings,
    inches,
    legend_below,
    literal,
    new_axes,
    new_rows,
    set_title,
    shades,
)

if TYPE_CHECKING:
    from matplotlib.axes import Axes

    from fedbayes.results.fit import FederatedFit


def plot_client_correlation(fit: "FederatedFit", *, ax: "Axes | None" = None) -> "Axes":
    """Which clients are alike: posterior mean correlations as a heat map, similar clients side by side.

    The order is that of the leaves of a hierarchical clustering (average linkage, distance one minus correlation).

    Parameters
    ----------
    fit
        Of a method that couples the clients by a covariance.
    ax
        Where to draw, best in a figure with ``layout="constrained"``; ``None``: a new figure.

    Returns
    -------
    matplotlib.axes.Axes
        The axes drawn on.

    Raises
    ------
    ValueError
        The fit knows no covariance between clients.

    See Also
    --------
    fedbayes.CorrelatedClients : The method.
    plot_shrinkage : How far clients are pulled together.

    Examples
    --------
    >>> plot_client_correlation(fit)  # doctest: +SKIP
    """
    correlation = client_correlation(fit)
    order = _by_similarity(correlation)
    names = beginnings(ax, [fit.client_names[place] for place in order])
    width = min(8.0, max(3.6, 1.6 + 0.24 * len(names))) + inches(names, "small")  # the title needs some
    ax = new_axes(ax, (width + 0.8, width))
    image = ax.imshow(correlation[np.ix_(order, order)], cmap="RdBu_r", vmin=-1.0, vmax=1.0, interpolation="nearest")
    every = max(1, -(-len(names) // 40))  # more names than that would lie on each other
    shown = np.arange(0, len(names), every)
    words = [literal(names[place]) for place in shown]
    ax.set_xticks(shown, words, rotation=90, fontsize="small")
    ax.set_yticks(shown, words, fontsize="small")
    ax.tick_params(length=0, colors=shades(ax).ink)
    ax.spines[:].set_visible(False)
    ax.figure.colorbar(image, ax=ax, shrink=0.7, label="posterior mean correlation")
    set_title(ax, "Which clients are alike", "Red: alike, blue: opposed; similar clients stand side by side")
    return ax


def client_correlation(fit: "FederatedFit") -> np.ndarray:
    """Posterior mean of the correlation between clients, shape ``(K, K)``.

    Raises
    ------
    ValueError
        The fit knows no covariance between clients.
    """
    posterior = fit.idata.posterior
    if "omega" in posterior:
        draws = posterior["omega"].values
        batches = draws.reshape(-1, *draws.shape[2:])
        return np.mean([_correlation(omega) for omega in batches], axis=0)
    if "loadings" in posterior:
        loadings, own = (posterior[name].values for name in ("loadings", "own_variance"))
        flat = zip(loadings.reshape(-1, *loadings.shape[2:]), own.reshape(-1, own.shape[-1]), strict=True)
        total, count = np.zeros((own.shape[-1],) * 2), 0
        for one, variance in flat:
            total, count = total + _correlation(one @ one.T + np.diag(variance)), count + 1
        return total / count
    raise ValueError(
        f"A fit by {type(fit.method).__name__} knows no covariance between clients, which `plot_client_correlation` "
        "shows. Fit by a method that couples clients by one."
    )


def _correlation(covariance: np.ndarray) -> np.ndarray:
    sd = np.sqrt(np.diagonal(covariance))
    return covariance / sd[:, None] / sd


def _by_similarity(correlation: np.ndarray) -> np.ndarray:
    """An order in which similar rows are neighbours."""
    from scipy.cluster.hierarchy import leaves_list, linkage, optimal_leaf_ordering
    from scipy.spatial.distance import squareform

    if len(correlation) < 3:
        return np.arange(len(correlation))
    apart = np.clip(1.0 - 0.5 * (correlation + correlation.T), 0.0, None)
    np.fill_diagonal(apart, 0.0)
    distances = squareform(apart, checks=False)
    return leaves_list(optimal_leaf_ordering(linkage(distances, "average"), distances))


def plot_shrinkage(
    fit: "FederatedFit",
    separate: Mapping[str, Any],
    *,
    component: int = 0,
    ax: "Axes | None" = None,
) -> "Axes":
    """Each client's separate estimate of a coefficient, and where the others' data have moved it.

    Parameters
    ----------
    fit
        Of a method that couples the clients' coefficients.
    separate
        Each client's estimate from its own data alone, by name, in the shape of the coefficients, such as least
        squares.
    component
        Which of the coefficients, counted in C order.
    ax
        Where to draw, best in a figure with ``layout="constrained"``; ``None``: a new figure.

    Returns
    -------
    matplotlib.axes.Axes
        The axes drawn on: an arrow from each separate estimate to the posterior median, with the central 90% interval.

    Raises
    ------
    ValueError
        The fit does not couple coefficients, a client is lacking in ``separate``, or there is no such component.

    See Also
    --------
    fedbayes.CorrelatedClients : The method.
    plot_client_correlation : The correlation of the clients.

    Examples
    --------
    >>> own = {name: np.linalg.lstsq(data["x"], data["y"])[0] for name, data in clients.items()}  # doctest: +SKIP
    >>> plot_shrinkage(fit, own, component=1)  # doctest: +SKIP
    """
    posterior = fit.idata.posterior
    coupled = [str(name) for name in posterior.data_vars if str(name).endswith("_by_client")]
    if not coupled:
        raise ValueError(
            f"A fit by {type(fit.method).__name__} does not couple the clients' coefficients, whose shrinkage "
            "`plot_shrinkage` shows."
        )
    if lacking := [name for name in fit.client_names if name not in separate]:
        raise ValueError(f"`separate` has no estimate of the clients {lacking}. Give each client one, by name.")
    values = posterior[coupled[0]].values
    draws = values.reshape(-1, values.shape[2], int(np.prod(values.shape[3:])))
    if not 0 <= component < draws.shape[2]:
        raise ValueError(f"`component` is {component}; write a number from 0 to {draws.shape[2] - 1}.")
    draws = draws[:, :, component]
    own = np.array([np.ravel(separate[name])[component] for name in fit.client_names], float)
    order = np.argsort(-own, kind="stable")
    low, middle, high = np.quantile(draws, [0.05, 0.5, 0.95], axis=0)
    ax = new_rows(ax, [fit.client_names[place] for place in order], width=7.5, around=1.6, each=0.26)
    grey = shades(ax).grey
    for row, place in enumerate(order):
        ax.plot([low[place], high[place]], [row, row], color=BLUE, linewidth=2.0, alpha=0.45, solid_capstyle="round")
        ax.annotate("", (middle[place], row), (own[place], row), arrowprops={"arrowstyle": "->", "color": grey})
    ax.plot(own[order], np.arange(len(order)), "s", color=ORANGE, markersize=5, label="own data alone")
    ax.plot(
        middle[order],
        np.arange(len(order)),
        "o",
        color=BLUE,
        markersize=5,
        label="everybody's data: median, 90% interval",
    )
    label = coupled[0].removesuffix("_by_client")
    ax.set_xlabel(literal(f"{label}[{component}]"))
    legend_below(ax)
    arrows = "Arrows lead from a client's own estimate to its posterior median"
    set_title(ax, "What each client has learned from the others", arrows)
    return ax
