"""What one-shot combinations and FedPA refuse, warn of, and make of clients that can't be used."""

import jax
import jax.numpy as jnp
import numpy as np
import numpyro
import numpyro.distributions as dist
import optax
import pytest

import fedbayes as fb
from fedbayes.contract.answer import Answer
from fedbayes.errors import ResultCode
from fedbayes.inference.fedpa.method import FedPA, make_clients
from fedbayes.inference.merging.answer import MergedAnswer
from fedbayes.inference.merging.method import OneShot
from fedbayes.inference.options import DENSE_LIMIT, client_weights
from fedbayes.numerics.low_rank import LowRankGaussian
from fedbayes.problem.problem import make_problem
from fedbayes.rounds.programs import forget_programs

Y3, Y5 = np.array([0.3, -1.0, 2.0]), np.array([0.1, 0.4, -0.7, 1.2, 0.9])
GOOD = {"a": {"y": Y3}, "b": {"y": Y5}}
FLAT = dist.ImproperUniform(dist.constraints.real, (), ())
COMBINATIONS = ("consensus", "gaussian_product", "laplace", "wasserstein", "density_product")
ONCE = {"num_replicates": 1, "solver": "importance", "num_samples": 64}  # of OneShot
IASG = {"solver": "iasg", "batch_size": 2}
RAW = {"init": "zero", "preconditioner": "none"}
STEPS = {**IASG, **RAW, "step_size": 0.1, "local_steps": 6, "burn_in": 2, "num_samples": 2, "num_replicates": 1}


def model(y):
    mu = numpyro.sample("mu", dist.Normal(0.0, 1.0))
    numpyro.sample("y", dist.Normal(mu, 1.0), obs=y)


def line(x, y):
    """Two globals of which the prior knows nothing."""
    mean = numpyro.sample("level", FLAT) + numpyro.sample("slope", FLAT) * x
    numpyro.sample("y", dist.Normal(mean, 1.0), obs=y)


def flat_scale(y):
    """Flat in one of two directions."""
    mu, log_tau = numpyro.sample("mu", FLAT), numpyro.sample("log_tau", dist.Normal(0.0, 1.0))
    numpyro.sample("y", dist.Normal(mu, jnp.exp(log_tau)), obs=y)


def half_cauchy(y):
    """A prior that is not Gaussian in unconstrained space."""
    tau = numpyro.sample("tau", dist.HalfCauchy(1.0))
    numpyro.sample("y", dist.Normal(0.0, tau), obs=y)


def pair(y):
    mu = numpyro.sample("mu", dist.Normal(0.0, 1.0).expand([2]).to_event(1))
    numpyro.sample("y", dist.Normal(mu.sum(), 1.0), obs=y)


def wide(y):
    """More globals than clients send matrices for."""
    mu = numpyro.sample("mu", dist.Normal(0.0, 1.0).expand([DENSE_LIMIT + 1]).to_event(1))
    numpyro.sample("y", dist.Normal(mu.mean(), 1.0), obs=y)


def many_locals(y):
    mu = numpyro.sample("mu", dist.Normal(0.0, 1.0))
    with fb.local():
        own = numpyro.sample("own", dist.Normal(mu, 1.0).expand([DENSE_LIMIT]).to_event(1))
    numpyro.sample("y", dist.Normal(own.mean(), 1.0), obs=y)


def wide_with_locals(y):
    mu = numpyro.sample("mu", dist.Normal(0.0, 1.0).expand([DENSE_LIMIT + 1]).to_event(1))
    with fb.local():
        own = numpyro.sample("own", dist.Normal(mu.mean(), 1.0))
    numpyro.sample("y", dist.Normal(own, 1.0), obs=y)


def fit(method, program=model, clients=GOOD, **keywords):
    keywords = {"key": jax.random.key(0), "num_draws": 50} | keywords
    return fb.fit_federated(program, clients, method=method, progress=False, **keywords)


def problem_of(program=model, clients=GOOD, rows=False):
    with jax.enable_x64(True):
        return make_problem(program, clients, rows=rows)


def phases(method, problem):
    """What a method makes of a problem, all of its checks included."""
    with jax.enable_x64(True):
        return method.phases(problem.roster)


# ---- options that make no sense whatever the data are


def whole(least):
    """Values that are no whole numbers of at least so much; ``None`` belongs to some options."""
    return [
        (name, value, low) for name, low in least.items() for value in (low - 1, 4.0, True, "3", np.int64(low), [low])
    ]


ONCE_LEAST = {"num_samples": 4, "num_replicates": 1}
FEDPA_LEAST = {
    "num_samples": 1,
    "fedavg_rounds": 0,
    "local_steps": 1,
    "burn_in": 0,
    "batch_size": 1,
    "max_rounds": 1,
    "num_replicates": 1,
}
WHOLE = [
    *((OneShot, *case) for case in [*whole(ONCE_LEAST), *((name, None, low) for name, low in ONCE_LEAST.items())]),
    *((FedPA, *case) for case in whole(FEDPA_LEAST)),
    *((FedPA, name, None, low) for name, low in FEDPA_LEAST.items() if name not in ("num_samples", "batch_size")),
]


@pytest.mark.parametrize(("method", "name", "value", "least"), WHOLE)
def test_whole_numbers(method, name, value, least):
    seen = repr(value).replace("(", r"\(").replace(")", r"\)").replace("[", r"\[")
    with pytest.raises(ValueError, match=rf"`{name}` is {seen}; it is a whole number \(an `int`\), at least {least}\."):
        method(**{name: value})


SHRINKAGE = "write a finite number, zero or more: zero leaves the identity"
STEP = "write a positive number, or leave it out"
TOLERANCE = "write a change in shared coordinates, such as 0.02"
START = "write 'mode', 'zero', or arrays by global site, in unconstrained space"
WEIGHTS = "write 'rows', 'equal', or a mapping from each client's name to its number"
OPTIMISER = "write an optax optimiser, such as `optax.adam\\(0.05\\)`"
UNKNOWN_CURVATURE = r"without `init='mode'`: nothing is known of the curvature there"
BAD_OPTIONS = [
    (
        OneShot,
        {"combine": "average"},
        r"`combine` is 'average'; it is one of \['consensus', 'gaussian_product', 'laplace', 'wasserstein', 'density",
    ),
    (OneShot, {"combine": None}, r"`combine` is None; it is one of \['consensus'"),
    (OneShot, {"solver": "gibbs"}, r"`solver` is 'gibbs'; it is one of \['auto', 'importance', 'nuts'\]"),
    (OneShot, {"estimator": None}, r"`estimator` is None; it is one of \['score', 'sample', 'shrinkage'\]"),
    (OneShot, {"prior": "flat"}, r"`prior` is 'flat'; it is one of \[None, 'split', 'whole'\]"),
    (OneShot, {"check": "yes"}, r"`check` is 'yes'; it is one of \[True, False\]"),
    *(
        (
            OneShot,
            {"prior": "whole", "combine": combine},
            rf"`prior` is 'whole' with `combine='{combine}'`, from which .* can't be divided out. Write "
            r"`prior='split'`, or one of \['gaussian_product', 'laplace'\]",
        )
        for combine in ("consensus", "wasserstein", "density_product")
    ),
    (
        FedPA,
        {"solver": "hmc"},
        r"`solver` is 'hmc'; it is one of \['auto', 'importance', 'nuts', 'laplace', 'iasg', ",
    ),
    (FedPA, {"estimator": "dense"}, r"`estimator` is 'dense'; it is one of \[None, 'score', 'sample', 'shrinkage'\]"),
    (FedPA, {"preconditioner": "full"}, r"`preconditioner` is 'full'; it is one of \['dense', 'diagonal', 'none'\]"),
    (FedPA, {"check": None}, r"`check` is None; it is one of \[True, False\]"),
    *((FedPA, {"shrinkage": value}, rf"`shrinkage` is {value}; {SHRINKAGE}") for value in (-0.1, np.nan, np.inf, None)),
    (FedPA, {"shrinkage": "0.01"}, rf"`shrinkage` is '0.01'; {SHRINKAGE}"),
    *((FedPA, {"step_size": value}, rf"`step_size` is {value}; {STEP}") for value in (0.0, -0.1, np.nan, np.inf, True)),
    (FedPA, {"step_size": "decaying"}, rf"`step_size` is 'decaying'; {STEP}"),
    *((FedPA, {"tolerance": value}, rf"`tolerance` is {value}; {TOLERANCE}") for value in (0.0, -1.0, np.nan, None)),
    (FedPA, {"weights": "size"}, rf"`weights` is 'size'; {WEIGHTS}"),
    (FedPA, {"weights": [0.5, 0.5]}, rf"`weights` is \[0.5, 0.5\]; {WEIGHTS}"),
    (FedPA, {"weights": None}, rf"`weights` is None; {WEIGHTS}"),
    (FedPA, {"init": "prior"}, rf"`init` is 'prior'; {START}"),
    (FedPA, {"init": None}, rf"`init` is None; {START}"),
    (FedPA, {"init": np.zeros(2)}, rf"`init` is array\(\[0., 0.\]\); {START}"),
    *(
        (
            FedPA,
            {"init": init, "preconditioner": scaled},
            rf"`preconditioner` is '{scaled}' {UNKNOWN_CURVATURE}. Write `preconditioner='none'`",
        )
        for init, scaled in (("zero", "dense"), ("zero", "diagonal"), ({"mu": 0.0}, "dense"))
    ),
    (
        FedPA,
        {**IASG, "local_steps": 20, "burn_in": 20},
        r"`local_steps` is 20 and `burn_in` throws away 20: 0 steps are left for 20 samples, .* `local_steps=220` or m",
    ),
    (
        FedPA,
        {"solver": "sgld", "local_steps": 10, "burn_in": 30, "num_samples": 1},
        r"`local_steps` is 10 and `burn_in` throws away 30: 0 steps are left for 1 samples, .* `local_steps=40` or m",
    ),
    (
        FedPA,
        {**IASG, "num_samples": 201},
        r"`local_steps` is 220 and `burn_in` throws away 20: 200 steps are left for 201 .* `local_steps=2030` or more",
    ),
    (
        FedPA,
        {"solver": "iasg"},
        r"`batch_size` is None with `solver='iasg'`, whose samples differ .* Write `batch_size=...`, about a tenth",
    ),
    *(
        (
            FedPA,
            {"solver": solver, "batch_size": 2, "estimator": "score"},
            rf"`estimator` is 'score' with `solver='{solver}'`, whose samples are no draws .* 'shrinkage' or",
        )
        for solver in ("iasg", "sgld")
    ),
    (
        FedPA,
        {**IASG, **RAW},
        rf"`step_size` is None {UNKNOWN_CURVATURE}. Write a number, such as 0.1 for the gradient of the mean loss",
    ),
    *(
        (
            FedPA,
            {"solver": solver, name: 3},
            rf"`{name}` is 3 with `solver='{solver}'`, which takes no gradient steps. Write `solver='iasg'`, or",
        )
        for solver, name in (("auto", "batch_size"), ("laplace", "fedavg_rounds"), ("nuts", "fedavg_rounds"))
    ),
    *(
        (
            FedPA,
            {"solver": "laplace", "estimator": covariance},
            rf"`estimator` is '{covariance}' with `solver='laplace'`, which draws nothing: .* Leave it out",
        )
        for covariance in ("sample", "shrinkage")
    ),
]


@pytest.mark.parametrize(("method", "options", "message"), BAD_OPTIONS)
def test_options(method, options, message):
    with pytest.raises(ValueError, match=message):
        method(**options)


@pytest.mark.parametrize("wrong", [optax.adam, "adam", 0.1])
def test_what_is_no_optimiser(wrong):
    with pytest.raises(TypeError, match=rf"`server_optimizer` is .*; {OPTIMISER}"):
        FedPA(server_optimizer=wrong)


@pytest.mark.parametrize(("method", "name"), [(OneShot, "num_draws"), (FedPA, "num_draws"), (FedPA, "momentum")])
def test_options_that_there_are_not(method, name):
    with pytest.raises(TypeError, match=rf"unexpected keyword argument '{name}'"):
        method(**{name: 3})


@pytest.mark.parametrize("method", [OneShot, FedPA])
def test_a_method_as_a_class(method):
    with pytest.raises(
        TypeError, match=rf"`method` is <class .*; write a name, .* `fedbayes.{method.__name__}\(...\)`"
    ):
        fit(method)


@pytest.mark.parametrize(
    ("method", "options"),
    [
        (OneShot, {"num_samples": 4, "num_replicates": 1}),
        (OneShot, {"prior": "whole", "combine": "laplace"}),
        (OneShot, {"prior": "whole", "combine": "gaussian_product"}),
        (FedPA, {"num_samples": 1}),
        (FedPA, {"shrinkage": 0.0}),
        (FedPA, {"shrinkage": 1}),
        (FedPA, {"step_size": np.float64(0.1)}),
        (FedPA, {"solver": "sgld", "batch_size": None}),
        (FedPA, {"solver": "iasg", "num_samples": 1}),  # FedAvg: its only sample needs no noise
        (FedPA, {**IASG, "local_steps": 40, "burn_in": 20}),
        (FedPA, {"solver": "laplace", **RAW}),
        (FedPA, {"solver": "laplace", "estimator": "score"}),
        (FedPA, {"server_optimizer": optax.adam(0.1)}),
    ],
)
def test_options_at_the_border_are_taken(method, options):
    made = method(**options)
    assert {name: getattr(made, name) for name in options} == options


# ---- options that don't fit the clients or the globals

WHOLE_OF_NO_GAUSSIAN = (
    r"`prior` is 'whole', but the prior of the globals is not Gaussian in unconstrained space, .* Write `prior='split'`"
)
SITES = r"`init` has the sites {}; the globals are \['mu'\]. Give each of them an array"
ONE, TWO = (rf"write finite numbers of shape {shape}, in unconstrained space" for shape in (r"\(\)", r"\(2,\)"))
HALVES = {"a": 0.5, "b": 0.5}
MISFITS = {
    "whole, not Gaussian": (OneShot(combine="laplace", prior="whole"), half_cauchy, ValueError, WHOLE_OF_NO_GAUSSIAN),
    "whole, not Gaussian, product": (
        OneShot(combine="gaussian_product", prior="whole"),
        half_cauchy,
        ValueError,
        WHOLE_OF_NO_GAUSSIAN,
    ),
    "weights: someone missing": (
        FedPA(weights={"a": 1.0}),
        model,
        ValueError,
        r"`weights` names the clients \['a'\]; the clients are \['a', 'b'\]. Give each of them a number",
    ),
    "weights: someone else": (
        FedPA(weights=HALVES | {3: 0.2}),
        model,
        ValueError,
        r"`weights` names the clients \['3', 'a', 'b'\]; the clients are \['a', 'b'\]",
    ),
    "weights: sum": (
        FedPA(weights={"a": 0.5, "b": 0.4}),
        model,
        ValueError,
        r"`weights` sum to 0.9; they must sum to 1: divide them by their sum",
    ),
    **{
        f"weights: {value}": (
            FedPA(weights={"a": 1.0, "b": value}),
            model,
            ValueError,
            rf"`weights` of client 'b' is {value!r}; write a positive number",
        )
        for value in (-0.5, 0.0, float("nan"), float("inf"), "x", None, True)
    },
    "batch larger than a client": (
        FedPA(solver="sgld", batch_size=4),
        model,
        fb.ClientDataError,
        r"Client 'a' has 3 rows, but `batch_size` is 4. Write 3 or less",
    ),
    "batch larger than a client, iasg": (
        FedPA(solver="iasg", batch_size=4),
        model,
        fb.ClientDataError,
        r"Client 'a' has 3 rows, but `batch_size` is 4. Write 3 or less",
    ),
    "batch without noise": (
        FedPA(solver="iasg", batch_size=3),
        model,
        fb.ClientDataError,
        r"`batch_size` is 3, all rows of client 'a': its gradients have no noise to average. Write a smaller one",
    ),
    "init: other sites": (
        FedPA(**RAW | {"init": {"nu": 0.0, "eta": 1.0}}, check=False),
        model,
        ValueError,
        SITES.format(r"\['eta', 'nu'\]"),
    ),
    "init: no sites": (FedPA(**RAW | {"init": {}}), model, ValueError, SITES.format(r"\[\]")),
    "init: shape": (
        FedPA(**RAW | {"init": {"mu": np.zeros(3)}}),
        model,
        ValueError,
        rf"`init` of 'mu' has shape \(3,\); {ONE}",
    ),
    "init: shape of many": (
        FedPA(**RAW | {"init": {"mu": 0.0}}),
        pair,
        ValueError,
        rf"`init` of 'mu' has shape \(\); {TWO}",
    ),
    "init: NaN": (
        FedPA(**RAW | {"init": {"mu": [0.0, np.nan]}}),
        pair,
        ValueError,
        rf"`init` of 'mu' is \[0.0, nan\]; {TWO}",
    ),
    "init: text": (
        FedPA(**RAW | {"init": {"mu": "zero"}}),
        model,
        ValueError,
        rf"`init` of 'mu' is 'zero'; {ONE}",
    ),
    "init: ragged": (
        FedPA(**RAW | {"init": {"mu": [[0.0], [1.0, 2.0]]}}),
        pair,
        ValueError,
        rf"`init` of 'mu' is \[\[0.0\], \[1.0, 2.0\]\]; {TWO}",
    ),
}


@pytest.mark.parametrize("case", MISFITS)
def test_options_that_do_not_fit_the_problem(case, monkeypatch):
    method, program, error, message = MISFITS[case]
    monkeypatch.setattr("fedbayes.rounds.loop.Run.round", None)  # no round is begun
    with pytest.raises(error, match=message):
        fit(method, program)


def test_rows_that_are_no_product_have_no_batches():
    def latent_per_row(y):
        mu = numpyro.sample("mu", dist.Normal(0.0, 1.0))
        numpyro.sample("y", dist.Normal(mu, 1.0).expand([len(y)]).to_event(1), obs=y)

    with pytest.raises(
        fb.ModelError, match=r"factor of client 'a' is not a product over its rows.* Leave out `batch_s"
    ):
        fit(FedPA(**IASG), latent_per_row)


FEW_ROWS = {"a": {"y": Y3, "x": Y3}, "b": {"y": Y5[:1], "x": Y5[:1]}, "c": {"y": Y5[1:2], "x": Y5[:1]}}
FEWER = (
    r"prior is flat in 2 directions, but 2 of the 3 clients have fewer rows than that, 'b' 1: their own posteriors are "
    r"not proper. Give the globals proper priors, or use `method='ep'`"
)


@pytest.mark.parametrize(
    "method",
    [*(OneShot(combine=combine) for combine in COMBINATIONS), FedPA(), FedPA(solver="sgld")],
    ids=[*COMBINATIONS, "fedpa", "fedpa-sgld"],
)
def test_fewer_rows_than_flat_directions(method):
    with pytest.raises(fb.ClientDataError, match=FEWER):
        phases(method, problem_of(line, FEW_ROWS))


def test_as_many_rows_as_flat_directions_are_taken():
    clients = {"a": {"y": Y3}, "b": {"y": Y5[:1]}}
    assert phases(OneShot(combine="laplace"), problem_of(flat_scale, clients))


# ---- too many latents

LATENTS = r"A client has {} latents, more than the 512 for which matrices are sent or factorised. "
INSTEAD = r"Write `FedPA\(solver='iasg', batch_size=..., init='zero', preconditioner='none', step_size=...\)`"
TOO_MANY = {
    "auto": ({}, wide, LATENTS.format(513) + INSTEAD),
    "laplace from zero": ({"solver": "laplace", **RAW}, wide, LATENTS.format(513)),
    "iasg from the mode": ({"solver": "iasg", "batch_size": 2}, wide, LATENTS.format(513)),
    "iasg from the mode, raw": (
        {"solver": "iasg", "batch_size": 2, "preconditioner": "none"},
        wide,
        LATENTS.format(513),
    ),
    "inverse of the samples' covariance": ({**STEPS, "estimator": "sample"}, wide, LATENTS.format(513)),
    "locals": ({}, many_locals, LATENTS.format(513) + INSTEAD),
    "locals beside too many globals": (
        STEPS,
        wide_with_locals,
        r"model has 513 globals and local latents: above 512 globals local latents can't be integrated out",
    ),
}


@pytest.fixture(scope="module")
def large():
    """The problems with many latents, which take a second each."""
    return {program: problem_of(program, rows=True) for program in (wide, many_locals, wide_with_locals)}


@pytest.mark.parametrize("case", TOO_MANY)
def test_too_many_latents(case, large):
    options, program, message = TOO_MANY[case]
    with pytest.raises(ValueError, match=message):
        phases(FedPA(**options), large[program])


def test_many_globals_that_are_taken(large):
    assert [phase.algorithm.name for phase in phases(FedPA(**STEPS), large[wide])] == ["FedPA", "merge"]


# ---- too few samples

NEEDED = (
    r"`num_samples` is {}, but the dense precision of {} globals by estimator='{}' needs {} draws: using "
    r"estimator='shrinkage'"
)
FEW = {
    "score": (
        OneShot(**ONCE | {"num_samples": 4}, combine="gaussian_product", check=False),
        NEEDED.format(4, 1, "score", 5),
    ),
    "sample": (
        OneShot(**ONCE | {"num_samples": 4}, combine="gaussian_product", estimator="sample"),
        NEEDED.format(4, 1, "sample", 5),
    ),
    "fedpa": (
        FedPA(solver="importance", num_samples=4, num_replicates=1, check=False),
        NEEDED.format(4, 1, "score", 5),
    ),
    "fedpa, one": (FedPA(solver="importance", num_samples=1, num_replicates=1), NEEDED.format(1, 1, "score", 5)),
    "fedpa, sample": (
        FedPA(solver="importance", num_samples=3, estimator="sample", num_replicates=1),
        NEEDED.format(3, 1, "sample", 5),
    ),
    "fedpa, iasg": (FedPA(**STEPS, estimator="sample", check=False), NEEDED.format(2, 1, "sample", 5)),
    "fedpa, sgld, one": (
        FedPA(**STEPS | {"solver": "sgld", "num_samples": 1}, estimator="sample"),
        NEEDED.format(1, 1, "sample", 5),
    ),
}


@pytest.mark.parametrize("case", FEW)
def test_too_few_samples_are_said(case):
    method, message = FEW[case]
    with pytest.warns(fb.MergeWarning, match=message + r".*Raise `num_samples`, or ask for 'shrinkage' yourself"):
        assert phases(method, problem_of(rows=method.needs_rows))


@pytest.mark.parametrize("case", ["score", "fedpa", "fedpa, iasg"])
@pytest.mark.filterwarnings("ignore::fedbayes.NotConvergedWarning")  # so few draws are far off
def test_too_few_samples_are_shrunk(case):
    """The posterior is that of shrinkage asked for: proper, and no other."""
    method, _ = FEW[case]
    with pytest.warns(fb.MergeWarning, match="using estimator='shrinkage'"):
        found = fit(method)
    assert np.all(found.rounds["code"] == ResultCode.OK)
    mean, covariance = found.moments()
    assert np.all(np.isfinite(mean))
    assert 0.0 < covariance.item() < 1.0  # less than the prior's
    if case != "fedpa":  # whose draws shrink to the Laplace approximation's covariance, not to the paper's identity
        asked = fit(type(method)(**vars(method) | {"estimator": "shrinkage"}))
        for ours, theirs in zip(found.moments(), asked.moments(), strict=True):
            np.testing.assert_array_equal(ours, theirs)


@pytest.mark.parametrize(
    "method",
    [
        OneShot(**ONCE | {"num_samples": 5}),
        OneShot(**ONCE | {"num_samples": 4}, estimator="shrinkage"),
        OneShot(combine="laplace", num_samples=4),
        FedPA(solver="importance", num_samples=5),
        FedPA(solver="laplace", num_samples=1),
        FedPA(**STEPS),
    ],
    ids=["enough", "asked for", "laplace", "fedpa", "fedpa-laplace", "fedpa-iasg"],
)
def test_enough_samples_need_no_warning(method):
    assert phases(method, problem_of(rows=method.needs_rows))  # warnings are errors


# ---- clients that can't be used


def spread(y, variance):
    mu = numpyro.sample("mu", dist.Normal(0.0, 2.0))
    numpyro.sample("y", dist.Normal(mu, jnp.sqrt(variance)), obs=y)


BROKEN = {name: {"y": y, "variance": np.ones(len(y))} for name, y in (("a", Y3), ("b", Y5))} | {
    "west": {"y": Y3, "variance": -np.ones(3)}  # the root of a negative number: the factor is NaN everywhere
}
OTHERS = (3.2 / 8.25, 1.0 / 8.25)  # mean and variance given a and b, and the whole prior
LACKS = r"The posterior lacks the data of clients west. Client 'west': {}"
NOT_FINITE = LACKS.format("message not finite: dropped")
MERGING = {combine: OneShot(**ONCE, combine=combine, check=False) for combine in COMBINATIONS} | {
    "laplace": OneShot(combine="laplace", num_replicates=1),  # with its check
    "fedpa": FedPA(solver="laplace", num_replicates=1, check=False),
}
RANDOM = ("consensus", "density_product")  # their variances are chi-square: 2.6e-5 beyond five errors of 64 draws


@pytest.mark.parametrize(
    "name",
    [
        pytest.param(name, marks=[pytest.mark.statistical(key=0, numbers=2, alarm=3e-5)] if name in RANDOM else [])
        for name in MERGING
    ],
)
def test_a_broken_client_costs_its_own_data_alone(name):
    with pytest.warns(fb.NotConvergedWarning, match=NOT_FINITE):
        found = fit(MERGING[name], spread, BROKEN)
    codes = found.rounds["code"].isel(replicate=0)
    assert (codes.sel(client="west") == ResultCode.NOT_FINITE).all()
    assert (codes.sel(client=["a", "b"]) == ResultCode.OK).all()
    assert not found.converged
    (mean,), variance = found.moments()
    if name in RANDOM:  # 64 draws of the Gaussian product: five standard errors
        assert abs(mean.item() - OTHERS[0]) < 5.0 * np.sqrt(OTHERS[1] / 64)
        assert abs(variance.item() / OTHERS[1] - 1.0) < 5.0 * np.sqrt(2.0 / 64)
    elif name == "wasserstein":  # nobody has the share of the prior of west, 3 rows of 11
        precision = 8.0 + 0.25 * 8.0 / 11.0
        np.testing.assert_allclose([mean.item(), variance.item()], [3.2 / precision, 1.0 / precision], rtol=1e-6)
    else:
        np.testing.assert_allclose([mean.item(), variance.item()], OTHERS, rtol=1e-6)
    assert np.all(np.isfinite(found.idata.posterior["mu"]))


def jumping(y, jump):
    """Where a likelihood jumps neither gradients nor curvatures see it: of eight draws one or two have all weight."""
    mu = numpyro.sample("mu", dist.Normal(0.0, 2.0))
    numpyro.sample("y", dist.Normal(mu, 1.0), obs=y)
    numpyro.factor("jumps", jump.sum() * jnp.floor(3.0 * mu))


JUMPS = {
    name: {"y": y, "jump": np.full(len(y), high)}
    for name, y, high in (("a", Y3, 0.0), ("b", Y5, 0.0), ("west", Y3, 10.0))
}
TOO_THIN = {"estimator": "sample", "solver": "importance", "num_samples": 5, "num_replicates": 1}


@pytest.mark.parametrize(
    "method",
    [
        pytest.param(OneShot(combine="gaussian_product", **TOO_THIN), id="one-shot"),
        pytest.param(FedPA(**TOO_THIN, **RAW, max_rounds=1), id="fedpa"),
    ],
)
def test_a_precision_that_is_not_positive(method):
    """The client is dropped and named; the others' Gaussians and the whole prior are what is left."""
    with pytest.warns(
        fb.NotConvergedWarning,
        match=LACKS.format(
            r".*not proper: dropped.* The merge is off: by importance weights the error of its means is "
        ),
    ):
        found = fit(method, jumping, JUMPS)
    merge = found.rounds.isel(round=found.rounds["phase"].values != "check")
    codes = merge["code"].isel(replicate=0, round=-1)
    assert codes.sel(client="west") == ResultCode.IMPROPER
    assert (codes.sel(client=["a", "b"]) == ResultCode.OK).all()
    state = found.fitted.run.state
    assert state.heard.tolist() == [[1.0, 1.0, 0.0]]
    expected = state.clients.precision[0, :2].sum() + 0.25 / 3.0  # west's share of the prior, 1 / sd^2 = 1/4
    np.testing.assert_allclose(found.posterior.precision.item(), expected, rtol=1e-12)
    assert np.all(np.isfinite(found.idata.posterior["mu"]))


def test_nobody_usable():
    message = (
        r"Round 1 of phase 'laplace': no client's message could be used.*'west': 'message not finite.*proper priors"
    )
    clients = {"west": BROKEN["west"]}

    def flat(y, variance):
        numpyro.sample("y", dist.Normal(numpyro.sample("mu", FLAT), jnp.sqrt(variance)), obs=y)

    with pytest.raises(fb.FederatedError, match=message):
        fit(OneShot(combine="laplace"), flat, clients)


def test_rounds_that_end_far_from_the_merged_mean():
    slow = FedPA(solver="laplace", **RAW | {"init": {"mu": 3.0}}, server_optimizer=optax.sgd(1e-3), num_replicates=1)
    message = (
        r"The rounds ended 7\.\d posterior sds from the merged mean: raise `num_rounds`, take more samples, or give "
        r"the server smaller steps, `FedPA\(server_optimizer=optax.sgd\(0.3\)\)`"
    )
    with pytest.warns(fb.NotConvergedWarning, match=message):
        found = fit(slow, num_rounds=2)
    assert found.rounds["phase"].values.tolist() == ["FedPA", "FedPA", "merge", "check"]
    assert "lacks" not in found.trouble()


def test_a_merge_that_is_off_says_by_how_much():
    """Laplace approximations of skewed clients: the check sees it, and says of whom."""

    def counts(y):
        log_rate = numpyro.sample("log_rate", dist.Normal(0.0, 2.0))
        numpyro.sample("y", dist.Poisson(jnp.exp(log_rate)), obs=y)

    clients = {"a": {"y": np.array([0, 0])}, "b": {"y": np.array([2, 3, 1])}}
    message = r"The merge is off: .* error of its means is 0\.\d+ posterior sds \(root mean square, k-hat 0\.\d+\).*"
    with pytest.warns(fb.NotConvergedWarning, match=message + r"client 'a'.*use `method='ep'`"):
        found = fit(OneShot(combine="laplace", num_replicates=1), counts, clients)
    assert found.rounds["merge_error"].values[-1].item() > 0.1


# ---- who takes part


def test_participation_is_not_for_a_single_round():
    """The merge and its check ask everybody, whatever fraction takes part in rounds."""
    once = OneShot(combine="laplace", num_replicates=1)
    some, everybody = fit(once, participation=0.5), fit(once)
    assert some.rounds["active"].all()
    for ours, theirs in zip(some.moments(), everybody.moments(), strict=True):
        np.testing.assert_array_equal(ours, theirs)


@pytest.mark.parametrize("everybody", [False, True], ids=["nobody", "one by one"])
def test_participation_is_for_fedpas_own_rounds(everybody):
    turns = lambda r, key: np.arange(2) == (r % 2 if everybody else -1)  # noqa: E731
    found = fit(FedPA(solver="laplace", num_replicates=1), participation=turns, num_rounds=4)
    main = found.rounds["phase"].values == "FedPA"
    assert found.rounds["active"].values[main].sum() == (4 if everybody else 0)
    assert found.rounds["active"].values[~main].all()
    np.testing.assert_allclose(found.moments()[0], 3.2 / 9.0, rtol=1e-6)


# ---- posteriors of low rank


@pytest.fixture(scope="module")
def low_rank(limit_dense):
    """A posterior without a matrix, as above the limit, of two globals."""
    with pytest.MonkeyPatch.context() as patched:
        limit_dense(patched, 1)
        found = fit(FedPA(**STEPS), pair)
    forget_programs()
    return found


@pytest.fixture
def _low_limit(monkeypatch, limit_dense):
    limit_dense(monkeypatch, 1)


REFUSED = {
    "client_posterior": lambda found: found.client_posterior("a"),
    "adapt": lambda found: found.adapt({"y": Y3}),
}


@pytest.mark.parametrize("name", REFUSED)
def test_what_needs_a_matrix(name, low_rank):
    message = (
        rf"`fit.{name}` needs the precision of all globals as a matrix, which this posterior does not have.* `fit.id"
    )
    with pytest.raises(ValueError, match=message):
        REFUSED[name](low_rank)


@pytest.mark.usefixtures("_low_limit")
def test_what_a_low_rank_posterior_can(low_rank, tmp_path):
    assert isinstance(low_rank.posterior, LowRankGaussian)
    with jax.enable_x64(True):
        assert jax.vmap(LowRankGaussian.is_proper)(low_rank.posterior).all()
    assert np.isnan(low_rank.log_evidence).all()
    assert np.all(np.isfinite(low_rank.idata.posterior["mu"]))
    low_rank.save(tmp_path)
    again = fb.load_fit(tmp_path, pair, GOOD)
    assert again.idata.posterior.equals(low_rank.idata.posterior)


@pytest.mark.usefixtures("_low_limit")
def test_nobody_usable_of_low_rank():
    diverging = FedPA(**STEPS | {"step_size": 1e200, "max_rounds": 1})
    with pytest.raises(
        fb.FederatedError, match=r"of phase 'merge': no client's message could be used.*'a': 'message no"
    ):
        fit(diverging, pair)


@pytest.mark.usefixtures("_low_limit")
@pytest.mark.parametrize("solver", ["auto", "importance", "nuts", "laplace"])
def test_a_solver_without_factors(solver):
    """Its clients can't merge without a matrix: refused before anything is made of them."""
    roster, method = problem_of(pair).roster, FedPA(solver=solver, **RAW)
    with jax.enable_x64(True):
        assert make_clients(method, roster, client_weights("equal", roster)).factor is None
        with pytest.raises(ValueError, match=r"A client has 2 latents, more than the 1 for which matrices are sent"):
            method.phases(roster)


def test_an_answer_without_a_matrix_has_every_part(low_rank):
    """Nothing about a posterior of low rank has to be asked of the algorithm: its answer is whole."""
    answer = low_rank.fitted.answer
    assert type(answer) is MergedAnswer
    assert {name for name in vars(Answer) if not name.startswith("_")} <= {*dir(answer)}
    assert answer.locals_from.others is None
    assert np.isnan(answer.log_evidence()).all()
    with jax.enable_x64(True):
        draws = answer.draws(jax.random.key(0), 3)
        assert draws.shape == (1, 3, 2)
        assert np.all(np.isfinite(answer.sample_stats(draws, np.zeros((1, 3, 2)))["lp"]))


# ---- saving


SAVED = {
    "consensus": OneShot(combine="consensus", num_samples=64, num_replicates=2, solver="importance"),
    "fedpa": FedPA(
        solver="laplace", num_replicates=2, preconditioner="none", init={"mu": jnp.ones(2)}, weights=HALVES,
        check=False,
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", SAVED)
@pytest.mark.filterwarnings("ignore::fedbayes.NotConvergedWarning")  # an answer that is off is read as it was, too
def test_saved_and_loaded(name, tmp_path):
    found = fit(SAVED[name], pair)
    found.save(tmp_path)
    again = fb.load_fit(tmp_path, pair, GOOD)
    for group in ("posterior", "sample_stats", "log_likelihood"):
        ours, theirs = (dict(idata[group].data_vars) for idata in (again.idata, found.idata))
        assert ours.keys() == theirs.keys()
        for variable in ours:
            np.testing.assert_array_equal(ours[variable], theirs[variable])
    assert again.rounds.equals(found.rounds)
    assert repr(again) == repr(found)


@pytest.mark.filterwarnings("ignore::fedbayes.NotConvergedWarning")  # after one round
def test_an_optimiser_is_not_saved(tmp_path):
    optimizer = optax.chain(optax.clip(1.0), optax.sgd(0.5))
    method = FedPA(solver="laplace", num_replicates=1, server_optimizer=optimizer, check=False, **RAW)
    found = fit(method, num_rounds=1)
    with pytest.raises(
        ValueError, match=r"`server_optimizer` of the method is or holds a function, which can't be saved. .*to_netcdf"
    ):
        found.save(tmp_path / "fit")
    assert not (tmp_path / "fit").exists()
