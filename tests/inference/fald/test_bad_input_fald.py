"""What FA-LD refuses: options before any work starts, chains that can't start, and chains that have diverged."""

import jax
import jax.numpy as jnp
import numpy as np
import numpyro
import numpyro.distributions as dist
import pytest

import fedbayes as fb
from fedbayes.formula.families.cox import CoxPartial
from fedbayes.inference.fald.method import FALD
from fedbayes.problem.problem import make_problem
from fedbayes.rounds.loop import Run

Y3, Y5 = np.array([0.3, -1.0, 2.0]), np.array([0.1, 0.4, -0.7, 1.2, 0.9])
GOOD = {"a": {"y": Y3}, "b": {"y": Y5}}
FEW = {"num_chains": 2, "num_warmup": 0, "thinning": 1}
SCHEME_I, SCHEME_II = ({"scheme": scheme, "num_active": 1} for scheme in ("with_replacement", "without_replacement"))


def model(y):
    mu = numpyro.sample("mu", dist.Normal(0.0, 1.0))
    numpyro.sample("y", dist.Normal(mu, 1.0), obs=y)


def local_mean(y):
    mu = numpyro.sample("mu", dist.Normal(0.0, 1.0))
    with fb.local():
        own = numpyro.sample("own", dist.Normal(mu, 1.0))
    numpyro.sample("y", dist.Normal(own, 1.0), obs=y)


def latent_per_row(y):
    mu = numpyro.sample("mu", dist.Normal(0.0, 1.0))
    with fb.local():
        rows = numpyro.sample("rows", dist.Normal(mu, 1.0).expand([len(y)]))
    numpyro.sample("y", dist.Normal(rows, 1.0), obs=y)


def partial_likelihood(y):
    slope = numpyro.sample("slope", dist.Normal(0.0, 1.0))
    numpyro.sample("y", CoxPartial(slope * jnp.arange(1.0, len(y) + 1.0)), obs=jnp.exp(y))


def below_edge(y, edge):
    """Not defined where ``mu`` exceeds the client's edge."""
    mu = numpyro.sample("mu", dist.Normal(0.0, 1.0))
    numpyro.sample("y", dist.Normal(mu, 1.0), obs=y)
    numpyro.factor("defined", 0.0 * jnp.sum(jnp.sqrt(edge - mu)))


def only_the_sum(y):
    """The data know the sum of two globals, the prior nothing."""
    flat = dist.ImproperUniform(dist.constraints.real, (), ())
    numpyro.sample("y", dist.Normal(numpyro.sample("mu", flat) + numpyro.sample("nu", flat), 1.0), obs=y)


def only_the_sum_and_a_little(y):
    """The same under priors that say next to nothing."""
    wide = dist.Normal(0.0, 1e5)
    numpyro.sample("y", dist.Normal(numpyro.sample("mu", wide) + numpyro.sample("nu", wide), 1.0), obs=y)


def quartic(y):
    """Curvature that grows away from the mode."""
    mu = numpyro.sample("mu", dist.Normal(0.0, 1.0))
    numpyro.factor("wall", -jnp.sum(y**2) * mu**4)
    numpyro.sample("y", dist.Normal(mu, 1.0), obs=y)


def fit(method, program=model, clients=GOOD, **keywords):
    keywords = {"key": jax.random.key(0), "num_draws": 200} | keywords
    return fb.fit_federated(program, clients, method=method, progress=False, **keywords)


WHOLE = [
    (name, value, least)
    for name, least in (
        [(name, 1) for name in ("local_steps", "num_active", "batch_size", "refresh", "thinning", "num_chains")]
        + [("max_rounds", 1), ("num_warmup", 0)]
    )
    for value in (least - 1, 2.0, True, "3", np.int64(3))
]


@pytest.mark.parametrize(
    ("name", "value", "least"), [*WHOLE, *[(name, None, 1) for name in ("num_chains", "max_rounds")]]
)
def test_whole_numbers(name, value, least):
    seen = {np.int64: r"np.int64\(3\)", str: "'3'"}.get(type(value), str(value))
    with pytest.raises(ValueError, match=rf"`{name}` is {seen}; it is a whole number \(an `int`\), at least {least}"):
        FALD(**{name: value})


NUMBER = r"write a number \(an `int` or `float`\), 'decaying', a function of the local iteration, or leave it out"
IN_UNIT = r"write a number in \[0, 1\]: 1 shares all noise, 0 none"
TEMPERATURE = r"write a finite number, zero or more: 1 is the posterior, 0 federated averaging"
BAD_OPTIONS = [
    ({"step_size": 0.0}, r"`step_size` is 0.0; a Langevin step is positive and finite"),
    ({"step_size": -0.1}, r"`step_size` is -0.1; a Langevin step is positive and finite"),
    ({"step_size": np.inf}, r"`step_size` is inf; a Langevin step is positive"),
    ({"step_size": np.nan}, r"`step_size` is nan; a Langevin step is positive"),
    ({"step_size": "fast"}, rf"`step_size` is 'fast'; {NUMBER}"),
    ({"step_size": True}, rf"`step_size` is True; {NUMBER}"),
    ({"step_size": [0.1]}, rf"`step_size` is \[0.1\]; {NUMBER}"),
    ({"step_size": np.float32(0.1)}, rf"`step_size` is np.float32\(0.1\); {NUMBER}"),  # else it would be overlooked
    (
        {"init": "zero"},
        r"`step_size` is None with `init='zero'`: nothing is known .* Write a number, such as 0.1 / n",
    ),
    ({"init": "zero", "step_size": "decaying"}, r"`step_size` is 'decaying' with `init='zero'`"),
    (
        {"init": "zero", "step_size": 0.01, "control_variate": True},
        r"`control_variate=True` with `init='zero'` anchors .* Write `init='mode'`, `refresh=1`, or leave it out",
    ),
    ({"noise_correlation": -0.1}, rf"`noise_correlation` is -0.1; {IN_UNIT}"),
    ({"noise_correlation": 1.1}, rf"`noise_correlation` is 1.1; {IN_UNIT}"),
    ({"noise_correlation": np.nan}, rf"`noise_correlation` is nan; {IN_UNIT}"),
    ({"noise_correlation": "all"}, rf"`noise_correlation` is 'all'; {IN_UNIT}"),
    ({"noise_correlation": None}, rf"`noise_correlation` is None; {IN_UNIT}"),
    ({"noise_correlation": True}, rf"`noise_correlation` is True; {IN_UNIT}"),
    ({"temperature": -1.0}, rf"`temperature` is -1.0; {TEMPERATURE}"),
    ({"temperature": np.nan}, rf"`temperature` is nan; {TEMPERATURE}"),
    ({"temperature": np.inf}, rf"`temperature` is inf; {TEMPERATURE}"),
    ({"max_bias": 0.0}, r"`max_bias` is 0.0; write a positive number, such as 0.02"),
    ({"max_bias": -0.1}, r"`max_bias` is -0.1; write a positive number"),
    ({"max_bias": np.nan}, r"`max_bias` is nan; write a positive number"),
    ({"max_bias": None}, r"`max_bias` is None; write a positive number"),
    ({"clip": 0.0, "control_variate": False}, r"`clip` is 0.0; write a positive number, or leave it out"),
    ({"clip": -1.0, "control_variate": False}, r"`clip` is -1.0; write a positive number"),
    ({"clip": np.nan, "control_variate": False}, r"`clip` is nan; write a positive number"),
    (
        {"clip": 1.0, "control_variate": True},
        r"`clip` is 1.0, but the control variate sends .* unclipped .* Write `control_variate=False`",
    ),
    (
        {"scheme": "partial"},
        r"`scheme` is 'partial'; it is one of \['full', 'with_replacement', 'without_replacement'\]",
    ),
    ({"preconditioner": "full"}, r"`preconditioner` is 'full'; it is one of \['dense', 'diagonal', 'none'\]"),
    ({"init": "prior"}, r"`init` is 'prior'; it is one of \['mode', 'zero'\]"),
    ({"control_variate": "no"}, r"`control_variate` is 'no'; it is one of \[True, False\]"),
    ({"allow_unbalanced": None}, r"`allow_unbalanced` is None; it is one of \[True, False\]"),
    ({"num_active": 2}, r"`num_active` is 2 with `scheme='full'`; say how they are drawn: `scheme='with_replacement'`"),
    ({"scheme": "with_replacement"}, r"`scheme` is 'with_replacement'; say how many clients a round has, `num_active"),
    ({"scheme": "without_replacement"}, r"`scheme` is 'without_replacement'; say how many clients"),
    ({"refresh": 3, "control_variate": False}, r"`refresh` is 3 with no control variate: .* Leave `refresh` out"),
    ({"refresh": 3, **SCHEME_I}, r"`refresh` is 3 with `scheme='with_replacement'`: the anchor needs every client's"),
    ({"refresh": 3, "batch_size": 2}, r"`refresh` is 3 with mini-batches: .* whole gradient. Leave `refresh` out"),
    ({"weights": "size"}, r"`weights` is 'size'; write 'rows', 'equal', or a mapping from each client's name"),
    ({"weights": [0.5, 0.5]}, r"`weights` is \[0.5, 0.5\]; write 'rows', 'equal', or a mapping"),
    ({"weights": None}, r"`weights` is None; write 'rows', 'equal', or a mapping"),
    ({"max_rounds": 100}, r"`max_rounds` is 100, but `num_warmup` throws away 100 draws.* Raise `max_rounds` or lower"),
]


@pytest.mark.parametrize(("options", "message"), BAD_OPTIONS)
def test_options(options, message):
    with pytest.raises(ValueError, match=message):
        FALD(**options)


@pytest.mark.parametrize(
    "options",
    [
        {"noise_correlation": 0},
        {"noise_correlation": 1},
        {"temperature": 0.0},
        {"num_warmup": 0},
        {"max_bias": np.inf},
        {"step_size": np.float64(0.1)},
        {"step_size": 1},
        {"step_size": "decaying"},
        {"step_size": lambda k: 0.1 / (1.0 + k), "init": "zero"},
        {"clip": 1.0},
        {"init": "zero", "step_size": 0.01, "control_variate": True, "refresh": 10},
    ],
)
def test_options_at_the_border_are_taken(options):
    method = FALD(**options)
    assert {name: getattr(method, name) for name in options} == options


MISFITS = {
    "more active than there are": (
        SCHEME_I | {"num_active": 3},
        model,
        ValueError,
        r"`num_active` is 3, but there are 2 clients. Write 2 or less",
    ),
    "scheme II by rows": (
        SCHEME_II,
        model,
        ValueError,
        r"weights run from 0.375 \(client 'a'\) to 0.625: .* Write `scheme='with_replacement'`.*allow_unbalanced",
    ),
    "scheme II by numbers": (
        SCHEME_II | {"weights": {"a": 0.9, "b": 0.1}},
        model,
        ValueError,
        r"weights run from 0.1 \(client 'b'\) to 0.9",
    ),
    "weights: someone missing": (
        {"weights": {"a": 1.0}},
        model,
        ValueError,
        r"`weights` names the clients \['a'\]; the clients are \['a', 'b'\]. Give each of them a number",
    ),
    "weights: someone else": (
        {"weights": {"a": 0.5, "b": 0.3, 3: 0.2}},
        model,
        ValueError,
        r"`weights` names the clients \['3', 'a', 'b'\]; the clients are \['a', 'b'\]",
    ),
    "weights: sum": (
        {"weights": {"a": 0.5, "b": 0.4}},
        model,
        ValueError,
        r"`weights` sum to 0.9; they must sum to 1: divide them by their sum",
    ),
    "weights: sum, nearly": (
        {"weights": {"a": 0.333333, "b": 0.66666}},
        model,
        ValueError,
        r"`weights` sum to 0.999993; they must",
    ),
    "weights: negative": (
        {"weights": {"a": 1.5, "b": -0.5}},
        model,
        ValueError,
        r"`weights` of client 'b' is -0.5; write a positive number",
    ),
    "weights: zero": ({"weights": {"a": 0.0, "b": 1.0}}, model, ValueError, r"`weights` of client 'a' is 0.0; write"),
    "weights: NaN": ({"weights": {"a": 0.5, "b": np.nan}}, model, ValueError, r"`weights` of client 'b' is nan; write"),
    "weights: text": ({"weights": {"a": "x", "b": 0.5}}, model, ValueError, r"`weights` of client 'a' is 'x'; write"),
    "batch larger than a client": (
        {"batch_size": 4},
        model,
        fb.ClientDataError,
        r"Client 'a' has 3 rows, but `batch_size` is 4. Write 3 or less",
    ),
    "batch, latent per row": (
        {"batch_size": 2},
        latent_per_row,
        fb.ModelError,
        r"factor of client 'a' is not a product over its rows \(a latent per row.* Leave out `batch_size` and `clip`",
    ),
    "clip, latent per row": (
        {"clip": 1.0, "control_variate": False},
        latent_per_row,
        fb.ModelError,
        r"factor of client 'a' is not a product over its rows.* Leave out `batch_size` and `clip`",
    ),
    "clip, locals": (
        {"clip": 1.0, "control_variate": False},
        local_mean,
        ValueError,
        r"`clip` is 1.0, but the model has local latents: .* Leave `clip` out",
    ),
    "clip, dependent rows": (
        {"clip": 1.0, "control_variate": False},
        partial_likelihood,
        fb.ModelError,
        r"one density for all rows of a client.* Leave out `batch_size` and `clip`",
    ),
}


@pytest.mark.parametrize("case", MISFITS)
def test_options_that_do_not_fit_the_clients(case, monkeypatch):
    options, program, error, message = MISFITS[case]
    monkeypatch.setattr("fedbayes.fit.Run", None)  # no round is begun
    with pytest.raises(error, match=message):
        fit(FALD(**options), program)


@pytest.mark.parametrize(
    ("options", "clients"),
    [
        (SCHEME_II | {"allow_unbalanced": True}, GOOD),
        (SCHEME_II | {"weights": "equal"}, GOOD),
        ({"batch_size": 3}, GOOD),
        ({"weights": {"b": 0.7, "a": 0.3 + 1e-8}}, GOOD),
        ({"weights": {1: 0.3, 2: 0.7}}, {1: GOOD["a"], 2: GOOD["b"]}),  # as the clients themselves are named
    ],
    ids=["unbalanced", "equal", "batch", "rounding", "numbers as names"],
)
def test_options_that_fit_the_clients_are_taken(options, clients):
    method = FALD(**options)
    with jax.enable_x64(True):
        phases = method.phases(make_problem(model, clients, rows=method.needs_rows).roster)
        assert len(phases) == 2 + (method.scheme == "full")  # and how the clients differ, where sums tell it


@pytest.mark.parametrize("participation", [0.5, lambda r, key: np.ones(2, bool)], ids=["fraction", "function"])
def test_participation_is_the_methods_own(participation):
    message = r"`participation` is .*, but FALD draws its own participants: write `FALD\(scheme='with_replacement'"
    with pytest.raises(ValueError, match=message):
        fit("fald", participation=participation)


def test_method_as_a_class():
    with pytest.raises(TypeError, match=r"`method` is <class '.*FALD'>; write a name, \[.*'ep', 'fald', .*\], or"):
        fit(FALD)


def test_client_without_rows():
    with pytest.raises(fb.ClientDataError, match=r"Client 'c' has no rows: `y` has shape \(0,\). Leave the client out"):
        fit("fald", clients=GOOD | {"c": {"y": np.zeros(0)}})


UNSTABLE = (
    r"`step_size` is {}, beyond stability: client 'a' has curvature {}.*, which diverges above {}. Theory .* {}\."
)
EDGES = {"a": {"y": Y3, "edge": np.full(3, 9.0)}, "b": {"y": Y5, "edge": np.full(5, -9.0)}}
BAD_STARTS = {
    "step": ({"step_size": 2.1}, model, GOOD, ValueError, UNSTABLE.format("2.1", "1 ", "2", "0.5")),
    # without a preconditioner client a has the curvature 3 / p_a + 1 = 3 * 8 / 3 + 1
    "step, raw": (
        {"step_size": 1.0, "preconditioner": "none"},
        model,
        GOOD,
        ValueError,
        UNSTABLE.format("1", "9 ", "0.222", "0.0556"),
    ),
    "step, weights": (
        {"step_size": 1.0, "preconditioner": "none", "weights": {"a": 0.1, "b": 0.9}},
        model,
        GOOD,
        ValueError,
        UNSTABLE.format("1", "31 ", "0.0645", "0.0161"),
    ),
    "schedule": (
        {"step_size": lambda k: 3.0 / (1.0 + k)},
        model,
        GOOD,
        ValueError,
        UNSTABLE.format("3", "1 ", "2", "0.5"),
    ),
    "schedule, negative": (
        {"step_size": lambda k: -0.1},
        model,
        GOOD,
        ValueError,
        r"`step_size` gives -0.1 at iteration 0; a schedule gives positive numbers",
    ),
    "schedule, NaN": (
        {"step_size": lambda k: 0.1 * jnp.log(k - 1.0), "init": "zero"},
        model,
        GOOD,
        ValueError,
        r"`step_size` gives nan at iteration 0; a schedule gives positive numbers",
    ),
    "schedule, array": (
        {"step_size": lambda k: jnp.ones(2), "init": "zero"},
        model,
        GOOD,
        ValueError,
        r"`step_size` gives shape \(2,\) at iteration 0; a schedule gives one number",
    ),
    "gradient at the mode": (
        {},
        below_edge,
        EDGES,
        fb.FederatedError,
        r"gradient of client 'b' is not finite where the chains start \(mode\). Give the globals proper priors",
    ),
    "gradient at zero": (
        {"init": "zero", "step_size": 0.01},
        below_edge,
        EDGES,
        fb.FederatedError,
        r"gradient of client 'b' is not finite where the chains start \(zero\). .* or try the other `init`",
    ),
    "no curvature": (
        {},
        only_the_sum,
        GOOD,
        fb.FederatedError,
        r"no mode with positive curvature .* Give the globals proper priors, or write `FALD\(init='zero', step_size",
    ),
    "no curvature, diagonal": (
        {"preconditioner": "diagonal"},
        only_the_sum,
        GOOD,
        fb.FederatedError,
        r"no mode with positive curvature .* Give the globals proper priors",
    ),
    "no curvature to speak of": (
        {"preconditioner": "none"},
        only_the_sum_and_a_little,
        GOOD,
        fb.FederatedError,
        r"One draw would take .* rounds, more than `max_rounds`, 1000000: .* Write `preconditioner='dense'`, rescale",
    ),
}


@pytest.mark.parametrize("case", BAD_STARTS)
def test_chains_that_cannot_start(case, monkeypatch):
    options, program, clients, error, message = BAD_STARTS[case]
    blocks, fused = [], Run._fused

    def counted(self, *arguments):
        blocks.append(len(blocks))
        fused(self, *arguments)

    monkeypatch.setattr(Run, "_fused", counted)
    with pytest.raises(error, match=message):
        fit(FALD(num_chains=2, **options), program, clients)
    # no round of the chains is begun; only of its gradient a client has to tell, in the first block
    assert len(blocks) == case.startswith("gradient")


def test_schedule_that_starts_at_zero_is_taken():
    warming_up = lambda k: 0.1 * jnp.minimum(1.0, k / 20.0)  # noqa: E731
    found = fit(FALD(step_size=warming_up, noise_correlation=1.0, num_chains=4, thinning=10))
    assert found.converged
    assert found.rounds.attrs["step_size"] > 0.0  # planned by the default step, not by zero


DIVERGING = {
    "step": (
        {"step_size": 3.0, "init": "zero"},
        model,
        r"diverged by round \d+, with step size 3. Try `FALD\(step_size=0.75\)`; or `init='mode'`",
    ),
    "schedule": (
        {"step_size": lambda k: 0.01 * (1.0 + k)},
        model,
        r"diverged by round \d+, with step size [\d.]+. Write a smaller schedule; the largest curvature is that of",
    ),
    "curvature off the mode": (
        {"step_size": 1.5, "local_steps": 2},
        quartic,
        r"diverged by round \d+, with step size 1.5. Try `FALD\(step_size=0.38\)`; the largest curvature is that of "
        r"client 'a'",
    ),
}


@pytest.mark.parametrize("case", DIVERGING)
def test_chains_that_diverge(case):
    options, program, message = DIVERGING[case]
    with pytest.raises(fb.FederatedError, match=message):
        fit(FALD(**FEW, **options), program)


def test_large_units_are_no_divergence():
    """Without a preconditioner positions are in the model's units: here from zero to about three million."""

    def wealth(y):
        mu = numpyro.sample("mu", dist.Normal(2e6, 1e6))
        numpyro.sample("y", dist.Normal(mu, 1e6), obs=y)

    clients = {name: {"y": 3e6 + 1e6 * client["y"]} for name, client in GOOD.items()}
    with pytest.warns(fb.NotConvergedWarning, match="The chains have not mixed"):
        found = fit(FALD(**FEW, step_size=1e9, init="zero"), wealth, clients, num_draws=30)
    assert found.idata.posterior["mu"].max() > 1e6
