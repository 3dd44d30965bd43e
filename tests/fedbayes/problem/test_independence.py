"""Which locals are found to be independent given the globals."""

import jax
import jax.numpy as jnp
import numpy as np
import numpyro
import numpyro.distributions as dist
import pytest

import fedbayes as fb
from fedbayes.problem.independence import MANY
from fedbayes.problem.problem import make_problem

NUM = MANY + 3


@pytest.fixture(autouse=True)
def _float64():
    with jax.enable_x64(True):
        yield


def star(y, group, number, between=None, others=1) -> None:
    """Effects of many groups and a few of the client; ``between``: two groups that share a row."""
    mu = numpyro.sample("mu", dist.Normal(0.0, 1.0))
    with fb.local():
        u = numpyro.sample("u", dist.Normal(0.0, 1.0).expand([number]).to_event(1))
        w = numpyro.sample("w", dist.Normal(0.0, 1.0).expand([others]).to_event(1))
    mean = mu + u[group] + jnp.sum(w)
    if between is not None:
        mean = mean.at[0].add(u[between[0]] + u[between[1]])
    numpyro.sample("y", dist.Normal(mean, 1.0), obs=y)


def found(model=star, number: int = NUM, **data) -> tuple[bool, tuple[str, ...]]:
    group = np.tile(np.arange(number), 2)
    y = np.linspace(-1.0, 1.0, 2 * number)
    client = make_problem(model, {"a": {"y": y, "group": group, "number": number, **data}}).client("a")
    return client.independent, client.singles


def test_effects_of_many_groups_are_independent_given_the_globals_and_the_clients_own() -> None:
    assert found() == (False, ("u",))


@pytest.mark.parametrize("between", [(4, 5), (0, NUM - 1), (31, 32), (2, 66)])
def test_one_pair_that_shares_a_row_is_found(between) -> None:
    assert found(between=between) == (False, ())


def test_few_groups_and_many_other_locals_are_left_as_they_are() -> None:
    assert found(number=MANY - 1) == (False, ())
    assert found(others=16) == (False, ())


def of_rows(y, group, number) -> None:
    mu = numpyro.sample("mu", dist.Normal(0.0, 1.0))
    with fb.local():
        u = numpyro.sample("u", dist.Normal(0.0, 1.0).expand([number]).to_event(1))
        v = numpyro.sample("v", dist.Normal(0.0, 1.0).expand([number]).to_event(1))
    numpyro.sample("y", dist.Normal(mu + u[group] + v[group] ** 2, 1.0), obs=y)


def test_two_locals_of_a_group_are_a_group_and_no_singles() -> None:
    assert found(of_rows) == (True, ())


def in_two_layers(y, group, number) -> None:
    mu = numpyro.sample("mu", dist.Normal(0.0, 1.0))
    with fb.local():
        u = numpyro.sample("u", dist.Normal(0.0, 1.0).expand([number]).to_event(1))
        v = numpyro.sample("v", dist.Normal(0.0, 1.0).expand([2, 20]).to_event(2))
    numpyro.sample("y", dist.Normal(mu + u[group], 1.0), obs=y)
    numpyro.sample("more", dist.Normal(v, 1.0).to_event(2), obs=jnp.ones((2, 20)))


def test_latents_that_are_not_connected_are_singles_together() -> None:
    assert found(in_two_layers) == (False, ("u", "v"))


def test_the_roster_counts_the_others() -> None:
    group = np.tile(np.arange(NUM), 2)
    data = {"y": np.linspace(-1.0, 1.0, 2 * NUM), "group": group, "number": NUM}
    (known,) = make_problem(star, {"a": data}).roster.locals
    assert (known.block.size, known.joint) == (NUM + 1, 1)
