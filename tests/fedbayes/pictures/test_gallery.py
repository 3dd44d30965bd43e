"""Each picture with little and with much to show, and with long names: nothing lies on anything, nothing is cut off."""

from pathlib import Path

import matplotlib.pyplot as plt
import pytest
from gallery import CASES, PICTURES
from matplotlib.text import Text

from fedbayes import plots

DOCS = Path(__file__).resolve().parents[3] / "docs"
in_checkout = pytest.mark.skipif(not DOCS.exists(), reason="the page is in the checkout alone")


@pytest.fixture(autouse=True)
def close_figures():
    yield
    plt.close("all")


def tick_labels(axis) -> list[Text]:
    """The labels of ticks within the limits; matplotlib keeps others that nobody sees."""
    low, high = sorted(axis.get_view_interval())
    ticks = zip(axis.get_majorticklocs(), axis.get_majorticklabels(), strict=True)
    return [label for place, label in ticks if low <= place <= high and label.get_text()]


def around(ax) -> list:
    """Title, what is above the axes, the axes' labels, and the legend where it is outside."""
    title = next(text for text in ax.findobj(Text) if text.get_text() == ax.get_title(loc="left"))
    above = [text for text in ax.texts if text.xy[1] == 1]
    legend = ax.get_legend()
    outside = [legend] if legend and not legend.get_window_extent().overlaps(ax.get_window_extent()) else []
    return [*(text for text in (title, ax.xaxis.label, ax.yaxis.label, *above) if text.get_text()), *outside]


def cut_off(figure) -> list[str]:
    """What leaves the figure, by more than a pixel."""
    inside = figure.bbox.padded(1.0)
    shown = [each for ax in figure.axes for each in (*tick_labels(ax.xaxis), *tick_labels(ax.yaxis), *around(ax))]
    boxes = [(str(each), each.get_window_extent()) for each in shown]
    return [
        word
        for word, box in boxes
        if not (inside.x0 <= box.x0 <= box.x1 <= inside.x1 and inside.y0 <= box.y0 <= box.y1 <= inside.y1)
    ]


def overlapping(figure) -> list[tuple[str, str]]:
    """Pairs of labels of one axis, or of the words around the axes, that lie on each other."""
    found = []
    for ax in figure.axes:
        for group in (tick_labels(ax.xaxis), tick_labels(ax.yaxis), around(ax)):
            boxes = [(str(each), each.get_window_extent().padded(-1.0)) for each in group]
            found += [
                (one, other)
                for place, (one, box) in enumerate(boxes)
                for other, its in boxes[place + 1 :]
                if box.overlaps(its)
            ]
    return found


@pytest.mark.parametrize("case", ["small", "large", "long names"])
@pytest.mark.parametrize("name", PICTURES)
def test_nothing_is_cut_off_or_lies_on_anything(name, case) -> None:
    figure = PICTURES[name](CASES[case], None).figure
    figure.draw_without_rendering()
    assert cut_off(figure) == []
    assert overlapping(figure) == []


def test_a_picture_that_is_too_small_is_seen() -> None:
    figure, ax = plt.subplots(figsize=(2.0, 0.9))
    PICTURES["plot_estimates"](CASES["large"], ax)
    figure.draw_without_rendering()
    assert cut_off(figure)
    assert overlapping(figure)


def test_every_picture_is_in_the_gallery() -> None:
    assert set(PICTURES) == {name for name in plots.__all__ if name.startswith("plot_")}


@in_checkout
def test_the_page_shows_every_picture_in_words_too() -> None:
    page = (DOCS / "gallery.md").read_text()
    for name in PICTURES:
        file = f"gallery/{name.removeprefix('plot_')}.png"
        assert (DOCS / file).stat().st_size < 60_000
        (line,) = [line for line in page.splitlines() if f"]({file})" in line]
        assert len(line.partition("![")[2].partition("]")[0]) >= 40
        assert f"`plots.{name}`" in page
