"""Bad input is refused before any work starts: what is wrong, the value seen, what to write instead."""

import importlib.util

import jax
import jax.numpy as jnp
import numpy as np
import numpyro
import numpyro.distributions as dist
import pandas as pd
import pytest

import fedbayes as fb
from fedbayes.inference.ep.method import EP
from fedbayes.problem.problem import make_problem
from fedbayes.rounds.executors import Batched

Y3, Y5 = np.array([0.3, -1.0, 2.0]), np.array([0.1, 0.4, -0.7, 1.2, 0.9])
GOOD = {"a": {"y": Y3}, "b": {"y": Y5}}


class Counted:
    """A model that says how often it was traced."""

    def __init__(self):
        self.calls = 0

    def __call__(self, y, x=None, kind="good"):
        self.calls += 1
        if kind == "bad":
            raise LookupError("no such kind")
        mu = numpyro.sample("mu", dist.Normal(0.0, 1.0))
        numpyro.sample("y", dist.Normal(mu if x is None else mu + x, 1.0), obs=y)


def fit(model, clients, **keywords):
    return fb.fit_federated(model, clients, progress=False, **({"key": jax.random.key(0)} | keywords))


def check(model, clients, **keywords):
    """The checks of ``fit_federated``, without its fit."""
    with jax.enable_x64(True):
        return make_problem(model, clients, **keywords)


BAD_CLIENTS = {
    "not a mapping": ([{"y": Y3}], r"`clients` is a list; write a mapping from the client's name"),
    "none": ({}, r"`clients` is empty: there is nobody to learn from"),
    "client is an array": ({"a": Y3}, r"Client 'a' is a ndarray; write its data as the model's keyword arguments"),
    "no rows": (
        GOOD | {"c": {"y": np.zeros(0)}},
        r"Client 'c' has no rows: `y` has shape \(0,\). Leave the client out",
    ),
    "nan": (
        GOOD | {"c": {"y": np.array([1.0, np.nan, np.inf])}},
        r"Client 'c': `y` holds 2 NaN or infinite values, the first nan at \(1,\). Drop or impute",
    ),
    "infinite": (GOOD | {"c": {"y": np.array([-np.inf])}}, r"Client 'c': `y` holds 1 .* the first -inf at \(0,\)"),
    "no columns": ({"a": {"y": np.zeros((3, 0))}}, r"Client 'a' has no columns: `y` has shape \(3, 0\). Leave the arg"),
    "arguments without a name": ({"a": {0: Y3}}, r"Client 'a' has the argument 0, which is no name"),
    "client is a table": ({"a": pd.DataFrame({"y": Y3})}, r"Client 'a' is a DataFrame; write .* `dict\(x=frame"),
    "other arguments": (
        GOOD | {"c": {"y": Y3, "x": Y3}},
        r"Client 'c' has the arguments \['x', 'y'\], but client 'a' has \['y'\]: all clients need the same",
    ),
    "other columns": (
        {"a": {"y": np.ones((2, 3))}, "b": {"y": np.ones((2, 4))}},
        r"Client 'b': `y` has shape \(2, 4\), but client 'a' has \(2, 3\): all clients need the same columns",
    ),
    "other number of axes": (
        {"a": {"y": Y3}, "b": {"y": np.ones((2, 1))}},
        r"'b': `y` has shape \(2, 1\), but client 'a'",
    ),
    "array and nothing": (
        {"a": {"y": Y3, "x": Y3}, "b": {"y": Y5, "x": None}},
        r"Client 'b': `x` is None, but client 'a' has an array there",
    ),
    "nothing and array": ({"a": {"y": Y3, "x": None}, "b": {"y": Y5, "x": Y5}}, r"Client 'a': `x` is None"),
    "ragged": ({"a": {"y": [[1.0], [1.0, 2.0]]}}, r"Client 'a': `y` is not an array: .*inhomogeneous"),
    "same name twice": ({1: {"y": Y3}, "1": {"y": Y5}}, r"'1'"),
}


@pytest.mark.parametrize("case", BAD_CLIENTS)
def test_bad_clients(case):
    clients, message = BAD_CLIENTS[case]
    model = Counted()
    with pytest.raises(fb.ClientDataError, match=message):
        fit(model, clients)
    assert model.calls == 0  # refused before the model was even traced


def flat(y):
    mu = numpyro.sample("mu", dist.ImproperUniform(dist.constraints.real, (), ()))
    numpyro.sample("y", dist.Normal(mu, 1.0), obs=y)


def sampled_outcome(y):
    mu = numpyro.sample("mu", dist.Normal(0.0, 1.0))
    numpyro.sample("outcome", dist.Normal(mu, 1.0))


def observe(mu, y):
    numpyro.sample("y", dist.Normal(mu, 1.0), obs=y)


def prior_at_mean(y):
    observe(numpyro.sample("mu", dist.Normal(y.mean(), 1.0)), y)


def prior_of_row_count(y):
    observe(numpyro.sample("mu", dist.Normal(0.0, float(y.shape[0]))), y)


def prior_of_counts(y):
    rate = numpyro.sample("rate", dist.Gamma(y.mean(), 1.0))
    numpyro.sample("y", dist.Poisson(rate), obs=y)


def endless_prior(y):
    mu = numpyro.sample("mu", dist.ImproperUniform(dist.constraints.real, (), ()))
    numpyro.sample("tau", dist.Normal(0.0, jnp.where(mu < 1e9, 0.0, 1.0)))
    observe(mu, y)


def globals_by_rows(y):
    observe(numpyro.sample("mu", dist.Normal(0.0, 1.0).expand([y.shape[0]])), y)


def discrete_global(y):
    kind = numpyro.sample("kind", dist.Bernoulli(0.5))
    mu = numpyro.sample("mu", dist.Normal(0.0, 1.0))
    observe(mu + kind, y)


def all_local(y):
    with fb.local():
        observe(numpyro.sample("mu", dist.Normal(0.0, 1.0)), y)


def param_array(y):
    mu = numpyro.sample("mu", dist.Normal(0.0, 1.0))
    observe(mu * numpyro.param("slope", jnp.ones(())), y)


def param_number(y):
    mu = numpyro.sample("mu", dist.Normal(0.0, 1.0))
    observe(mu * numpyro.param("slope", 1.0), y)


def subsampled(y):
    mu = numpyro.sample("mu", dist.Normal(0.0, 1.0))
    with numpyro.plate("rows", y.shape[0], subsample_size=2):
        numpyro.sample("y", dist.Normal(mu, 1.0), obs=numpyro.subsample(y, event_dim=0))


def one_mean(y):
    observe(numpyro.sample("mu", dist.Normal(0.0, 1.0)) + jnp.zeros(len(y)), y)


def column_of_means(y):
    observe(numpyro.sample("mu", dist.Normal(0.0, 1.0)) + jnp.zeros((len(y), 1)), y)


def one_event(y):
    mu = numpyro.sample("mu", dist.Normal(0.0, 1.0))
    numpyro.sample("y", dist.Normal(mu + jnp.zeros(len(y)), 1.0).to_event(1), obs=y)


COLUMNS = {name: {"y": data["y"][:, None]} for name, data in GOOD.items()}
COUNTS = {"a": {"y": np.array([1, 2, 4])}}
BAD_MODELS = {
    "no observed site": (sampled_outcome, GOOD, r"no observed site.* Pass the data to a site"),
    "prior at the data's mean": (prior_at_mean, GOOD, r"prior of the globals depends on the clients' data: .* 'a'"),
    "the same, one client": (prior_at_mean, {"a": {"y": Y3}}, r"prior of the globals depends on the clients' data"),
    "the same, counts": (prior_of_counts, COUNTS, r"prior of the globals depends on the clients' data"),
    "prior of the number of rows": (prior_of_row_count, GOOD, r"prior of the globals depends on the clients' data"),
    "no finite prior": (endless_prior, GOOD, r"log prior of the globals, or its curvature, is .* at a random point"),
    "globals sized by rows": (globals_by_rows, GOOD, r"Globals need the same shapes on every client: mark those"),
    "discrete global": (discrete_global, GOOD, r"Discrete latents \['kind'\]: a Gaussian site can't hold a discrete"),
    "nothing global": (all_local, GOOD, r"no global latent: \['mu'\] are all marked local"),
    "param": (param_array, GOOD, r"Site 'slope' is a `numpyro.param`: it has no prior.* Write `numpyro.sample`"),
    "param of a number": (param_number, GOOD, r"Site 'slope' is a `numpyro.param`: it has no prior"),
    "a column of outcomes": (
        one_mean,
        COLUMNS,
        r"site 'y' has shape \(3, 1\), but its distribution has shape \(3,\): they broadcast to \(3, 3\), .* Drop the "
        r"last axis of `y`, by `\[:, 0\]` or `.squeeze\(-1\)`",
    ),
    "the same, as an event": (one_event, COLUMNS, r"they broadcast to \(3, 3\)"),
    "a column of means": (
        column_of_means,
        GOOD,
        r"has shape \(3,\), but its distribution has shape \(3, 1\): .* last axis of the distribution's parameters",
    ),
    "subsampling": (subsampled, GOOD, r"Plate 'rows' subsamples 2 of 3 rows.* Leave `subsample_size` out"),
}


@pytest.mark.parametrize("case", BAD_MODELS)
def test_bad_models(case, monkeypatch):
    model, clients, message = BAD_MODELS[case]
    monkeypatch.setattr("fedbayes.fit.Run", None)  # no round is begun
    with pytest.raises(fb.ModelError, match=message):
        fit(model, clients)


def constant_for_all(y):
    mu = numpyro.sample("mu", dist.Normal(0.0, 1.0).expand([3]).to_event(1))
    numpyro.sample("sum", dist.Normal(mu, 0.1), obs=0.0)
    observe(mu.sum(), y)


def in_a_plate(y):
    mu = numpyro.sample("mu", dist.Normal(0.0, 1.0))
    with numpyro.plate("rows", len(y)):
        observe(mu, y)


def one_of_a_column(y):
    """Each value under the distribution of its own kind, by a mask over all pairs."""
    mu = numpyro.sample("mu", dist.Normal(0.0, 1.0).expand([2]).to_event(1))
    with numpyro.handlers.mask(mask=jnp.arange(2) == jnp.arange(len(y))[:, None] % 2):
        observe(mu, y[:, None])


@pytest.mark.parametrize("model", [constant_for_all, in_a_plate, one_of_a_column])
@pytest.mark.filterwarnings("ignore:The outcome of the site:UserWarning")
def test_outcomes_and_distributions_may_broadcast_where_one_has_all_axes(model):
    assert tuple(check(model, GOOD).globals.names) == ("mu",)


def test_globals_of_other_shapes_behind_a_flag():
    def model(y, size):
        observe(numpyro.sample("mu", dist.Normal(0.0, 1.0).expand([len(size)])).sum(), y)

    clients = {"a": {"y": Y3, "size": "ii"}, "b": {"y": Y3, "size": "iii"}}
    with pytest.raises(fb.ModelError, match=r"client 'b' are {'mu': \(3,\)}, those of client 'a' {'mu': \(2,\)}"):
        check(model, clients)


def test_discrete_local_without_funsor(monkeypatch):
    def model(y):
        mu = numpyro.sample("mu", dist.Normal(0.0, 1.0))
        with fb.local():
            kind = numpyro.sample("kind", dist.Bernoulli(0.5))
        observe(mu + kind, y)

    found = importlib.util.find_spec
    monkeypatch.setattr(
        importlib.util, "find_spec", lambda name, *args: None if name == "funsor" else found(name, *args)
    )
    with pytest.raises(
        fb.ModelError, match=r"Discrete latents \['kind'\] .*funsor: `pip install fedbayes\[enumerate\]`"
    ):
        check(model, GOOD)


@pytest.mark.parametrize("names", [("nu",), ("mu", "nu"), ("y",)])
def test_unknown_local_site(names):
    with pytest.raises(fb.ModelError, match=rf"`local` names the site '{names[-1]}', .* Its latents are \['mu'\]"):
        check(Counted(), GOOD, local=names)


def test_a_models_own_error_keeps_its_type_and_traceback():
    clients = {"north": {"y": Y3, "kind": "good"}, "south": {"y": Y3, "kind": "bad"}}
    with pytest.raises(
        LookupError, match=r"no such kind(.|\n)*fedbayes: raised for client 'south' in the model's trace"
    ) as info:
        fit(Counted(), clients)
    assert any(entry.name == "__call__" and "test_bad_input" in str(entry.path) for entry in info.traceback)


def test_a_model_that_looks_at_values_is_named():
    def model(y):
        observe(numpyro.sample("mu", dist.Normal(0.0, 1.0)) if y.sum() > 0 else 0.0, y)

    with pytest.raises(fb.ModelError, match=r"values of `y` of client 'a' while it is compiled \(`observe\("):
        check(model, GOOD)


def named(y, covariates, *, scale=1.0):
    observe(numpyro.sample("mu", dist.Normal(0.0, scale)) * covariates, y)


def any_arguments(y, **others):
    observe(numpyro.sample("mu", dist.Normal(0.0, 1.0)) * others["x"], y)


@pytest.mark.parametrize(
    ("model", "arguments", "words"),
    [
        (named, ("y", "Covariates"), r"takes no argument `Covariates` and needs `covariates`; it is `named\(y, covari"),
        (named, ("y", "Covariates"), r"scale=1.0\)`. Did you mean 'covariates'\?"),
        (named, ("y", "z"), r"It takes no argument `z` and needs `covariates`; it is `named\(y, covari.*\)`.\n"),
        (named, ("y",), r"It needs `covariates`; it is `named"),
        (
            named,
            ("y", "covariates", "Scale"),
            r"takes no argument `Scale`; it is `named\(.*\)`. Did you mean 'scale'\?",
        ),
        (any_arguments, ("z",), r"It needs `y`; it is `any_arguments\(y, \*\*others\)`.\n"),
    ],
)
def test_arguments_the_model_does_not_take(model, arguments, words):
    with pytest.raises(fb.ModelError, match=words + r"(.|\n)*raised for client 'a'") as info:
        check(model, {"a": dict.fromkeys(arguments, Y3)})
    assert info.value.__suppress_context__  # of Python's own words, which say less in fifty lines


def test_a_type_error_of_the_models_own_is_the_models():
    with pytest.raises(TypeError, match=r"unexpected keyword argument 'rate'(.|\n)*raised for client 'a'"):
        check(lambda y: observe(numpyro.sample("mu", dist.Normal(rate=1.0)), y), GOOD)


MESH = jax.sharding.Mesh(np.array(jax.devices("cpu")[:1]), ("clients",))
KEY = jax.random.key(0)
BAD_ARGUMENTS = {
    "method name": ({"method": "epp"}, ValueError, r"`method` is 'epp'; the methods are \[.*'ep', .*'laplace'"),
    "method object": ({"method": 3}, TypeError, r"`method` is 3; write a name"),
    "method class": ({"method": EP}, TypeError, r"`method` is .*EP.*; write"),
    "seed for key": ({"key": 0}, TypeError, r"`key` is 0; write a typed JAX key, such as `jax.random.key\(0\)`"),
    "raw key": ({"key": np.zeros(2, np.uint32)}, TypeError, r"`key` is array.*; write a typed JAX key"),
    "many keys": ({"key": KEY[None]}, TypeError, r"(?s)`key` is .*; write a typed JAX key"),
    "no rounds": ({"num_rounds": 0}, ValueError, r"`num_rounds` is 0; a fit needs at least one round"),
    "nobody": ({"participation": 0.0}, ValueError, r"`participation` is 0.0; it is the fraction .* lies in \(0, 1\]"),
    "too many": ({"participation": 1.5}, ValueError, r"`participation` is 1.5; it is the fraction"),
    "NaN clients": ({"participation": np.nan}, ValueError, r"`participation` is nan"),
    "no draws": ({"num_draws": 0}, ValueError, r"`num_draws` is 0; at least one posterior draw per chain"),
    "executor": ({"executor": "parallel"}, ValueError, r"`executor` is 'parallel'; the executors are \['batched', "),
    "executor object": (
        {"executor": 3},
        TypeError,
        r"`executor` is 3; write one of \['batched', .*or an object such as",
    ),
    "local as text": ({"local": "mu"}, TypeError, r"`local` is the text 'mu'; .* in a tuple, `local=\('mu',\)`"),
    "integers": ({"dtype": np.int32}, ValueError, r"`dtype` is int32; a model runs in float64 or float32"),
    "two executors": ({"executor": "loopback", "mesh": MESH}, ValueError, r"`mesh` shares .* `executor` is 'loopback'"),
}


@pytest.mark.parametrize("case", BAD_ARGUMENTS)
def test_bad_arguments(case):
    keywords, error, message = BAD_ARGUMENTS[case]
    model = Counted()
    with pytest.raises(error, match=message):
        fit(model, GOOD, **keywords)
    assert model.calls == 0


def test_mesh_of_two_axes():
    with pytest.raises(ValueError, match=r"`mesh` has the axes \('u', 'v'\); clients are shared out over exactly one"):
        Batched(jax.sharding.Mesh(np.array(jax.devices("cpu")[:1]).reshape(1, 1), ("u", "v")))


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"damping": 0.0}, r"`damping` is 0.0; write the step of a round, a number in \(0, 1\]"),
        ({"damping": 1.5}, r"`damping` is 1.5; write the step of a round, a number in \(0, 1\]"),
        (
            {"solver": "gibbs"},
            r"`solver` is 'gibbs'; it is one of \['auto', 'importance', 'nested', 'nuts', 'laplace', 'variational'\]",
        ),
        (
            {"init": "zero"},
            r"`init` is 'zero'; it is one of \['auto', 'laplace', 'newton', 'mode', 'prior'\]",
        ),
        ({"estimator": "mean"}, r"`estimator` is 'mean'; it is one of \['score', 'sample'\]"),
        ({"family": "banded"}, r"`family` is 'banded'; it is one of \['dense', 'diagonal'\]"),
        ({"num_samples": 100}, r"`num_samples` is 100; quasi-random draws need a power of two from 16 on"),
        ({"num_samples": 8}, r"`num_samples` is 8; quasi-random draws need a power of two from 16 on"),
        ({"num_replicates": 0}, r"`num_replicates` is 0; it is a whole number \(an `int`\), at least 1"),
        ({"tolerance": 0.0}, r"`tolerance` is 0.0; write a change in posterior sds"),
        ({"tolerance": np.nan}, r"`tolerance` is nan; write a change in posterior sds"),
    ],
)
def test_bad_options_of_ep(options, message):
    with pytest.raises(ValueError, match=message):
        EP(**options)


def test_too_few_draws_for_the_globals():
    with pytest.raises(
        ValueError, match=r"`num_samples` is 16, but 7 globals need more than 16 draws.* Write at least 64"
    ):
        EP(num_samples=16).draws_for(7)
    assert EP(num_samples=64).draws_for(7) == 64
    assert EP(num_samples=16).draws_for(6) == 16


def test_clients_from_dataframe_names_the_missing():
    frame = pd.DataFrame({"site": ["u", "v", None], "x": [1.0, 2.0, 3.0], "y": [0, 1, 0]})
    with pytest.raises(fb.ClientDataError, match=r"no column \['z', 'w'\]; its columns are \['site', 'x', 'y'\]"):
        fb.clients_from_dataframe(frame, by="site", x=["x", "z"], y="w")
    with pytest.raises(fb.ClientDataError, match=r"no column \['place'\]"):
        fb.clients_from_dataframe(frame, by="place", x="x")
    with pytest.raises(fb.ClientDataError, match=r"Column 'site' names the clients, but 1 of its values are missing"):
        fb.clients_from_dataframe(frame, by="site", x="x")
    mixed = frame.assign(site=[1, "1", 2])
    with pytest.raises(fb.ClientDataError, match=r"'1'"):  # two clients of one name would become one, and lose rows
        fb.clients_from_dataframe(mixed, by="site", x="x")


def test_unknown_client():
    with pytest.raises(KeyError, match=r"There is no client 'c'; the clients are \['a', 'b'\]"):
        check(Counted(), GOOD).client("c")
