"""Linear regression with known noise: the posterior is Gaussian and known exactly."""

from collections.abc import Mapping, Sequence

import jax
import numpy as np
import numpyro
import numpyro.distributions as dist
from jax.typing import ArrayLike

from fedbayes.models._random import generator


def model(x: ArrayLike, y: ArrayLike | None = None, noise_sd: float = 1.0, prior_sd: float = 1.0) -> None:
    """Linear regression of one client.

    ``y_i ~ N(x_i . beta, noise_sd)``, independent rows, and ``beta_j ~ N(0, prior_sd)``; second arguments are standard
    deviations. Set them for all clients with ``functools.partial(model, noise_sd=...)``. By a formula it is
    ``y | se(noise_sd) ~ 0 + a + b`` with ``Normal(0, prior_sd)`` as the prior of each coefficient.

    Parameters
    ----------
    x
        Covariates, shape (n, d); an intercept is a column of ones.
    y
        Outcomes, shape (n,). None predicts.
    noise_sd
        Known standard deviation of the noise, in units of ``y``.
    prior_sd
        Prior standard deviation of every coefficient.
    """
    x = jax.numpy.asarray(x)
    beta = numpyro.sample("beta", dist.Normal(0.0, prior_sd).expand([x.shape[1]]).to_event(1))
    numpyro.sample("y", dist.Normal(x @ beta, noise_sd), obs=y)


def exact_posterior(
    clients: Mapping[str, Mapping[str, np.ndarray]], noise_sd: float = 1.0, prior_sd: float = 1.0
) -> tuple[np.ndarray, np.ndarray]:
    """Posterior of ``beta`` given everybody's data, in float64.

    Precision ``sum_k X_k' X_k / noise_sd^2 + I / prior_sd^2``, mean ``covariance @ sum_k X_k' y_k / noise_sd^2``.

    Returns
    -------
    mean
        Shape (d,).
    covariance
        Shape (d, d).
    """
    x = np.concatenate([np.asarray(client["x"], float) for client in clients.values()])
    y = np.concatenate([np.asarray(client["y"], float) for client in clients.values()])
    covariance = np.linalg.inv(x.T @ x / noise_sd**2 + np.eye(x.shape[1]) / prior_sd**2)
    return covariance @ (x.T @ y) / noise_sd**2, (covariance + covariance.T) / 2


def simulate(
    key: jax.Array,
    rows: Sequence[int] = (20, 50, 100),
    *,
    dim: int = 3,
    beta: ArrayLike | None = None,
    noise_sd: float = 1.0,
    prior_sd: float = 1.0,
) -> tuple[dict[str, dict[str, np.ndarray]], dict[str, np.ndarray]]:
    """Clients with standard normal covariates and outcomes drawn from `model`.

    Parameters
    ----------
    key
        JAX random key.
    rows
        Rows of each client.
    dim
        Number of coefficients d; ignored where ``beta`` is given.
    beta
        True coefficients, shape (d,); drawn from the prior where None.
    noise_sd, prior_sd
        As in `model`.

    Returns
    -------
    clients
        ``{"client0": {"x": (n, d), "y": (n,)}, ...}``, float64.
    truth
        ``{"beta": (d,)}``.
    """
    truth = prior_sd * generator(key, 0).standard_normal(dim) if beta is None else np.asarray(beta, float)
    clients = {}
    for k, n in enumerate(rows):
        rng = generator(key, 1, k)
        x = rng.standard_normal((n, len(truth)))
        clients[f"client{k}"] = {"x": x, "y": x @ truth + noise_sd * rng.standard_normal(n)}
    return clients, {"beta": truth}
