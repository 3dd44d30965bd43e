"""A picture of a fit round by round."""

from typing import TYPE_CHECKING, Any

import numpy as np

from fedbayes.contract.answer import ERROR_LIMIT
from fedbayes.pictures.drawing import PHASES, counted, literal, new_axes, plain, scales_of_rounds, set_title, shades
from fedbayes.results.rounds import check_diagnostics

if TYPE_CHECKING:
    import xarray as xr
    from matplotlib.axes import Axes

    from fedbayes.contract.algorithm import Method
    from fedbayes.results.fit import FederatedFit


def plot_rounds(fit: "FederatedFit", *, ax: "Axes | None" = None) -> "Axes":
    """How near each round came to where the rounds end, phase by phase, with the tolerance by which that is judged.

    The line is the method's own measure, the largest of the replicates: for most how far a round moved the posterior;
    for federated averaging the distance that is left to the fixed point, or where that is not known the objective. The
    subtitle says what ``fit.converged``, the title's verdict, is judged by besides, which may be something that no
    round shows, such as R-hat. Where a round has Monte Carlo noise, the dotted line shows it.

    Parameters
    ----------
    fit
        A fit.
    ax
        Where to draw, best in a figure with ``layout="constrained"``; ``None``: a new figure.

    Returns
    -------
    matplotlib.axes.Axes
        The axes drawn on.

    Raises
    ------
    ValueError
        The fit lacks the method's measure, such as the diagnostic ``change``, or it is NaN in every round.

    See Also
    --------
    fedbayes.FederatedFit : Its ``rounds`` are what is drawn.
    plot_influence : How far each client moves the others.

    Examples
    --------
    >>> import jax, fedbayes as fb
    >>> from fedbayes.models import linear
    >>> clients, _ = linear.simulate(jax.random.key(0))
    >>> fit = fb.fit_federated(linear.model, clients, key=jax.random.key(1), progress=False)
    >>> ax = fb.plots.plot_rounds(fit)
    >>> ax.get_ylabel()
    'posterior sds'
    """
    rounds, name = fit.rounds, _measure(fit)
    values, number, phase = _largest(rounds[name]), rounds["round"].to_numpy(), rounds["phase"].to_numpy()
    falls_to_zero = name == fit.method.progress[0]
    shown = np.isfinite(values) & ((values > 0.0) | (not falls_to_zero))
    ax = new_axes(ax, (7.5, 4.5))
    shade = shades(ax)
    ax.plot(number[shown], values[shown], color=shade.line, linewidth=1.5, zorder=1)
    for index, each in enumerate(dict.fromkeys(phase.tolist())):
        color, marker = PHASES[index % len(PHASES)]
        here = (phase == each) & shown
        label = f"{literal(each)} phase, {counted(int(rounds['rounds'][phase == each].sum()), 'round')}"
        style: dict[str, Any] = {"color": color, "markersize": 8, "markeredgecolor": shade.paper}
        ax.plot(number[here], values[here], marker, label=label if here.any() else f"{label}, not drawn", **style)
    if falls_to_zero:
        _draw_limits(ax, fit, shown)
    scales_of_rounds(ax, logarithmic=falls_to_zero)
    ax.grid(axis="y", color=shade.faint, linewidth=0.6)
    ax.set_xlabel("round")
    ax.set_ylabel(literal(fit.method.diagnostics[name].unit))
    plain(ax)
    ax.legend(frameon=False)
    verdict = f"{'Converged' if fit.converged else 'Not converged'} after {counted(int(number[-1]), 'round')}"
    set_title(ax, verdict, _about(fit.method, name))
    return ax


def _measure(fit: "FederatedFit") -> str:
    """The diagnostic to draw: the first of the method's that has numbers."""
    rounds, names = fit.rounds, fit.method.progress
    check_diagnostics(rounds, names[:1], "plot_rounds", fit.method)
    for name in names:
        if name in rounds and bool(np.isfinite(rounds[name]).any()):
            return name
    raise ValueError(f"The diagnostic `{names[0]}` is NaN in every round: there is nothing to show.")


def _largest(values: "xr.DataArray") -> np.ndarray:
    """Of the replicates, or modes, by round."""
    return values.max([dim for dim in values.dims if dim != "round"]).to_numpy()


def _draw_limits(ax: "Axes", fit: "FederatedFit", shown: np.ndarray) -> None:
    """Where the rounds end: the tolerance, and their noise where they have any."""
    rounds = fit.rounds
    if "monte_carlo_noise" in rounds:
        noise = _largest(rounds["monte_carlo_noise"])
        noisy = shown & (noise > 0.0)
        style: dict[str, Any] = {"marker": ".", "color": shades(ax).grey, "linewidth": 1.5}
        if noisy.any():
            number = rounds["round"].to_numpy()[noisy]
            ax.plot(number, noise[noisy], ":", label="Monte Carlo noise of a round", **style)
    if (tolerance := fit.method.tolerance) is not None:
        line: dict[str, Any] = {"color": shades(ax).ink, "linestyle": "--", "linewidth": 1.0}
        ax.axhline(tolerance, label=f"tolerance, {tolerance:g}", **line)


def _about(method: "Method", name: str) -> str:
    """What is drawn, and what else decides."""
    meaning = method.diagnostics[name].meaning
    said, tolerance = [f"{meaning[0].upper()}{meaning[1:]}."], method.tolerance
    if method.judged_by:
        said.append(f"{'Judged' if tolerance is None else 'Also judged'} by {method.judged_by}.")
    if tolerance is not None and tolerance > ERROR_LIMIT:
        said.append(f"Whatever the tolerance, more than {ERROR_LIMIT} sds to go is no convergence.")
    return " ".join(said)
