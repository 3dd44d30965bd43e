"""Each picture with little and with much to show, and with long names: nothing lies on anything, nothing is cut off."""

from pathlib import Path

import matplotlib.pyplot as plt
import pytest
from gallery import CASES, FIGURES, PICTURES, _posterior, _served, drawn, file_of
from matplotlib.cbook import is_math_text
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


def seen(figure) -> list:
    return [ax for ax in figure.axes if ax.get_visible()]


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
    shown = [each for ax in seen(figure) for each in (*tick_labels(ax.xaxis), *tick_labels(ax.yaxis), *around(ax))]
    boxes = [(str(each), each.get_window_extent()) for each in shown]
    return [
        word
        for word, box in boxes
        if not (inside.x0 <= box.x0 <= box.x1 <= inside.x1 and inside.y0 <= box.y0 <= box.y1 <= inside.y1)
    ]


def overlapping(figure) -> list[tuple[str, str]]:
    """Pairs of labels of one axis, or of the words around any of the axes, that lie on each other."""
    found, shown = [], seen(figure)
    groups = [tick_labels(axis) for ax in shown for axis in (ax.xaxis, ax.yaxis)]
    for group in (*groups, [each for ax in shown for each in around(ax)]):
        boxes = [(str(each), each.get_window_extent().padded(-1.0)) for each in group]
        found += [
            (one, other)
            for place, (one, box) in enumerate(boxes)
            for other, its in boxes[place + 1 :]
            if box.overlaps(its)
        ]
    return found


def mathematics(figure) -> list[str]:
    """What matplotlib would set as a formula; it raises where that is none."""
    return [line for text in figure.findobj(Text) for line in text.get_text().split("\n") if is_math_text(line)]


@pytest.mark.parametrize("case", ["small", "large", "long names", "dollars", "many dollars"])
@pytest.mark.parametrize("name", [*PICTURES, *FIGURES])
def test_nothing_is_cut_off_or_lies_on_anything(name, case) -> None:
    figure = drawn(name, case)
    figure.draw_without_rendering()
    assert cut_off(figure) == []
    assert overlapping(figure) == []
    assert mathematics(figure) == []


def test_what_the_user_calls_fits_groups_and_labels_is_no_mathematics() -> None:
    name = r"a$\foo$"
    size = CASES["small"]._replace(parameter=lambda j: "b")
    report, posterior = _served(size, -1.0), _posterior(size, 0.0)
    groups = {"group": [name, "rest"], "group_of": ("client", [name, "rest"])}
    shown = [
        plots.plot_comparison(posterior, posterior, names=(name, name), labels={"b[b]": name}, standardised=True),
        plots.plot_fairness({name: report.assign_coords(group=groups["group"]).assign(group_of=groups["group_of"])}),
    ]
    for ax in shown:
        ax.figure.draw_without_rendering()
        assert mathematics(ax.figure) == []
        words = [text.get_text().replace(r"\$", "$") for text in ax.findobj(Text)]
        assert sum(name in word for word in words) >= 2


def test_forty_rows_in_axes_given_keep_apart() -> None:
    figure, ax = plt.subplots(figsize=(7.0, 4.0), layout="constrained")
    PICTURES["plot_estimates"](CASES["large"], ax)
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
    assert {*PICTURES, *FIGURES} - {"Calibration.plot"} == {name for name in plots.__all__ if name.startswith("plot_")}


@in_checkout
def test_the_page_shows_every_picture_in_words_too() -> None:
    page = (DOCS / "gallery.md").read_text()
    for name in (*PICTURES, *FIGURES):
        file = f"gallery/{file_of(name)}"
        assert (DOCS / file).stat().st_size < 60_000
        (line,) = [line for line in page.splitlines() if f"]({file})" in line]
        assert len(line.partition("![")[2].partition("]")[0]) >= 40
        assert f"`{name}`" in page or f"`plots.{name}`" in page
