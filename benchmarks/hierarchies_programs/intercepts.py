"""One intercept a client: outcomes that are binary, counts, graded, continuous."""

from typing import Any

import jax.numpy as jnp
import numpy as np
import numpyro
import numpyro.distributions as dist
from analyses_programs.counts import negative_binomial
from analyses_programs.ratings import ordinal
from examples.example import Clients, Example, named, rng
from jax.scipy.special import expit

import fedbayes as fb
from hierarchies_programs.together import gathered, unequal


def logistic(x: Any, y: Any = None) -> None:
    """Centred."""
    level = numpyro.sample("level", dist.Normal(0.0, 2.0))
    between = numpyro.sample("between", dist.HalfNormal(1.0))
    beta = numpyro.sample("beta", dist.Normal(0.0, 1.0).expand([x.shape[1]]).to_event(1))
    with fb.local():
        own = numpyro.sample("own", dist.Normal(level, between))
    with numpyro.plate("patients", x.shape[0]):
        numpyro.sample("y", dist.Bernoulli(logits=own + x @ beta), obs=y)


def logistic_together(x: Any, client: Any, clients: int, y: Any = None) -> None:
    level = numpyro.sample("level", dist.Normal(0.0, 2.0))
    between = numpyro.sample("between", dist.HalfNormal(1.0))
    beta = numpyro.sample("beta", dist.Normal(0.0, 1.0).expand([x.shape[1]]).to_event(1))
    with fb.local(), numpyro.plate("hospitals", clients):
        own = numpyro.sample("own", dist.Normal(level, between))
    with numpyro.plate("patients", x.shape[0]):
        numpyro.sample("y", dist.Bernoulli(logits=own[client] + x @ beta), obs=y)


def logistic_clients(name: str, sizes: Any) -> Clients:
    random, clients = rng(name), []
    for size in sizes:
        x = random.normal(size=(size, 5))
        logits = -0.5 + 0.7 * random.normal() + x @ [0.8, -0.5, 0.3, 0.0, 0.2]
        clients.append(dict(x=x, y=(random.uniform(size=size) < expit(logits)).astype(int)))
    return named(*clients)


def poisson(x: Any, years: Any, y: Any = None) -> None:
    """Falls in the years under observation; not centred."""
    level = numpyro.sample("level", dist.Normal(0.0, 2.0))
    between = numpyro.sample("between", dist.HalfNormal(1.0))
    beta = numpyro.sample("beta", dist.Normal(0.0, 1.0).expand([x.shape[1]]).to_event(1))
    with fb.local():
        z = numpyro.sample("z", dist.Normal(0.0, 1.0))
    with numpyro.plate("residents", x.shape[0]):
        numpyro.sample("y", dist.Poisson(years * jnp.exp(level + between * z + x @ beta)), obs=y)


def poisson_together(x: Any, years: Any, client: Any, clients: int, y: Any = None) -> None:
    level = numpyro.sample("level", dist.Normal(0.0, 2.0))
    between = numpyro.sample("between", dist.HalfNormal(1.0))
    beta = numpyro.sample("beta", dist.Normal(0.0, 1.0).expand([x.shape[1]]).to_event(1))
    with fb.local(), numpyro.plate("homes", clients):
        z = numpyro.sample("z", dist.Normal(0.0, 1.0))
    with numpyro.plate("residents", x.shape[0]):
        numpyro.sample("y", dist.Poisson(years * jnp.exp(level + between * z[client] + x @ beta)), obs=y)


def poisson_clients() -> Clients:
    random, clients = rng("poisson homes"), []
    for size in unequal(random, 20, 20, 300):
        x, years = random.normal(size=(size, 3)), random.uniform(0.3, 2.0, size=size)
        rate = years * np.exp(0.2 + 0.5 * random.normal() + x @ [0.4, -0.2, 0.1])
        clients.append(dict(x=x, years=years, y=random.poisson(rate)))
    return named(*clients)


def negative_binomial_together(x: Any, years: Any, client: Any, clients: int, y: Any = None) -> None:
    level = numpyro.sample("level", dist.Normal(0.0, 2.0))
    between = numpyro.sample("between", dist.HalfNormal(0.5))
    beta = numpyro.sample("beta", dist.Normal(0.0, 1.0).expand([x.shape[1]]).to_event(1))
    concentration = numpyro.sample("concentration", dist.Gamma(2.0, 0.5))
    with fb.local(), numpyro.plate("clinics", clients):
        own = numpyro.sample("own", dist.Normal(level, between))
    with numpyro.plate("patients", x.shape[0]):
        numpyro.sample("y", dist.NegativeBinomial2(years * jnp.exp(own[client] + x @ beta), concentration), obs=y)


def negative_binomial_clients() -> Clients:
    random, clients = rng("negative binomial clinics"), []
    for size in (300, 200, 140, 100, 75, 50, 35, 33):
        x, years = random.normal(size=(size, 3)), random.uniform(0.5, 3.0, size=size)
        rate = years * np.exp(0.6 + 0.4 * random.normal() + x @ [0.4, -0.3, 0.2]) * random.gamma(2.0, 0.5, size=size)
        clients.append(dict(x=x, years=years, y=random.poisson(rate)))
    return named(*clients)


def ordinal_together(treated: Any, age: Any, client: Any, clients: int, y: Any = None) -> None:
    base = dist.Normal(0.0, 2.0).expand([3]).to_event(1)
    cuts = numpyro.sample("cuts", dist.TransformedDistribution(base, dist.transforms.OrderedTransform()))
    effect = numpyro.sample("effect", dist.Normal(0.0, 1.0))
    of_age = numpyro.sample("of_age", dist.Normal(0.0, 1.0))
    spread = numpyro.sample("spread", dist.HalfNormal(1.0))
    with fb.local(), numpyro.plate("clinics", clients):
        clinic = numpyro.sample("clinic", dist.Normal(0.0, spread))
    with numpyro.plate("patients", treated.shape[0]):
        numpyro.sample("y", dist.OrderedLogistic(clinic[client] + effect * treated + of_age * age, cuts), obs=y)


def ordinal_clients() -> Clients:
    random, clients = rng("graded clinics"), []
    for size in unequal(random, 10, 30, 200):
        treated, age = random.integers(0, 2, size), random.normal(size=size)
        latent = 0.6 * random.normal() - 0.8 * treated + 0.4 * age + random.logistic(size=size)
        clients.append(dict(treated=treated, age=age, y=np.searchsorted([-1.0, 0.2, 1.3], latent)))
    return named(*clients)


def radon(floor: Any, uranium: Any, log_radon: Any = None) -> None:
    """A county's houses: measured in the basement or on the first floor; a county's level follows its uranium."""
    level = numpyro.sample("level", dist.Normal(0.0, 5.0))
    of_uranium = numpyro.sample("of_uranium", dist.Normal(0.0, 2.0))
    of_floor = numpyro.sample("of_floor", dist.Normal(0.0, 2.0))
    between = numpyro.sample("between", dist.HalfNormal(1.0))
    sigma = numpyro.sample("sigma", dist.HalfNormal(2.0))
    with fb.local():
        county = numpyro.sample("county", dist.Normal(level + of_uranium * uranium, between))
    with numpyro.plate("houses", floor.shape[0]):
        numpyro.sample("log_radon", dist.Normal(county + of_floor * floor, sigma), obs=log_radon)


def radon_together(floor: Any, uranium: Any, client: Any, clients: int, log_radon: Any = None) -> None:
    level = numpyro.sample("level", dist.Normal(0.0, 5.0))
    of_uranium = numpyro.sample("of_uranium", dist.Normal(0.0, 2.0))
    of_floor = numpyro.sample("of_floor", dist.Normal(0.0, 2.0))
    between = numpyro.sample("between", dist.HalfNormal(1.0))
    sigma = numpyro.sample("sigma", dist.HalfNormal(2.0))
    with fb.local(), numpyro.plate("counties", clients):
        county = numpyro.sample("county", dist.Normal(level + of_uranium * uranium, between))
    with numpyro.plate("houses", floor.shape[0]):
        numpyro.sample("log_radon", dist.Normal(county[client] + of_floor * floor, sigma), obs=log_radon)


def radon_clients(number: int) -> Clients:
    """The largest of 85 counties, with 1 to 116 houses, most of them few, as in Minnesota."""
    random, clients = rng("radon"), []
    sizes = np.clip(np.exp(1.6 + 1.1 * random.normal(size=84)).astype(int), 1, 115)
    for size in sorted([116, *sizes], reverse=True):
        uranium, floor = 0.4 * random.normal(), (random.uniform(size=size) < 0.17).astype(float)
        county = 1.46 + 0.72 * uranium + 0.16 * random.normal()
        log_radon = county - 0.64 * floor + 0.76 * random.normal(size=size)
        clients.append(dict(floor=floor, uranium=uranium, log_radon=log_radon))
    return named(*clients[:number])


_RADON = "simulated data, in the shape of Gelman and Hill's and by about the values that they found"

HIERARCHIES = (
    Example(
        "logistic",
        "binary outcome, intercept by client",
        logistic,
        lambda: logistic_clients("logistic hospitals", (100, 80, 60, 45, 35, 25)),
        pooled=gathered(logistic_together),
    ),
    Example(
        "negative binomial",
        "overdispersed counts, intercept by client",
        negative_binomial,
        negative_binomial_clients,
        pooled=gathered(negative_binomial_together),
    ),
    Example(
        "poisson",
        "counts, intercept by client, not centred",
        poisson,
        poisson_clients,
        pooled=gathered(poisson_together),
    ),
    Example(
        "ordinal",
        "ordered logistic, clinic's effect",
        ordinal,
        ordinal_clients,
        pooled=gathered(ordinal_together),
    ),
    Example(
        "radon 17",
        "normal outcome, intercept by county",
        radon,
        lambda: radon_clients(17),
        _RADON,
        gathered(radon_together),
    ),
    Example("radon 85", "the same", radon, lambda: radon_clients(85), _RADON, gathered(radon_together)),
    Example(
        "logistic 100",
        "as `logistic`, 100 clients of 20 to 1,000 rows",
        logistic,
        lambda: logistic_clients("hundred hospitals", unequal(rng("sizes"), 100, 20, 1000)),
        pooled=gathered(logistic_together),
    ),
)
