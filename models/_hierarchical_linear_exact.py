"""Closed forms of `fedbayes.models.hierarchical_linear`, in float64 NumPy."""

from collections.abc import Mapping

import numpy as np
from jax.typing import ArrayLike

Clients = Mapping[str, Mapping[str, np.ndarray]]


def log_factor(client: Mapping[str, np.ndarray], mu: ArrayLike, log_tau: ArrayLike, noise_sd: float = 1.0) -> float:
    """Log of the client's factor, its likelihood with ``theta_k`` integrated out.

    ``f_k(mu, log tau) = N(y_k; X_k mu, noise_sd^2 I + X_k diag(tau) X_k')``, at one point; ``mu`` and ``log_tau`` have
    shape (d,) or are scalars.
    """
    x, y = np.asarray(client["x"], float), np.asarray(client["y"], float)
    residual = y - x @ np.broadcast_to(mu, x.shape[1])
    covariance = noise_sd**2 * np.eye(len(y)) + x * np.exp(log_tau) @ x.T
    log_determinant = np.linalg.slogdet(2 * np.pi * covariance).logabsdet
    return float(-(log_determinant + residual @ np.linalg.solve(covariance, residual)) / 2)


def exact_posterior_mu(clients: Clients, tau: ArrayLike, noise_sd: float = 1.0) -> tuple[np.ndarray, np.ndarray]:
    """Posterior mean (d,) and covariance (d, d) of ``mu`` given everybody's data, for known ``tau``.

    Precision ``I + sum_k (I + A_k T)^-1 A_k`` and ``sum_k (I + A_k T)^-1 b_k`` for its product with the mean, with
    ``A_k = X_k' X_k / noise_sd^2``, ``b_k = X_k' y_k / noise_sd^2``, ``T = diag(tau)``. Any number of rows and
    ``tau = 0`` are fine.
    """
    identity = np.eye(next(iter(clients.values()))["x"].shape[1])
    precision, shift = identity, np.zeros(len(identity))
    for client in clients.values():
        a, b, t = _statistics(client, tau, noise_sd)
        precision = precision + np.linalg.solve(identity + a @ t, a)
        shift = shift + np.linalg.solve(identity + a @ t, b)
    covariance = np.linalg.inv(precision)
    return covariance @ shift, (covariance + covariance.T) / 2


def exact_client_posterior(
    clients: Clients, name: str, tau: ArrayLike, noise_sd: float = 1.0
) -> tuple[np.ndarray, np.ndarray]:
    """Posterior mean (d,) and covariance (d, d) of ``theta`` of client ``name`` given everybody's data, known ``tau``.

    ``theta_k | mu`` is Gaussian with mean ``M (mu + T b_k)`` and covariance ``M T``, where ``M = (I + T A_k)^-1``; with
    ``mu ~ N(m, V)`` from `exact_posterior_mu`: mean ``M (m + T b_k)``, covariance ``M T + M V M'``.

    Raises
    ------
    ValueError
        If there is no client ``name``.
    """
    if name not in clients:
        raise ValueError(f"no client {name!r}; the clients are {', '.join(map(repr, clients))}")
    m, v = exact_posterior_mu(clients, tau, noise_sd)
    a, b, t = _statistics(clients[name], tau, noise_sd)
    shrink = np.linalg.inv(np.eye(len(b)) + t @ a)
    covariance = shrink @ t + shrink @ v @ shrink.T
    return shrink @ (m + t @ b), (covariance + covariance.T) / 2


def _statistics(
    client: Mapping[str, np.ndarray], tau: ArrayLike, noise_sd: float
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """``X' X / noise_sd^2`` (d, d), ``X' y / noise_sd^2`` (d,) and ``diag(tau)`` (d, d) of one client, in float64."""
    x, y = np.asarray(client["x"], float), np.asarray(client["y"], float)
    return x.T @ x / noise_sd**2, x.T @ y / noise_sd**2, np.diag(np.broadcast_to(np.asarray(tau, float), x.shape[1]))
