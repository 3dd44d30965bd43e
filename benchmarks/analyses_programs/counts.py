"""Counts, shares and costs: with too many zeros, overdispersed, between 0 and 1, positive and skewed."""

from typing import Any

import jax.numpy as jnp
import numpy as np
import numpyro
import numpyro.distributions as dist
from examples.example import Clients, Example, named, rng
from jax.scipy.special import expit
from numpyro.handlers import mask

import fedbayes as fb


def zero_inflated(x: Any, y: Any = None) -> None:
    """Zero-inflated Poisson, with a rate of each site's own."""
    gate = numpyro.sample("gate", dist.Normal(0.0, 1.5))
    level = numpyro.sample("level", dist.Normal(0.0, 1.0))
    between = numpyro.sample("between", dist.HalfNormal(0.5))
    beta = numpyro.sample("beta", dist.Normal(0.0, 1.0))
    with fb.local():
        own = numpyro.sample("own", dist.Normal(level, between))
    with numpyro.plate("rows", x.shape[0]):
        numpyro.sample("y", dist.ZeroInflatedPoisson(expit(gate), jnp.exp(own + beta * x)), obs=y)


def zero_inflated_clients() -> Clients:
    random, clients = rng("inflated"), []
    for own, size in zip((0.6, 1.0, 0.8, 1.3, 0.5), (40, 60, 50, 40, 50), strict=True):
        x = random.normal(size=size)
        counts = random.poisson(np.exp(own + 0.4 * x))
        clients.append(dict(x=x, y=np.where(random.uniform(size=size) < 0.3, 0, counts)))
    return named(*clients)


def hurdle(x: Any, cost: Any) -> None:
    """Whether there is a cost, and how high it is: logistic and log-normal."""
    of_any = numpyro.sample("of_any", dist.Normal(0.0, 1.5).expand([2]).to_event(1))
    of_size = numpyro.sample("of_size", dist.Normal(0.0, 2.0).expand([2]).to_event(1))
    sigma = numpyro.sample("sigma", dist.HalfNormal(1.0))
    positive = cost > 0.0
    with numpyro.plate("patients", x.shape[0]):
        numpyro.sample("any", dist.Bernoulli(logits=of_any[0] + of_any[1] * x), obs=positive)
        with mask(mask=positive):
            safe = jnp.where(positive, cost, 1.0)
            numpyro.sample("cost", dist.LogNormal(of_size[0] + of_size[1] * x, sigma), obs=safe)


def hurdle_clients() -> Clients:
    random, clients = rng("hurdle"), []
    for size in (50, 70, 60):
        x = random.normal(size=size)
        some = random.uniform(size=size) < expit(0.4 + 0.7 * x)
        clients.append(dict(x=x, cost=np.where(some, np.exp(1.0 + 0.3 * x + 0.8 * random.normal(size=size)), 0.0)))
    return named(*clients)


def negative_binomial(x: Any, years: Any, y: Any = None) -> None:
    """Seizures in the years under observation, overdispersed, with a level of each clinic's own."""
    level = numpyro.sample("level", dist.Normal(0.0, 2.0))
    between = numpyro.sample("between", dist.HalfNormal(0.5))
    beta = numpyro.sample("beta", dist.Normal(0.0, 1.0).expand([x.shape[1]]).to_event(1))
    concentration = numpyro.sample("concentration", dist.Gamma(2.0, 0.5))
    with fb.local():
        own = numpyro.sample("own", dist.Normal(level, between))
    mean = years * jnp.exp(own + x @ beta)
    with numpyro.plate("patients", x.shape[0]):
        numpyro.sample("y", dist.NegativeBinomial2(mean, concentration), obs=y)


def negative_binomial_clients() -> Clients:
    random, clients = rng("negative binomial"), []
    for own, size in zip((0.9, 0.4, 0.7, 1.1), (50, 40, 60, 45), strict=True):
        x = np.column_stack([random.integers(0, 2, size), random.normal(size=size)])
        years = random.uniform(0.5, 3.0, size=size)
        rate = years * np.exp(own + x @ [-0.5, 0.3]) * random.gamma(2.0, 0.5, size=size)
        clients.append(dict(x=x, years=years, y=random.poisson(rate)))
    return named(*clients)


def beta_regression(x: Any, y: Any = None) -> None:
    """A share between 0 and 1."""
    level = numpyro.sample("level", dist.Normal(0.0, 1.5))
    between = numpyro.sample("between", dist.HalfNormal(0.5))
    beta = numpyro.sample("beta", dist.Normal(0.0, 1.0))
    precision = numpyro.sample("precision", dist.Gamma(2.0, 0.1))
    with fb.local():
        own = numpyro.sample("own", dist.Normal(level, between))
    mean = expit(own + beta * x)
    with numpyro.plate("rows", x.shape[0]):
        numpyro.sample("y", dist.Beta(mean * precision, (1.0 - mean) * precision), obs=y)


def beta_clients() -> Clients:
    random, clients = rng("beta regression"), []
    for own, size in zip((-0.4, 0.2, -0.1, 0.5), (40, 30, 50, 40), strict=True):
        x = random.normal(size=size)
        mean = expit(own + 0.6 * x)
        clients.append(dict(x=x, y=np.clip(random.beta(12.0 * mean, 12.0 * (1.0 - mean)), 1e-4, 1.0 - 1e-4)))
    return named(*clients)


def beta_binomial(treated: Any, animals: Any, y: Any = None) -> None:
    """Malformed animals by litter: litters differ more than the Binomial says."""
    mean = numpyro.sample("mean", dist.Beta(1.0, 1.0).expand([2]).to_event(1))
    correlation = numpyro.sample("correlation", dist.Beta(1.0, 4.0))
    total = 1.0 / correlation - 1.0
    own = mean[treated]
    with numpyro.plate("litters", treated.shape[0]):
        numpyro.sample("y", dist.BetaBinomial(own * total, (1.0 - own) * total, animals), obs=y)


def beta_binomial_clients() -> Clients:
    random, clients = rng("beta-binomial"), []
    for size in (15, 20, 18):
        treated, animals = random.integers(0, 2, size), random.integers(6, 14, size)
        mean = np.array([0.15, 0.35])[treated]
        clients.append(
            dict(
                treated=treated, animals=animals, y=random.binomial(animals, random.beta(6.0 * mean, 6.0 - 6.0 * mean))
            )
        )
    return named(*clients)


def gamma_regression(x: Any, cost: Any = None) -> None:
    """Costs with a log link; each site has a level."""
    level = numpyro.sample("level", dist.Normal(0.0, 2.0))
    between = numpyro.sample("between", dist.HalfNormal(0.5))
    beta = numpyro.sample("beta", dist.Normal(0.0, 1.0).expand([x.shape[1]]).to_event(1))
    shape = numpyro.sample("shape", dist.Exponential(0.5))
    with fb.local():
        own = numpyro.sample("own", dist.Normal(level, between))
    with numpyro.plate("rows", x.shape[0]):
        numpyro.sample("cost", dist.Gamma(shape, shape / jnp.exp(own + x @ beta)), obs=cost)


def gamma_clients() -> Clients:
    random, clients = rng("gamma"), []
    for own, size in zip((1.0, 1.4, 0.8, 1.2, 1.6), (40, 50, 45, 30, 40), strict=True):
        x = np.column_stack([random.integers(0, 2, size), random.normal(size=size)])
        clients.append(dict(x=x, cost=np.exp(own + x @ [0.4, -0.2]) * random.gamma(2.0, 0.5, size=size)))
    return named(*clients)


def dirichlet_multinomial(reads: Any, y: Any = None) -> None:
    """Reads of four taxa in samples that differ more than the Multinomial says."""
    share = numpyro.sample("share", dist.Dirichlet(jnp.ones(4)))
    total = numpyro.sample("total", dist.LogNormal(2.0, 1.0))
    with numpyro.plate("samples", reads.shape[0]):
        numpyro.sample("y", dist.DirichletMultinomial(share * total, reads), obs=y)


def dirichlet_clients() -> Clients:
    random, clients = rng("dirichlet"), []
    for size in (12, 15, 10, 14):
        reads = random.integers(30, 80, size)
        shares = random.dirichlet(8.0 * np.array([0.4, 0.3, 0.2, 0.1]), size=size)
        clients.append(
            dict(reads=reads, y=np.stack([random.multinomial(n, p) for n, p in zip(reads, shares, strict=True)]))
        )
    return named(*clients)


ANALYSES = (
    Example("zero-inflated poisson", "Poisson with extra zeros, rate by client", zero_inflated, zero_inflated_clients),
    Example("hurdle", "any cost, and its size", hurdle, hurdle_clients),
    Example(
        "negative binomial",
        "overdispersed counts, offset, level by client",
        negative_binomial,
        negative_binomial_clients,
    ),
    Example("beta regression", "shares, level by client", beta_regression, beta_clients),
    Example(
        "beta-binomial",
        "overdispersed shares of litters",
        beta_binomial,
        beta_binomial_clients,
        "at tiny correlations the Gamma functions of `BetaBinomial` cancel, and in floating point it has a false mode",
    ),
    Example("gamma regression", "costs with a log link, level by client", gamma_regression, gamma_clients),
    Example("dirichlet-multinomial", "overdispersed compositions", dirichlet_multinomial, dirichlet_clients),
)
