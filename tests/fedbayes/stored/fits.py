"""Small fits in files, for whatever is drawn, printed, predicted or selected where the sampler is not what is tested.

    python tests/fedbayes/stored/fits.py        # makes them anew, after a change that moves their numbers

Each folder beside this file is what ``fit.save`` writes, with the clients' data. ``test_stored.py`` makes them again
and compares: a stored fit that is not what the code gives today fails there.
"""

import sys
import warnings
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import jax
import numpy as np
import numpyro
import numpyro.distributions as dist

import fedbayes as fb
from fedbayes.models import linear, penalised

HERE = Path(__file__).parent
Clients = Mapping[str, Mapping[str, Any]]


@dataclass(frozen=True)
class Recipe:
    """How a fit is made."""

    model: Callable
    clients: Callable[[], Clients]
    seed: int
    options: Mapping[str, Any] = field(default_factory=dict)

    def fit(self, clients: Clients) -> fb.FederatedFit:
        return fb.fit_federated(self.model, clients, key=jax.random.key(self.seed), progress=False, **self.options)


def grouped(y, group, num_groups) -> None:
    """Groups whose means are a client's own; clients differ in the number of groups."""
    center = numpyro.sample("center", dist.Normal(0.0, 3.0))
    with fb.local(), numpyro.plate("group", num_groups):
        effect = numpyro.sample("effect", dist.Normal(center, 1.0))
    numpyro.factor("soft", -(center**2))
    with numpyro.plate("row", len(y)):
        numpyro.sample("y", dist.Normal(effect[group], 1.0), obs=y)


def groups() -> Clients:
    rng = np.random.default_rng(0)
    return {
        name: {"y": 5.0 * k + rng.normal(size=12), "group": np.arange(12) % n, "num_groups": n}
        for k, (name, n) in enumerate({"north": 2, "south": 3}.items())
    }


def with_scale(y) -> None:
    """A constrained global, a vector, and a term that looks at the globals alone."""
    mu = numpyro.sample("mu", dist.Normal(1.0, 2.0).expand([2]).to_event(1))
    sigma = numpyro.sample("sigma", dist.LogNormal(0.0, 0.5))
    numpyro.factor("soft", -0.5 * mu[0] ** 2)
    numpyro.sample("y", dist.Normal(mu[0] + mu[1], sigma), obs=y)


def two_samples() -> Clients:
    rng = np.random.default_rng(0)
    return {name: {"y": rng.normal(1.0, 1.0, 15)} for name in ("north", "south")}


PREDICTORS = [f"x{j}" for j in range(8)]
RECIPES = {
    "linear": Recipe(
        linear.model,
        lambda: linear.simulate(jax.random.key(0), rows=(5, 20, 60))[0],
        1,
        {"method": fb.EP(num_replicates=2), "num_draws": 200},
    ),
    "groups": Recipe(grouped, groups, 0, {"method": fb.EP(num_replicates=2), "num_draws": 200}),
    "scale": Recipe(with_scale, two_samples, 0, {"method": fb.EP(num_replicates=2), "num_draws": 500}),
    "ridge": Recipe(
        penalised.ridge,
        lambda: penalised.simulate(jax.random.key(0), 3, [40, 60, 30], noise_sd=1.0)[0],
        0,
        {"coords": {"predictor": PREDICTORS}, "dims": {"theta": ["predictor"]}, "num_draws": 500},
    ),
}


def read_clients(name: str) -> dict[str, dict[str, Any]]:
    """The data of a stored fit: bit for bit, where a simulator on another machine may differ in the last one."""
    clients: dict[str, dict[str, Any]] = {}
    with np.load(HERE / name / "clients.npz") as arrays:
        for key, array in arrays.items():
            client, argument = key.split("/")
            clients.setdefault(client, {})[argument] = array if array.ndim else array.item()
    return clients


def read(name: str) -> fb.FederatedFit:
    """The stored fit."""
    return fb.load_fit(HERE / name, RECIPES[name].model, read_clients(name))


def write(name: str) -> None:
    """Make a fit and store it."""
    clients = RECIPES[name].clients()
    RECIPES[name].fit(clients).save(HERE / name)
    arrays = {f"{client}/{argument}": value for client, data in clients.items() for argument, value in data.items()}
    np.savez_compressed(HERE / name / "clients.npz", **arrays)


if __name__ == "__main__":
    with warnings.catch_warnings():
        warnings.simplefilter("error", fb.NotConvergedWarning)
        for each in sys.argv[1:] or RECIPES:
            write(each)
