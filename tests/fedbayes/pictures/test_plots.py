import sys
from types import SimpleNamespace

import jax
import matplotlib.pyplot as plt
import numpy as np
import pytest
import xarray as xr
from matplotlib.figure import Figure

import fedbayes
from fedbayes import plots
from fedbayes.inference import METHODS
from fedbayes.models import linear
from fedbayes.results.arviz import to_arviz


@pytest.fixture(autouse=True)
def close_figures():
    yield
    plt.close("all")


@pytest.fixture(scope="module")
def pair():
    rng = np.random.default_rng(0)
    ours, theirs = rng.normal(0.3, 1.0, (2, 400, 3)), rng.normal(0.0, 1.0, (2, 400, 3))
    return [
        to_arviz({"posterior": {"b": d, "a": d[..., 0]}}, {"c": list("xyz")}, {"b": ["c"]}, {}) for d in (ours, theirs)
    ]


@pytest.fixture(scope="module")
def merged_fit():
    clients, _ = linear.simulate(jax.random.key(5), rows=(5, 9, 40))
    method = fedbayes.OneShot(combine="laplace", num_replicates=1, check=False)
    return fedbayes.fit_federated(linear.model, clients, method=method, key=jax.random.key(0), progress=False)


def fake_fit(num_clients=50, num_rounds=4):
    """A fit whose diagnostics are known: client k has influence k, and was last active in round 2 if k is odd."""
    influence = np.tile(np.arange(num_clients, dtype=float)[:, None], (num_rounds, 1, 2))
    influence[2:, 1::2] = np.nan
    influence[:, 7:8] = np.nan
    dims = ("round", "client", "replicate")
    rounds = xr.Dataset(
        {
            "influence": (dims, influence),
            "smallest_cavity_eigenvalue": (dims, np.full(influence.shape, 0.75)),
            "change": (("round", "replicate"), np.array([[1.0, 2.0], [0.1, 0.2], [0.5, 0.4], [0.01, 0.005]])),
            "monte_carlo_noise": (
                ("round", "replicate"),
                np.array([[0.0, 0.0], [0.0, 0.0], [0.01, 0.02], [0.01, 0.02]]),
            ),
            "phase": (("round",), np.array(["mode", "mode", "EP", "EP"])),
            "rounds": (("round",), np.ones(num_rounds, int)),
        },
        coords={"round": np.arange(1, num_rounds + 1)},
    )
    names = tuple(f"c{k}" for k in range(num_clients))
    return SimpleNamespace(rounds=rounds, client_names=names, method=fedbayes.EP(tolerance=0.03), converged=True)


def texts(ax):
    return [text.get_text() for text in ax.texts]


def labels(ax):
    return [label.get_text() for label in ax.get_yticklabels()]


def legend(ax):
    return [text.get_text() for text in ax.get_legend().get_texts()]


def test_comparison_shows_medians_and_intervals(pair):
    ax = plots.plot_comparison(*pair, labels={"b[x]": "Ex"})
    assert labels(ax) == ["a", "Ex", "b[y]", "b[z]"]
    assert legend(ax) == ["Federated", "reference"]
    assert ax.get_title(loc="left") == "Federated posterior against reference"
    medians = [line.get_xdata() for line in ax.lines if line.get_marker() in ("o", "s")]
    for idata, shown in zip(pair, medians, strict=True):
        draws = idata["posterior"]["b"].to_numpy().reshape(-1, 3)
        np.testing.assert_allclose(shown[1:], np.median(draws, axis=0))
    outer = ax.collections[0].get_segments()
    np.testing.assert_allclose(
        [segment[:, 0] for segment in outer[1:]],
        np.quantile(pair[0]["posterior"]["b"].to_numpy().reshape(-1, 3), [0.03, 0.97], axis=0).T,
    )


def test_comparison_writes_the_differences(pair):
    ax = plots.plot_comparison(*pair, var_names=["a"])
    ours, theirs = (idata["posterior"]["a"].to_numpy() for idata in pair)
    assert f"{(ours.mean() - theirs.mean()) / theirs.std(ddof=1):+.2f}" in texts(ax)
    assert labels(ax) == ["a"]


@pytest.mark.parametrize("names", [["a"], None])
def test_the_legend_does_not_lie_on_the_label_of_the_axis(pair, names):
    ax = plots.plot_comparison(*pair, var_names=names)
    ax.figure.draw_without_rendering()
    boxes = [each.get_window_extent() for each in (ax.get_legend(), ax.xaxis.label)]
    assert not boxes[0].overlaps(boxes[1])
    assert ax.figure.get_tightbbox().height > 0.0


def test_a_posterior_against_itself_differs_by_zero_without_a_sign(pair):
    ax = plots.plot_comparison(pair[0], pair[0], names=("Laplace", "EP"))
    assert texts(ax).count("0.00") == 4
    assert legend(ax) == ["Laplace", "EP"]
    assert ax.get_title(loc="left") == "Laplace posterior against EP"


def test_rounds_tell_the_phases_apart_and_show_the_tolerance():
    ax = plots.plot_rounds(fake_fit())
    assert ax.get_yscale() == "log"
    lines = {line.get_label(): line for line in ax.lines}
    np.testing.assert_allclose(lines["mode phase, 2 rounds"].get_xydata(), [[1, 2.0], [2, 0.2]])
    np.testing.assert_allclose(lines["EP phase, 2 rounds"].get_xydata(), [[3, 0.5], [4, 0.01]])
    np.testing.assert_allclose(lines["Monte Carlo noise of a round"].get_xydata(), [[3, 0.02], [4, 0.02]])
    np.testing.assert_allclose(lines["tolerance, 0.03"].get_ydata(), 0.03)
    assert lines["mode phase, 2 rounds"].get_color() != lines["EP phase, 2 rounds"].get_color()
    assert ax.get_title(loc="left") == "Converged after 4 rounds"


def test_rounds_without_monte_carlo_noise_show_the_changes_alone():
    clients, _ = linear.simulate(jax.random.key(5), rows=(5, 9, 40))
    fit = fedbayes.fit_federated(linear.model, clients, method="laplace", key=jax.random.key(0), progress=False)
    assert "monte_carlo_noise" not in fit.rounds
    number = fit.rounds.sizes["round"]
    ax = plots.plot_rounds(fit)
    assert legend(ax) == [f"mode phase, {number} rounds", f"tolerance, {fit.method.tolerance:g}"]
    line = next(line for line in ax.lines if line.get_label() == f"mode phase, {number} rounds")
    shown = fit.rounds["change"].to_numpy().ravel()
    np.testing.assert_allclose(line.get_ydata(), shown[shown > 0.0])


def test_rounds_of_a_fit_without_changes_say_what_is_lacking(merged_fit):
    message = (
        r"`plot_rounds` needs the diagnostic `change`, which a fit by OneShot does not have; it has: .*client_mean"
    )
    with pytest.raises(ValueError, match=message):
        plots.plot_rounds(merged_fit)


def test_rounds_of_a_fit_that_did_not_converge():
    fit = fake_fit()
    fit.converged = False
    assert plots.plot_rounds(fit).get_title(loc="left") == "Not converged after 4 rounds"


def said(ax):
    """The subtitle."""
    return ax.texts[-1].get_text().replace("\n", " ")


def averaged(left, converged):
    """A fit by federated averaging with these distances left, and changes that say the opposite."""
    fit = fake_fit(num_rounds=len(left))
    change = 1e-4 / np.array(left)
    fit.rounds = fit.rounds.assign(left=("round", np.array(left)), change=("round", change)).drop_vars(
        "monte_carlo_noise"
    )
    fit.method, fit.converged = fedbayes.FedAvg(tolerance=0.01), converged
    return fit


@pytest.mark.parametrize(("left", "converged"), [((3.0, 0.5, 0.02, 0.009), True), ((3.0, 1.0, 0.5, 0.2), False)])
def test_rounds_of_federated_averaging_show_what_is_left_to_the_tolerance(left, converged):
    ax = plots.plot_rounds(averaged(left, converged))
    np.testing.assert_allclose(ax.lines[0].get_ydata(), left)
    limit = next(line.get_ydata()[0] for line in ax.lines if line.get_label() == "tolerance, 0.01")
    assert (left[-1] <= limit) == converged == (ax.get_title(loc="left") == "Converged after 4 rounds")
    assert said(ax).startswith("Estimated distance to the rounds' fixed point. Also judged by the distance from the")


def test_rounds_whose_distance_is_not_known_show_the_objective():
    fit = averaged((np.nan,) * 4, converged=True)
    fit.rounds["objective"] = ("round", np.array([9.0, -1.0, -2.0, -2.0]))
    ax = plots.plot_rounds(fit)
    np.testing.assert_allclose(ax.lines[0].get_ydata(), [9.0, -1.0, -2.0, -2.0])
    assert ax.get_yscale() == "linear"
    assert not any(line.get_label().startswith("tolerance") for line in ax.lines)
    with pytest.raises(ValueError, match="The diagnostic `left` is NaN in every round: there is nothing to show"):
        plots.plot_rounds(averaged((np.nan,) * 4, converged=True))


def test_a_large_tolerance_is_not_what_the_verdict_takes():
    fit = averaged((3.0, 1.0, 0.5, 0.2), converged=False)
    fit.method = fedbayes.FedAvg(tolerance=0.5)
    assert said(plots.plot_rounds(fit)).endswith("Whatever the tolerance, more than 0.1 sds to go is no convergence.")


@pytest.mark.parametrize("method", [method for method in METHODS.values() if method is not fedbayes.OneShot])
def test_what_is_drawn_of_rounds_is_a_diagnostic_of_the_method(method):
    assert set(method.progress) <= set(method.diagnostics)
    assert method.diagnostics[method.progress[0]].unit in ("posterior sds", "shared coordinates")


def test_rounds_of_chains_say_that_the_verdict_is_by_something_else():
    fit = fake_fit()
    fit.rounds["change"][2:] = np.nan
    fit.rounds["phase"][2:] = "FALD"
    fit.method, fit.converged = fedbayes.FALD(), False
    ax = plots.plot_rounds(fit)
    assert "tolerance" not in " ".join(legend(ax))
    assert said(ax).endswith("Judged by R-hat and the bias of the chains, which come after these rounds.")
    assert "FALD phase, 2 rounds, not drawn" in legend(ax)


def test_influence_shows_the_largest_first_each_from_its_last_round():
    ax = plots.plot_influence(fake_fit(), top=5, labels={"c49": "Mine"})
    assert labels(ax) == ["Mine", "c48", "c47", "c46", "c45"]
    (points,) = [line for line in ax.lines if line.get_marker() == "o"]
    np.testing.assert_allclose(points.get_xydata(), [[49 - k, k] for k in range(5)])
    assert texts(ax).count("25%") == 5
    assert ax.get_title(loc="left") == "Influence of each client: the 5 largest of 49"


def test_influence_of_few_clients_shows_them_all():
    ax = plots.plot_influence(fake_fit(num_clients=3))
    assert labels(ax) == ["c2", "c1", "c0"]
    assert ax.get_title(loc="left") == "Influence of each client"


def test_a_method_without_influence_is_an_error():
    fit = fake_fit()
    fit.method = fedbayes.Laplace()
    fit.rounds = fit.rounds.drop_vars("influence")
    lacking = (
        r"needs the diagnostic `influence`, which a fit by Laplace does not have; it has: smallest_.*, change, monte"
    )
    with pytest.raises(ValueError, match=lacking):
        plots.plot_influence(fit)
    fit.rounds = fit.rounds[["phase", "rounds"]]
    both = r"`plot_influence` needs the diagnostics `influence`, `smallest_cavity_eigenvalue`, .* has: none of its own"
    with pytest.raises(ValueError, match=both):
        plots.plot_influence(fit)


def test_influence_that_nobody_knows_is_an_error():
    fit = fake_fit()
    fit.rounds["influence"][:] = np.nan
    with pytest.raises(ValueError, match="`influence` is NaN for every client in every round: there is nothing to"):
        plots.plot_influence(fit)


def test_pictures_of_a_real_fit_on_given_axes(small_fit):
    axes = Figure(figsize=(8, 12)).subplots(3)
    assert plots.plot_rounds(small_fit, ax=axes[0]) is axes[0]
    assert plots.plot_influence(small_fit, ax=axes[1]) is axes[1]
    assert plots.plot_comparison(small_fit.idata, small_fit.idata, ax=axes[2]) is axes[2]
    last = small_fit.rounds["influence"][-1].mean("replicate")
    assert labels(axes[1])[0] == str(last.idxmax("client").item())
    assert plt.get_fignums() == []


def test_merge_shows_every_client_beside_the_merged_posterior(merged_fit):
    fit = merged_fit
    ax = plots.plot_merge(fit, labels={"beta[1]": "Slope"})
    assert sorted(labels(ax)) == ["Slope", "beta[0]", "beta[2]"]
    merge = fit.rounds.isel(round=0, replicate=0)
    order = np.argsort(-np.abs(merge["shift"].to_numpy()).max(axis=0))
    mean, covariance = fit.moments()
    expected = (merge["client_mean"].to_numpy()[0] - mean[0]) / np.sqrt(np.diagonal(covariance[0]))
    first = next(line for line in ax.lines if line.get_label() == fit.client_names[0])
    np.testing.assert_allclose(first.get_xdata(), expected[order])
    assert f"{merge['effective_clients'].to_numpy()[order][0]:.1f}" in texts(ax)
    assert ax.get_title(loc="left") == "The clients' own posteriors"
    few = plots.plot_merge(fit, top=1, clients=fit.client_names[:2])
    assert len(labels(few)) == 1
    assert few.get_title(loc="left") == "The clients' own posteriors: 2 of 3 clients"


def test_a_method_that_merges_nothing_is_an_error(small_fit):
    message = (
        r"`plot_merge` needs .* `client_mean`, .*, which a fit by EP does not have; it has: .*k_hat.*plot_conflict"
    )
    with pytest.raises(ValueError, match=message):
        plots.plot_merge(small_fit)


def test_without_matplotlib_the_message_says_what_to_install(monkeypatch, pair):
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    with pytest.raises(ImportError, match=r"need matplotlib, which is not installed: `pip install 'fedbayes\[demo\]'`"):
        plots.plot_comparison(*pair)
