"""Answers in classes: items and abilities, ordered and unordered outcomes, separated ones."""

from typing import Any

import jax.numpy as jnp
import numpy as np
import numpyro
import numpyro.distributions as dist
from examples.example import Clients, Example, named, rng
from jax.scipy.special import expit

import fedbayes as fb

DIFFICULTY = np.array([-1.2, -0.5, 0.0, 0.4, 0.9, 1.5])
DISCRIMINATION = np.array([0.7, 1.4, 1.0, 1.8, 0.9, 1.2])


def rasch(num_items: int, y: Any) -> None:
    """One school: its pupils' abilities are its own, the items everybody's."""
    difficulty = numpyro.sample("difficulty", dist.Normal(0.0, 2.0).expand([num_items]).to_event(1))
    spread = numpyro.sample("spread", dist.HalfNormal(1.5))
    with numpyro.plate("pupils", y.shape[0]):
        with fb.local():
            ability = numpyro.sample("ability", dist.Normal(0.0, spread))
        numpyro.sample("y", dist.Bernoulli(logits=ability[:, None] - difficulty).to_event(1), obs=y)


def two_parameters(num_items: int, y: Any) -> None:
    """The same with items that tell pupils apart more or less well."""
    difficulty = numpyro.sample("difficulty", dist.Normal(0.0, 2.0).expand([num_items]).to_event(1))
    discrimination = numpyro.sample("discrimination", dist.LogNormal(0.0, 0.5).expand([num_items]).to_event(1))
    with numpyro.plate("pupils", y.shape[0]):
        with fb.local():
            ability = numpyro.sample("ability", dist.Normal(0.0, 1.0))
        logits = discrimination * (ability[:, None] - difficulty)
        numpyro.sample("y", dist.Bernoulli(logits=logits).to_event(1), obs=y)


def school_clients(name: str, discrimination: Any) -> Clients:
    random, clients = rng(name), []
    for size in (25, 30, 20, 25):
        ability = random.normal(size=size)
        solved = random.uniform(size=(size, 6)) < expit(discrimination * (ability[:, None] - DIFFICULTY))
        clients.append(dict(num_items=6, y=solved.astype(int)))
    return named(*clients)


def ordinal(treated: Any, age: Any, y: Any = None) -> None:
    """Pain in four grades; clinics differ in how they grade."""
    base = dist.Normal(0.0, 2.0).expand([3]).to_event(1)
    cuts = numpyro.sample("cuts", dist.TransformedDistribution(base, dist.transforms.OrderedTransform()))
    effect = numpyro.sample("effect", dist.Normal(0.0, 1.0))
    of_age = numpyro.sample("of_age", dist.Normal(0.0, 1.0))
    spread = numpyro.sample("spread", dist.HalfNormal(1.0))
    with fb.local():
        clinic = numpyro.sample("clinic", dist.Normal(0.0, spread))
    with numpyro.plate("patients", treated.shape[0]):
        numpyro.sample("y", dist.OrderedLogistic(clinic + effect * treated + of_age * age, cuts), obs=y)


def ordinal_clients() -> Clients:
    random, clients = rng("graded"), []
    for clinic, size in zip((0.5, -0.4, 0.1, -0.6, 0.4), (40, 45, 30, 50, 35), strict=True):
        treated, age = random.integers(0, 2, size), random.normal(size=size)
        latent = clinic - 0.8 * treated + 0.4 * age + random.logistic(size=size)
        clients.append(dict(treated=treated, age=age, y=np.searchsorted([-1.0, 0.2, 1.3], latent)))
    return named(*clients)


def multinomial(x: Any, y: Any = None) -> None:
    """Which of three means of transport; the first is the reference."""
    intercept = numpyro.sample("intercept", dist.Normal(0.0, 2.0).expand([2]).to_event(1))
    beta = numpyro.sample("beta", dist.Normal(0.0, 1.0).expand([x.shape[1], 2]).to_event(2))
    logits = jnp.concatenate([jnp.zeros((x.shape[0], 1)), intercept + x @ beta], axis=1)
    with numpyro.plate("people", x.shape[0]):
        numpyro.sample("y", dist.Categorical(logits=logits), obs=y)


def multinomial_clients() -> Clients:
    random, clients = rng("multinomial"), []
    for size in (50, 70, 60):
        x = random.normal(size=(size, 2))
        utility = np.column_stack([np.zeros(size), [0.3, -0.4] + x @ [[0.8, -0.5], [0.0, 0.7]]])
        clients.append(dict(x=x, y=np.argmax(utility + random.gumbel(size=(size, 3)), axis=1)))
    return named(*clients)


def separation(x: Any, y: Any = None) -> None:
    """A logistic regression with Gelman's weakly informative priors; the dose separates the outcomes."""
    intercept = numpyro.sample("intercept", dist.StudentT(7.0, 0.0, 2.5))
    beta = numpyro.sample("beta", dist.StudentT(7.0, 0.0, 2.5).expand([x.shape[1]]).to_event(1))
    with numpyro.plate("rows", x.shape[0]):
        numpyro.sample("y", dist.Bernoulli(logits=intercept + x @ beta), obs=y)


def separation_clients() -> Clients:
    random, clients = rng("separation"), []
    for size in (15, 20, 25):
        x = random.normal(size=(size, 2))
        x[:, 0] += 0.2 * np.sign(x[:, 0])  # a gap: no client, nor all of them, has an overlap
        clients.append(dict(x=x, y=(x[:, 0] > 0.0).astype(int)))
    return named(*clients)


ANALYSES = (
    Example("rasch", "Rasch model, pupils' abilities local", rasch, lambda: school_clients("rasch", 1.0)),
    Example("2pl", "two-parameter item response", two_parameters, lambda: school_clients("2pl", DISCRIMINATION)),
    Example("ordinal", "ordered logistic, cut points, clinic's effect", ordinal, ordinal_clients),
    Example("multinomial", "categorical regression of three classes", multinomial, multinomial_clients),
    Example("separation", "logistic regression, completely separated", separation, separation_clients),
)
