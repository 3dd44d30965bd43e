"""Rubin's eight schools, one school a client: effects of coaching on SAT-V scores, in points.

Source: Rubin (1981), "Estimation in parallel randomized experiments", J. Educ. Stat. 6, table 2. The priors are those
of posteriordb's ``eight_schools_noncentered``, so its reference draws apply.
"""

from collections.abc import Sequence

import jax
import numpy as np
import numpyro
import numpyro.distributions as dist
from jax.typing import ArrayLike

from fedbayes.models._random import generator
from fedbayes.problem.program.split import local

SCHOOLS = ("A", "B", "C", "D", "E", "F", "G", "H")
EFFECTS = (28.0, 8.0, -3.0, 7.0, -1.0, 1.0, 18.0, 12.0)
STANDARD_ERRORS = (15.0, 10.0, 16.0, 11.0, 9.0, 11.0, 10.0, 18.0)


def model(sigma: ArrayLike, y: ArrayLike | None = None) -> None:
    """One school, centred.

    ``y ~ N(theta, sigma)``, ``theta ~ N(mu, tau)`` (local), ``mu ~ N(0, 5)``, ``tau ~ HalfCauchy(5)``; second
    arguments are standard deviations. Gradient samplers do better with `model_noncentered`. By a formula it is
    ``y | se(sigma) ~ 1 + (1 | site)`` with these priors of ``Intercept`` and ``1|site_sigma``.

    Parameters
    ----------
    sigma
        Standard error of the school's estimate, shape (1,), points.
    y
        Estimated effect, shape (1,), points. None predicts.
    """
    mu, tau = _population()
    with local():
        theta = numpyro.sample("theta", dist.Normal(mu, tau))
    numpyro.sample("y", dist.Normal(theta, sigma), obs=y)


def model_noncentered(sigma: ArrayLike, y: ArrayLike | None = None) -> None:
    """One school, non-centred: `model` with ``theta = mu + tau * theta_raw`` and local ``theta_raw ~ N(0, 1)``.

    ``theta`` is a deterministic site; parameters as in `model`.
    """
    mu, tau = _population()
    with local():
        theta_raw = numpyro.sample("theta_raw", dist.Normal(0.0, 1.0))
        theta = numpyro.deterministic("theta", mu + tau * theta_raw)
    numpyro.sample("y", dist.Normal(theta, sigma), obs=y)


def clients() -> dict[str, dict[str, np.ndarray]]:
    """Return the eight schools, ``{"A": {"y": (1,), "sigma": (1,)}, ..., "H": ...}``, in points."""
    table = zip(SCHOOLS, EFFECTS, STANDARD_ERRORS, strict=True)
    return {school: {"y": np.array([effect]), "sigma": np.array([error])} for school, effect, error in table}


def simulate(
    key: jax.Array, sigma: Sequence[float] = STANDARD_ERRORS, *, mu: float | None = None, tau: float | None = None
) -> tuple[dict[str, dict[str, np.ndarray]], dict[str, np.ndarray]]:
    """One simulated school for every standard error in ``sigma``.

    Parameters
    ----------
    key
        JAX random key.
    sigma
        Standard errors of the schools.
    mu, tau
        Mean and standard deviation of the schools' effects; drawn from the prior where None.

    Returns
    -------
    clients
        ``{"school0": {"y": (1,), "sigma": (1,)}, ...}``.
    truth
        ``{"mu": (), "tau": (), "theta": (number of schools,)}``.
    """
    prior = generator(key, 0)
    drawn_mu, drawn_tau = 5.0 * prior.standard_normal(), 5.0 * abs(prior.standard_cauchy())
    mu, tau = drawn_mu if mu is None else mu, drawn_tau if tau is None else tau
    simulated, theta = {}, np.empty(len(sigma))
    for k, error in enumerate(sigma):
        rng = generator(key, 1, k)
        theta[k] = rng.normal(mu, tau)
        simulated[f"school{k}"] = {"y": rng.normal(theta[k], error, size=1), "sigma": np.array([error], float)}
    return simulated, {"mu": np.asarray(mu, float), "tau": np.asarray(tau, float), "theta": theta}


def _population() -> tuple[jax.Array, jax.Array]:
    """Sample the global latents: mean and standard deviation of the schools' effects."""
    return numpyro.sample("mu", dist.Normal(0.0, 5.0)), numpyro.sample("tau", dist.HalfCauchy(5.0))
