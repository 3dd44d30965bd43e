"""What a fit that has not converged is told to try: what explains it, and nothing that is there already."""

from types import SimpleNamespace

import jax
import numpy as np
import numpyro
import numpyro.distributions as dist
import pytest
import xarray as xr

import fedbayes as fb
from fedbayes.errors import ResultCode
from fedbayes.inference.ep.answer import EPAnswer
from fedbayes.inference.ep.step import HOPELESS

ROUND = ("round",)


def told(
    *, proper: bool = True, hierarchy: dict | None = None, has_locals: bool = False, smallest: float | None = 0.5,
    stuck: int = HOPELESS, rounds: int = 20,
):  # fmt: skip
    """The verdict on a fit of clients a, b and d that ended without progress, d with such a cavity."""
    answer = EPAnswer.__new__(EPAnswer)
    prior = SimpleNamespace(is_proper=proper, hierarchy=hierarchy or {})
    answer._prior, answer._has_locals, answer._tolerance = prior, has_locals, 0.02
    answer._run = SimpleNamespace(converged=False, history=[])
    answer._posterior = SimpleNamespace(shift=np.zeros((1, 1)), precision=np.ones((1, 1, 1)))
    each = {"change": 1.0, "monte_carlo_noise": 0.0, "stuck": float(stuck), "step": 1.0}
    data = {name: (("round", "replicate"), np.full((rounds, 1), value)) for name, value in each.items()}
    each_client = "round", "client", "replicate"
    data["code"] = (each_client, np.full((rounds, 3, 1), ResultCode.OK))
    if smallest is not None:
        data["smallest_cavity_eigenvalue"] = (each_client, np.tile([[[0.5], [0.5], [smallest]]], (rounds, 1, 1)))
    return answer.verdict(xr.Dataset(data, {"client": ["a", "b", "d"], "round": np.arange(rounds) + 1}))


def test_proper_priors_are_asked_for_only_where_some_are_not() -> None:
    assert "Give the globals proper priors" in told(proper=False).trouble
    assert "priors" not in told().trouble
    assert "Scale the covariates" in told().trouble
    assert "other parametrisation" in told(has_locals=True).trouble


def test_a_hierarchy_among_the_globals_is_named_before_anything_else() -> None:
    found = told(hierarchy={"theta": ("tau",)}, smallest=-0.1, has_locals=True)
    assert "`theta = location + scale * z`" in found.trouble
    assert not found.ask_who_disagrees


@pytest.mark.parametrize("stuck", [0, HOPELESS])
def test_a_client_left_an_improper_cavity_under_proper_priors_is_far(stuck) -> None:
    found = told(smallest=-0.1, stuck=stuck)
    assert "Without the data of 'd' the others' sites leave some global undetermined" in found.trouble
    assert ("raise `num_rounds`" in found.trouble) is (stuck == 0)
    assert not found.ask_who_disagrees  # it is known
    assert "far from" not in told(smallest=-0.1, stuck=stuck, proper=False).trouble


def test_where_cavities_stay_at_the_sites_nobody_is_far() -> None:
    assert "Scale the covariates" in told(smallest=None).trouble


def test_after_many_rounds_the_fit_asks_who_disagrees() -> None:
    assert told().ask_who_disagrees
    assert not told(rounds=HOPELESS - 1).ask_who_disagrees
    assert not told(proper=False).ask_who_disagrees


def normal(y) -> None:
    mu, scale = numpyro.sample("mu", dist.Normal(0.0, 5.0)), numpyro.sample("scale", dist.HalfNormal(1.0))
    numpyro.sample("y", dist.Normal(mu, scale), obs=y)


@pytest.mark.parametrize("offset", [3.0, 10.0])
def test_a_fit_with_a_far_client_converges_and_is_right(offset) -> None:
    """At 10 sds the others' sites leave the far client an improper cavity, at the fixed point too."""
    rng = np.random.default_rng(0)
    clients = {name: {"y": rng.normal(size=20) + (offset if name == "d" else 0.0)} for name in "abcd"}
    method, key = fb.EP(num_replicates=1), jax.random.key(0)
    fit = fb.fit_federated(normal, clients, method=method, key=key, num_rounds=12, progress=False, correct=True)
    assert fit.converged
    assert fit.error.attrs["mean_error"] < 0.05
    assert fit.error.attrs["sd_error"] < 0.05
    smallest = fit.rounds["smallest_cavity_eigenvalue"].sel(client="d").isel(round=-1).item()
    assert (smallest < 0.0) is (offset == 10.0)
    assert ("conflict  not known of d" in repr(fit)) is (offset == 10.0)
    rows = np.concatenate([client["y"] for client in clients.values()])
    grid = np.linspace(-1.0, 5.0, 401)[:, None], np.linspace(0.8, 7.0, 801)
    density = -0.5 * (grid[0] / 5.0) ** 2 - 0.5 * grid[1] ** 2 - len(rows) * np.log(grid[1])
    density = (
        density - 0.5 * (np.sum((rows - rows.mean()) ** 2) + len(rows) * (grid[0] - rows.mean()) ** 2) / grid[1] ** 2
    )
    weight = np.exp(density - density.max())
    mean = np.sum(weight * grid[0]) / weight.sum()
    sd = np.sqrt(np.sum(weight * (grid[0] - mean) ** 2) / weight.sum())
    assert abs(float(fit.idata.posterior["mu"].mean()) - mean) < 0.1 * sd
