"""Pictures of a fit: against a reference, and by round. They need matplotlib (``fedbayes[demo]``)."""

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from fedbayes.results.comparison import compare, flat_draws
from fedbayes.results.drawing import (
    BLUE,
    CLIENT_COLORS,
    FAINT,
    GREY,
    INK,
    LINE,
    MARKERS,
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
        Where to draw; ``None``: a new figure.

    Returns
    -------
    matplotlib.axes.Axes
        The axes drawn on.

    Raises
    ------
    ValueError
        The fit lacks these diagnostics, or they are NaN for all clients.
    """
    check_diagnostics(fit.rounds, ["influence", "smallest_cavity_eigenvalue"], "plot_influence", fit.method)
    influence = _last(fit.rounds["influence"])
    alone = 1.0 - _last(fit.rounds["smallest_cavity_eigenvalue"])
    known = np.flatnonzero(np.isfinite(influence))
    if not len(known):
        raise ValueError("The diagnostic `influence` is NaN for every client in every round: there is nothing to show.")
    order = known[np.argsort(-influence[known], kind="stable")][:top]
    ax = new_axes(ax, (7.5, 1.6 + 0.36 * len(order)))
    places = np.arange(len(order))
    ax.hlines(places, 0.0, influence[order], color=BLUE, linewidth=2.5, alpha=0.5)
    ax.plot(influence[order], places, "o", color=BLUE, markersize=9, markeredgecolor="white")
    ax.set_xlim(left=0.0)
    margin(
        ax, [f"{share:.0%}" if np.isfinite(share) else "" for share in alone[order]], "largest share\nof information"
    )
    names = [fit.client_names[client] for client in order]
    list_rows(ax, [(labels or {}).get(name, name) for name in names])
    ax.grid(axis="x", color=FAINT, linewidth=0.6)
    ax.set_xlabel("shift, sd (rms)")
    more = f": the {len(order)} largest of {len(known)}" if len(order) < len(known) else ""
    set_title(ax, f"Influence of each client{more}", "How far the client moves the posterior mean of all the others")
    return ax


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
    check_diagnostics(fit.rounds, needed, "plot_merge", fit.method)
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
    ax.legend(
        loc="upper center",
        bbox_to_anchor=(0.5, -0.55 / (0.11 * (len(shown) + 2) * len(order) + 0.6)),
        ncols=5,
        frameon=False,
    )
    return ax


def _merged(fit: "FederatedFit") -> Any:
    """The first replicate's picture of the clients in the last round that has one."""
    rounds = fit.rounds
    known = np.flatnonzero(rounds["client_mean"].notnull().any(("client", "replicate", "coordinate")))
    return rounds.isel(round=int(known[-1]), replicate=0)


def _last(variable: Any) -> np.ndarray:
    """Mean over replicates at each client's last round with a value, ``(client,)``; NaN where there is none."""
    values = variable.mean("replicate").transpose("round", "client").to_numpy()
    known = np.isfinite(values)
    last = len(values) - 1 - np.argmax(known[::-1], axis=0)
    return np.where(known.any(axis=0), values[last, np.arange(values.shape[1])], np.nan)
