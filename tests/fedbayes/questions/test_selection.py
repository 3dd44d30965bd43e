"""Variable selection: the rules against direct computations, what clients and population select, and refusals."""

from functools import partial
from types import SimpleNamespace
from typing import Any

import jax
import numpy as np
import pytest
import xarray as xr

import fedbayes as fb
from fedbayes.errors import ClientDataError, NotConvergedWarning
from fedbayes.models import linear, penalised
from fedbayes.questions.selection import Rule, coefficients_name, select, selected, voted
from fedbayes.results.corrected import approximate_theta, is_checked

RNG = np.random.default_rng(0)
MEANS = np.array([0.0, 0.5, 1.0, 1.7, 2.5, -3.0])
DRAWS = xr.DataArray(
    MEANS + RNG.gamma(3.0, size=(4, 500, 6)) / np.sqrt(3.0) - np.sqrt(3.0),
    dims=("chain", "draw", "predictor"),
    coords={"predictor": list("abcdef")},
)
FLAT = DRAWS.values.reshape(-1, 6)


def test_an_equal_tailed_interval() -> None:
    found = selected(DRAWS, Rule(level=0.8))
    np.testing.assert_allclose([found["lower"], found["upper"]], np.quantile(FLAT, [0.1, 0.9], axis=0))
    np.testing.assert_array_equal(found["included"], fb.excludes(DRAWS, level=0.8))
    wrong = 1.0 - found["direction"].values[found["included"].values]
    np.testing.assert_allclose(found["expected_wrong_signs"], wrong.sum())
    np.testing.assert_allclose(found["direction"], fb.probability_of_direction(DRAWS))
    assert found["predictor"].values.tolist() == list("abcdef")


def test_the_shortest_interval() -> None:
    found = selected(DRAWS, Rule(level=0.8, interval="hdi"))
    for place in range(6):
        ordered = np.sort(FLAT[:, place])
        widths = ordered[1599:] - ordered[:401]  # of all intervals with 1,600 of the 2,000 draws
        assert abs(float(found["upper"][place] - found["lower"][place]) - widths.min()) < 0.01
        inside = (FLAT[:, place] >= float(found["lower"][place])) & (FLAT[:, place] <= float(found["upper"][place]))
        assert abs(inside.mean() - 0.8) < 2e-3


def test_a_rope_asks_for_more() -> None:
    found = selected(DRAWS, Rule(rope=0.3))
    np.testing.assert_allclose(found["outside"], np.mean(np.abs(FLAT) > 0.3, axis=0))
    lower, upper = np.quantile(FLAT, [0.05, 0.95], axis=0)
    np.testing.assert_array_equal(found["included"], (lower > 0.3) | (upper < -0.3))
    assert found["included"].sum() <= selected(DRAWS, Rule())["included"].sum()


@pytest.mark.parametrize("share", [0.01, 0.05, 0.2, 0.5])
def test_the_false_discovery_rate_is_kept_by_the_largest_set(share: float) -> None:
    found = selected(DRAWS, Rule(fdr=share, rope=0.4))
    errors = 1.0 - found["outside"].values
    sizes = [num for num in range(7) if num == 0 or np.mean(np.sort(errors)[:num]) <= share]
    assert int(found["included"].sum()) == max(sizes)
    np.testing.assert_allclose(found["expected_false"], errors[found["included"].values].sum())


def test_votes() -> None:
    included = xr.DataArray([[True, True, False], [True, False, False]], dims=("client_name", "predictor"))
    found = voted(included, 0.6)
    assert found["votes"].values.tolist() == [2, 1, 0]
    assert found["voted"].values.tolist() == [True, False, False]
    with pytest.raises(ValueError, match="`vote` is 2; it is the share of the clients"):
        voted(included, 2)


@pytest.mark.parametrize(
    ("options", "told"),
    [
        ({"level": 1.0}, r"`level` is 1.0; .* lies in \(0, 1\), such as 0.9"),
        ({"level": "90%"}, "`level` is '90%'"),
        ({"interval": "wide"}, r"`interval` is 'wide'; it is one of \['equal-tailed', 'hdi'\]"),
        ({"rope": -0.1}, "`rope` is -0.1; it is the largest absolute value that is practically zero"),
        ({"fdr": 0.1}, "`fdr` needs `rope`, the largest absolute value that is practically zero"),
        ({"fdr": 0.0}, "`fdr` is 0.0; it is the expected share of false inclusions"),
    ],
)
def test_rules_out_of_range_are_refused(options: dict[str, Any], told: str) -> None:
    with pytest.raises(ValueError, match=told):
        Rule(**options)


NAMES = [f"x{j}" for j in range(8)]
CLIENTS, TRUTH = penalised.simulate(jax.random.key(0), 3, [40, 60, 30], noise_sd=1.0)  # those of the stored fit


@pytest.fixture(scope="module")
def fitted(stored_fits: Any) -> fb.FederatedFit:
    return stored_fits.read("ridge")


def test_every_client_selects_from_its_own_posterior(fitted: fb.FederatedFit) -> None:
    found = fitted.select(vote=1.0)
    assert found["predictor"].values.tolist() == NAMES
    for name in CLIENTS:
        mine = selected(fitted.client_posterior(name).posterior["theta"], Rule())
        for variable in mine.data_vars:
            np.testing.assert_array_equal(found[variable].sel(client_name=name), mine[variable])
    assert found["included"].values[:, TRUTH["theta"][0] != 0.0].all()
    assert found["voted"].values[[0, 1, 4]].all()
    assert found.attrs["rule"] == "the 90% equal-tailed credible interval excludes 0"
    assert found.attrs["remarks"] == ""


def test_the_clients_side_by_side(fitted: fb.FederatedFit) -> None:
    together = fitted.client_posteriors().posterior["theta"]
    assert together.dims == ("chain", "draw", "client_name", "predictor")
    mine = fitted.client_posterior("client1").posterior["theta"]
    np.testing.assert_array_equal(together.sel(client_name="client1"), mine)


def test_a_loaded_fit_selects_the_same(fitted: fb.FederatedFit, stored_fits: Any, tmp_path: Any) -> None:
    fitted.save(tmp_path / "fit")
    again = fb.load_fit(tmp_path / "fit", penalised.ridge, stored_fits.read_clients("ridge"))
    xr.testing.assert_allclose(again.select(), fitted.select())


def test_replicates_have_the_clients_own_coefficients(fitted: fb.FederatedFit) -> None:
    """With new coefficients they would scatter like the outcomes; with its own they are near these."""
    drawn = fitted.check(100).posterior_predictive["y"].mean(("chain", "draw")).values
    seen = np.concatenate([client["y"] for client in CLIENTS.values()])
    assert np.std(seen - drawn) < 0.4 * np.std(seen)


@pytest.mark.slow
@pytest.mark.statistical(key=9, alarm=1e-7)  # chi-squared of 8 above 50
def test_a_newcomer_has_coefficients_too(fitted: fb.FederatedFit) -> None:
    new, _ = penalised.simulate(jax.random.key(9), 1, 30)
    theta = fitted.adapt(new["client0"]).posterior["theta"]
    gap = (theta.mean(("chain", "draw")) - TRUTH["theta"][0]) / theta.std(("chain", "draw"))
    assert np.sqrt(np.mean(gap.values**2)) < 2.5


def test_the_population_selects_by_its_mean() -> None:
    clients, _ = penalised.simulate(jax.random.key(1), 8, 40, theta=[2.0, 0.0, -1.5], spread=0.2)
    model = partial(penalised.ridge, mean_sd=2.0, intercept_sd=1.0)
    fit = fb.fit_federated(model, clients, method="laplace", key=jax.random.key(0), correct=False, progress=False)
    found = fit.select(population="mu")
    mu = selected(fit.idata.posterior["mu"], Rule())
    assert found["population_mean"].dims == found["mean"].dims[1:]
    np.testing.assert_allclose(found["population_mean"], mu["mean"])
    assert found["population_included"].values.tolist() == [True, False, True]
    assert fit.client_posterior("client3").posterior["intercept"].dims == ("chain", "draw")  # and is not selected
    with pytest.raises(ValueError, match=r"no variable 'beta' here; the posterior has \['lam'"):
        fit.select(population="beta")
    with pytest.raises(ValueError, match=r"no variable 'beta' here; the posterior has .*'theta'"):
        fit.select("beta")


def test_which_are_the_coefficients() -> None:
    nobody: Any = None
    assert coefficients_name(["theta"], None, nobody) == "theta"
    assert coefficients_name([], "beta", nobody) == "beta"
    with pytest.raises(ValueError, match=r"Which are the coefficients\? .* such as `fit.select\('theta'\)`"):
        coefficients_name(["theta", "theta_raw"], None, nobody)


def test_a_model_without_coefficients_of_the_clients_own_selects_for_the_population() -> None:
    clients, _ = linear.simulate(jax.random.key(2), beta=[1.0, 0.0])
    fit = fb.fit_federated(linear.model, clients, key=jax.random.key(0), correct=False, progress=False)
    assert fit.select(population="beta")["population_included"].values.tolist() == [True, False]
    for options in ({}, {"population": "beta", "vote": 0.5}):
        with pytest.raises(ValueError, match=r"no coefficients of their own. .* one of the globals \['beta'\]"):
            fit.select(**options)


def test_a_fit_that_did_not_converge_warns() -> None:
    with pytest.warns(NotConvergedWarning):
        fit = fb.fit_federated(
            penalised.ridge, CLIENTS, key=jax.random.key(0), correct=False, progress=False, num_rounds=1
        )
    with pytest.warns(NotConvergedWarning, match="This selection is made from a fit that did not converge"):
        fit.select()


def test_a_point_has_no_intervals() -> None:
    draws = np.zeros((4, 1, 6))
    point: Any = SimpleNamespace(answers={is_checked: False, approximate_theta: draws})
    with pytest.raises(ValueError, match="This fit is a point, and credible intervals need a posterior"):
        select(point, "theta")


def test_columns_of_another_name_are_refused() -> None:
    import pandas as pd

    tables = {
        name: {"x": pd.DataFrame(client["x"], columns=NAMES), "y": client["y"]} for name, client in CLIENTS.items()
    }
    tables["client2"]["x"] = tables["client2"]["x"].rename(columns={"x3": "age"})
    with pytest.raises(ClientDataError, match="Client 'client2': `x` has the columns"):
        fb.fit_federated(penalised.ridge, tables, key=jax.random.key(0), progress=False)


def test_the_forest_marks_what_is_included(fitted: fb.FederatedFit) -> None:
    found = fitted.select()
    ax = fb.plots.plot_selection(found, labels={"x0": "dose"})
    assert [label.get_text() for label in ax.get_yticklabels()] == ["dose", *NAMES[1:]]
    filled = [line for line in ax.lines if line.get_label().startswith("client")]
    assert [len(line.get_xdata()) for line in filled] == found["included"].sum("predictor").values.tolist()
    np.testing.assert_allclose(np.sort(filled[0].get_xdata()), np.sort(found["mean"][0].values[found["included"][0]]))
    one = fb.plots.plot_selection(fitted, clients=["client1"])
    assert one.get_title("left") == "Coefficients that 1 client includes"
    with pytest.raises(ValueError, match=r"no clients \['nobody'\]"):
        fb.plots.plot_selection(found, clients=["nobody"])


def test_many_clients_are_a_table(fitted: fb.FederatedFit) -> None:
    found = fitted.select()
    many = xr.concat([found] * 4, "client_name").assign_coords(client_name=[f"c{k}" for k in range(12)])
    ax = fb.plots.plot_selection(many.assign_attrs(found.attrs))
    assert len(ax.get_xticklabels()) == 12
    assert len(ax.lines[0].get_xdata()) == int(many["included"].sum())
    with pytest.raises(ValueError, match="for the population alone"):
        fb.plots.plot_selection(found.drop_vars("included"))


def test_draws_at_the_reference_count_half():
    draws = xr.DataArray(np.array([[0.0, 0.0, 1.0, -1.0], [0.0, 0.0, 2.0, 1.0]]), dims=("chain", "draw"))
    assert float(fb.probability_of_direction(draws)) == (3 + 4 / 2) / 8
    assert float(fb.probability_of_direction(draws * 0.0)) == 0.5
