"""Several latents a client: intercept and slope, wards, a variance, a walk, arms of a trial, a frailty, a school."""

from typing import Any

import jax.numpy as jnp
import numpy as np
import numpyro
import numpyro.distributions as dist
from analyses_programs.latents import meta_analysis
from analyses_programs.survival import CUTS, piecewise_exponential
from examples.example import Clients, Example, named, rng
from jax.scipy.special import expit

import fedbayes as fb
from fedbayes.models import eight_schools
from hierarchies_programs.together import gathered, unequal


def slopes(x: Any, y: Any = None) -> None:
    """Correlated intercept and slope of each client."""
    mean = numpyro.sample("mean", dist.Normal(0.0, 2.0).expand([2]).to_event(1))
    spread = numpyro.sample("spread", dist.HalfNormal(1.0).expand([2]).to_event(1))
    factor = numpyro.sample("factor", dist.LKJCholesky(2, concentration=2.0))
    with fb.local():
        z = numpyro.sample("z", dist.Normal(0.0, 1.0).expand([2]).to_event(1))
    own = mean + (spread[:, None] * factor) @ z
    with numpyro.plate("patients", x.shape[0]):
        numpyro.sample("y", dist.Bernoulli(logits=own[0] + own[1] * x), obs=y)


def slopes_together(x: Any, client: Any, clients: int, y: Any = None) -> None:
    mean = numpyro.sample("mean", dist.Normal(0.0, 2.0).expand([2]).to_event(1))
    spread = numpyro.sample("spread", dist.HalfNormal(1.0).expand([2]).to_event(1))
    factor = numpyro.sample("factor", dist.LKJCholesky(2, concentration=2.0))
    with fb.local(), numpyro.plate("hospitals", clients):
        z = numpyro.sample("z", dist.Normal(0.0, 1.0).expand([2]).to_event(1))
    own = mean + z @ (spread[:, None] * factor).T
    with numpyro.plate("patients", x.shape[0]):
        numpyro.sample("y", dist.Bernoulli(logits=own[client, 0] + own[client, 1] * x), obs=y)


def slopes_clients() -> Clients:
    random, clients = rng("slopes"), []
    for size in unequal(random, 10, 30, 150):
        own = random.multivariate_normal([-0.3, 0.8], [[0.6, 0.15], [0.15, 0.25]])
        x = random.normal(size=size)
        clients.append(dict(x=x, y=(random.uniform(size=size) < expit(own[0] + own[1] * x)).astype(int)))
    return named(*clients)


def wards(wards: int, ward: Any, x: Any, y: Any = None) -> None:
    """Patients in wards in a hospital."""
    level = numpyro.sample("level", dist.Normal(0.0, 2.0))
    beta = numpyro.sample("beta", dist.Normal(0.0, 1.0).expand([x.shape[1]]).to_event(1))
    of_hospital = numpyro.sample("of_hospital", dist.HalfNormal(1.0))
    of_ward = numpyro.sample("of_ward", dist.HalfNormal(1.0))
    with fb.local():
        hospital = numpyro.sample("hospital", dist.Normal(0.0, 1.0))
        with numpyro.plate("wards", wards):
            own = numpyro.sample("own", dist.Normal(0.0, 1.0))
    logits = level + of_hospital * hospital + of_ward * own[ward] + x @ beta
    with numpyro.plate("patients", x.shape[0]):
        numpyro.sample("y", dist.Bernoulli(logits=logits), obs=y)


def wards_together(wards: int, ward: Any, x: Any, client: Any, clients: int, y: Any = None) -> None:
    level = numpyro.sample("level", dist.Normal(0.0, 2.0))
    beta = numpyro.sample("beta", dist.Normal(0.0, 1.0).expand([x.shape[1]]).to_event(1))
    of_hospital = numpyro.sample("of_hospital", dist.HalfNormal(1.0))
    of_ward = numpyro.sample("of_ward", dist.HalfNormal(1.0))
    with fb.local():
        with numpyro.plate("hospitals", clients):
            hospital = numpyro.sample("hospital", dist.Normal(0.0, 1.0))
        with numpyro.plate("wards", wards):
            own = numpyro.sample("own", dist.Normal(0.0, 1.0))
    logits = level + of_hospital * hospital[client] + of_ward * own[ward] + x @ beta
    with numpyro.plate("patients", x.shape[0]):
        numpyro.sample("y", dist.Bernoulli(logits=logits), obs=y)


def wards_clients() -> Clients:
    random, clients = rng("wards"), []
    for number, size in zip((4, 6, 8, 4, 6, 8, 4, 6), unequal(random, 8, 60, 400), strict=True):
        ward, x = random.integers(0, number, size), random.normal(size=(size, 2))
        logits = -0.5 + 0.6 * random.normal() + 0.4 * random.normal(size=number)[ward] + x @ [0.6, -0.3]
        y = (random.uniform(size=size) < expit(logits)).astype(int)
        clients.append(dict(wards=number, ward=ward, x=x, y=y))
    return named(*clients)


def variances(x: Any, y: Any = None) -> None:
    """A laboratory has its own level and its own precision."""
    level = numpyro.sample("level", dist.Normal(0.0, 5.0))
    between = numpyro.sample("between", dist.HalfNormal(2.0))
    log_sd = numpyro.sample("log_sd", dist.Normal(0.0, 1.0))
    between_sds = numpyro.sample("between_sds", dist.HalfNormal(0.5))
    beta = numpyro.sample("beta", dist.Normal(0.0, 2.0))
    with fb.local():
        own = numpyro.sample("own", dist.Normal(level, between))
        sd = numpyro.sample("sd", dist.LogNormal(log_sd, between_sds))
    with numpyro.plate("samples", x.shape[0]):
        numpyro.sample("y", dist.Normal(own + beta * x, sd), obs=y)


def variances_together(x: Any, client: Any, clients: int, y: Any = None) -> None:
    level = numpyro.sample("level", dist.Normal(0.0, 5.0))
    between = numpyro.sample("between", dist.HalfNormal(2.0))
    log_sd = numpyro.sample("log_sd", dist.Normal(0.0, 1.0))
    between_sds = numpyro.sample("between_sds", dist.HalfNormal(0.5))
    beta = numpyro.sample("beta", dist.Normal(0.0, 2.0))
    with fb.local(), numpyro.plate("laboratories", clients):
        own = numpyro.sample("own", dist.Normal(level, between))
        sd = numpyro.sample("sd", dist.LogNormal(log_sd, between_sds))
    with numpyro.plate("samples", x.shape[0]):
        numpyro.sample("y", dist.Normal(own[client] + beta * x, sd[client]), obs=y)


def variances_clients() -> Clients:
    random, clients = rng("variances"), []
    for size in unequal(random, 15, 20, 200):
        x = random.normal(size=size)
        own, sd = 3.0 + 0.8 * random.normal(), np.exp(-0.2 + 0.4 * random.normal())
        clients.append(dict(x=x, y=own + 0.5 * x + sd * random.normal(size=size)))
    return named(*clients)


def walk(y: Any) -> None:
    """Weekly counts of a hospital, whose log rate is a random walk."""
    level = numpyro.sample("level", dist.Normal(1.0, 1.0))
    between = numpyro.sample("between", dist.HalfNormal(1.0))
    drift = numpyro.sample("drift", dist.HalfNormal(0.3))
    with fb.local():
        start = numpyro.sample("start", dist.Normal(level, between))
        with numpyro.plate("steps", y.shape[0]):
            step = numpyro.sample("step", dist.Normal(0.0, 1.0))
    with numpyro.plate("weeks", y.shape[0]):
        numpyro.sample("y", dist.Poisson(jnp.exp(start + drift * jnp.cumsum(step))), obs=y)


def walk_together(y: Any, client: Any, clients: int) -> None:
    level = numpyro.sample("level", dist.Normal(1.0, 1.0))
    between = numpyro.sample("between", dist.HalfNormal(1.0))
    drift = numpyro.sample("drift", dist.HalfNormal(0.3))
    with fb.local():
        with numpyro.plate("hospitals", clients):
            start = numpyro.sample("start", dist.Normal(level, between))
        with numpyro.plate("steps", y.shape[0]):
            step = numpyro.sample("step", dist.Normal(0.0, 1.0))
    walked, first = jnp.cumsum(step), jnp.searchsorted(client, client)  # each row's first row of its client
    path = start[client] + drift * (walked - (walked - step)[first])
    with numpyro.plate("weeks", y.shape[0]):
        numpyro.sample("y", dist.Poisson(jnp.exp(path)), obs=y)


def walk_clients() -> Clients:
    random, clients = rng("walk"), []
    for size in (20, 26, 32, 40, 52, 60):
        path = 1.5 + 0.5 * random.normal() + np.cumsum(0.15 * random.normal(size=size))
        clients.append(dict(y=random.poisson(np.exp(path))))
    return named(*clients)


def trials_together(treated: Any, patients: Any, client: Any, clients: int, y: Any = None) -> None:
    mu = numpyro.sample("mu", dist.Normal(0.0, 1.0))
    tau = numpyro.sample("tau", dist.HalfNormal(0.5))
    with fb.local(), numpyro.plate("trials", clients):
        baseline = numpyro.sample("baseline", dist.Normal(0.0, 2.0))
        effect = numpyro.sample("effect", dist.Normal(mu, tau))
    with numpyro.plate("arms", treated.shape[0]):
        numpyro.sample("y", dist.Binomial(patients, logits=baseline[client] + effect[client] * treated), obs=y)


def trial_clients() -> Clients:
    random, clients = rng("twenty trials"), []
    for size in unequal(random, 20, 30, 400):
        shares = expit(-0.8 + 0.5 * random.normal() + np.array([0.0, -0.5 + 0.3 * random.normal()]))
        clients.append(dict(treated=np.array([0.0, 1.0]), patients=np.full(2, size), y=random.binomial(size, shares)))
    return named(*clients)


def frailty_together(x: Any, exposure: Any, client: Any, clients: int, event: Any = None) -> None:
    log_hazard = numpyro.sample("log_hazard", dist.Normal(-1.0, 1.5).expand([4]).to_event(1))
    beta = numpyro.sample("beta", dist.Normal(0.0, 1.0).expand([x.shape[1]]).to_event(1))
    spread = numpyro.sample("spread", dist.HalfNormal(0.5))
    with fb.local(), numpyro.plate("hospitals", clients):
        frailty = numpyro.sample("frailty", dist.Normal(0.0, spread))
    rate = jnp.exp(log_hazard + (x @ beta + frailty[client])[:, None])
    numpyro.sample("event", dist.Poisson(rate * exposure + 1e-12).to_event(1), obs=event)


def frailty_clients() -> Clients:
    random, clients = rng("frailties"), []
    for size in unequal(random, 12, 30, 300):
        x = np.column_stack([random.integers(0, 2, size), random.normal(size=size)])
        time = random.exponential(1.0 / np.exp(-0.7 + x @ [0.6, -0.3] + 0.4 * random.normal()))
        exposure = np.clip(time[:, None] - CUTS[:-1], 0.0, np.diff(CUTS))
        event = (time[:, None] > CUTS[:-1]) & (time[:, None] <= CUTS[1:])
        clients.append(dict(x=x, exposure=exposure, event=event.astype(int)))
    return named(*clients)


def schools_together(sigma: Any, client: Any, clients: int, y: Any = None) -> None:
    mu, tau = numpyro.sample("mu", dist.Normal(0.0, 5.0)), numpyro.sample("tau", dist.HalfCauchy(5.0))
    with fb.local(), numpyro.plate("schools", clients):
        theta_raw = numpyro.sample("theta_raw", dist.Normal(0.0, 1.0))
    numpyro.sample("y", dist.Normal(mu + tau * theta_raw[client], sigma), obs=y)


HIERARCHIES = (
    Example(
        "slopes",
        "logistic, intercept and slope by client, LKJ",
        slopes,
        slopes_clients,
        pooled=gathered(slopes_together),
    ),
    Example(
        "wards",
        "logistic, wards in hospitals, not centred",
        wards,
        wards_clients,
        pooled=gathered(wards_together, count="wards", places="ward"),
    ),
    Example(
        "variances",
        "normal outcome, level and sd by client",
        variances,
        variances_clients,
        pooled=gathered(variances_together),
    ),
    Example("walk", "Poisson counts, a random walk each client", walk, walk_clients, pooled=gathered(walk_together)),
    Example(
        "meta-analysis",
        "random effects of twenty trials, centred",
        meta_analysis,
        trial_clients,
        pooled=gathered(trials_together),
    ),
    Example(
        "frailty",
        "piecewise constant hazard, frailty by client",
        piecewise_exponential,
        frailty_clients,
        pooled=gathered(frailty_together),
    ),
    Example(
        "eight schools",
        "Rubin's, not centred",
        eight_schools.model_noncentered,
        eight_schools.clients,
        pooled=gathered(schools_together),
    ),
)
