"""Pictures by matplotlib as SVG inside a page: their text is text, and their colours are the page's, light or dark."""

import re
from collections.abc import Callable, Mapping
from io import StringIO
from typing import TYPE_CHECKING, Any
from warnings import catch_warnings, filterwarnings

from fedbayes.pictures.drawing import BLUE, ORANGE, Shades, require_matplotlib, shades
from fedbayes.report.markup import Markup, words

if TYPE_CHECKING:
    from matplotlib.figure import Figure

_INK = "#111111"  # not black, which matplotlib leaves out of the file, so that no style could change it
_LOOK: dict[Any, Any] = {
    "svg.fonttype": "none",  # letters stay text: they can be searched, read aloud and printed
    "text.parse_math": False,  # a dollar sign in a name is no formula
    "font.size": 10.0,
    **{f"{name}.color": _INK for name in ("text", "xtick", "ytick")},
    **{f"axes.{name}": _INK for name in ("edgecolor", "labelcolor", "titlecolor")},
    "axes.facecolor": "white",
    "figure.facecolor": "white",
}


def inline_svg(draw: Callable[["Figure"], None], name: str, size: tuple[float, float], alt: str) -> Markup:
    """A picture for a page.

    Parameters
    ----------
    draw
        Draws on an empty figure.
    name
        Goes before every id in it, as a page may hold several pictures.
    size
        In inches.
    alt
        What the picture shows, for whoever can't see it.

    Raises
    ------
    ImportError
        matplotlib is not installed.
    """
    require_matplotlib()
    from matplotlib import rc_context, rcdefaults
    from matplotlib.figure import Figure

    written = StringIO()
    with rc_context():  # of which nothing is left outside, whatever style the user has
        rcdefaults()
        with rc_context(_LOOK | {"svg.hashsalt": name}), catch_warnings():
            filterwarnings("ignore", message="Glyph .* missing")  # the page's fonts may have it
            figure = Figure(figsize=size, layout="constrained")
            draw(figure)
            colors = _page_colors(shades(figure.axes[0]))
            for patch in (figure.patch, *(ax.patch for ax in figure.axes)):
                patch.set_alpha(0.0)
            figure.savefig(written, format="svg", metadata=dict.fromkeys(("Creator", "Date", "Format", "Type")))
    return _inlined(written.getvalue(), name, colors, alt)


def _page_colors(shade: Shades) -> dict[str, str]:
    """Colours of the pictures, and the page's that stand for them."""
    ours = {_INK: "ink", BLUE: "blue", ORANGE: "orange", shade.ink: "ink", shade.grey: "muted", shade.line: "line"}
    ours |= {shade.faint: "faint", shade.paper: "paper"}
    return {color.lower(): f"var(--{name})" for color, name in ours.items()}


def _inlined(file: str, name: str, colors: Mapping[str, str], alt: str) -> Markup:
    """The element of a file, without what is for a file alone, and without what would hold for the whole page."""
    inside = file[file.index("<svg") : file.rindex("</svg>") + len("</svg>")]
    inside = re.sub(r"<!--.*?-->|<metadata>.*?</metadata>|<style.*?</style>", "", inside, flags=re.DOTALL)
    view = re.search(r'viewBox="[^"]*"', inside)
    assert view is not None  # noqa: S101  # matplotlib always writes it
    opening = f'<svg {view.group()} role="img" aria-label="{words(alt)}">'
    inside = re.sub(r"<svg[^>]*>", lambda _: opening, inside, count=1)
    # tags alone: what stands between them are names, in which matplotlib has escaped what could be a tag
    return Markup(re.sub(r"<[^/][^>]*>", lambda tag: _tag(tag.group(), name, colors), inside))


def _tag(tag: str, name: str, colors: Mapping[str, str]) -> str:
    """With ids of its own in the page, and the page's colours and letters."""
    if tag.startswith("<svg"):
        return tag
    tag = re.sub(r'\bid="', f'id="{name}-', tag.replace("xlink:href", "href"))
    tag = re.sub(r'(href="#|url\(#)', rf"\g<1>{name}-", tag)
    tag = re.sub(r"font: (?:(\d+) )?([\d.]+px)[^;\"]*", r"font-size: \2", tag)  # as matplotlib wrote it before 3.10
    tag = re.sub(r"font-family: [^;\"]*;? ?", "", tag)
    return re.sub(r"#[0-9a-f]{6}\b", lambda color: colors.get(color.group(), color.group()), tag)
