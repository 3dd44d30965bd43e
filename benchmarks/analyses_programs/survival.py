"""Times to an event: censored on the right, between two visits, counted by interval of follow-up, accelerated."""

from typing import Any

import jax.numpy as jnp
import numpy as np
import numpyro
import numpyro.distributions as dist
from examples.example import Clients, Example, named, rng

import fedbayes as fb


def weibull(x: Any, censored: Any, time: Any = None) -> None:
    intercept = numpyro.sample("intercept", dist.Normal(0.0, 2.0))
    beta = numpyro.sample("beta", dist.Normal(0.0, 1.0).expand([x.shape[1]]).to_event(1))
    shape = numpyro.sample("shape", dist.LogNormal(0.0, 0.5))
    with numpyro.plate("patients", x.shape[0]):
        lifetime = dist.Weibull(jnp.exp(intercept + x @ beta), shape)
        numpyro.sample("time", dist.RightCensoredDistribution(lifetime, censored), obs=time)


def weibull_clients() -> Clients:
    random, clients = rng("weibull"), []
    for size in (40, 60, 50, 30):
        x = np.column_stack([random.integers(0, 2, size), random.normal(size=size)])
        time = np.exp(0.5 + x @ [0.6, -0.4]) * random.weibull(1.4, size=size)
        clients.append(dict(x=x, censored=(time > 3.0).astype(int), time=np.minimum(time, 3.0)))
    return named(*clients)


CUTS = np.array([0.0, 0.5, 1.0, 2.0, 4.0])


def piecewise_exponential(x: Any, exposure: Any, event: Any = None) -> None:
    """Poisson counts in the intervals of follow-up; each hospital has a frailty."""
    log_hazard = numpyro.sample("log_hazard", dist.Normal(-1.0, 1.5).expand([4]).to_event(1))
    beta = numpyro.sample("beta", dist.Normal(0.0, 1.0).expand([x.shape[1]]).to_event(1))
    spread = numpyro.sample("spread", dist.HalfNormal(0.5))
    with fb.local():
        frailty = numpyro.sample("frailty", dist.Normal(0.0, spread))
    rate = jnp.exp(log_hazard + (x @ beta + frailty)[:, None])
    numpyro.sample("event", dist.Poisson(rate * exposure + 1e-12).to_event(1), obs=event)


def piecewise_clients() -> Clients:
    random, clients = rng("piecewise"), []
    for frailty, size in zip((0.4, -0.3, 0.1, -0.5, 0.3), (40, 30, 50, 35, 45), strict=True):
        x = np.column_stack([random.integers(0, 2, size), random.normal(size=size)])
        time = random.exponential(1.0 / np.exp(-0.7 + x @ [0.6, -0.3] + frailty))
        exposure = np.clip(time[:, None] - CUTS[:-1], 0.0, np.diff(CUTS))
        event = (time[:, None] > CUTS[:-1]) & (time[:, None] <= CUTS[1:])
        clients.append(dict(x=x, exposure=exposure, event=event.astype(int)))
    return named(*clients)


def interval_censored(x: Any, late: Any, visits: Any = None) -> None:
    """The event lies between two visits, or after the last."""
    intercept = numpyro.sample("intercept", dist.Normal(0.0, 2.0))
    beta = numpyro.sample("beta", dist.Normal(0.0, 1.0))
    sigma = numpyro.sample("sigma", dist.HalfNormal(1.0))
    base = dist.LogNormal(intercept + beta * x, sigma)
    with numpyro.plate("patients", x.shape[0]):
        lifetime = dist.IntervalCensoredDistribution(base, left_censored=jnp.zeros_like(late), right_censored=late)
        numpyro.sample("visits", lifetime, obs=visits)


def interval_clients() -> Clients:
    random, clients = rng("interval"), []
    for size in (40, 50, 60):
        x = random.normal(size=size)
        time = np.exp(0.6 + 0.5 * x + 0.7 * random.normal(size=size))
        gap = random.uniform(0.6, 1.4, size=size)  # from visit to visit, four in all
        before = np.floor(time / gap)
        late = before >= 4
        # the day of enrolment is a visit, and time begins a little after it
        low = np.where(late, 4 * gap, np.maximum(before * gap, 1e-3))
        clients.append(
            dict(x=x, late=late.astype(int), visits=np.column_stack([low, np.where(late, 99.0, (before + 1) * gap)]))
        )
    return named(*clients)


def log_logistic(x: Any, died: Any, log_time: Any) -> None:
    """Accelerated failure: the log time is Logistic; hospitals differ in level."""
    level = numpyro.sample("level", dist.Normal(0.0, 2.0))
    between = numpyro.sample("between", dist.HalfNormal(0.5))
    beta = numpyro.sample("beta", dist.Normal(0.0, 1.0).expand([x.shape[1]]).to_event(1))
    scale = numpyro.sample("scale", dist.HalfNormal(1.0))
    with fb.local():
        own = numpyro.sample("own", dist.Normal(level, between))
    time = dist.Logistic(own + x @ beta, scale)
    survival = jnp.log1p(-time.cdf(log_time))
    numpyro.factor("likelihood", jnp.sum(jnp.where(died, time.log_prob(log_time), survival)))


def log_logistic_clients() -> Clients:
    random, clients = rng("log-logistic"), []
    for own, size in zip((0.8, 1.1, 0.5, 1.4), (40, 50, 60, 45), strict=True):
        x = np.column_stack([random.integers(0, 2, size), random.normal(size=size)])
        log_time = own + x @ [0.5, -0.3] + 0.4 * random.logistic(size=size)
        end = np.log(6.0)
        clients.append(dict(x=x, died=log_time < end, log_time=np.minimum(log_time, end)))
    return named(*clients)


ANALYSES = (
    Example("weibull", "Weibull survival, right-censored", weibull, weibull_clients),
    Example(
        "piecewise exponential",
        "piecewise constant hazard, frailty by client",
        piecewise_exponential,
        piecewise_clients,
    ),
    Example("interval censored", "log-normal times between visits", interval_censored, interval_clients),
    Example("log-logistic", "accelerated failure, level by client", log_logistic, log_logistic_clients),
)
