"""Pictures of a fit: against a reference, by round, and by client. They need matplotlib (``fedbayes[demo]``)."""

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from fedbayes.results.comparison import compare, flat_draws
from fedbayes.results.rounds import check_diagnostics

if TYPE_CHECKING:
    from matplotlib.axes import Axes

    from fedbayes.results.fit import FederatedFit

# Okabe and Ito's colours, which the colour-blind tell apart too
BLUE, ORANGE, GREEN, PURPLE, GREY = "#0072B2", "#D55E00", "#009E73", "#CC79A7", "#666666"
_INK, _LINE, _FAINT = "#222222", "#BBBBBB", "#E4E4E4"
_CLIENTS = (BLUE, ORANGE, GREEN, PURPLE, "#E69F00", "#56B4E9", GREY, "#222222")
_MARKERS = "os^Dvph*"
_PHASES = ((ORANGE, "s"), (BLUE, "o"), (GREEN, "^"), (PURPLE, "D"))


def require_matplotlib() -> None:
    """Say what to install if matplotlib isn't there.

    Raises
    ------
    ImportError
        With the command to type.
    """
    try:
        import matplotlib  # noqa: F401
    except ImportError as error:
        raise ImportError(
            "The pictures need matplotlib, which is not installed: `pip install 'fedbayes[demo]'`."
        ) from error


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
    ax = _axes(ax, (8.0, 1.5 + 0.36 * len(shown)))
    places = np.arange(len(shown))
    ax.axvline(0.0, color=_LINE, linewidth=1.0, zorder=0)
    for source, label, color, marker, shift in (
        (idata, names[0], BLUE, "o", -0.16),
        (reference, names[1], ORANGE, "s", 0.16),
    ):
        draws = flat_draws(source)
        quantiles = np.quantile([draws[name].ravel() for name in shown], [0.03, 0.25, 0.5, 0.75, 0.97], axis=1)
        ax.hlines(places + shift, quantiles[0], quantiles[4], color=color, linewidth=1.4)
        ax.hlines(places + shift, quantiles[1], quantiles[3], color=color, linewidth=4.0)
        ax.plot(quantiles[2], places + shift, marker, color=color, markersize=5.5, markeredgecolor="white", label=label)
    _margin(ax, [_signed(rows[name].difference) for name in shown], "difference\nof means, sd")
    _list(ax, [(labels or {}).get(name, name) for name in shown])
    ax.set_xlabel("value of the parameter")
    _title(ax, f"{names[0]} posterior against {names[1]}", "Median, central 50% and 94% of each parameter")
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
    ax = _axes(ax, (7.5, 4.5))
    number = rounds["round"].to_numpy()
    change = rounds["change"].max([dim for dim in rounds["change"].dims if dim != "round"]).to_numpy()
    noise = (
        rounds["monte_carlo_noise"].max("replicate").to_numpy()
        if "monte_carlo_noise" in rounds
        else np.zeros(len(change))
    )
    phase = rounds["phase"].to_numpy()
    shown = np.isfinite(change) & (change > 0.0)
    ax.plot(number[shown], change[shown], color=_LINE, linewidth=1.5, zorder=1)
    for index, name in enumerate(dict.fromkeys(phase.tolist())):
        color, marker = _PHASES[index % len(_PHASES)]
        here = (phase == name) & shown
        label = f"{name} phase, {_count(int(rounds['rounds'][phase == name].sum()), 'round')}"
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
    tolerance = getattr(fit.method, "tolerance", None)
    if tolerance is not None:
        ax.axhline(tolerance, color=_INK, linestyle="--", linewidth=1.0, label=f"tolerance, {tolerance:g} sd")
    _scales_of_rounds(ax)
    ax.grid(axis="y", color=_FAINT, linewidth=0.6)
    ax.set_xlabel("round")
    ax.set_ylabel("change, sd (rms)")
    _title(
        ax,
        f"{'Converged' if fit.converged else 'Not converged'} after {_count(int(number[-1]), 'round')}",
        "How far each round moved the posterior, in posterior standard deviations",
    )
    _plain(ax)
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
    ax = _axes(ax, (7.5, 1.6 + 0.36 * len(order)))
    places = np.arange(len(order))
    ax.hlines(places, 0.0, influence[order], color=BLUE, linewidth=2.5, alpha=0.5)
    ax.plot(influence[order], places, "o", color=BLUE, markersize=9, markeredgecolor="white")
    ax.set_xlim(left=0.0)
    _margin(
        ax, [f"{share:.0%}" if np.isfinite(share) else "" for share in alone[order]], "largest share\nof information"
    )
    names = [fit.client_names[client] for client in order]
    _list(ax, [(labels or {}).get(name, name) for name in names])
    ax.grid(axis="x", color=_FAINT, linewidth=0.6)
    ax.set_xlabel("shift, sd (rms)")
    more = f": the {len(order)} largest of {len(known)}" if len(order) < len(known) else ""
    _title(ax, f"Influence of each client{more}", "How far the client moves the posterior mean of all the others")
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
    ax = _axes(ax, (8.0, 1.7 + 0.11 * (len(shown) + 2) * len(order)))
    center, covariance = fit.moments()
    center, sd = center[0], np.sqrt(np.diagonal(covariance[0]))
    places = np.arange(len(order))
    ax.axvspan(-1.88, 1.88, color=_FAINT, zorder=0, linewidth=0, label="merged posterior")
    ax.axvline(0.0, color=_LINE, linewidth=1.0, zorder=0)
    gap = 0.7 / max(len(shown), 1)
    for i, name in enumerate(shown):
        mine = merge.sel(client=name)
        mean = (mine["client_mean"].to_numpy()[order] - center[order]) / sd[order]
        spread = 1.88 * mine["client_sd"].to_numpy()[order] / sd[order]
        at, color = places - 0.35 + (i + 0.5) * gap, _CLIENTS[i % len(_CLIENTS)]
        ax.hlines(at, mean - spread, mean + spread, color=color, linewidth=1.6)
        ax.plot(mean, at, _MARKERS[i % len(_MARKERS)], color=color, markersize=4.5, markeredgecolor="white", label=name)
    _margin(ax, [f"{number:.1f}" for number in merge["effective_clients"].to_numpy()[order]], "effective\nclients")
    names = fit.global_labels
    _list(ax, [(labels or {}).get(names[j], names[j]) for j in order])
    ax.set_xlabel("distance from the merged mean, in sds of the merged posterior")
    hidden = f": {len(shown)} of {len(fit.client_names)} clients" if len(shown) < len(fit.client_names) else ""
    _title(ax, f"The clients' own posteriors{hidden}", "Mean and 94% interval of each, unconstrained space")
    ax.legend(
        loc="upper center",
        bbox_to_anchor=(0.5, -0.55 / (0.11 * (len(shown) + 2) * len(order) + 0.6)),
        ncols=5,
        frameon=False,
    )
    return ax


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
            '`reports` is no mapping from names to reports: write `plot_fairness({"FedAvg": '
            "fedbayes.fairness_report(fit, held_out, groups)})`."
        )
    first = next(iter(reports.values()))
    if any(not report["group_of"].equals(first["group_of"]) for report in reports.values()):
        raise ValueError("`reports` are not all of the same clients and groups: make them with the same arguments.")
    groups, home = first["group"].values, first["group_of"].values
    ax = _axes(ax, (8.0, 1.8 + (0.25 + 0.2 * len(reports)) * len(groups)))
    shift = 0.7 / len(reports)
    for i, (label, report) in enumerate(reports.items()):
        color, marker = _CLIENTS[i % len(_CLIENTS)], _MARKERS[i % len(_MARKERS)]
        at = np.arange(len(groups)) - 0.35 + (i + 0.5) * shift
        places = at[[int(np.flatnonzero(groups == group)[0]) for group in home]]
        ax.plot(report["score"], places, marker, color=color, markersize=4.5, alpha=0.5, markeredgewidth=0, label=label)
        ax.vlines(report["group_score"], at - 0.45 * shift, at + 0.45 * shift, color=color, linewidth=2.5)
    _margin(ax, [str(int(np.sum(home == group))) for group in groups], "clients")
    _list(ax, [str(group) for group in groups])
    ax.set_xlabel("held-out log predictive density, nats per outcome")
    _title(ax, "Accuracy by group", "A point a client, a bar the mean of its group: narrow is fair, right is accurate")
    ax.legend(loc="upper center", bbox_to_anchor=(0.5, -0.3 / (0.6 + 0.3 * len(groups))), ncols=4, frameon=False)
    return ax


def plot_client_correlation(fit: "FederatedFit", *, ax: "Axes | None" = None) -> "Axes":
    """Which clients are alike: posterior mean correlations as a heat map, similar clients side by side.

    The order is that of the leaves of a hierarchical clustering (average linkage, distance one minus correlation).

    Parameters
    ----------
    fit
        Of a method that couples the clients by a covariance.
    ax
        Where to draw; ``None``: a new figure.

    Returns
    -------
    matplotlib.axes.Axes
        The axes drawn on.

    Raises
    ------
    ValueError
        The fit knows no covariance between clients.
    """
    correlation = client_correlation(fit)
    order = _by_similarity(correlation)
    names = [fit.client_names[place] for place in order]
    width = min(9.0, 2.6 + 0.24 * len(names))
    ax = _axes(ax, (width + 0.8, width))
    image = ax.imshow(correlation[np.ix_(order, order)], cmap="RdBu_r", vmin=-1.0, vmax=1.0, interpolation="nearest")
    every = max(1, -(-len(names) // 40))  # more names than that would lie on each other
    shown = np.arange(0, len(names), every)
    ax.set_xticks(shown, [names[place] for place in shown], rotation=90, fontsize="small")
    ax.set_yticks(shown, [names[place] for place in shown], fontsize="small")
    ax.tick_params(length=0, colors=_INK)
    ax.spines[:].set_visible(False)
    ax.figure.colorbar(image, ax=ax, shrink=0.7, label="posterior mean correlation")
    _title(ax, "Which clients are alike", "Red: alike, blue: opposed; similar clients stand side by side")
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
        Where to draw; ``None``: a new figure.

    Returns
    -------
    matplotlib.axes.Axes
        The axes drawn on: an arrow from each separate estimate to the posterior mean, with its central 90% interval.

    Raises
    ------
    ValueError
        The fit does not couple coefficients, a client is lacking in ``separate``, or there is no such component.
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
    ax = _axes(ax, (7.5, 1.6 + 0.26 * len(order)))
    _list(ax, [fit.client_names[place] for place in order])
    for row, place in enumerate(order):
        ax.plot([low[place], high[place]], [row, row], color=BLUE, linewidth=2.0, alpha=0.45, solid_capstyle="round")
        ax.annotate("", (middle[place], row), (own[place], row), arrowprops={"arrowstyle": "->", "color": GREY})
    ax.plot(own[order], np.arange(len(order)), "s", color=ORANGE, markersize=5, label="own data alone")
    ax.plot(middle[order], np.arange(len(order)), "o", color=BLUE, markersize=5, label="everybody's data, 90% interval")
    label = coupled[0].removesuffix("_by_client")
    ax.set_xlabel(f"{label}[{component}]")
    _title(
        ax, "What each client has learned from the others", "Arrows lead from a client's own estimate to its posterior"
    )
    ax.legend(loc="upper center", bbox_to_anchor=(0.5, -0.9 / (1.6 + 0.26 * len(order))), ncols=2, frameon=False)
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


def _axes(ax: "Axes | None", size: tuple[float, float]) -> "Axes":
    if ax is not None:
        return ax
    require_matplotlib()
    import matplotlib.pyplot as plt

    return plt.subplots(figsize=size, layout="constrained")[1]


def _plain(ax: "Axes") -> None:
    ax.spines[["top", "right"]].set_visible(False)
    ax.tick_params(colors=_INK, length=3)
    ax.set_axisbelow(True)


def _title(ax: "Axes", title: str, subtitle: str) -> None:
    """Above the axes, flush left: what is seen, and under it how to read it."""
    ax.set_title(title, loc="left", pad=24, fontweight="bold", color=_INK)
    ax.annotate(
        subtitle, (0, 1), (0, 8), xycoords="axes fraction", textcoords="offset points", color=GREY, fontsize="small"
    )


def _list(ax: "Axes", labels: Sequence[str]) -> None:
    """One row per label, the first on top."""
    _plain(ax)
    ax.spines["left"].set_visible(False)
    ax.set_yticks(np.arange(len(labels)), labels)
    ax.tick_params(axis="y", length=0)
    ax.set_ylim(len(labels) - 0.4, -0.6)


def _margin(ax: "Axes", texts: Sequence[str], heading: str) -> None:
    """A column of numbers to the right of the rows."""
    style: dict[str, Any] = {"textcoords": "offset points", "ha": "right", "color": GREY, "fontsize": "small"}
    for place, text in enumerate(texts):
        ax.annotate(text, (1, place), (62, 0), xycoords=ax.get_yaxis_transform(), va="center", **style)
    ax.annotate(heading, (1, 1), (62, 4), xycoords="axes fraction", va="bottom", **style)


def _scales_of_rounds(ax: "Axes") -> None:
    """Whole rounds, and a logarithmic y axis that says 0.01 rather than a power of ten."""
    from matplotlib.ticker import FuncFormatter, MaxNLocator, NullFormatter

    ax.xaxis.set_major_locator(MaxNLocator(integer=True))
    ax.set_yscale("log")
    ax.yaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}"))
    ax.yaxis.set_minor_formatter(NullFormatter())


def _signed(value: float) -> str:
    """Two decimals with a real minus sign, and no sign on what rounds to zero."""
    rounded = round(value, 2)
    return "0.00" if rounded == 0.0 else f"{rounded:+.2f}".replace("-", "\N{MINUS SIGN}")


def _count(number: int, noun: str) -> str:
    return f"{number} {noun}" if number == 1 else f"{number} {noun}s"
