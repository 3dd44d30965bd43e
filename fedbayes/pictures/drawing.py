"""How pictures of a fit look: colours, axes, titles, rows and margins."""

from collections.abc import Sequence
from textwrap import fill
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

if TYPE_CHECKING:
    from matplotlib.axes import Axes

# Okabe and Ito's colours, which the colour-blind tell apart too
BLUE, ORANGE, GREEN, PURPLE, GREY = "#0072B2", "#D55E00", "#009E73", "#CC79A7", "#666666"
MARKERS = "os^Dvph*"
PHASES = ((ORANGE, "s"), (BLUE, "o"), (GREEN, "^"), (PURPLE, "D"))
# on the colours of an image, which are the same in every style
ON_IMAGE: dict[str, Any] = {"color": "#222222", "markersize": 5, "markeredgecolor": "white", "linestyle": "none"}
_LONG = 32  # characters of a row's name in one line
_USUAL = 1.0  # inches that a figure's width has for the names of its rows
LINE = 0.17  # inches, of names in several lines
_SMALLEST = 0.5  # of the usual letters, which crowded rows may have
_SURE = 0.8  # of the room that there is now: neighbours drawn later take some, and few pixels make letters wider


class Shades(NamedTuple):
    """What is neither data nor text of matplotlib's own, from the strongest to the background."""

    ink: str
    grey: str
    line: str
    faint: str
    paper: str


def shades(ax: "Axes") -> Shades:
    """Mixtures of the colours that the style in use has for text and background, so that a dark one is readable too."""
    from matplotlib.colors import to_hex, to_rgb, to_rgba

    paper = np.ones(3)
    for over in (ax.figure.get_facecolor(), ax.get_facecolor()):  # either may be transparent
        *color, alpha = to_rgba(over)
        paper = alpha * np.array(color) + (1.0 - alpha) * paper
    ink = np.array(to_rgb(ax.title.get_color()))

    def mixed(share: float) -> str:
        red, green, blue = share * ink + (1.0 - share) * paper
        return to_hex((red, green, blue))

    return Shades(*map(mixed, (0.87, 0.6, 0.27, 0.11, 0.0)))


def client_colors(ax: "Axes") -> tuple[str, ...]:
    """Eight colours, in which few clients can be told apart."""
    shade = shades(ax)
    return (BLUE, ORANGE, GREEN, PURPLE, "#E69F00", "#56B4E9", shade.grey, shade.ink)


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


def literal(text: str) -> str:
    """For matplotlib: each dollar sign of a name is one, and what stands between two is no mathematics."""
    from matplotlib import rcParams

    return text.replace("$", r"\$") if rcParams["text.parse_math"] else text


def new_axes(ax: "Axes | None", size: tuple[float, float]) -> "Axes":
    """The axes given, or those of a new figure of this size in inches."""
    if ax is not None:
        return ax
    require_matplotlib()
    import matplotlib.pyplot as plt

    return plt.subplots(figsize=size, layout="constrained")[1]


def new_rows(ax: "Axes | None", names: Sequence[str], *, width: float, around: float, each: float) -> "Axes":
    """Axes with a row per name, the first on top: those given, or of a new figure with room for the names.

    Long names are broken; axes given that are too low for that show the beginning of each, in smaller letters if need
    be.
    ``width`` is that of a figure with short names, ``around`` the height above and below the rows, and ``each`` that of
    a row, in inches.
    """
    require_matplotlib()
    broken = [fill(name, _LONG) for name in names]
    lines, share = max((name.count("\n") + 1 for name in broken), default=1), 1.0
    if ax is None:
        size = (width + max(0.0, inches(broken) - _USUAL), around + max(each, LINE * lines) * len(names))
        ax = new_axes(None, size)
    else:
        room = _SURE * ax.get_window_extent().height / ax.figure.dpi
        if room < LINE * lines * len(names):
            broken = beginnings(ax, names)
            share = float(np.clip(room / (_SURE * LINE * len(names)), _SMALLEST, 1.0))
    plain(ax)
    ax.spines["left"].set_visible(False)
    ax.set_yticks(np.arange(len(names)), list(map(literal, broken)))
    ax.tick_params(axis="y", length=0)
    if share < 1.0:
        ax.tick_params(axis="y", labelsize=share * float(ax.get_yticklabels()[0].get_fontsize()))
    ax.set_ylim(len(names) - 0.4, -0.6)
    return ax


def beginnings(ax: "Axes | None", names: Sequence[str]) -> list[str]:
    """Of long names in axes given, which can't grow for them; a new figure has room for all."""
    if ax is None:
        return list(names)
    return [name if len(name) <= _LONG else f"{name[: _LONG - 1]}\N{HORIZONTAL ELLIPSIS}" for name in names]


def inches(texts: Sequence[str], size: Any = "medium", weight: Any = "normal") -> float:
    """Width of the longest line of these, in which a dollar sign is one."""
    from matplotlib.font_manager import FontProperties
    from matplotlib.textpath import TextPath

    font = FontProperties(size=size, weight=weight)
    lines = [line for text in texts for line in text.split("\n") if line.strip()]
    return max((TextPath((0, 0), literal(line), prop=font).get_extents().width / 72.0 for line in lines), default=0.0)


def plain(ax: "Axes") -> None:
    """No frame at the top and on the right, and quiet ticks."""
    ax.spines[["top", "right"]].set_visible(False)
    ax.tick_params(colors=shades(ax).ink, length=3)
    ax.set_axisbelow(True)


def set_title(ax: "Axes", title: str, subtitle: str) -> None:
    """Above the axes, flush left, and no wider than they are: what is seen, and under it how to read it.

    To be called when all else is drawn, since names and margins decide how wide the axes are.
    """
    shade = shades(ax)
    ax.figure.canvas.figure.draw_without_rendering()  # lays the figure out
    width = ax.get_window_extent().width / ax.figure.dpi
    below = ax.annotate(
        literal(wrapped(subtitle, width, "small", "normal")),
        (0, 1),
        (0, 8),
        xycoords="axes fraction",
        textcoords="offset points",
        va="bottom",
        color=shade.grey,
        fontsize="small",
    )
    below.set_in_layout(False)  # the title above it makes the room
    pad = 12.0 + 1.4 * float(below.get_fontsize()) * (below.get_text().count("\n") + 1)
    size = ax.title.get_fontsize()
    words = literal(wrapped(title, width, size, "bold"))
    ax.set_title(words, loc="left", pad=pad, fontweight="bold", color=shade.ink)


def wrapped(text: str, width: float, size: Any, weight: str) -> str:
    """In as many lines as the width asks for, in inches."""
    share = _SURE * width / max(inches([text], size, weight), 1e-9)
    return text if share >= 1.0 else fill(text, max(12, int(share * len(text))), break_on_hyphens=False)


def margin(ax: "Axes", texts: Sequence[str], heading: str) -> None:
    """A column of numbers to the right of the rows."""
    style: dict[str, Any] = {
        "textcoords": "offset points",
        "ha": "right",
        "color": shades(ax).grey,
        "fontsize": "small",
    }
    for place, text in enumerate(texts):
        ax.annotate(text, (1, place), (62, 0), xycoords=ax.get_yaxis_transform(), va="center", **style)
    ax.annotate(heading, (1, 1), (62, 4), xycoords="axes fraction", va="bottom", **style)


def legend_below(ax: "Axes") -> None:
    """A legend under the label of the x axis, by inches: a share of a low picture's height would lie on that label."""
    from matplotlib.transforms import ScaledTranslation

    ax.figure.canvas.figure.draw_without_rendering()  # lays the figure out
    handles, labels = ax.get_legend_handles_labels()
    room = ax.get_window_extent().width / ax.figure.dpi / (inches(labels) + 0.6)
    below = ax.transAxes + ScaledTranslation(0.0, -0.5, ax.figure.dpi_scale_trans)
    columns = int(np.clip(room, 1, len(labels)))
    place: dict[str, Any] = {"loc": "upper center", "bbox_to_anchor": (0.5, 0.0), "bbox_transform": below}
    ax.legend(handles, list(map(literal, labels)), ncols=columns, frameon=False, **place)


def scales_of_rounds(ax: "Axes", *, logarithmic: bool) -> None:
    """Whole rounds, and perhaps a logarithmic y axis that says 0.01 rather than a power of ten."""
    from matplotlib.ticker import FuncFormatter, MaxNLocator, NullFormatter

    ax.xaxis.set_major_locator(MaxNLocator(integer=True, min_n_ticks=1))
    if not logarithmic:
        return
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
