"""Programs are compiled once per process, never used once the model has changed, and kept in bounded number."""

import threading
from contextlib import contextmanager

import jax
import jax.numpy as jnp
import numpy as np
import numpyro
import numpyro.distributions as dist
import pytest

import fedbayes as fb
from fedbayes.contract.algorithm import Reply, Update, no_inputs
from fedbayes.contract.work import COLUMN, GRADIENT
from fedbayes.errors import MergeWarning
from fedbayes.inference.local.after import AFTER
from fedbayes.inference.mode import USUAL_ROUNDS
from fedbayes.problem.problem import make_problem
from fedbayes.rounds import ahead, programs
from fedbayes.rounds.programs import forget_programs, programs_for
from fedbayes.rounds.replicates import replicated_update
from fedbayes.runtime import compiling

COMPILE = "/jax/core/compile/backend_compile_duration"  # once for each XLA program, also for one found on disk
_SEEN: list[str] = []
_THREADS: list[str] = []  # by which each was compiled


def _note(event, duration, **details):
    if event == COMPILE:
        _SEEN.append(str(details.get("fun_name", "a program")))
        _THREADS.append(threading.current_thread().name)


jax.monitoring.register_event_duration_secs_listener(_note)  # for the whole process: it only appends to a list


@contextmanager
def compiled():
    """The XLA programs that are compiled inside."""
    found: list[str] = []
    before = len(_SEEN)
    yield found
    found += _SEEN[before:]


def model(x, y=None):
    mu = numpyro.sample("mu", dist.Normal(0.0, 2.0))
    with fb.local():
        shift = numpyro.sample("shift", dist.Normal(mu, 1.0))
    numpyro.deterministic("twice", 2.0 * mu)
    numpyro.sample("y", dist.Normal(shift * x, 0.7), obs=y)


def shared_model(x, y=None):
    mu = numpyro.sample("mu", dist.Normal(0.0, 2.0))
    tau = numpyro.sample("tau", dist.LogNormal(0.0, 0.2))
    numpyro.sample("y", dist.Normal(mu * x, tau), obs=y)


def make_clients(seed: int, rows=(9, 9, 9)) -> dict:
    rng = np.random.default_rng(seed)
    return {f"c{k}": {"x": rng.uniform(1, 2, size=n), "y": rng.normal(1.0, 0.7, size=n)} for k, n in enumerate(rows)}


def fitted(seed: int, function, method, clients=None) -> fb.FederatedFit:
    clients = make_clients(seed) if clients is None else clients
    return fb.fit_federated(function, clients, method=method, key=jax.random.key(seed), num_draws=40, progress=False)


def used(seed: int, function, method) -> fb.FederatedFit:
    """A fit, and everything that a user may ask of it."""
    fit = fitted(seed, function, method)
    assert set(fit.idata.posterior.data_vars) >= {"mu"}
    assert fit.client_posterior("c1").posterior["mu"].shape[1] == 40
    fit.adapt({name: value[:4] for name, value in make_clients(seed + 50)["c2"].items()})
    fit.predict(x=np.linspace(1, 2, 3) + seed)
    fit.predict("c1", x=np.linspace(1, 2, 3) + seed, key=jax.random.key(seed))
    repr(fit)
    assert np.all(np.isfinite(fit.moments()[0]))
    assert fit.log_evidence.ndim == 1
    return fit


METHODS = {
    "laplace": (model, fb.Laplace()),
    "fald": (model, fb.FALD(num_chains=2, local_steps=2, thinning=2, num_warmup=0)),
    "one-shot": (shared_model, fb.OneShot(num_samples=64, num_replicates=2, solver="importance")),
    "fedavg": (shared_model, fb.FedAvg(local_steps=2, max_rounds=3)),
    "fedpa": (shared_model, fb.FedPA(solver="laplace", num_replicates=1)),
    "ep": (model, fb.EP(num_samples=64, num_replicates=2, solver="importance")),  # last: the next test has its programs
}


@pytest.mark.filterwarnings("ignore::fedbayes.errors.NotConvergedWarning")
@pytest.mark.parametrize("name", METHODS)
def test_a_second_fit_compiles_nothing(name):
    function, method = METHODS[name]
    forget_programs()
    with compiled() as first:
        one = used(1, function, method)
    assert len(first) > 5  # the counter counts
    with compiled() as second:
        two = used(2, function, method)
    assert second == []
    assert np.any(one.moments()[0] != two.moments()[0])


def test_a_kept_program_gives_what_a_fresh_one_gives():
    function, method = METHODS["ep"]
    kept = fitted(3, function, method)
    forget_programs()
    fresh = fitted(3, function, method)
    for one, two in zip(kept.moments(), fresh.moments(), strict=True):
        np.testing.assert_array_equal(one, two)
    np.testing.assert_array_equal(kept.idata.log_likelihood["client"], fresh.idata.log_likelihood["client"])


def test_a_hierarchy_compiles_few_programs():
    """Each operation of the prior's trace was a program of its own once: 91 in all."""
    forget_programs()
    with compiled() as found:
        assert fitted(3, lambda x, y=None: model(x, y), METHODS["ep"][1]).idata is not None
    assert 10 < len(found) < 35


@pytest.mark.parametrize(("function", "asked"), [(shared_model, 0), (model, 1)])
def test_programs_that_are_compiled_ahead_are_those_that_run(monkeypatch, function, asked):
    """With one core nothing is compiled ahead. With two, no program is compiled twice, and the numbers are the same.

    Of a model with locals draws of one client's are asked ahead.
    """
    found = {}
    for cores in (1, 2):
        monkeypatch.setattr(ahead, "num_cores", lambda cores=cores: cores)
        forget_programs()
        begin = len(_THREADS)
        with compiled() as programs:
            fit = fitted(3, function, METHODS["ep"][1])
            compiling._compilers().shutdown()
            compiling._compilers.cache_clear()
        by_others = [name for name, by in zip(programs, _THREADS[begin:], strict=True) if by.startswith("compiling")]
        found[cores] = fit, programs, by_others
    (one, alone, none), (other, together, most) = found.values()
    assert none == []
    assert "jit(program)" in most  # what no thread has begun in time is compiled by the call
    for name, more in {"start": 0, "draw": asked, "program": asked, "aggregate": 0}.items():
        assert 0 < together.count(f"jit({name})") <= alone.count(f"jit({name})") + more
    np.testing.assert_array_equal(one.idata.posterior["mu"], other.idata.posterior["mu"])


def test_another_shape_or_method_or_model_compiles():
    """Negative control: what does change the programs is counted."""
    method, counts = fb.Laplace(), []
    fitted(1, shared_model, method)
    for others in (
        lambda: fitted(1, shared_model, method),
        lambda: fitted(1, shared_model, method, make_clients(1, rows=(9, 9, 10))),
        lambda: fitted(1, shared_model, fb.Laplace(tolerance=1e-4)),
        lambda: fitted(1, lambda x, y=None: shared_model(x, y), method),
    ):
        with compiled() as found:
            others()
        counts.append(len(found))
    assert counts[0] == 0
    assert min(counts[1:]) > 0


SETTING = {"mean": 0.0, "scale": 1.0, "noise": 1.0}


def reading(y=None):
    """Reads variables that are no arguments: the prior's, one of a deterministic site, one of predictions alone."""
    mu = numpyro.sample("mu", dist.Normal(SETTING["mean"], 2.0))
    numpyro.deterministic("scaled", SETTING["scale"] * mu)
    noise = 1.0 if y is not None else SETTING["noise"]
    with numpyro.plate("rows", 200):
        numpyro.sample("y", dist.Normal(mu, noise), obs=y)


def read_clients():
    rng = np.random.default_rng(5)
    return {name: {"y": rng.normal(size=200)} for name in ("a", "b")}


def read_fit():
    return fb.fit_federated(reading, read_clients(), method="laplace", key=jax.random.key(0), progress=False)


def exact_mean():
    y = np.concatenate([client["y"] for client in read_clients().values()])
    return (SETTING["mean"] / 4 + y.sum()) / (1 / 4 + len(y))


def test_a_changed_prior_is_seen(monkeypatch):
    for mean in (0.0, 3000.0, 0.0):
        monkeypatch.setitem(SETTING, "mean", mean)
        np.testing.assert_allclose(read_fit().moments()[0].ravel(), exact_mean(), rtol=1e-8)
    monkeypatch.setitem(SETTING, "mean", 3000.0)
    assert exact_mean() > 1.0  # and so is not lost in the data


def test_a_changed_deterministic_site_is_seen(monkeypatch):
    for scale in (1.0, 7.0):
        monkeypatch.setitem(SETTING, "scale", scale)
        posterior = read_fit().idata.posterior
        np.testing.assert_allclose(posterior["scaled"], scale * posterior["mu"], rtol=1e-12)


@pytest.mark.statistical(key=0, numbers=2, errors=12.0)
def test_a_changed_prediction_is_seen(monkeypatch):
    for noise in (1.0, 50.0):
        monkeypatch.setitem(SETTING, "noise", noise)
        sd = float(read_fit().predict().posterior_predictive["y"].std())
        np.testing.assert_allclose(sd, noise, rtol=0.02)  # of 200,000 independent draws


def test_programs_are_bounded_in_number():
    with jax.enable_x64(True):
        problem = make_problem(shared_model, make_clients(0))
    most = programs._KEPT._most

    def made(tolerance):
        return programs_for(fb.EP(tolerance=tolerance), problem.roster, problem.programs, AFTER)

    with jax.enable_x64(True):
        first = made(1.0)
        assert made(1.0) is first
        for extra in range(most):
            last = made(2.0 + extra)
        assert len(programs._KEPT._values) == most
        assert made(1.0 + most) is last
        assert made(1.0) is not first
        forget_programs()
        assert made(1.0 + most) is not last


def test_evaluations_of_a_whole_fit_are_those_of_its_rounds_clients_and_replicates():
    """Counted by hand: a Newton round takes a value, a slope and a Hessian of every row."""
    with jax.enable_x64(True):
        problem = make_problem(shared_model, make_clients(0, rows=(9, 9, 9)))
        clients = problem.buckets[0].clients
        rows = clients.data["y"].shape[1]

        def of(method, name, shared=(), clients=clients, **options):
            found = programs_for(method, problem.roster, problem.programs, AFTER, **options)
            return found.evaluations(0 if name in found.phases[0].algorithm.updates else None, name, shared, clients)

        once = 1.0 + GRADIENT + 2 * COLUMN
        assert of(fb.Laplace(), "newton") == once * rows * 3 * USUAL_ROUNDS
        alone = jax.tree.map(lambda leaf: leaf[1], clients)
        assert of(fb.Laplace(), "newton", clients=alone) == once * rows * USUAL_ROUNDS
        assert of(fb.Laplace(), "newton", data_sets=4) == np.inf  # a calibration repeats its fits
        draws = np.zeros((2, 50, 2))
        assert of(fb.EP(num_replicates=2), "log_likelihood", draws) == 2 * 50 * rows * 3
        assert of(fb.Laplace(), "own_values") == np.inf  # it does not say


def test_one_replicate_is_answered_as_many_are():
    """A reply may have plain numbers; another number of replicates than the fit's is refused."""
    update = Update(lambda shared, personal, private, client, inputs: (Reply(total=2.0 * shared), private), no_inputs)
    for num in (1, 3):
        run, told = replicated_update(update, num).run, np.arange(2.0 * num).reshape(num, 2)
        reply, _ = run(told, (), (), None, ())
        np.testing.assert_array_equal(reply.total, 2.0 * told)
        assert reply.code.shape == (num,)
        with pytest.raises(ValueError, match="axis"):
            run(np.zeros((4, 2)), (), (), None, ())


def test_methods_of_equal_options_share_their_programs():
    """Arrays are compared by value, functions by identity."""
    with jax.enable_x64(True):
        problem = make_problem(shared_model, make_clients(0))

        def made(method):
            return programs_for(method, problem.roster, problem.programs, AFTER)

        def started(mu):
            return made(fb.FedPA(init={"mu": mu, "tau": np.ones(())}, preconditioner="none", solver="laplace"))

        def scheduled(step_size):
            return made(fb.FALD(local_steps=2, num_chains=2, step_size=step_size))

        assert started(np.zeros(())) is started(jnp.zeros(()))
        assert started(np.zeros(())) is not started(np.ones(()))
        one, other = (lambda k, c=c: c / (1.0 + k) for c in (0.1, 0.2))
        assert scheduled(one) is scheduled(one)
        assert scheduled(one) is not scheduled(other)


def test_every_fit_repeats_the_warnings_of_its_method():
    method = fb.OneShot(num_samples=4, num_replicates=1, solver="importance", estimator="sample", check=False)
    for seed in (0, 1):
        with pytest.warns(MergeWarning, match=r"`num_samples` is 4, but the dense precision of 2 globals"):
            fb.fit_federated(shared_model, make_clients(seed), method=method, key=jax.random.key(seed), progress=False)
