"""The names of `coords` and `dims`: checked before the fit, and used wherever globals are named."""

import jax
import numpy as np
import numpyro
import numpyro.distributions as dist
import pytest

import fedbayes as fb
from fedbayes.problem.problem import make_problem
from fedbayes.results.presented import Presentation, check_names, labels_of_globals

CLIENTS = {name: {"x": np.ones((rows, 2)), "y": np.zeros(rows)} for name, rows in (("north", 5), ("south", 8))}


def model(x, y=None):
    beta = numpyro.sample("beta", dist.Normal(0.0, 1.0).expand([2]).to_event(1))
    numpyro.deterministic("double", 2.0 * beta)
    numpyro.sample("weights", dist.Dirichlet(np.ones(3)))
    with numpyro.plate("group", 3), numpyro.plate("year", 2):
        numpyro.sample("effect", dist.Normal(0.0, 1.0))
    mean = numpyro.deterministic("mean", x @ beta)
    numpyro.sample("y", dist.Normal(mean, 1.0), obs=y)


@pytest.fixture(scope="module")
def problem():
    with jax.enable_x64(True):
        return make_problem(model, CLIENTS)


def shown(coords=None, dims=None):
    return Presentation(10, coords or {}, dims or {}, ())


NAMES = ["age", "bmi"]
WRONG = {
    "labels of a latent": (
        {"c": [*NAMES, "sex"]},
        {"beta": ["c"]},
        r"`coords\['c'\]` has 3 labels, but 'beta' has 2 entries along that dimension. Write one label for each entry",
    ),
    "labels of a deterministic site": ({"c": ["age"]}, {"double": ["c"]}, r"has 1 labels, but 'double' has 2 entries"),
    "labels of a plate": ({"group": NAMES}, {}, r"`coords\['group'\]` has 2 labels, but 'effect' has 3 entries"),
    "a site": (
        {},
        {"betta": ["c"]},
        r"`dims` names 'betta', which is none of the sites of the model: \['beta', .*\]. Did you mean 'beta'\?",
    ),
    "a dimension": ({"gruop": list("uvw")}, {}, r"`coords` names 'gruop', which is none of .* Did you mean 'group'\?"),
    "nothing near": ({"quality": list("uvw")}, {}, r"`coords` names 'quality', .*'year'\].$"),
    "too many dimensions": ({}, {"beta": ["c", "d"]}, r"`dims` names 2 dimensions of 'beta', .* has shape \(2,\)"),
    "text": ({}, {"beta": "age"}, r"`dims\['beta'\]` is the text 'age'; write a list of names, `\['age'\]`"),
}


@pytest.mark.parametrize("case", WRONG)
def test_names_that_do_not_fit(case, problem):
    coords, dims, message = WRONG[case]
    with pytest.raises(ValueError, match=message):
        check_names(problem, shown(coords, dims))


@pytest.mark.parametrize(
    ("coords", "dims"),
    [
        ({"c": NAMES}, {"beta": ["c"], "double": ["c"]}),
        ({}, {"beta": ["c"]}),
        ({"group": list("uvw"), "year": [2020, 2021]}, {}),
        ({"beta_dim_0": NAMES}, {}),
        ({"time": [1, 2, 3]}, {"y": ["time"], "mean": ["time"]}),  # new rows, which are predicted
    ],
)
def test_names_that_fit(coords, dims, problem):
    check_names(problem, shown(coords, dims))


def test_names_are_checked_before_the_first_round(monkeypatch):
    monkeypatch.setattr("fedbayes.fit.Run", None)
    with pytest.raises(ValueError, match=r"`coords\['c'\]` has 1 labels"):
        fb.fit_federated(
            model, CLIENTS, key=jax.random.key(0), progress=False, coords={"c": ["age"]}, dims={"beta": ["c"]}
        )


def test_globals_are_called_by_the_labels_of_their_entries(problem):
    effects = [f"effect[{i}]" for i in range(6)]
    plain = ["beta[0]", "beta[1]", *effects, "weights[0]", "weights[1]"]
    assert sorted(labels_of_globals(problem, shown())) == plain
    assert sorted(labels_of_globals(problem, shown({}, {"beta": ["c"]}))) == plain
    named = labels_of_globals(problem, shown({"c": NAMES}, {"beta": ["c"]}))
    assert sorted(named) == ["beta[age]", "beta[bmi]", *plain[2:]]
    both = labels_of_globals(problem, shown({"group": list("uvw"), "year": np.array([2020, 2021])}))
    assert [label for label in both if "effect" in label] == [
        f"effect[{year}, {group}]" for year in (2020, 2021) for group in "uvw"
    ]
    one = labels_of_globals(problem, shown({"group": list("uvw")}))
    assert [label for label in one if "effect" in label] == [f"effect[{i}, {group}]" for i in (0, 1) for group in "uvw"]


def test_the_coordinates_of_a_simplex_are_none_of_its_entries(problem):
    found = labels_of_globals(problem, shown({"part": list("uvw")}, {"weights": ["part"]}))
    assert [label for label in found if "weights" in label] == ["weights[0]", "weights[1]"]
