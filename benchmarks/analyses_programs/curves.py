"""Continuous outcomes: doses, splines, series, outliers, truncation, mixtures, shrinkage."""

from typing import Any

import jax.numpy as jnp
import numpy as np
import numpyro
import numpyro.distributions as dist
from examples.example import Clients, Example, named, rng
from scipy.interpolate import BSpline

import fedbayes as fb


def emax(dose: Any, y: Any = None) -> None:
    """Response to a dose; studies differ in their response to placebo."""
    placebo = numpyro.sample("placebo", dist.Normal(0.0, 5.0))
    between = numpyro.sample("between", dist.HalfNormal(1.0))
    largest = numpyro.sample("largest", dist.Normal(0.0, 10.0))
    ed50 = numpyro.sample("ed50", dist.LogNormal(3.0, 1.0))
    sigma = numpyro.sample("sigma", dist.HalfNormal(3.0))
    with fb.local():
        own = numpyro.sample("own", dist.Normal(placebo, between))
    with numpyro.plate("patients", dose.shape[0]):
        numpyro.sample("y", dist.Normal(own + largest * dose / (ed50 + dose), sigma), obs=y)


def emax_clients() -> Clients:
    random, clients = rng("emax"), []
    for own, size in zip((1.0, 1.8, 0.6, 1.3), (8, 10, 12, 9), strict=True):
        dose = np.repeat([0.0, 5.0, 25.0, 50.0, 100.0], size)
        clients.append(dict(dose=dose, y=own + 6.0 * dose / (20.0 + dose) + 2.0 * random.normal(size=len(dose))))
    return named(*clients)


def autoregressive(x: Any, y: Any) -> None:
    """A regression whose errors remember the day before; each station has its own level."""
    beta = numpyro.sample("beta", dist.Normal(0.0, 1.0))
    rho = numpyro.sample("rho", dist.Uniform(-1.0, 1.0))
    sigma = numpyro.sample("sigma", dist.HalfNormal(1.0))
    with fb.local():
        level = numpyro.sample("level", dist.Normal(0.0, 5.0))
    mean = level + beta * x
    error = y - mean
    numpyro.sample("first", dist.Normal(mean[0], sigma / jnp.sqrt(1.0 - rho**2)), obs=y[0])
    numpyro.sample("rest", dist.Normal(mean[1:] + rho * error[:-1], sigma), obs=y[1:])


def series_clients() -> Clients:
    random, clients = rng("autoregressive"), []
    for level, size in zip((1.0, -2.0, 0.5, 3.0), (40, 60, 50, 30), strict=True):
        x, error = random.normal(size=size), np.zeros(size)
        error[0] = random.normal() / np.sqrt(1.0 - 0.6**2)
        for t in range(1, size):
            error[t] = 0.6 * error[t - 1] + random.normal()
        clients.append(dict(x=x, y=level + 0.5 * x + error))
    return named(*clients)


def spline(basis: Any, y: Any = None) -> None:
    """A penalised spline: neighbouring coefficients differ little."""
    level = numpyro.sample("level", dist.Normal(0.0, 2.0))
    smooth = numpyro.sample("smooth", dist.HalfNormal(1.0))
    step = numpyro.sample("step", dist.Normal(0.0, 1.0).expand([basis.shape[1]]).to_event(1))
    sigma = numpyro.sample("sigma", dist.HalfNormal(1.0))
    coefficients = level + smooth * jnp.cumsum(step)
    with numpyro.plate("rows", basis.shape[0]):
        numpyro.sample("y", dist.Normal(basis @ coefficients, sigma), obs=y)


def spline_clients() -> Clients:
    random, clients = rng("spline"), []
    knots = np.concatenate([np.zeros(3), np.linspace(0.0, 1.0, 6), np.ones(3)])
    for size in (40, 60, 50):
        x = np.sort(random.uniform(0.0, 1.0, size=size))
        basis = BSpline.design_matrix(x, knots, 3).toarray()
        clients.append(dict(basis=basis, y=np.sin(6.0 * x) + 0.3 * random.normal(size=size)))
    return named(*clients)


def mixture(y: Any = None) -> None:
    """Two kinds of people, told apart by the order of their means."""
    share = numpyro.sample("share", dist.Beta(2.0, 2.0))
    low = numpyro.sample("low", dist.Normal(0.0, 3.0))
    gap = numpyro.sample("gap", dist.HalfNormal(3.0))
    sigma = numpyro.sample("sigma", dist.HalfNormal(1.5).expand([2]).to_event(1))
    components = dist.Normal(jnp.stack([low, low + gap]), sigma)
    weights = dist.Categorical(probs=jnp.stack([1.0 - share, share]))
    with numpyro.plate("people", y.shape[0]):
        numpyro.sample("y", dist.MixtureSameFamily(weights, components), obs=y)


def mixture_clients() -> Clients:
    random, clients = rng("two kinds"), []
    for size in (60, 80, 70):
        second = random.uniform(size=size) < 0.4
        clients.append(dict(y=np.where(second, 2.5, 0.0) + np.where(second, 0.7, 1.0) * random.normal(size=size)))
    return named(*clients)


def horseshoe(x: Any, y: Any = None) -> None:
    """Regularised horseshoe (Piironen and Vehtari 2017): few of eight coefficients matter."""
    num = x.shape[1]
    tau = numpyro.sample("tau", dist.HalfCauchy(0.1))
    lam = numpyro.sample("lam", dist.HalfCauchy(1.0).expand([num]).to_event(1))
    slab = numpyro.sample("slab", dist.InverseGamma(2.0, 8.0))
    z = numpyro.sample("z", dist.Normal(0.0, 1.0).expand([num]).to_event(1))
    sigma = numpyro.sample("sigma", dist.HalfNormal(2.0))
    shrunk = jnp.sqrt(slab * lam**2 / (slab + tau**2 * lam**2))
    beta = numpyro.deterministic("beta", z * tau * shrunk)
    with numpyro.plate("rows", x.shape[0]):
        numpyro.sample("y", dist.Normal(x @ beta, sigma), obs=y)


def horseshoe_clients() -> Clients:
    random, clients = rng("regularised"), []
    beta = np.array([1.5, -1.0, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0])
    for size in (40, 60, 50):
        x = random.normal(size=(size, len(beta)))
        clients.append(dict(x=x, y=x @ beta + random.normal(size=size)))
    return named(*clients)


def robust(x: Any, y: Any = None) -> None:
    """Student-t errors with unknown degrees of freedom."""
    intercept = numpyro.sample("intercept", dist.Normal(0.0, 5.0))
    beta = numpyro.sample("beta", dist.Normal(0.0, 2.0).expand([x.shape[1]]).to_event(1))
    df = numpyro.sample("df", dist.Gamma(2.0, 0.1))
    sigma = numpyro.sample("sigma", dist.HalfCauchy(1.0))
    with numpyro.plate("rows", x.shape[0]):
        numpyro.sample("y", dist.StudentT(df, intercept + x @ beta, sigma), obs=y)


def robust_clients() -> Clients:
    random, clients = rng("robust"), []
    for size in (50, 70, 40, 60):
        x = random.normal(size=(size, 2))
        clients.append(dict(x=x, y=0.5 + x @ [1.0, -0.5] + 0.7 * random.standard_t(3.0, size=size)))
    return named(*clients)


def truncated(x: Any, limit: Any, y: Any = None) -> None:
    """Only what lies above each laboratory's limit of detection is in the data."""
    intercept = numpyro.sample("intercept", dist.Normal(0.0, 5.0))
    beta = numpyro.sample("beta", dist.Normal(0.0, 2.0))
    sigma = numpyro.sample("sigma", dist.HalfNormal(2.0))
    with numpyro.plate("rows", x.shape[0]):
        numpyro.sample("y", dist.TruncatedNormal(intercept + beta * x, sigma, low=limit), obs=y)


def truncated_clients() -> Clients:
    random, clients = rng("truncated"), []
    for limit, size in zip((0.5, 0.0, 1.0, -0.5), (80, 90, 100, 70), strict=True):
        x = random.normal(size=size)
        y = 1.0 + 0.8 * x + random.normal(size=size)
        clients.append(dict(x=x[y > limit], limit=np.full(np.sum(y > limit), limit), y=y[y > limit]))
    return named(*clients)


ANALYSES = (
    Example("emax", "dose response, placebo by client", emax, emax_clients),
    Example("ar(1) errors", "regression with autocorrelated errors, level by client", autoregressive, series_clients),
    Example("spline", "penalised spline, smoothness unknown", spline, spline_clients),
    Example("mixture", "two Normal components, ordered", mixture, mixture_clients),
    Example("horseshoe", "regularised horseshoe", horseshoe, horseshoe_clients),
    Example("robust", "Student-t errors, degrees of freedom unknown", robust, robust_clients),
    Example("truncated", "regression of outcomes above a limit", truncated, truncated_clients),
)
