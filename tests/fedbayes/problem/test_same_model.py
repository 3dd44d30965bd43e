"""A model that is written again serves the programs of the first one; one that differs does not."""

from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import numpyro
import numpyro.distributions as dist
import pytest

from fedbayes.problem.problem import make_problem
from fedbayes.problem.program.same_model import model_key
from fedbayes.runtime.precision import computing

CLIENTS = {"a": {"y": np.array([0.1, 0.4])}, "b": {"y": np.array([0.2, 0.3])}}
CELL = """
def model(y):
    mu = numpyro.sample("mu", dist.Normal(CENTER, 1.0))
    numpyro.sample("y", dist.Normal(mu, 1.0), obs=y)
"""


def powers(y, degree, sd=1.0):
    mu = numpyro.sample("mu", dist.Normal(0.0, sd).expand([degree]).to_event(1))
    numpyro.sample("y", dist.Normal(mu.sum(), 1.0), obs=y)


def closed_over(sd):
    def model(y):
        powers(y, 2, sd)

    return model


class Named(float):
    """A number that carries more than its value."""

    def __new__(cls, value, name):
        made = super().__new__(cls, value)
        made.name = name
        return made


class Study:
    def __init__(self, sd):
        self.sd = sd

    def model(self, y):
        powers(y, 2, self.sd)


MASKED = [np.ma.masked_array([1.0, 2.0], mask=mask) for mask in ([True, False], [False, True])]
ROWS = [np.void((1.0, 2.0), dtype=[(names[0], float), (names[1], float)]) for names in ("ab", "ba")]


def calls_itself(depth):
    def model(y, left=depth):
        return powers(y, 1) if left == 0 else model(y, left - 1)

    return model


def program_of(model):
    return make_problem(model, CLIENTS).programs[0]


def cell(namespace, text=CELL):
    """Run a notebook's cell."""
    exec(text, namespace)
    return namespace["model"]


@pytest.fixture(autouse=True)
def _double_precision():
    with computing():
        yield


@pytest.fixture
def namespace():
    return {"numpyro": numpyro, "dist": dist, "CENTER": 0.0}


def test_a_cell_that_is_run_again_keeps_its_program(namespace):
    first, again = cell(namespace), cell(namespace)
    assert first is not again
    assert program_of(first) is program_of(again)


def test_a_global_variable_or_a_line_that_has_changed_makes_another(namespace):
    first = program_of(cell(namespace))
    other = program_of(cell(namespace, CELL.replace("mu, 1.0", "mu, 2.0")))
    namespace["CENTER"] = 3.0
    moved = program_of(cell(namespace))
    assert len({first, other, moved}) == 3


def test_the_same_cell_of_another_notebook_makes_another(namespace):
    assert program_of(cell(namespace)) is not program_of(cell(dict(namespace)))


def test_parts_that_are_given_again_keep_the_program():
    assert program_of(partial(powers, degree=3)) is program_of(partial(powers, degree=3))
    assert program_of(partial(powers, degree=2, sd=jnp.array(2.0))) is program_of(
        partial(powers, degree=2, sd=jnp.array(2.0))
    )
    one = Study(2.0)
    assert program_of(one.model) is program_of(one.model)
    assert model_key(one.model) != model_key(Study(2.0).model)  # either could change


def test_a_fit_does_not_see_what_another_model_closes_over():
    """A loop's functions share one variable, which is another one each time that the loop runs."""

    def studies():
        for sd in (1.0, 100.0):

            def model(y):
                powers(y, 2, sd)  # noqa: B023  (the loop's variable is the point)

            yield program_of(model)

    first = list(studies())
    second = list(studies())
    assert not set(first) & set(second)


@pytest.mark.parametrize(
    ("one", "other"),
    [
        (partial(powers, degree=3), partial(powers, degree=4)),
        (partial(powers, degree=2, sd=1), partial(powers, degree=2, sd=1.0)),
        (partial(powers, degree=1), partial(powers, degree=True)),
        (closed_over(2.0), closed_over(3.0)),
        (closed_over(2.0), closed_over(2.0)),  # the variable could change
        (partial(powers, sd=np.array(2.0)), partial(powers, sd=jnp.array(2.0))),
        (partial(powers, sd=np.array(2.0)), partial(powers, sd=np.array(2.0))),  # could change
        (partial(powers, sd=[2.0]), partial(powers, sd=[2.0])),
        (partial(powers, sd=jnp.array([1.0, 2.0])), partial(powers, sd=jnp.array([[1.0], [2.0]]))),
        (partial(powers, sd=jnp.array(1.0)), partial(powers, sd=jnp.asarray(1.0, jnp.float32))),
        (partial(powers, sd=jnp.array(1.0, jnp.bfloat16)), partial(powers, sd=jnp.array(1.0, jnp.float16))),
        (partial(powers, sd=jnp.asarray(1.0)), partial(powers, sd=jnp.full((), 1.0, float))),  # strongly typed
        (partial(powers, sd=jax.random.key(0)), partial(powers, sd=jax.random.key(0))),
        (partial(powers, sd=Named(2.0, "a")), partial(powers, sd=Named(2.0, "b"))),
        (partial(powers, sd=MASKED[0]), partial(powers, sd=MASKED[1])),
        (partial(powers, sd=ROWS[0]), partial(powers, sd=ROWS[1])),
        (partial(powers, sd=0.0), partial(powers, sd=-0.0)),
        (partial(powers, degree=1, sd=2.0), partial(powers, sd=2.0, degree=1)),  # to **kwargs the order matters
        (calls_itself(1), calls_itself(2)),
        (powers, closed_over(1.0)),
        (dist.Normal, dist.StudentT),
    ],
)
def test_whatever_may_differ_is_another_model(one, other):
    assert model_key(one) != model_key(other)
    assert model_key(one) == model_key(one)
    assert hash(model_key(one)) == hash(model_key(one))


def test_sizes_that_are_equal_and_of_another_kind_make_another_program():
    def model(y, flag):
        mu = numpyro.sample("mu", dist.Normal(0.0, 1.0 if flag is True else 2.0))
        numpyro.sample("y", dist.Normal(mu, 1.0), obs=y)

    one, other = ({name: {**client, "flag": flag} for name, client in CLIENTS.items()} for flag in (True, 1))
    first = make_problem(model, one).programs[0]
    assert make_problem(model, one).programs[0] is first
    assert make_problem(model, other).programs[0] is not first
