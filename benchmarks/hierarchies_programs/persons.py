"""A latent for every row or person: abilities, covariates that are missing or measured with error, growth curves."""

import numpy as np
from analyses_programs.latents import growth, measured_with_error, missing
from analyses_programs.ratings import two_parameters
from examples.example import Clients, Example, named, rng
from jax.scipy.special import expit

from hierarchies_programs.together import same, unequal


def pupils_clients() -> Clients:
    random, clients = rng("pupils"), []
    difficulty, discrimination = np.linspace(-1.5, 1.5, 10), np.exp(0.3 * random.normal(size=10))
    for size in (40, 80, 130):
        ability = random.normal(size=size)
        solved = random.uniform(size=(size, 10)) < expit(discrimination * (ability[:, None] - difficulty))
        clients.append(dict(num_items=10, y=solved.astype(int)))
    return named(*clients)


def missing_clients() -> Clients:
    random, clients = rng("missing rows"), []
    for size in unequal(random, 5, 40, 150):
        x = 1.0 + 1.2 * random.normal(size=size)
        y = 0.5 + 0.7 * x + 0.6 * random.normal(size=size)
        seen = random.uniform(size=size) < 0.75
        clients.append(dict(x=np.where(seen, x, 0.0), seen=seen, y=y))
    return named(*clients)


def instrument_clients() -> Clients:
    random, clients = rng("instruments"), []
    for size in unequal(random, 5, 40, 150):
        exposure = 0.3 + random.normal(size=size)
        ill = random.uniform(size=size) < expit(-0.5 + 1.0 * exposure)
        clients.append(dict(w=exposure + 0.6 * random.normal(size=size), y=ill.astype(int)))
    return named(*clients)


def growth_clients() -> Clients:
    random, clients = rng("children"), []
    for number in (8, 12, 20, 30):
        own = random.multivariate_normal([2.0, 1.0], [[1.0, 0.25], [0.25, 0.25]], size=number)
        subject, time = np.repeat(np.arange(number), 5), np.tile(np.arange(5.0) - 2.0, number)
        y = own[subject, 0] + own[subject, 1] * time + 0.5 * random.normal(size=5 * number)
        clients.append(dict(subjects=number, subject=subject, time=time, y=y))
    return named(*clients)


HIERARCHIES = (
    Example("2pl", "item response, an ability a pupil", two_parameters, pupils_clients, pooled=same(two_parameters)),
    Example("missing covariate", "a covariate imputed row by row", missing, missing_clients, pooled=same(missing)),
    Example(
        "measurement error",
        "logistic regression on a noisy exposure",
        measured_with_error,
        instrument_clients,
        pooled=same(measured_with_error),
    ),
    Example(
        "growth",
        "intercept and slope by child, LKJ",
        growth,
        growth_clients,
        pooled=same(growth, count="subjects", places="subject"),
    ),
)
