"""What a fit says of the quantities that its user reads: constrained globals and functions of them."""

from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import numpyro
import numpyro.distributions as dist
import pytest

import fedbayes as fb
from fedbayes.results.arviz import labels


def rates(count, y=None) -> None:
    """Rates of two kinds, seldom seen, and what a user would ask of them."""
    with numpyro.plate("kind", 2):
        rate = numpyro.sample("rate", dist.Gamma(0.5, 0.1))
    numpyro.deterministic("ratio", rate[0] / rate[1])
    numpyro.deterministic("rows", jnp.size(count) * 1.0)
    numpyro.deterministic("others", rate[2:])  # without an entry, as the slopes of no covariates
    numpyro.sample("y", dist.Poisson(rate[count]), obs=y)


@pytest.fixture(scope="module")
def clients() -> dict:
    kind = np.array([0, 1, 0, 1])
    return {
        "north": {"count": kind, "y": np.array([3, 0, 2, 1])},
        "south": {"count": kind, "y": np.array([1, 0, 4, 0])},
    }


@pytest.fixture(scope="module")
def fit(clients: dict) -> fb.FederatedFit:
    method = fb.EP(num_replicates=2)
    return fb.fit_federated(
        rates, clients, method=method, key=jax.random.key(0), num_draws=1000, progress=False,
        coords={"kind": ["cold", "warm"]}, dims={"rate": ["kind"]},
    )  # fmt: skip


def test_errors_are_those_of_what_the_user_reads(fit: fb.FederatedFit) -> None:
    found = fit.error
    assert found["quantity"].values.tolist() == ["rate[cold]", "rate[warm]", "ratio", "rows"]
    rate = fit.idata.posterior["rate"].values.reshape(-1, 2)
    own = found.isel(quantity=slice(2))
    # the draws are taken by the weights that the error is about: what is left is the error of taking them
    assert np.all(np.abs(own["quantity_mean"] - rate.mean(axis=0)) < 4.0 * rate.std(axis=0) / np.sqrt(len(rate)))
    np.testing.assert_allclose(own["quantity_sd"], rate.std(axis=0), rtol=0.1)
    np.testing.assert_allclose(own["quantity_quantiles"].sel(probability=0.5), np.median(rate, axis=0), rtol=0.1)
    assert np.all(own["quantity_mean_mcse"] > 0.5 * own["quantity_sd"] / np.sqrt(len(rate)))
    assert found["quantity_sd"].attrs["units"] == "the quantity's own"


@pytest.mark.statistical(key=0, numbers=4, errors=5.0)
def test_moments_of_a_constrained_global_are_exact_to_their_errors(fit: fb.FederatedFit) -> None:
    """Gamma prior, Poisson counts: ``Gamma(0.5 + sum y, 0.1 + n)``."""
    shape, rate = 0.5 + np.array([10.0, 1.0]), 0.1 + np.array([4.0, 4.0])
    own = fit.error.isel(quantity=slice(2))
    assert np.all(np.abs(own["quantity_mean"] - shape / rate) < 5.0 * own["quantity_mean_mcse"])
    assert np.all(np.abs(own["quantity_sd"] - np.sqrt(shape) / rate) < 5.0 * own["quantity_sd_mcse"])
    assert np.all(own["quantity_sd_reliable"])


def test_a_ratio_with_a_long_tail_is_not_vouched_for(fit: fb.FederatedFit) -> None:
    """One over a Gamma of shape 1.5 has no variance: whatever its draws say, its sd is no number."""
    assert not fit.error.sel(quantity="ratio")["quantity_sd_reliable"]
    told = repr(fit).splitlines()
    assert "  tails     too long for the sd of ratio: read its quantiles, see fit.error" in told
    assert told[-1] == "  verdict   fit.idata can be used as it is, but for the sds of long tails"


def test_a_saved_fit_remembers_its_long_tails(fit: fb.FederatedFit, clients: dict, tmp_path: Path) -> None:
    fit.save(tmp_path / "fit")
    loaded = fb.load_fit(tmp_path / "fit", rates, clients)
    assert repr(loaded) == repr(fit)


def test_entries_have_the_names_that_their_user_gave() -> None:
    assert labels("mu", (), [], {}) == ["mu"]
    assert labels("beta", (2,), ["cause"], {"cause": ["age", "sex"]}) == ["beta[age]", "beta[sex]"]
    assert labels("beta", (2, 1), ["a", "cause"], {"cause": np.array(["age"])}) == ["beta[0, age]", "beta[1, age]"]
