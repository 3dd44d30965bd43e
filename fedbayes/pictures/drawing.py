"""How pictures of a fit look: colours, axes, titles, rows and margins."""

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

if TYPE_CHECKING:
    from matplotlib.axes import Axes

# Okabe and Ito's colours, which the colour-blind tell apart too
BLUE, ORANGE, GREEN, PURPLE, GREY = "#0072B2", "#D55E00", "#009E73", "#CC79A7", "#666666"
INK, LINE, FAINT = "#222222", "#BBBBBB", "#E4E4E4"
CLIENT_COLORS = (BLUE, ORANGE, GREEN, PURPLE, "#E69F00", "#56B4E9", GREY, "#222222")
MARKERS = "os^Dvph*"
PHASES = ((ORANGE, "s"), (BLUE, "o"), (GREEN, "^"), (PURPLE, "D"))


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


def new_axes(ax: "Axes | None", size: tuple[float, float]) -> "Axes":
    """The axes given, or those of a new figure of this size in inches."""
    if ax is not None:
        return ax
    require_matplotlib()
    import matplotlib.pyplot as plt

    return plt.subplots(figsize=size, layout="constrained")[1]


def plain(ax: "Axes") -> None:
    """No frame at the top and on the right, and quiet ticks."""
    ax.spines[["top", "right"]].set_visible(False)
    ax.tick_params(colors=INK, length=3)
    ax.set_axisbelow(True)


def set_title(ax: "Axes", title: str, subtitle: str) -> None:
    """Above the axes, flush left: what is seen, and under it how to read it."""
    ax.set_title(title, loc="left", pad=24, fontweight="bold", color=INK)
    ax.annotate(
        subtitle, (0, 1), (0, 8), xycoords="axes fraction", textcoords="offset points", color=GREY, fontsize="small"
    )


def list_rows(ax: "Axes", labels: Sequence[str]) -> None:
    """One row per label, the first on top."""
    plain(ax)
    ax.spines["left"].set_visible(False)
    ax.set_yticks(np.arange(len(labels)), labels)
    ax.tick_params(axis="y", length=0)
    ax.set_ylim(len(labels) - 0.4, -0.6)


def margin(ax: "Axes", texts: Sequence[str], heading: str) -> None:
    """A column of numbers to the right of the rows."""
    style: dict[str, Any] = {"textcoords": "offset points", "ha": "right", "color": GREY, "fontsize": "small"}
    for place, text in enumerate(texts):
        ax.annotate(text, (1, place), (62, 0), xycoords=ax.get_yaxis_transform(), va="center", **style)
    ax.annotate(heading, (1, 1), (62, 4), xycoords="axes fraction", va="bottom", **style)


def legend_below(ax: "Axes", columns: int = 2) -> None:
    """A legend under the label of the x axis, by inches: a share of a low picture's height would lie on that label."""
    from matplotlib.transforms import ScaledTranslation

    below = ax.transAxes + ScaledTranslation(0.0, -0.5, ax.figure.dpi_scale_trans)
    ax.legend(loc="upper center", bbox_to_anchor=(0.5, 0.0), bbox_transform=below, ncols=columns, frameon=False)


def scales_of_rounds(ax: "Axes") -> None:
    """Whole rounds, and a logarithmic y axis that says 0.01 rather than a power of ten."""
    from matplotlib.ticker import FuncFormatter, MaxNLocator, NullFormatter

    ax.xaxis.set_major_locator(MaxNLocator(integer=True))
    ax.set_yscale("log")
    ax.yaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}"))
    ax.yaxis.set_minor_formatter(NullFormatter())


def signed(value: float) -> str:
    """Two decimals with a real minus sign, and no sign on what rounds to zero."""
    rounded = round(value, 2)
    return "0.00" if rounded == 0.0 else f"{rounded:+.2f}".replace("-", "\N{MINUS SIGN}")


def counted(number: int, noun: str) -> str:
    """``1 client``, ``2 clients``."""
    return f"{number} {noun}" if number == 1 else f"{number} {noun}s"
