"""The sets of the comparison: one client's model, the clients' data, and the same model over everybody's rows."""

from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import numpyro
import numpyro.distributions as dist

import fedbayes
from fedbayes.models import heart_disease

Clients = Mapping[str, Mapping[str, np.ndarray]]
SEED = 20261103


class BenchmarkSet(NamedTuple):
    """One posterior, said twice: client by client, and pooled.

    Attributes
    ----------
    name
        As on the command line.
    model, clients
        What `fedbayes.fit_federated` takes.
    pooled_model, pooled_data
        The same posterior as one NumPyro program over all rows, written as a user with all the data would.
    globals
        Names of the global latents, all unconstrained, in the order of the flat vector.
    has_locals
        Whether clients have latents of their own.
    """

    name: str
    model: Callable[..., None]
    clients: Clients
    pooled_model: Callable[..., None]
    pooled_data: dict[str, Any]
    globals: tuple[str, ...]
    has_locals: bool

    def flat(self, draws: Mapping[str, Any]) -> np.ndarray:
        """Draws of the globals as an array (draws, d)."""
        arrays = [np.asarray(draws[name]) for name in self.globals]
        return np.concatenate([array.reshape(len(array), -1) for array in arrays], axis=1)


def logistic(x: Any, y: Any = None) -> None:
    """Logistic regression, ``beta_j ~ N(0, 1)``."""
    beta = numpyro.sample("beta", dist.Normal(0.0, 1.0).expand([x.shape[1]]).to_event(1))
    numpyro.sample("y", dist.Bernoulli(logits=x @ beta), obs=y)


def hierarchical(x: Any, y: Any = None) -> None:
    """Logistic regression whose coefficients are a client's own: ``beta_k ~ N(mu, tau)``, centred."""
    mu, tau = _globals(x.shape[1])
    with fedbayes.local():
        beta = numpyro.sample("beta", dist.Normal(mu, tau).to_event(1))
    numpyro.sample("y", dist.Bernoulli(logits=x @ beta), obs=y)


def hierarchical_pooled(x: Any, client: Any, num_clients: int, y: Any = None) -> None:
    """All clients of `hierarchical` at once; row i belongs to client ``client[i]``."""
    mu, tau = _globals(x.shape[1])
    with numpyro.plate("clients", num_clients):
        beta = numpyro.sample("beta", dist.Normal(mu, tau).to_event(1))
    numpyro.sample("y", dist.Bernoulli(logits=jnp.sum(x * beta[client], axis=1)), obs=y)


MU_SD, LOG_TAU_MEAN, LOG_TAU_SD = 1.0, -0.5, 1.0


def _globals(size: int) -> tuple[jax.Array, jax.Array]:
    mu = numpyro.sample("mu", dist.Normal(0.0, MU_SD).expand([size]).to_event(1))
    return mu, jnp.exp(numpyro.sample("log_tau", dist.Normal(LOG_TAU_MEAN, LOG_TAU_SD)))


def _rows(rng: np.random.Generator, num_clients: int, least: int, most: int) -> np.ndarray:
    """Rows of each client, log-uniform."""
    return np.exp(rng.uniform(np.log(least), np.log(most), num_clients)).round().astype(int)


def _outcomes(rng: np.random.Generator, logits: np.ndarray) -> np.ndarray:
    return (rng.logistic(size=len(logits)) < logits).astype(np.int32)


def simulate_logistic(num_clients: int, dim: int = 20) -> Clients:
    """Clients with 10 to 1,000 rows, log-uniform, and covariates centred elsewhere at each client."""
    rng = np.random.default_rng([SEED, num_clients])
    beta = rng.normal(size=dim) / np.sqrt(dim) * 1.5
    clients = {}
    for k, rows in enumerate(_rows(rng, num_clients, 10, 1000)):
        x = 0.5 * rng.normal(size=dim) + rng.normal(size=(rows, dim))
        clients[f"client{k}"] = {"x": x, "y": _outcomes(rng, x @ beta)}
    return clients


def simulate_hierarchical(num_clients: int, dim: int = 5) -> Clients:
    """Clients with 50 to 300 rows, log-uniform, and coefficients scattered by 0.5 around a common mean."""
    rng = np.random.default_rng([SEED, 1, num_clients])
    mu = 0.5 * rng.normal(size=dim)
    clients = {}
    for k, rows in enumerate(_rows(rng, num_clients, 50, 300)):
        x = rng.normal(size=(rows, dim))
        clients[f"client{k}"] = {"x": x, "y": _outcomes(rng, x @ (mu + 0.5 * rng.normal(size=dim)))}
    return clients


def stacked(clients: Clients) -> dict[str, np.ndarray]:
    """Everybody's rows in one table."""
    return {name: np.concatenate([client[name] for client in clients.values()]) for name in ("x", "y")}


def heart_set() -> BenchmarkSet:
    """Four hospitals, 740 patients, 14 parameters."""
    clients = heart_disease.clients()
    model = heart_disease.model
    return BenchmarkSet("heart", model, clients, model, stacked(clients), ("intercept", "beta"), False)


def logistic_set(num_clients: int) -> BenchmarkSet:
    """Ragged clients, 20 global coefficients, no locals."""
    clients = simulate_logistic(num_clients)
    return BenchmarkSet(f"logistic-{num_clients}", logistic, clients, logistic, stacked(clients), ("beta",), False)


def hierarchical_set(num_clients: int) -> BenchmarkSet:
    """Six globals, five locals a client."""
    clients = simulate_hierarchical(num_clients)
    counts = [len(client["y"]) for client in clients.values()]
    data = stacked(clients) | {"client": np.repeat(np.arange(num_clients), counts), "num_clients": num_clients}
    names = ("mu", "log_tau")
    return BenchmarkSet(f"hierarchical-{num_clients}", hierarchical, clients, hierarchical_pooled, data, names, True)


SETS: Mapping[str, Callable[[], BenchmarkSet]] = {
    "heart": heart_set,
    "logistic-64": lambda: logistic_set(64),
    "logistic-1024": lambda: logistic_set(1024),
    "hierarchical-32": lambda: hierarchical_set(32),
    "hierarchical-256": lambda: hierarchical_set(256),
}
