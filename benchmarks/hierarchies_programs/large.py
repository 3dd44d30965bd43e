"""Programs of `hierarchies_programs` with very many locals, clients or rows."""

import numpy as np
from analyses_programs.ratings import two_parameters
from examples.example import Clients, Example, named, rng
from jax.scipy.special import expit

from hierarchies_programs.intercepts import logistic, logistic_clients, logistic_together
from hierarchies_programs.together import gathered, same, unequal

ITEMS = 10


def schools(persons: int) -> Clients:
    """Three schools of so many persons, who answer ten items."""
    random, clients = rng("large schools"), []
    difficulty, discrimination = np.linspace(-1.5, 1.5, ITEMS), np.exp(0.3 * random.normal(size=ITEMS))
    for _ in range(3):
        ability = random.normal(size=persons)
        solved = random.uniform(size=(persons, ITEMS)) < expit(discrimination * (ability[:, None] - difficulty))
        clients.append(dict(num_items=ITEMS, y=solved.astype(int)))
    return named(*clients)


def _of_schools(persons: int) -> Example:
    words = f"item response, three schools of {persons:,} persons"
    return Example(f"2pl {persons:,}", words, two_parameters, lambda: schools(persons), pooled=same(two_parameters))


LARGE = (
    *(_of_schools(persons) for persons in (100, 1_000, 10_000)),
    Example(
        "1,000 clients",
        "binary outcome, intercept by client",
        logistic,
        lambda: logistic_clients("thousand hospitals", unequal(rng("thousand sizes"), 1_000, 20, 100)),
        pooled=gathered(logistic_together),
    ),
    Example(
        "100,000 rows",
        "the same, one client with 100,000 rows",
        logistic,
        lambda: logistic_clients("one large hospital", (100_000, 300, 200, 150, 100, 50)),
        pooled=gathered(logistic_together),
    ),
)
