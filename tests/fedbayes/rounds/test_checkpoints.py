"""A fit interrupted after any round and resumed is the fit without interruption, bit for bit."""

import io
import json
from typing import Any, NamedTuple

import jax
import numpy as np
import numpyro
import numpyro.distributions as dist
import optax
import pytest

import fedbayes as fb
from fedbayes.contract.state import RunState
from fedbayes.inference.ep.method import EP
from fedbayes.inference.fald.method import FALD
from fedbayes.inference.fedpa.method import FedPA
from fedbayes.inference.local.after import AFTER
from fedbayes.problem.problem import make_problem
from fedbayes.rounds.checkpoint import Checkpoint, fingerprint
from fedbayes.rounds.executors import Batched
from fedbayes.rounds.loop import Run
from fedbayes.rounds.programs import Programs
from fedbayes.rounds.progress import Silent
from fedbayes.rounds.wire import arrays_of, encode

KEY = jax.random.key(2)
METHOD = EP(num_samples=64, num_replicates=2, solver="importance", init="mode", tolerance=1e-9)
ROUNDS = 3


def model(y):
    mu = numpyro.sample("mu", dist.Normal(0.0, 2.0))
    tau = numpyro.sample("tau", dist.LogNormal(0.0, 0.5))
    numpyro.sample("y", dist.Normal(mu, tau), obs=y)


def make_clients(seed: int = 0) -> dict:
    rng = np.random.default_rng(seed)
    return {name: {"y": rng.normal(size=n)} for name, n in (("north", 5), ("south", 8))}


class Killed(Exception):
    pass


class Kills(Batched):
    """Dies in the middle of a round: clients are done, the server is not."""

    def __init__(self, after):
        super().__init__()
        self.left = after

    def run(self, order):
        heard = super().run(order)
        if self.left == 0:
            raise Killed
        self.left -= 1
        return heard


class Ended(NamedTuple):
    """Where a run ended: what the server knows, and the clients' own states and parts of the draws."""

    run: RunState
    clients: list
    recorded: list


def made(model, method):
    """The problem, and the method's programs, compiled once for all of this file's fits."""
    with jax.enable_x64(True):
        problem = make_problem(model, make_clients(), rows=method.needs_rows)
        return problem, Programs(method.phases(problem.roster), AFTER, method.num_replicates)


def ended(prepared, executor, path, fit, **options) -> Ended:
    """A run from the start, or from the checkpoint at ``path``."""
    problem, programs = prepared
    keywords: dict[str, Any] = {"num_rounds": ROUNDS, "progress": Silent()} | options
    with jax.enable_x64(True):
        executor.connect(programs, problem, KEY)
        checkpoint = None if path is None else Checkpoint(path, fit)
        current = Run(programs, problem.roster, executor, KEY).run(checkpoint=checkpoint, **keywords)
    recorded = [executor.recorded(place) for place in range(len(problem.names))] if current.draws else []
    return Ended(current, executor._states, recorded)


@pytest.fixture(scope="module")
def phases():
    return made(model, METHOD)


def run(phases, path=None, after=None):
    return ended(phases, Batched() if after is None else Kills(after), path, "this fit")


@pytest.fixture(scope="module")
def uninterrupted(phases):
    return run(phases)


def assert_same(ours, theirs):
    (one, *mine), (two, *others) = ours, theirs
    assert (one.phase, one.rounds_in_phase, one.converged) == (two.phase, two.rounds_in_phase, two.converged)
    assert list(one.updates) == list(two.updates)
    np.testing.assert_array_equal(one.settled, two.settled)
    for left, right in zip(jax.tree.leaves(one.state), jax.tree.leaves(two.state), strict=True):
        assert left.dtype == right.dtype
        np.testing.assert_array_equal(left, right)
    for left, right in zip(jax.tree.leaves(mine), jax.tree.leaves(others), strict=True):
        np.testing.assert_array_equal(left, right)
    assert len(one.history) == len(two.history)
    for left, right in zip(one.history, two.history, strict=True):
        assert set(left) == set(right)
        for name in set(left) - {"seconds"}:
            np.testing.assert_array_equal(left[name], right[name], err_msg=name)


def test_there_are_rounds_of_both_phases(uninterrupted):
    assert {str(record["phase"]) for record in uninterrupted.run.history} == {"mode", "EP"}
    assert len(uninterrupted.run.history) >= 5


@pytest.mark.parametrize("left", range(1, 6))
def test_killed_and_resumed(phases, uninterrupted, tmp_path, left):
    """Killed inside the round that is the ``left``-th from the end: before, at and after the change of phase."""
    done = len(uninterrupted.run.history) - left
    path = tmp_path / "fit.npz"
    with pytest.raises(Killed):
        run(phases, path, after=done)
    assert path.exists() == (done > 0)
    assert not path.with_name("fit.npz.partial").exists()
    assert_same(run(phases, path), uninterrupted)


def test_killed_twice(phases, uninterrupted, tmp_path):
    path = tmp_path / "deep" / "fit.npz"
    for _ in range(2):
        with pytest.raises(Killed):
            run(phases, path, after=1)
    assert_same(run(phases, path), uninterrupted)


def test_a_finished_fit_is_not_run_again(phases, uninterrupted, tmp_path):
    path = tmp_path / "fit.npz"
    run(phases, path)
    assert_same(run(phases, path, after=0), uninterrupted)  # any round would be killed


def test_a_lost_half_written_file_is_ignored(phases, uninterrupted, tmp_path):
    path = tmp_path / "fit.npz"
    with pytest.raises(Killed):
        run(phases, path, after=2)
    path.with_name("fit.npz.partial").write_bytes(b"half")
    assert_same(run(phases, path), uninterrupted)


def test_planted_bug_is_seen(phases, uninterrupted, tmp_path, monkeypatch):
    """Negative control: clients' private states left out of the checkpoint are noticed."""
    path = tmp_path / "fit.npz"
    with pytest.raises(Killed):
        run(phases, path, after=len(uninterrupted.run.history) - 1)
    monkeypatch.setattr(Batched, "restore", lambda self, saved: None)
    with pytest.raises(AssertionError):
        assert_same(run(phases, path), uninterrupted)


class Dies(Silent):
    """Killed after a block of draws, before it is written."""

    def __init__(self, after):
        self.left = after

    def after_round(self, record):
        if str(record["phase"]) == "FALD":
            if self.left == 0:
                raise Killed
            self.left -= 1


@pytest.fixture(scope="module")
def chains():
    """A sampler with local latents, compiled once."""

    def hierarchical(y):
        mu = numpyro.sample("mu", dist.Normal(0.0, 2.0))
        with fb.local():
            theta = numpyro.sample("theta", dist.Normal(mu, 0.5))
        numpyro.sample("y", dist.Normal(theta, 1.0), obs=y)

    return made(hierarchical, fb.FALD(local_steps=2, num_chains=2, num_warmup=0, thinning=3))


def sampled(chains, path=None, progress=None):
    options = {"num_rounds": None, "num_draws": 60, "progress": progress or Silent()}  # two draws a block
    return ended(chains, Batched(), path, "these chains", **options)


def test_killed_chains_resume(chains, tmp_path):
    path, whole = tmp_path / "chains.npz", sampled(chains)
    assert len(whole.run.draws) == 30
    for blocks in (0, 7, 22):
        with pytest.raises(Killed):
            sampled(chains, path, Dies(blocks - (len(sampled_blocks(path)) if path.exists() else 0)))
    resumed = sampled(chains, path)
    assert_same(resumed, whole)
    np.testing.assert_array_equal(np.concatenate(resumed.run.draws), np.concatenate(whole.run.draws))
    assert np.stack(whole.recorded, axis=1).shape == (60, 2, 2, 1)  # draws, clients, chains, locals


def sampled_blocks(path):
    """Blocks in a checkpoint."""
    with np.load(path) as archive:
        meta = json.loads(archive["meta"].tobytes())
        history = np.load(io.BytesIO(archive["history"].tobytes()))
        phases = [str(history[f"{i}/phase"]) for i in range(meta["num_records"])]
    return [phase for phase in phases if phase == "FALD"]


@pytest.fixture(scope="module")
def written(tmp_path_factory):
    """A checkpoint of ``fit_federated``, and the keywords it was written with."""
    path = tmp_path_factory.mktemp("checkpoint") / "fit.npz"
    keywords = {"key": KEY, "method": "laplace", "progress": False, "checkpoint": path}
    fit = fb.fit_federated(model, make_clients(), **keywords)
    return keywords, fit


def test_fit_federated_resumes(written):
    keywords, fit = written
    again = fb.fit_federated(model, make_clients(), **keywords)
    np.testing.assert_array_equal(again.moments()[0], fit.moments()[0])
    assert again.converged


OTHERS = {
    "key": ({"key": jax.random.key(3)}, make_clients()),
    "method": ({"method": EP(num_samples=64)}, make_clients()),
    "options": ({"method": fb.Laplace(tolerance=1e-4)}, make_clients()),
    "names": ({}, {name.upper(): data for name, data in make_clients().items()}),
    "another client": ({}, make_clients() | {"west": {"y": np.ones(3)}}),
    "data": ({}, make_clients(seed=1)),
    "rows": ({}, {name: {"y": data["y"][:3]} for name, data in make_clients().items()}),
    "precision": ({"dtype": np.float32}, make_clients()),
}


@pytest.mark.parametrize("case", OTHERS)
def test_checkpoint_of_another_fit_is_refused(case, written):
    keywords, _ = written
    other, clients = OTHERS[case]
    with pytest.raises(
        ValueError, match=r"The checkpoint '.*fit.npz' belongs to another fit: .*Use another path, or delete"
    ):
        fb.fit_federated(model, clients, **(keywords | other))


def cut(content):
    """Ways for a file to be broken."""
    bits = bytearray(content)
    bits[len(bits) // 2] ^= 0xFF
    other = io.BytesIO()
    np.savez(other, a=np.zeros(3))
    return {
        "empty": b"",
        "the first bytes": content[:100],
        "half": content[: len(content) // 2],
        "all but the last bytes": content[:-30],
        "another file": b"Dear diary, " * 20,
        "another archive": other.getvalue(),
        "a flipped bit": bytes(bits),
    }


@pytest.mark.parametrize("case", cut(b"0" * 1000))
def test_a_broken_checkpoint_is_named(case, written, tmp_path):
    keywords, _ = written
    path = tmp_path / "cut.npz"
    path.write_bytes(cut(keywords["checkpoint"].read_bytes())[case])
    with pytest.raises(
        ValueError, match=r"The checkpoint '.*cut.npz' can't be read: it is cut short, or no .*Delete it"
    ):
        fb.fit_federated(model, make_clients(), **(keywords | {"checkpoint": path}))


def test_a_folder_is_no_checkpoint(written, tmp_path):
    keywords, _ = written
    with pytest.raises(ValueError, match=r"`checkpoint` is '.*', a folder; name a file in it, such as 'fit.npz'"):
        fb.fit_federated(model, make_clients(), **(keywords | {"checkpoint": tmp_path}))


STEPS = {"init": "zero", "preconditioner": "none", "step_size": 0.1, "local_steps": 6, "burn_in": 2, "num_samples": 2}
MERGING = {
    "one-shot": fb.OneShot(num_samples=16, num_replicates=2, solver="importance"),
    "fedpa": fb.FedPA(
        solver="iasg", batch_size=2, **STEPS, fedavg_rounds=1, num_replicates=2, server_optimizer=optax.adam(0.1)
    ),
}


@pytest.mark.parametrize("name", MERGING)
def test_killed_merges_resume(name, tmp_path):
    """Killed inside any round but the first: optimiser, kept draws and merged state all come back."""
    prepared = made(model, MERGING[name])
    whole = run(prepared)
    assert {str(record["phase"]) for record in whole.run.history} >= {"check"}
    assert len(whole.run.history) > 1
    for done in range(1, len(whole.run.history)):
        path = tmp_path / f"{done}.npz"
        with pytest.raises(Killed):
            run(prepared, path, after=done)
        assert_same(run(prepared, path), whole)


def test_fingerprints_look_into_functions_and_arrays():
    """Two optimisers, schedules or long arrays that print alike are not the same fit."""

    def marked(**options):
        return fingerprint("p", FedPA(**options), np.zeros(2))

    def schedule(scale):
        return fingerprint("p", FALD(step_size=lambda k: scale / (1.0 + k)), np.zeros(2))

    long = np.zeros(2000)
    other = long.copy()
    other[1000] = 1.0
    raw = {"preconditioner": "none", "solver": "laplace"}
    pairs = [
        (marked(server_optimizer=optax.adam(0.05)), marked(server_optimizer=optax.adam(0.5))),
        (marked(server_optimizer=optax.sgd(0.1)), marked(server_optimizer=optax.sgd(0.1, momentum=0.9))),
        (marked(init={"w": long}, **raw), marked(init={"w": other}, **raw)),
        (schedule(0.1), schedule(0.2)),
    ]
    for one, another in pairs:
        assert one != another
        assert "0x" not in one
    assert marked(server_optimizer=optax.adam(0.05)) == pairs[0][0]
    assert schedule(0.1) == pairs[3][0]
    assert marked(init={"w": long.copy()}, **raw) == pairs[2][0]


def test_a_state_of_another_version_is_named(written, tmp_path):
    """The same fit, but its state has an array that this version does not know."""
    keywords, _ = written
    path = tmp_path / "old.npz"
    content = arrays_of(keywords["checkpoint"].read_bytes())
    state = arrays_of(content["state"].tobytes()) | {"sites/shift": np.zeros(3)}
    path.write_bytes(encode(content | {"state": np.frombuffer(encode(state), np.uint8)}))
    with pytest.raises(ValueError, match=r"old.npz' holds the state of another version of fedbayes.*begin anew"):
        fb.fit_federated(model, make_clients(), **(keywords | {"checkpoint": path}))
