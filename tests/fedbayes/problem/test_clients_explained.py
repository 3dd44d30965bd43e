"""Arguments of different length, and indices as decimals: refused where the model fails, and only there."""

import jax
import jax.numpy as jnp
import numpy as np
import numpyro
import numpyro.distributions as dist
import pytest

import fedbayes as fb
from fedbayes.errors import ModelError
from fedbayes.problem.data.explained import explaining, odd_one_out

RNG = np.random.default_rng(0)
KEYWORDS = {"method": "laplace", "key": jax.random.key(0), "progress": False}


def regression(x, y):
    beta = numpyro.sample("beta", dist.Normal(0.0, 1.0))
    numpyro.sample("y", dist.Normal(x * beta, 1.0), obs=y)


def grouped(x, y, group):
    """An array of groups beside the rows."""
    beta = numpyro.sample("beta", dist.Normal(0.0, 1.0))
    numpyro.sample("y", dist.Normal(x[group] * beta, 1.0), obs=y)


def clients(**lengths):
    return {name: {"x": RNG.normal(size=of_x), "y": RNG.normal(size=of_y)} for name, (of_x, of_y) in lengths.items()}


@pytest.mark.parametrize("others", [{}, {"a": (5, 5)}, {"a": (5, 5), "c": (6, 6), "d": (9, 9)}])
def test_a_client_one_row_short_is_named(others):
    data = clients(b=(8, 7), **others)
    also = ", which in every other client are equally many" if others else ""
    message = rf"^Client 'b': `x` has 8 rows and `y` has 7 rows{also}, and the model can't be run with them \(.*\)\. If"
    with pytest.raises(fb.ClientDataError, match=message) as error:
        fb.fit_federated(regression, data, **KEYWORDS)
    assert error.value.__cause__ is not None  # the model's own words are kept


def test_groups_beside_rows_are_fine_even_if_other_clients_have_as_many():
    data = {}
    for name, (groups, rows) in {"a": (3, 3), "b": (5, 5), "c": (4, 6)}.items():
        group = np.arange(rows) % groups
        data[name] = {"x": RNG.normal(size=groups), "y": RNG.normal(size=rows), "group": group}
    assert fb.fit_federated(grouped, data, **KEYWORDS).converged


def test_a_look_at_values_is_not_taken_for_a_missing_row():
    def looks(x, y):
        if x.sum() > 0:
            regression(x, y)

    with pytest.raises(ModelError, match=r"needs the values of `x` of client 'b' .* shapes of"):
        fb.fit_federated(looks, clients(b=(8, 7)), **KEYWORDS)


def plated(x, y):
    beta = numpyro.sample("beta", dist.Normal(0.0, 1.0))
    with numpyro.plate("rows", len(y)):
        numpyro.sample("y", dist.Normal(x * beta, 1.0), obs=y)


def matrix(x, y):
    beta = numpyro.sample("beta", dist.Normal(0.0, 1.0))
    numpyro.factor("f", (x @ y) * beta)
    numpyro.sample("y", dist.Normal(beta, 1.0), obs=y)


def added(x, y):
    beta = numpyro.sample("beta", dist.Normal(0.0, 1.0))
    numpyro.sample("y", dist.Normal(beta, 1.0), obs=y - jnp.asarray(x))


@pytest.mark.parametrize("model", [plated, matrix, added])
def test_the_shapes_errors_of_jax_and_numpyro_are_known(model):
    with pytest.raises(fb.ClientDataError, match=r"^Client 'b': `x` has 8 rows and `y` has 7 rows"):
        fb.fit_federated(model, clients(a=(5, 5), b=(8, 7)), **KEYWORDS)


def test_other_errors_stay_as_they_are():
    def fails(x, y):
        raise LookupError("no such shape" if len(x) < 0 else "nothing of that kind")

    with pytest.raises(LookupError, match="nothing of that kind"):
        fb.fit_federated(fails, clients(b=(8, 7)), **KEYWORDS)
    with pytest.raises(ModelError, match="same shapes"), explaining(clients(b=(8, 7))):
        raise ModelError("Globals need the same shapes.")
    with pytest.raises(ValueError, match="broadcast"), explaining(clients(b=(8, 8))):
        raise ValueError("Can't broadcast.")


def test_an_index_of_decimals_is_named():
    """Where one client has decimals, all have; other clients' integers are no index any more."""
    data = {name: {"x": RNG.normal(size=2), "y": RNG.normal(size=4), "group": np.array([0, 1, 1, 0])} for name in "abc"}
    assert fb.fit_federated(grouped, data, **KEYWORDS).converged
    data["b"]["group"] = data["b"]["group"].astype(float)
    message = r"^Client 'b': `group` holds whole numbers as decimals, .* `numpy.asarray\(group\).astype\(int\)`\.$"
    with pytest.raises(fb.ClientDataError, match=message) as error:
        fb.fit_federated(grouped, data, **KEYWORDS)
    assert isinstance(error.value.__cause__, TypeError)
    data["b"]["group"] = data["b"]["group"] + 0.5  # no index at all: the model's own error
    with pytest.raises(TypeError, match="integer"):
        fb.fit_federated(grouped, data, **KEYWORDS)
    alone = {"a": {"x": data["a"]["x"], "y": data["a"]["y"], "group": np.zeros(4)}}
    with pytest.raises(fb.ClientDataError, match=r"^Client 'a': `group` holds whole numbers as decimals"):
        fb.fit_federated(grouped, alone, **KEYWORDS)


@pytest.mark.parametrize(
    ("lengths", "expected"),
    [
        ({"a": (5, 5), "b": (8, 7)}, "b"),
        ({"a": (5, 4), "b": (8, 7)}, None),
        ({"a": (5, 5), "b": (8, 8)}, None),
        ({"b": (8, 7)}, "b"),
    ],
)
def test_the_odd_one_out(lengths, expected):
    found = odd_one_out({name: {"x": of_x, "y": of_y} for name, (of_x, of_y) in lengths.items()})
    assert found == (None if expected is None else (expected, ("x", "y")))


def test_a_new_client_one_row_short():
    fit = fb.fit_federated(regression, clients(a=(5, 5), b=(6, 6)), **KEYWORDS)
    with pytest.raises(fb.ClientDataError, match=r"Client 'new client': `x` has 8 rows and `y` has 7 rows"):
        fit.adapt(clients(c=(8, 7))["c"])
