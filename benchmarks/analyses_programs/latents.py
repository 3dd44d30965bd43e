"""Latents of each client: covariates that were missed or measured with error, growth curves, trials."""

from typing import Any

import jax.numpy as jnp
import numpy as np
import numpyro
import numpyro.distributions as dist
from examples.example import Clients, Example, named, rng
from jax.scipy.special import expit

import fedbayes as fb


def missing(x: Any, seen: Any, y: Any = None) -> None:
    """A quarter of a covariate is missing, and imputed from its own model."""
    mu = numpyro.sample("mu", dist.Normal(0.0, 2.0))
    omega = numpyro.sample("omega", dist.HalfNormal(2.0))
    intercept = numpyro.sample("intercept", dist.Normal(0.0, 2.0))
    beta = numpyro.sample("beta", dist.Normal(0.0, 1.0))
    sigma = numpyro.sample("sigma", dist.HalfNormal(1.0))
    with numpyro.plate("rows", x.shape[0]):
        with fb.local():
            imputed = numpyro.sample("missing", dist.Normal(mu, omega))  # of seen rows it has no use
        numpyro.sample("x", dist.Normal(mu, omega).mask(seen), obs=x)
        whole = jnp.where(seen, x, imputed)
        numpyro.sample("y", dist.Normal(intercept + beta * whole, sigma), obs=y)


def missing_by_mask(x: Any, seen: Any, y: Any = None) -> None:
    """The same by NumPyro's own word for it."""
    mu = numpyro.sample("mu", dist.Normal(0.0, 2.0))
    omega = numpyro.sample("omega", dist.HalfNormal(2.0))
    intercept = numpyro.sample("intercept", dist.Normal(0.0, 2.0))
    beta = numpyro.sample("beta", dist.Normal(0.0, 1.0))
    sigma = numpyro.sample("sigma", dist.HalfNormal(1.0))
    with numpyro.plate("rows", x.shape[0]):
        with fb.local():
            whole = numpyro.sample("x", dist.Normal(mu, omega), obs=x, obs_mask=seen)
        numpyro.sample("y", dist.Normal(intercept + beta * whole, sigma), obs=y)


def missing_put_in_place(x: Any, missing: Any, y: Any = None) -> None:
    """The same as the refusal of `obs_mask` tells: a latent for each missing value, put in place."""
    mu = numpyro.sample("mu", dist.Normal(0.0, 2.0))
    omega = numpyro.sample("omega", dist.HalfNormal(2.0))
    intercept = numpyro.sample("intercept", dist.Normal(0.0, 2.0))
    beta = numpyro.sample("beta", dist.Normal(0.0, 1.0))
    sigma = numpyro.sample("sigma", dist.HalfNormal(1.0))
    with fb.local(), numpyro.plate("gaps", missing.shape[0]):
        latent = numpyro.sample("latent", dist.Normal(mu, omega))
    whole = x.at[missing].set(latent)
    seen = jnp.ones(x.shape[0], bool).at[missing].set(False)
    with numpyro.plate("rows", x.shape[0]):
        numpyro.sample("x", dist.Normal(mu, omega).mask(seen), obs=x)
        numpyro.sample("y", dist.Normal(intercept + beta * whole, sigma), obs=y)


def places_of_missing() -> Clients:
    clients = missing_clients().values()
    return named(*(dict(x=own["x"], missing=np.flatnonzero(~own["seen"]), y=own["y"]) for own in clients))


def missing_clients() -> Clients:
    random, clients = rng("missing"), []
    for size in (40, 50, 60):
        x = 1.0 + 1.2 * random.normal(size=size)
        y = 0.5 + 0.7 * x + 0.6 * random.normal(size=size)
        seen = random.uniform(size=size) < 0.75
        clients.append(dict(x=np.where(seen, x, 0.0), seen=seen, y=y))
    return named(*clients)


def measured_with_error(w: Any, y: Any = None) -> None:
    """The true exposure is seen through an instrument whose error is known."""
    mu = numpyro.sample("mu", dist.Normal(0.0, 2.0))
    omega = numpyro.sample("omega", dist.HalfNormal(2.0))
    intercept = numpyro.sample("intercept", dist.Normal(0.0, 2.0))
    beta = numpyro.sample("beta", dist.Normal(0.0, 1.0))
    with numpyro.plate("rows", w.shape[0]):
        with fb.local():
            exposure = numpyro.sample("exposure", dist.Normal(mu, omega))
        numpyro.sample("w", dist.Normal(exposure, 0.6), obs=w)
        numpyro.sample("y", dist.Bernoulli(logits=intercept + beta * exposure), obs=y)


def instrument_clients() -> Clients:
    random, clients = rng("measured"), []
    for size in (50, 70, 60):
        exposure = 0.3 + random.normal(size=size)
        ill = random.uniform(size=size) < expit(-0.5 + 1.0 * exposure)
        clients.append(dict(w=exposure + 0.6 * random.normal(size=size), y=ill.astype(int)))
    return named(*clients)


def growth(subjects: int, subject: Any, time: Any, y: Any = None) -> None:
    """Correlated intercepts and slopes of a client's children."""
    mean = numpyro.sample("mean", dist.Normal(0.0, 5.0).expand([2]).to_event(1))
    spread = numpyro.sample("spread", dist.HalfNormal(2.0).expand([2]).to_event(1))
    factor = numpyro.sample("factor", dist.LKJCholesky(2, concentration=2.0))
    sigma = numpyro.sample("sigma", dist.HalfNormal(1.0))
    with fb.local(), numpyro.plate("subjects", subjects):
        own = numpyro.sample("own", dist.MultivariateNormal(mean, scale_tril=spread[:, None] * factor))
    with numpyro.plate("rows", time.shape[0]):
        numpyro.sample("y", dist.Normal(own[subject, 0] + own[subject, 1] * time, sigma), obs=y)


def growth_clients() -> Clients:
    random, clients = rng("growth"), []
    covariance = np.array([[1.0, 0.25], [0.25, 0.25]])
    for _ in range(4):
        own = random.multivariate_normal([2.0, 1.0], covariance, size=8)
        subject, time = np.repeat(np.arange(8), 5), np.tile(np.arange(5.0) - 2.0, 8)
        y = own[subject, 0] + own[subject, 1] * time + 0.5 * random.normal(size=40)
        clients.append(dict(subjects=8, subject=subject, time=time, y=y))
    return named(*clients)


def stepped_wedge(period: Any, treated: Any, y: Any = None) -> None:
    """Clusters cross over from control to treatment one after the other."""
    trend = numpyro.sample("trend", dist.Normal(0.0, 1.5).expand([5]).to_event(1))
    effect = numpyro.sample("effect", dist.Normal(0.0, 1.0))
    between = numpyro.sample("between", dist.HalfNormal(1.0))
    with fb.local():
        cluster = numpyro.sample("cluster", dist.Normal(0.0, between))
    with numpyro.plate("patients", period.shape[0]):
        numpyro.sample("y", dist.Bernoulli(logits=trend[period] + cluster + effect * treated), obs=y)


def wedge_clients() -> Clients:
    random, clients = rng("stepped wedge"), []
    for step, cluster in enumerate((0.5, -0.6, 0.2, 0.7, -0.3, -0.5)):
        period = np.repeat(np.arange(5), 8)
        treated = (period > step % 4).astype(int)
        logits = np.linspace(-0.8, 0.0, 5)[period] + cluster + 0.8 * treated
        clients.append(dict(period=period, treated=treated, y=(random.uniform(size=40) < expit(logits)).astype(int)))
    return named(*clients)


def meta_analysis(treated: Any, patients: Any, y: Any = None) -> None:
    """A trial tells its two arms' counts; baseline and effect differ from trial to trial."""
    mu = numpyro.sample("mu", dist.Normal(0.0, 1.0))
    tau = numpyro.sample("tau", dist.HalfNormal(0.5))
    with fb.local():
        baseline = numpyro.sample("baseline", dist.Normal(0.0, 2.0))
        effect = numpyro.sample("effect", dist.Normal(mu, tau))
    with numpyro.plate("arms", 2):
        numpyro.sample("y", dist.Binomial(patients, logits=baseline + effect * treated), obs=y)


def trial_clients() -> Clients:
    random, clients = rng("meta-analysis"), []
    for size, baseline in zip((40, 60, 35, 120, 50, 80), (-1.0, -0.5, -1.4, -0.8, -1.1, -0.3), strict=True):
        effect = -0.5 + 0.3 * random.normal()
        shares = expit(baseline + np.array([0.0, effect]))
        clients.append(dict(treated=np.array([0.0, 1.0]), patients=np.full(2, size), y=random.binomial(size, shares)))
    return named(*clients)


ANALYSES = (
    Example("missing covariate", "a covariate imputed row by row", missing, missing_clients),
    Example("missing by obs_mask", "the same by `obs_mask`", missing_by_mask, missing_clients),
    Example("missing put in place", "the same, a latent for each gap", missing_put_in_place, places_of_missing),
    Example("measurement error", "logistic regression on a noisy exposure", measured_with_error, instrument_clients),
    Example("growth curves", "correlated intercepts and slopes, LKJ", growth, growth_clients),
    Example("stepped wedge", "cluster trial with periods", stepped_wedge, wedge_clients),
    Example(
        "meta-analysis",
        "random effects of six trials",
        meta_analysis,
        trial_clients,
        "centred; the exact posterior, by a grid, has the fit's moments, and NUTS does not reach the small `tau`",
    ),
)
