"""Hierarchical models with many groups a client, in both parametrisations, against the exact marginal posterior."""

import jax
import numpy as np
import numpyro
import numpyro.distributions as dist
import pytest

import fedbayes as fb

GROUPS = 20


def centred(y, group, num_groups) -> None:
    mu, tau = numpyro.sample("mu", dist.Normal(0.0, 2.0)), numpyro.sample("tau", dist.LogNormal(-1.0, 1.0))
    with fb.local(), numpyro.plate("groups", num_groups):
        effect = numpyro.sample("effect", dist.Normal(mu, tau))
    with numpyro.plate("rows", len(y)):
        numpyro.sample("y", dist.Normal(effect[group], 1.0), obs=y)


def noncentred(y, group, num_groups) -> None:
    mu, tau = numpyro.sample("mu", dist.Normal(0.0, 2.0)), numpyro.sample("tau", dist.LogNormal(-1.0, 1.0))
    with fb.local(), numpyro.plate("groups", num_groups):
        raw = numpyro.sample("raw", dist.Normal(0.0, 1.0))
    with numpyro.plate("rows", len(y)):
        numpyro.sample("y", dist.Normal((mu + tau * raw)[group], 1.0), obs=y)


def schools(num: int = 5) -> dict:
    """Clients with groups of one to five rows, in which the groups differ by less than the rows."""
    rng, found = np.random.default_rng(0), {}
    for k in range(num):
        group = np.repeat(np.arange(GROUPS), rng.integers(1, 6, size=GROUPS))
        effect = 0.5 + 0.4 * rng.normal(size=GROUPS)
        found[f"school{k}"] = {"y": effect[group] + rng.normal(size=len(group)), "group": group, "num_groups": GROUPS}
    return found


MU, LOG_TAU = np.meshgrid(np.linspace(-1.0, 2.0, 301), np.linspace(-5.0, 1.5, 301), indexing="ij")
POINTS = np.stack([MU, LOG_TAU])


def log_factor(client: dict) -> np.ndarray:
    """On the grid, with the groups integrated out by hand."""
    count = np.bincount(client["group"], minlength=GROUPS)
    averages = np.bincount(client["group"], client["y"], GROUPS) / count
    value = np.zeros_like(MU)
    for n, average in zip(count, averages, strict=True):
        variance = np.exp(2.0 * LOG_TAU) + 1.0 / n
        value += -0.5 * np.log(variance) - 0.5 * (average - MU) ** 2 / variance
    return value


def moments_of(log_density: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    weight = np.exp(log_density - log_density.max())
    weight /= weight.sum()
    mean = np.einsum("xy,ixy->i", weight, POINTS)
    gap = POINTS - mean[:, None, None]
    return mean, np.einsum("xy,ixy,jxy->ij", weight, gap, gap)


def fixed_point(clients: dict, rounds: int = 40) -> tuple[np.ndarray, np.ndarray]:
    """EP with moments from the grid: what the fit must find, whatever its draws."""
    factors = [log_factor(client) for client in clients.values()]
    prior_shift, prior_precision = np.array([0.0, -1.0]), np.diag([0.25, 1.0])
    shifts, precisions = np.zeros((len(factors), 2)), np.zeros((len(factors), 2, 2))
    for _ in range(rounds):
        for k, factor in enumerate(factors):
            shift = prior_shift + shifts.sum(axis=0) - shifts[k]
            precision = prior_precision + precisions.sum(axis=0) - precisions[k]
            log_cavity = np.einsum("i,ixy->xy", shift, POINTS)
            log_cavity -= 0.5 * np.einsum("ixy,ij,jxy->xy", POINTS, precision, POINTS)
            mean, covariance = moments_of(factor + log_cavity)
            tilted = np.linalg.inv(covariance)
            shifts[k], precisions[k] = tilted @ mean - shift, tilted - precision
    covariance = np.linalg.inv(prior_precision + precisions.sum(axis=0))
    return covariance @ (prior_shift + shifts.sum(axis=0)), covariance


@pytest.mark.slow
@pytest.mark.parametrize("model", [centred, noncentred], ids=["centred", "non-centred"])
@pytest.mark.statistical(key=0, numbers=6, errors=10.0)
def test_both_parametrisations_reach_the_fixed_point(model) -> None:
    """Within the tolerance and five Monte Carlo errors of it, and as near to the exact posterior as EP is itself."""
    clients = schools()
    key = jax.random.key(0)
    fit = fb.fit_federated(model, clients, method="ep", key=key, correct=False, progress=False)
    assert fit.converged
    assert "nested" in fit.rounds["solver"].values[-1]
    mean, covariance = (found.mean(axis=0) for found in fit.moments())
    expected, expected_covariance = fixed_point(clients)
    # five errors of a replicate are ten of the mean of four
    sd, tolerance = np.sqrt(np.diagonal(expected_covariance)), 0.02 + 5.0 * fit.monte_carlo_error
    np.testing.assert_allclose((mean - expected) / sd, 0.0, atol=tolerance)
    np.testing.assert_allclose(np.sqrt(np.diagonal(covariance)) / sd, 1.0, atol=tolerance)
    exact, exact_covariance = moments_of(
        sum(map(log_factor, clients.values())) - 0.125 * MU**2 - 0.5 * (LOG_TAU + 1) ** 2
    )
    np.testing.assert_allclose((mean - exact) / np.sqrt(np.diagonal(exact_covariance)), 0.0, atol=0.2)
