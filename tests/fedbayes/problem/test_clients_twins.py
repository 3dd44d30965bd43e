"""One data holder under two names is said; what may coincide honestly is not."""

import warnings

import jax
import numpy as np
import numpyro
import numpyro.distributions as dist
import pytest

import fedbayes as fb
from fedbayes.problem.data.reading import prepare_clients
from fedbayes.problem.duplicates import warn_of_twins

RNG = np.random.default_rng(0)


def normal(y, x=0.0):
    mu = numpyro.sample("mu", dist.Normal(0.0, 1.0))
    numpyro.sample("y", dist.Normal(mu * x, 1.0), obs=y)


def logistic(x, y):
    beta = numpyro.sample("beta", dist.Normal(0.0, 1.0))
    numpyro.sample("y", dist.Bernoulli(logits=x * beta), obs=y)


def computed(x, y):
    beta = numpyro.sample("beta", dist.Normal(0.0, 1.0))
    numpyro.sample("y", dist.Normal(x * beta, 1.0), obs=2.0 * y)


def found(model, clients):
    """The warnings."""
    arrays = list(prepare_clients(clients, np.dtype(np.float64)).values())
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        warn_of_twins(model, clients, arrays, stacklevel=1)
    return [str(warning.message) for warning in caught]


def shuffled(data, seed=1):
    order = np.random.default_rng(seed).permutation(len(data["y"]))
    return {name: array[order] for name, array in data.items()}


ROWS = {"x": RNG.normal(size=12), "y": RNG.normal(size=12)}
OTHER = {"x": RNG.normal(size=12), "y": RNG.normal(size=12)}
SICK = {"x": RNG.normal(size=60), "y": RNG.integers(0, 2, 60)}
FEW = {"x": np.linspace(0.0, 1.0, 20), "y": np.zeros(20)}  # one design, and nobody is sick
DOSES = {"x": np.arange(4), "y": np.array([0, 1, 1, 0])}
ONE = {"y": np.asarray(0.123456)}
SHARED = RNG.normal(size=(12,))
COPIES = {
    "the same mapping": (normal, {"a": ROWS, "b": ROWS}),
    "the same arrays": (normal, {"a": ROWS, "b": dict(ROWS)}),
    "the same rows": (normal, {"a": ROWS, "b": {name: array.copy() for name, array in ROWS.items()}}),
    "in another order": (normal, {"a": ROWS, "c": OTHER, "b": shuffled(ROWS)}),
    "true or false": (logistic, {"a": SICK, "b": shuffled(SICK)}),
    "few values of one object": (logistic, dict.fromkeys("ab", DOSES)),
    "computed outcomes": (computed, {"a": ROWS, "b": shuffled(ROWS)}),
    "few precise rows": (normal, {"a": {"y": SHARED[:3]}, "c": {"y": SHARED[3:]}, "b": {"y": SHARED[2::-1]}}),
}


@pytest.mark.parametrize("case", COPIES)
def test_copies_are_named_once(case):
    model, clients = COPIES[case]
    (message,) = found(model, clients)
    assert message.startswith("Clients 'a' and 'b' hold the same rows, in whatever order. If this is one data holder")


HONEST = {
    "other rows": (normal, {"a": ROWS, "b": OTHER}),
    "one number": (normal, {"a": ONE, "b": {"y": np.asarray(0.123456)}}),
    "one number, one object": (normal, dict.fromkeys("ab", ONE)),
    "one row": (normal, {"a": {"y": np.array([0.123456])}, "b": {"y": np.array([0.123456])}}),
    "few integers": (normal, {"a": {"y": np.array([1, 2, 4])}, "b": {"y": np.array([2, 1, 4])}}),
    "few rounded numbers": (normal, {"a": {"y": np.array([0.3, -1.0, 2.0])}, "b": {"y": np.array([-1.0, 0.3, 2.0])}}),
    "a design without events": (logistic, {"a": FEW, "b": {name: array.copy() for name, array in FEW.items()}}),
    "the same without events": (logistic, dict.fromkeys("ab", FEW)),
    "a shared design": (normal, {"a": {"x": SHARED, "y": ROWS["y"]}, "b": {"x": SHARED, "y": OTHER["y"]}}),
    "the same columns, paired otherwise": (normal, {"a": ROWS, "b": ROWS | {"y": ROWS["y"][::-1]}}),
    "the same rows, another setting": (
        lambda y, x, kind: normal(y, x), {"a": ROWS | {"kind": "u"}, "b": ROWS | {"kind": "v"}}
    ),
}  # fmt: skip


@pytest.mark.parametrize("case", HONEST)
def test_honest_coincidences_are_silent(case):
    assert found(*HONEST[case]) == []


def test_many_clients_with_one_binary_row_each():
    clients = {f"c{i}": {"x": np.array([0.5]), "y": np.array([i % 2])} for i in range(2000)}
    assert found(logistic, clients) == []


def test_several_pairs_are_one_warning():
    clients = {"a": ROWS, "b": ROWS, "c": OTHER, "d": OTHER, "e": dict(OTHER)}
    (message,) = found(normal, clients)
    assert message.startswith("Clients 'a' and 'b' hold the same rows, in whatever order, and so do 2 more pairs.")
    (message,) = found(normal, {name: clients[name] for name in "abcd"})
    assert "order, and so does another pair." in message


def test_a_fit_says_so_where_it_was_called():
    clients = {"north": ROWS, "south": shuffled(ROWS)}
    with pytest.warns(UserWarning, match=r"Clients 'north' and 'south' hold the same rows.* counts? twice") as caught:
        fb.fit_federated(normal, clients, method="laplace", key=jax.random.key(0), progress=False)
    assert [warning.filename for warning in caught] == [__file__]
