"""Linear regressions with a common distribution of coefficients, "HM2" of Yue (2023), section 3.4.

``y_k ~ N(X_k theta_k, noise_sd^2 I)``, ``theta_k ~ N(mu, diag(tau))``, ``mu ~ N(0, I)``, ``tau_i ~ LogNormal(0, 1)``.
``tau`` is a VARIANCE, one for every coefficient. Globals are ``(mu, tau)``; ``theta_k`` is local. Closed forms:
`log_factor`, the factor of a client for any ``(mu, tau)``, and `exact_posterior_mu` and `exact_client_posterior` for
known ``tau``.
"""

from collections.abc import Sequence

import jax
import jax.numpy as jnp
import numpy as np
import numpyro
import numpyro.distributions as dist
from jax.typing import ArrayLike

from fedbayes.models._hierarchical_linear_exact import exact_client_posterior, exact_posterior_mu, log_factor
from fedbayes.models._random import generator, rows_of_each
from fedbayes.problem.program.split import local

__all__ = [
    "YUE_MU",
    "YUE_TAU",
    "exact_client_posterior",
    "exact_posterior_mu",
    "log_factor",
    "model",
    "model_noncentered",
    "simulate",
]

YUE_MU = (1.0, 3.0, 0.5, 2.0)  # truth of Yue (2023), figure 3.4: 100 clients of 100 rows
YUE_TAU = (1.17, 2.35, 2.52, 0.67)


def model(x: ArrayLike, y: ArrayLike | None = None, tau: ArrayLike | None = None, noise_sd: float = 1.0) -> None:
    """One client, centred.

    By a formula it is ``y | se(noise_sd) ~ 0 + a + b + (0 + a + b || site)`` with ``Normal(0, 1)`` as the prior of each
    coefficient and ``LogNormal(0, 0.5)`` of their sds, whose squares are ``tau``.

    Parameters
    ----------
    x
        Covariates, shape (n, d).
    y
        Outcomes, shape (n,). None predicts.
    tau
        Known variances of the coefficients over clients, scalar or shape (d,); None samples site ``tau``. It is the
        same for all clients: set it with ``functools.partial(model, tau=...)``, not in a client's data.
    noise_sd
        Known standard deviation of the noise, in units of ``y``.
    """
    x = jnp.asarray(x)
    mu, scale = _population(x.shape[1], tau)
    with local():
        theta = numpyro.sample("theta", dist.Normal(mu, scale).to_event(1))
    numpyro.sample("y", dist.Normal(x @ theta, noise_sd), obs=y)


def model_noncentered(
    x: ArrayLike, y: ArrayLike | None = None, tau: ArrayLike | None = None, noise_sd: float = 1.0
) -> None:
    """One client, non-centred: `model` with ``theta = mu + sqrt(tau) * theta_raw``, local ``theta_raw ~ N(0, I)``.

    ``theta`` is a deterministic site; parameters as in `model`.
    """
    x = jnp.asarray(x)
    mu, scale = _population(x.shape[1], tau)
    with local():
        theta_raw = numpyro.sample("theta_raw", dist.Normal(0.0, 1.0).expand([x.shape[1]]).to_event(1))
        theta = numpyro.deterministic("theta", mu + scale * theta_raw)
    numpyro.sample("y", dist.Normal(x @ theta, noise_sd), obs=y)


def simulate(
    key: jax.Array,
    num_clients: int = 10,
    rows: int | Sequence[int] = 50,
    *,
    dim: int = 3,
    mu: ArrayLike | None = None,
    tau: ArrayLike | None = None,
    noise_sd: float = 1.0,
) -> tuple[dict[str, dict[str, np.ndarray]], dict[str, np.ndarray]]:
    """Clients with standard normal covariates and outcomes drawn from `model`.

    Parameters
    ----------
    key
        JAX random key.
    num_clients
        Number of clients K.
    rows
        Rows of every client, or K numbers.
    dim
        Number of coefficients d; ignored where ``mu`` is given.
    mu
        True mean of the coefficients, shape (d,) (`YUE_MU`); drawn from the prior where None.
    tau
        True variances, scalar or shape (d,) (`YUE_TAU`); drawn from the prior where None.
    noise_sd
        As in `model`.

    Returns
    -------
    clients
        ``{"client0": {"x": (n, d), "y": (n,)}, ...}``, float64.
    truth
        ``{"mu": (d,), "tau": (d,), "theta": (K, d)}``.

    Raises
    ------
    ValueError
        If ``rows`` is not one number and not K numbers.
    """
    sizes = rows_of_each(num_clients, rows)
    mean = generator(key, 0).standard_normal(dim) if mu is None else np.asarray(mu, float)
    drawn_tau = generator(key, 1).lognormal(size=len(mean))
    variance = drawn_tau if tau is None else np.broadcast_to(np.asarray(tau, float), mean.shape).copy()
    clients, theta = {}, np.empty((num_clients, len(mean)))
    for k, n in enumerate(sizes):
        rng = generator(key, 2, k)
        theta[k] = mean + np.sqrt(variance) * rng.standard_normal(len(mean))
        x = rng.standard_normal((n, len(mean)))
        clients[f"client{k}"] = {"x": x, "y": x @ theta[k] + noise_sd * rng.standard_normal(n)}
    return clients, {"mu": mean, "tau": variance, "theta": theta}


def _population(dim: int, tau: ArrayLike | None) -> tuple[jax.Array, jax.Array]:
    """Sample the global latents; return the mean and the STANDARD DEVIATION of the coefficients, both (dim,)."""
    mu = numpyro.sample("mu", dist.Normal(0.0, 1.0).expand([dim]).to_event(1))
    if tau is None:
        tau = numpyro.sample("tau", dist.LogNormal(0.0, 1.0).expand([dim]).to_event(1))
    return mu, jnp.broadcast_to(jnp.sqrt(jnp.asarray(tau)), (dim,))
