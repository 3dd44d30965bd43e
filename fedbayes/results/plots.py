"""Pictures of a fit: against a reference, and by round. They need matplotlib (``fedbayes[demo]``)."""

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from fedbayes.results.comparison import compare, flat_draws
from fedbayes.results.drawing import (
    BLUE,
    FAINT,
    GREY,
    INK,
    LINE,
    ORANGE,
    PHASES,
    counted,
    list_rows,
    margin,
    new_axes,
    plain,
    scales_of_rounds,
    set_title,
    signed,
)
from fedbayes.results.rounds import check_diagnostics

if TYPE_CHECKING:
    from matplotlib.axes import Axes

    from fedbayes.results.fit import FederatedFit


def plot_comparison(
    idata: Any,
    reference: Any,
    *,
    names: tuple[str, str] = ("Federated", "NUTS on the pooled data"),
    var_names: Sequence[str] | None = None,
    labels: Mapping[str, str] | None = None,
    ax: "Axes | None" = None,
) -> "Axes":
    """Two posteriors side by side: median, central 50% and 94% interval of every parameter.

    The numbers on the right are the difference of the means in sds of the reference.

    Parameters
    ----------
    idata, reference
        ArviZ objects with a group ``posterior``.
    names
        What to call them.
    var_names
        Variables to show; ``None``: all that both have.
    labels
        Words for parameters, by their name in ``az.summary``, such as ``{"beta[age]": "Age"}``.
    ax
        Where to draw; ``None``: a new figure.

    Returns
    -------
    matplotlib.axes.Axes
        The axes drawn on.
    """
    rows = {row.name: row for row in compare(idata, reference).rows}
    shown = [name for name in flat_draws(idata, var_names) if name in rows]
    ax = new_axes(ax, (8.0, 1.5 + 0.36 * len(shown)))
    places = np.arange(len(shown))
    ax.axvline(0.0, color=LINE, linewidth=1.0, zorder=0)
    for source, label, color, marker, shift in (
        (idata, names[0], BLUE, "o", -0.16),
        (reference, names[1], ORANGE, "s", 0.16),
    ):
        draws = flat_draws(source)
        quantiles = np.quantile([draws[name].ravel() for name in shown], [0.03, 0.25, 0.5, 0.75, 0.97], axis=1)
        ax.hlines(places + shift, quantiles[0], quantiles[4], color=color, linewidth=1.4)
        ax.hlines(places + shift, quantiles[1], quantiles[3], color=color, linewidth=4.0)
        ax.plot(quantiles[2], places + shift, marker, color=color, markersize=5.5, markeredgecolor="white", label=label)
    margin(ax, [signed(rows[name].difference) for name in shown], "difference\nof means, sd")
    list_rows(ax, [(labels or {}).get(name, name) for name in shown])
    ax.set_xlabel("value of the parameter")
    set_title(ax, f"{names[0]} posterior against {names[1]}", "Median, central 50% and 94% of each parameter")
    ax.legend(loc="upper center", bbox_to_anchor=(0.5, -0.09), ncols=2, frameon=False)
    return ax


def plot_rounds(fit: "FederatedFit", *, ax: "Axes | None" = None) -> "Axes":
    """How far each round moved the posterior, phase by phase, down to the tolerance.

    The line is the largest change over the replicates; where a round has Monte Carlo noise, the dotted line shows it.

    Parameters
    ----------
    fit
        A fit.
    ax
        Where to draw; ``None``: a new figure.

    Returns
    -------
    matplotlib.axes.Axes
        The axes drawn on.

    Raises
    ------
    ValueError
        The fit lacks the diagnostic ``change``.
    """
    rounds = fit.rounds
    check_diagnostics(rounds, ["change"], "plot_rounds", fit.method)
    ax = new_axes(ax, (7.5, 4.5))
    number = rounds["round"].to_numpy()
    change = rounds["change"].max([dim for dim in rounds["change"].dims if dim != "round"]).to_numpy()
    noise = (
        rounds["monte_carlo_noise"].max("replicate").to_numpy()
        if "monte_carlo_noise" in rounds
        else np.zeros(len(change))
    )
    phase = rounds["phase"].to_numpy()
    shown = np.isfinite(change) & (change > 0.0)
    ax.plot(number[shown], change[shown], color=LINE, linewidth=1.5, zorder=1)
    for index, name in enumerate(dict.fromkeys(phase.tolist())):
        color, marker = PHASES[index % len(PHASES)]
        here = (phase == name) & shown
        label = f"{name} phase, {counted(int(rounds['rounds'][phase == name].sum()), 'round')}"
        ax.plot(number[here], change[here], marker, color=color, markersize=8, markeredgecolor="white", label=label)
    noisy = shown & (noise > 0.0)
    if noisy.any():
        ax.plot(
            number[noisy],
            noise[noisy],
            ":",
            marker=".",
            color=GREY,
            linewidth=1.5,
            label="Monte Carlo noise of a round",
        )
    if (tolerance := fit.method.tolerance) is not None:
        ax.axhline(tolerance, color=INK, linestyle="--", linewidth=1.0, label=f"tolerance, {tolerance:g} sd")
    scales_of_rounds(ax)
    ax.grid(axis="y", color=FAINT, linewidth=0.6)
    ax.set_xlabel("round")
    ax.set_ylabel("change, sd (rms)")
    set_title(
        ax,
        f"{'Converged' if fit.converged else 'Not converged'} after {counted(int(number[-1]), 'round')}",
        "How far each round moved the posterior, in posterior standard deviations",
    )
    plain(ax)
    ax.legend(frameon=False)
    return ax
