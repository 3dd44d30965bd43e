"""The source's simulation (E3.1, case III): Algorithm 3.1 gains over separate fits, and the posterior over both."""

from operator import itemgetter

import jax
import numpy as np
import numpyro
import numpyro.distributions as dist
import pytest

import fedbayes as fb
from fedbayes.theory.correlated import source_algorithm

NUM_CLIENTS, SIZE, FACTORS, ROWS, NOISE = 100, 8, 3, 20, 0.1


def model(x, y=None):
    with fb.local():
        theta = numpyro.sample("theta", dist.Normal(0.0, 1.0).expand([SIZE]).to_event(1))
    numpyro.sample("y", dist.Normal(x @ theta, NOISE), obs=y)


def simulate() -> tuple[dict, np.ndarray, np.ndarray]:
    """Clients, the coefficients ``(K, m)``, and Omega with three strong factors."""
    rng = np.random.default_rng(0)
    loadings = rng.normal(size=(NUM_CLIENTS, FACTORS))
    omega = loadings @ loadings.T / FACTORS + 1e-4 * np.eye(NUM_CLIENTS)
    theta = np.linalg.cholesky(omega) @ rng.normal(size=(NUM_CLIENTS, SIZE))
    clients = {}
    for k in range(NUM_CLIENTS):
        x = rng.normal(size=(ROWS, SIZE))
        clients[f"c{k}"] = {"x": x, "y": x @ theta[k] + NOISE * rng.normal(size=ROWS)}
    return clients, theta, omega


def oracle(clients: dict, omega: np.ndarray) -> np.ndarray:
    """Posterior means of the coefficients given Omega and the noise, ``(K, m)``."""
    precision = np.kron(np.linalg.inv(omega), np.eye(SIZE))
    shift = np.zeros((NUM_CLIENTS, SIZE))
    for k, data in enumerate(clients.values()):
        at = slice(k * SIZE, (k + 1) * SIZE)
        precision[at, at] += data["x"].T @ data["x"] / NOISE**2
        shift[k] = data["x"].T @ data["y"] / NOISE**2
    return np.linalg.solve(precision, shift.ravel()).reshape(shift.shape)


@pytest.mark.slow
@pytest.mark.optimised
def test_gains_are_ordered_where_clients_are_strongly_correlated() -> None:
    clients, theta, omega = simulate()

    def error(found: np.ndarray) -> float:
        return float(np.mean(np.sqrt(np.sum((found - theta) ** 2, axis=1))))  # of predictions at standard normal rows

    separate = error(np.stack([np.linalg.lstsq(data["x"], data["y"], rcond=None)[0] for data in clients.values()]))
    method = fb.CorrelatedClients()
    fit = fb.fit_federated(model, clients, method=method, key=jax.random.key(0), progress=False, num_draws=250)
    ours = error(fit.idata.posterior["theta_by_client"].values.mean(axis=(0, 1)))
    smoothed = error(source_algorithm(map(itemgetter("x", "y"), clients.values()))[0])
    known = error(oracle(clients, omega))
    assert known < ours < smoothed < separate
    # A client learns its three loadings from its own eight coefficients: sqrt(3 / 8) of separate fits. Lengths of three
    # and of eight normal numbers, averaged over 100 clients, vary by 4.2 and 2.5 percent: three times both together.
    assert abs(ours / (np.sqrt(FACTORS / SIZE) * separate) - 1.0) < 0.15
    assert ours < 2.0 * known
