"""A picture of two posteriors side by side."""

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from fedbayes.pictures.drawing import (
    BLUE,
    ORANGE,
    legend_below,
    literal,
    margin,
    new_rows,
    set_title,
    shades,
    signed,
)
from fedbayes.questions.comparison import compare, flat_draws

if TYPE_CHECKING:
    from matplotlib.axes import Axes

_SEEN = 0.02  # of the axis: an interval shorter than that is a dot


def plot_comparison(
    idata: Any,
    reference: Any,
    *,
    names: tuple[str, str] = ("Federated", "reference"),
    var_names: Sequence[str] | None = None,
    labels: Mapping[str, str] | None = None,
    standardised: bool | None = None,
    ax: "Axes | None" = None,
) -> "Axes":
    """Two posteriors side by side: median, central 50% and 94% interval of every parameter.

    The numbers on the right are the difference of the means in sds of the reference.

    Parameters
    ----------
    idata, reference
        ArviZ objects with a group ``posterior``.
    names
        What to call them, such as ``("EP", "NUTS on the pooled data")``.
    var_names
        Variables to show; ``None``: all that both have.
    labels
        Words for parameters, by their name in ``az.summary``, such as ``{"beta[age]": "Age"}``.
    standardised
        Whether each parameter is drawn on a scale of its own, in sds of the reference from its mean. ``None``: where
        scales differ so much that some interval could not be seen on the axis of all.
    ax
        Where to draw, best in a figure with ``layout="constrained"``; ``None``: a new figure.

    Returns
    -------
    matplotlib.axes.Axes
        The axes drawn on.

    See Also
    --------
    fedbayes.FederatedFit.save : Keeps a fit to compare with.
    plot_rounds : How the rounds went.

    Examples
    --------
    >>> import jax, fedbayes as fb
    >>> from fedbayes.models import linear
    >>> clients, _ = linear.simulate(jax.random.key(0))
    >>> fit = fb.fit_federated(linear.model, clients, key=jax.random.key(1), progress=False)
    >>> from fedbayes.plots import plot_comparison
    >>> exact = fit.exact(num_draws=100, progress=False)  # or NUTS on pooled data, as an ArviZ object
    >>> ax = plot_comparison(fit.idata, exact, names=("EP", "exact chains"))
    >>> ax.get_title(loc="left")
    'EP posterior against exact chains'
    """
    rows = {row.name: row for row in compare(idata, reference).rows}
    shown = [name for name in flat_draws(idata, var_names) if name in rows]
    both = [_quantiles(source, shown) for source in (idata, reference)]
    if standardised or (standardised is None and _some_unseen(both)):
        center, sd = np.transpose([(rows[name].reference_mean, rows[name].reference_sd) for name in shown])
        both = [(each - center) / sd for each in both]
        scale = f"distance from the mean of {names[1]}, in its sds"
    else:
        scale = "value of the parameter"
    words = [(labels or {}).get(name, name) for name in shown]
    ax = new_rows(ax, words, width=8.0, around=1.5, each=0.36)
    shade, places = shades(ax), np.arange(len(shown))
    ax.axvline(0.0, color=shade.line, linewidth=1.0, zorder=0)
    looks = ((BLUE, "o", -0.16), (ORANGE, "s", 0.16))
    for quantiles, label, (color, marker, shift) in zip(both, names, looks, strict=True):
        ax.hlines(places + shift, quantiles[0], quantiles[4], color=color, linewidth=1.4)
        ax.hlines(places + shift, quantiles[1], quantiles[3], color=color, linewidth=4.0)
        style: dict[str, Any] = {"color": color, "markersize": 5.5, "markeredgecolor": shade.paper, "label": label}
        ax.plot(quantiles[2], places + shift, marker, **style)
    margin(ax, [signed(rows[name].difference) for name in shown], "difference\nof means, sd")
    ax.set_xlabel(literal(scale))
    legend_below(ax)
    set_title(ax, f"{names[0]} posterior against {names[1]}", "Median, central 50% and 94% of each parameter")
    return ax


def _quantiles(source: Any, names: Sequence[str]) -> np.ndarray:
    """What is drawn of each parameter, shape ``(5, parameters)``."""
    draws = flat_draws(source)
    return np.quantile([draws[name].ravel() for name in names], [0.03, 0.25, 0.5, 0.75, 0.97], axis=1)


def _some_unseen(both: Sequence[np.ndarray]) -> bool:
    """Whether an interval of the reference is too short to be seen on an axis that holds all of both."""
    widths, length = both[1][4] - both[1][0], np.ptp(both)
    return bool(np.all(widths > 0.0) and np.min(widths) < _SEEN * length)
