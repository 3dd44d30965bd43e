"""All clients in one ArviZ object: posterior predictive checks, and locals side by side."""

import arviz as az
import matplotlib.pyplot as plt
import numpy as np
import pytest


@pytest.fixture(scope="module")
def fit(stored_fits):
    return stored_fits.read("groups")


@pytest.fixture(scope="module")
def clients(stored_fits):
    return stored_fits.read_clients("groups")


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:Passing a dict or None as alias_mapping")  # ArviZ 0.23 with Matplotlib 3.11
@pytest.mark.statistical(key=0, numbers=24, errors=5.0)
def test_a_check_is_for_plot_ppc(fit, clients) -> None:
    found = fit.check(num_draws=50)
    assert "observed_data" not in fit.idata  # nor in what `fit.save` writes
    np.testing.assert_array_equal(found["posterior"]["center"], fit.idata["posterior"]["center"])
    replicates, observed = found["posterior_predictive"]["y"], found["observed_data"]["y"]
    assert replicates.shape == (2, 50, 24)
    np.testing.assert_array_equal(observed, np.concatenate([client["y"] for client in clients.values()]))
    assert str(observed["y_row"].values[12]) == "south[0]"
    for name, rows in (("north", slice(0, 12)), ("south", slice(12, 24))):
        effect = fit.client_posterior(name).posterior["effect"].mean(("chain", "draw")).values
        expected = effect[clients[name]["group"]]
        error = np.sqrt((1.0 + 0.25) / 100)  # a replicate's variance is that of the rows plus the effect's, below 1/4
        np.testing.assert_allclose(replicates.mean(("chain", "draw")).values[rows], expected, atol=5.0 * error)
    az.plot_ppc(found) if hasattr(az, "plot_ppc") else az.plot_ppc_dist(found)
    plt.close("all")


def test_clients_locals_side_by_side(fit) -> None:
    found = fit.client_posteriors().posterior
    assert list(found.data_vars) == ["effect"]
    assert found["effect"].dims == ("chain", "draw", "client_name", "group")
    assert found["effect"].shape == (2, 200, 2, 3)
    alone = fit.client_posterior("north").posterior["effect"]
    np.testing.assert_array_equal(found["effect"].sel(client_name="north")[..., :2], alone)
    assert np.isnan(found["effect"].sel(client_name="north")[..., 2]).all()
    assert np.isfinite(found["effect"].sel(client_name="south")).all()


def test_without_locals_there_is_nothing_to_put_side_by_side(small_fit) -> None:
    with pytest.raises(ValueError, match=r"no local latents: .* `fit\.idata`"):
        small_fit.client_posteriors()


@pytest.mark.parametrize("num_draws", [0, 1000, 2.5])
def test_a_number_of_replicates(num_draws, small_fit) -> None:
    with pytest.raises(ValueError, match=rf"`num_draws` is {num_draws}; write a number from 1 to 200"):
        small_fit.check(num_draws)
