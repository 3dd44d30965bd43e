"""The picture of a calibration."""

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from fedbayes.calibration.uniformity import distribution, uniform_band
from fedbayes.pictures.drawing import BLUE, LINE, ORANGE, literal, plain, require_matplotlib, shades, wrapped

if TYPE_CHECKING:
    from matplotlib.figure import Figure

_COLUMNS = 4
_NAME = 2.4  # inches of a panel that its name may take


def plot_ranks(calibration: Any, parameters: Sequence[str] | None, level: float) -> "Figure":
    """See :meth:`fedbayes.calibration.result.Calibration.plot`."""
    require_matplotlib()
    import matplotlib.pyplot as plt

    ranks = calibration.used()["rank"]
    known = [str(name) for name in ranks["parameter"].values]
    shown = known if parameters is None else list(parameters)
    if unknown := [name for name in shown if name not in known]:
        raise KeyError(f"There are no parameters {unknown}; the parameters are {known}.")
    band = uniform_band(len(ranks), calibration.num_draws, level)
    columns = min(_COLUMNS, len(shown))
    rows = -(-len(shown) // columns)
    titles = [wrapped(name, _NAME, "medium", "normal") for name in shown]
    each = 2.1 + LINE * max((title.count("\n") for title in titles), default=0)
    figure, axes = plt.subplots(
        rows, columns, figsize=(2.6 * columns + 0.6, each * rows + 0.5), layout="constrained", squeeze=False
    )
    for ax in axes.flat[len(shown) :]:
        ax.set_visible(False)
    for ax, name, title in zip(axes.flat, shown, titles, strict=False):
        gap = distribution(ranks.sel(parameter=name).values, calibration.num_draws) - band.place
        inside = np.all((gap >= band.lower - band.place - 1e-12) & (gap <= band.upper - band.place + 1e-12))
        ax.fill_between(
            band.place, band.lower - band.place, band.upper - band.place, color=shades(ax).faint, linewidth=0.0
        )
        ax.axhline(0.0, color=shades(ax).grey, linewidth=0.8)
        ax.step(band.place, gap, where="mid", color=BLUE if inside else ORANGE, linewidth=1.3)
        ax.set_title(literal(title), loc="left", fontsize="medium")
        plain(ax)
    figure.supxlabel("rank of the truth, as a share", fontsize="small")
    figure.supylabel("distribution function less uniform", fontsize="small")
    return figure
