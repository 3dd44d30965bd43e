"""What the server's half of a method sees of single clients: result codes, and where a method needs more, it says why.

The transcript is what the executor over a network hands to the method and to the check after the rounds: sums, what is
seen client by client, codes and diagnostics. Secure sums will hide each term of a sum on its way; today the server adds
them up.
"""

import warnings

import jax
import numpy as np
import numpyro
import numpyro.distributions as dist
import pytest
from permissive import PERMISSIVE

import fedbayes as fb
from fedbayes.contract.algorithm import Phase
from fedbayes.errors import NotConvergedWarning, UnreliableWarning
from fedbayes.inference import METHODS
from fedbayes.inference.laplace import Laplace
from fedbayes.network.fit import fit_over
from fedbayes.network.rehearsal import Rehearsal
from fedbayes.network.server.remote import Remote
from fedbayes.network.site import Site
from fedbayes.network.study import Study
from fedbayes.problem.problem import make_problem

NAMES = ("east", "home", "west")


def model(x, y=None):
    beta = numpyro.sample("beta", dist.Normal(0.0, 1.0).expand([x.shape[1]]).to_event(1))
    numpyro.sample("y", dist.Bernoulli(logits=x @ beta), obs=y)


def with_locals(x, y=None):
    mu = numpyro.sample("mu", dist.Normal(0.0, 1.0).expand([x.shape[1]]).to_event(1))
    with fb.local():
        theta = numpyro.sample("theta", dist.Normal(mu, 0.5).to_event(1))
    numpyro.sample("y", dist.Bernoulli(logits=x @ theta), obs=y)


class Leaky(fb.EP):
    """Planted: each client's site goes to the server by itself, beside the sum."""

    def phases(self, roster):
        *before, last = super().phases(roster)
        updates = {name: leaking(update) for name, update in last.algorithm.updates.items()}
        return [*before, Phase(algorithm=last.algorithm._replace(updates=updates), max_rounds=last.max_rounds)]


def leaking(update):
    def run(*given):
        reply, private = update.run(*given)
        return reply._replace(each=reply.total.site.shift), private

    return update._replace(run=run)


ONE = {"num_replicates": 1}
CHECKED = ("EP", "EP from the mode, with locals")  # what is asked after the rounds is the same for all methods
RUNS = {
    "EP": (model, fb.EP(**ONE)),
    "EP from the mode, with locals": (with_locals, fb.EP(**ONE)),
    "EP with diagonal sites": (model, fb.EP(**ONE, family="diagonal", solver="laplace")),
    "Laplace": (model, Laplace()),
    "Laplace from several starts, with locals": (with_locals, Laplace(num_starts=3)),
    "FA-LD": (model, fb.FALD(num_chains=2, num_warmup=2, thinning=1)),
    "FedAvg": (model, fb.FedAvg(local_steps=2)),
    "Fed-ensemble": (model, fb.FedEnsemble(num_modes=2, assignment="all")),
    "one shot": (model, fb.OneShot(combine="laplace", num_replicates=1)),
    "leaky": (model, Leaky(**ONE, solver="laplace")),
}
# and every other method that claims to see sums alone
MEASURED = {type(method) for _, method in RUNS.values()}
RUNS |= {
    name: (model, method())
    for name, method in METHODS.items()
    if method not in MEASURED and not method().single_messages
}


@pytest.fixture
def transcript(monkeypatch, tmp_path):
    """All that the executor has handed on during a fit by one of the methods above."""

    def of(which):
        program, method = RUNS[which]
        rng, heard, run = np.random.default_rng(0), [], Remote.run
        monkeypatch.setattr(Remote, "run", lambda *given: heard.append(run(*given)) or heard[-1])
        clients = {}
        for name in NAMES:
            x = rng.normal(size=(20, 2))
            clients[name] = {"x": x, "y": (x.sum(axis=1) + rng.logistic(size=20) > 0).astype(int)}
        study = Study(program, method)
        configs = [{"site-id": name, "state-dir": str(tmp_path / name), **PERMISSIVE} for name in NAMES]
        sites = [Site(study, lambda config: clients[config["site-id"]], config) for config in configs]
        rounds = None if which == "FA-LD" else 3
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", NotConvergedWarning)
            warnings.simplefilter("ignore", UnreliableWarning)
            options = {"num_rounds": rounds, "num_draws": 8, "correct": which in CHECKED, "progress": False}
            fit_over(Rehearsal(*sites), study, key=jax.random.key(0), num_clients=3, **options)
        return heard

    return of


def single_numbers(heard) -> int:
    """How many numbers of single clients there are beside the result codes."""
    return sum(np.size(leaf) for each in heard for leaf in jax.tree.leaves((each.replies.each, each.infos)))


@pytest.mark.parametrize("which", [which for which in RUNS if which != "leaky"])
def test_the_server_sees_sums_and_codes_or_the_method_says_why(which, transcript) -> None:
    heard, (_, method) = transcript(which), RUNS[which]
    assert len(heard) > 1
    assert all(jax.tree.leaves(each.replies.total) for each in heard) or method.single_messages
    assert bool(single_numbers(heard)) == bool(method.single_messages)


def test_a_method_that_leaks_a_site_is_caught(transcript) -> None:
    assert not RUNS["leaky"][1].single_messages
    assert single_numbers(transcript("leaky")) > 0


def test_each_method_says_whether_it_reads_single_messages() -> None:
    """A method without a reason sees sums, which is looked at above."""
    reasons = {name: method().single_messages for name, method in METHODS.items()}
    assert {name for name, reason in reasons.items() if not reason} >= {"ep", "laplace"}
    assert all(reason.endswith(".") for reason in reasons.values() if reason)


def test_the_number_of_clients_does_not_change_what_the_server_keeps() -> None:
    """EP's state has one Gaussian for all: of a client it holds which of its replies counts, and how far.

    By tracing alone: that a state keeps its shapes in the rounds is a law of all methods.
    """
    sizes = []
    for num in (3, 4):
        clients = {f"c{k}": {"x": np.eye(2) + k, "y": np.array([0, 1])} for k in range(num)}
        state = None
        with jax.enable_x64(True):
            for phase in fb.EP().phases(make_problem(model, clients).roster):
                state = jax.eval_shape(phase.algorithm.init, jax.random.key(0), state)
        sizes.append(sum(leaf.size for leaf in jax.tree.leaves(state)))
    assert sizes[1] - sizes[0] == 3  # and whether it has been heard in a count
