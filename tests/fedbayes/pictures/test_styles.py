"""What holds for every picture: readable in a dark style, and nothing on top of anything else."""

import jax
import matplotlib.pyplot as plt
import numpy as np
import pytest
import xarray as xr
from gallery import CASES, PICTURES
from matplotlib.colors import to_rgb
from matplotlib.text import Text

import fedbayes
from fedbayes import plots
from fedbayes.models import linear
from fedbayes.results.arviz import to_arviz

LONG = "the name of a predictor that somebody has measured "


@pytest.fixture(autouse=True)
def close_figures():
    yield
    plt.close("all")


@pytest.fixture(scope="module")
def merged():
    clients, _ = linear.simulate(jax.random.key(5), rows=(5, 9, 40))
    method = fedbayes.OneShot(combine="laplace", num_replicates=1, check=False)
    return fedbayes.fit_federated(linear.model, clients, method=method, key=jax.random.key(0), progress=False)


@pytest.fixture(scope="module")
def selected(stored_fits):
    return stored_fits.read("ridge").select()


def wide(selection):
    """The same with more clients than a forest has."""
    many = xr.concat([selection] * 4, "client_name").assign_coords(client_name=[f"c{k}" for k in range(12)])
    return many.assign_attrs(selection.attrs)


def report(middle=-1.0):
    """Of two groups, with one and with three clients."""
    score = middle + np.array([0.0, -0.1, -0.2, -0.3])
    groups = {"group_score": [score[0], score[1:].mean()], "group_error": [0.2, 0.1]}
    return xr.Dataset(
        {"score": ("client", score), "group_of": ("client", ["a", "b", "b", "b"])}
        | {name: ("group", values) for name, values in groups.items()},
        coords={"client": list("wxyz"), "group": ["a", "b"]},
    )


class Coupled:
    """What the pictures of correlated clients read of a fit."""

    def __init__(self):
        rng = np.random.default_rng(0)
        theta = np.array([0.0, 2.0, -1.0]) + rng.gamma(0.5, 1.0, (1, 400, 3))
        omega = np.broadcast_to(np.array([[1.0, 0.5, 0.0], [0.5, 1.0, 0.0], [0.0, 0.0, 1.0]]), (1, 4, 3, 3))
        posterior = {"theta_by_client": (("chain", "draw", "client_name"), theta)}
        posterior["omega"] = (("chain", "few", "client_name", "other"), omega)
        self.idata, self.client_names = type("IData", (), {"posterior": xr.Dataset(posterior)}), ("p", "q", "r")
        self.method = fedbayes.CorrelatedClients()


@pytest.fixture(scope="module")
def pictures(small_fit, merged, selected):
    """A call for each picture, by name; each takes axes."""
    conflict = small_fit.conflict()
    return {
        "rounds": lambda ax: plots.plot_rounds(small_fit, ax=ax),
        "comparison": lambda ax: plots.plot_comparison(small_fit.idata, small_fit.idata, ax=ax),
        "influence": lambda ax: plots.plot_influence(small_fit, ax=ax),
        "conflict": lambda ax: plots.plot_conflict(conflict, ax=ax),
        "merge": lambda ax: plots.plot_merge(merged, ax=ax),
        "selection": lambda ax: plots.plot_selection(selected, ax=ax),
        "table of a selection": lambda ax: plots.plot_selection(wide(selected), ax=ax),
        "fairness": lambda ax: plots.plot_fairness({"FedAvg": report(), "GIFAIR": report(-1.1)}, ax=ax),
        "shrinkage": lambda ax: plots.plot_shrinkage(Coupled(), {"p": 0.0, "q": 1.0, "r": 2.0}, ax=ax),
        "correlation": lambda ax: plots.plot_client_correlation(Coupled(), ax=ax),
        "estimates": lambda ax: PICTURES["plot_estimates"](CASES["shown"], ax),
        "survival": lambda ax: PICTURES["plot_survival"](CASES["shown"], ax),
    }


NAMES = (
    "rounds",
    "comparison",
    "influence",
    "conflict",
    "merge",
    "selection",
    "table of a selection",
    "fairness",
    "shrinkage",
    "correlation",
    "estimates",
    "survival",
)


def contrast(one, other):
    """The ratio of luminances of WCAG 2, from 1 to 21."""
    linear_of = [
        [c / 12.92 if c <= 0.04045 else ((c + 0.055) / 1.055) ** 2.4 for c in to_rgb(each)] for each in (one, other)
    ]
    dark, light = sorted(float(np.dot([0.2126, 0.7152, 0.0722], each)) for each in linear_of)
    return (light + 0.05) / (dark + 0.05)


def words(ax):
    return [each for each in ax.findobj(Text) if each.get_text().strip() and each.get_visible()]


def title(ax):
    """The text above the axes."""
    return next(text for text in words(ax) if text.get_text() == ax.get_title(loc="left"))


@pytest.mark.parametrize("name", NAMES)
def test_every_word_can_be_read_on_a_dark_ground(pictures, name):
    with plt.style.context("dark_background"):
        figure = pictures[name](None).figure
        assert len(words(figure)) > 4
        for text in words(figure):
            assert contrast(text.get_color(), figure.get_facecolor()) > 3.0, text.get_text()


@pytest.mark.parametrize("name", NAMES)
def test_lines_are_seen_on_a_dark_ground(pictures, name):
    with plt.style.context("dark_background"):
        ax = pictures[name](None)
        for line in ax.lines:
            assert contrast(line.get_color(), "black") > 1.1 or ax.images, line.get_label()


@pytest.mark.parametrize("name", NAMES)
def test_four_pictures_in_one_figure_keep_out_of_each_others_way(pictures, name):
    figure, axes = plt.subplots(2, 2, figsize=(11, 9), layout="constrained")
    for ax in axes.flat:
        pictures[name](ax)
    figure.draw_without_rendering()
    boxes = {}
    for place, ax in enumerate(axes.flat):
        assert ax.get_window_extent().height > 60
        beside = [*ax.texts, title(ax), *filter(None, [ax.get_legend()])]
        boxes[place] = [each.get_window_extent() for each in beside]
    for place, mine in boxes.items():
        others = [box for other, theirs in boxes.items() if other != place for box in theirs]
        for box in mine:
            assert not any(box.overlaps(other) for other in others)


@pytest.mark.parametrize("name", NAMES)
def test_title_subtitle_and_margin_do_not_touch(pictures, name):
    figure, axes = plt.subplots(1, 2, figsize=(9, 6), layout="constrained")
    for ax in axes:
        pictures[name](ax)
    figure.draw_without_rendering()
    boxes = [
        title(axes[1]).get_window_extent(),
        *(text.get_window_extent() for text in axes[1].texts if text.xy[1] == 1),
    ]
    for place, box in enumerate(boxes):
        assert not any(box.overlaps(other) for other in boxes[place + 1 :])


def test_long_names_leave_room_for_the_picture(selected):
    names = [f"{LONG}{k}" for k in range(8)]
    for shown in (selected, wide(selected)):
        ax = plots.plot_selection(shown.assign_coords(predictor=names))
        ax.figure.draw_without_rendering()
        assert ax.get_window_extent().width / ax.figure.dpi > 3.0
        inside = ax.figure.bbox
        for text in [*ax.get_yticklabels(), title(ax), *ax.texts, *filter(None, [ax.get_legend()])]:
            box = text.get_window_extent()
            assert inside.x0 <= box.x0 <= box.x1 <= inside.x1
        assert [" ".join(label.get_text().split()) for label in ax.get_yticklabels()] == names


def test_low_axes_show_the_beginning_of_long_names(selected):
    named = selected.assign_coords(predictor=[f"{k} {LONG}" for k in range(8)])
    for shown in (named, wide(named)):
        _, ax = plt.subplots(figsize=(6, 3), layout="constrained")
        plots.plot_selection(shown, ax=ax)
        labels = [label.get_text() for label in ax.get_yticklabels()]
        assert all(label.endswith("…") and "\n" not in label for label in labels)
        assert [label[0] for label in labels] == list("01234567")


def test_fairness_has_the_interval_of_each_group():
    ax = plots.plot_fairness({"FedAvg": report()})
    (lines, _) = ax.collections
    expected = [[-1.0 - 1.645 * 0.2, -1.0 + 1.645 * 0.2], [-1.2 - 1.645 * 0.1, -1.2 + 1.645 * 0.1]]
    np.testing.assert_allclose([segment[:, 0] for segment in lines.get_segments()], expected)


def test_shrinkage_leads_to_the_median_and_says_so():
    fit = Coupled()
    ax = plots.plot_shrinkage(fit, {"p": 0.0, "q": 1.0, "r": 2.0})
    middle = next(line for line in ax.lines if "median" in line.get_label())
    draws = fit.idata.posterior["theta_by_client"].values[0]
    assert np.all(np.abs(np.median(draws, axis=0) - draws.mean(axis=0)) > 0.1)
    np.testing.assert_allclose(middle.get_xdata(), np.median(draws, axis=0)[[2, 1, 0]])
    assert "median" in ax.texts[-1].get_text()
    assert "median" in plots.plot_shrinkage.__doc__
    assert "posterior mean" not in plots.plot_shrinkage.__doc__


def test_comparison_of_scales_that_differ_is_drawn_in_sds():
    rng = np.random.default_rng(0)
    center, sd = np.array([0.0, 300.0]), np.array([1.0, 100.0])
    pair = [
        to_arviz({"posterior": {"b": center + sd * rng.normal(shift, 1.0, (2, 400, 2))}}, {}, {}, {})
        for shift in (0.3, 0.0)
    ]
    ax = plots.plot_comparison(*pair)
    assert ax.get_xlabel() == "distance from the mean of reference, in its sds"
    for lines in ax.collections[::2]:
        widths = [np.ptp(segment[:, 0]) for segment in lines.get_segments()]
        np.testing.assert_allclose(widths, 3.76, rtol=0.15)
    assert plots.plot_comparison(*pair, standardised=False).get_xlabel() == "value of the parameter"
    alike = [each["posterior"].isel(b_dim_0=[0]) for each in pair]
    assert plots.plot_comparison(*({"posterior": each} for each in alike)).get_xlabel() == "value of the parameter"


def test_merge_is_not_crushed_by_one_client_that_knows_little(merged, monkeypatch):
    rounds = merged.rounds.copy(deep=True)
    far = {"client": "client0", "coordinate": 0}
    rounds["client_mean"].loc[far] = 1e4
    monkeypatch.setattr(type(merged), "rounds", property(lambda fit: rounds))
    ax = plots.plot_merge(merged)
    assert 6.0 <= ax.get_xlim()[1] < 100.0
    assert ax.get_xlim()[0] == -ax.get_xlim()[1]
    (arrow,) = [line for line in ax.lines if line.get_marker() == ">" and len(line.get_xdata()) == 1]
    first = next(line for line in ax.lines if line.get_label() == "client0")
    assert arrow.get_xdata()[0] == ax.get_xlim()[1]
    assert arrow.get_color() == first.get_color()
    assert f"{first.get_xdata().max():.0f}" in [text.get_text() for text in ax.texts]
    assert "arrows lead to what lies outside" in ax.texts[-1].get_text().replace("\n", " ")
