"""A picture of a fit round by round."""

from typing import TYPE_CHECKING

import numpy as np

from fedbayes.pictures.drawing import (
    FAINT,
    GREY,
    INK,
    LINE,
    PHASES,
    counted,
    new_axes,
    plain,
    scales_of_rounds,
    set_title,
)
from fedbayes.results.rounds import check_diagnostics

if TYPE_CHECKING:
    from matplotlib.axes import Axes

    from fedbayes.results.fit import FederatedFit


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
