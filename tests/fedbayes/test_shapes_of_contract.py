"""The shapes in the signatures of `fedbayes.contract` are those of what goes in and comes out."""

from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jaxtyping import TypeCheckError

from fedbayes.contract import algorithm, answer, client_locals, locals_from, state
from fedbayes.contract.answer import GaussianAnswer
from fedbayes.contract.client_locals import FromCavity, FromOwnPoint, FromRecord, FromServer, FromStart
from fedbayes.contract.locals_from import Personal, Wanted
from fedbayes.contract.state import RunState
from fedbayes.numerics.gaussian import Gaussian

MODULES = [algorithm, answer, client_locals, locals_from, state]
ROOMS = frozenset(module.__name__ for module in MODULES)
CHAINS, DRAWS, D, CLIENTS, M = 2, 5, 3, 4, 1
THETA = np.ones((CHAINS, DRAWS, D))
POINT = THETA[:, :1]
KEY = jax.random.key(0)


def gaussian(*axes: int) -> Gaussian:
    precision = np.broadcast_to(np.eye(D), (*axes, D, D))
    return Gaussian(np.ones((*axes, D)), precision, np.zeros(axes))  # type: ignore[arg-type]


@pytest.fixture
def at(shapes) -> SimpleNamespace:
    """A client that looks at the fields of what it is asked for."""

    def reply(update, shared):
        shapes.check_fields((shared,), ROOMS)
        if update == "given":
            return np.ones((CHAINS, DRAWS, M))
        num = shared.slots.shape[1] if isinstance(shared, Wanted) else shared.shape[1]
        return SimpleNamespace(draws=np.ones((CHAINS, num, D + M)), k_hat=np.ones(CHAINS))

    def recorded(num):
        return np.ones((num, CHAINS, M))

    return SimpleNamespace(
        reply=reply, recorded=recorded, update="nuts", private=lambda: np.ones((CHAINS, DRAWS, D + M))
    )


def gaussian_answer() -> GaussianAnswer:
    ended = RunState(0, 1, (), ["laplace"], np.ones(CLIENTS, bool), True)
    return GaussianAnswer(gaussian(CHAINS), FromCavity.known(gaussian(CHAINS, CLIENTS), gaussian(CHAINS)), ended)


STARTED = FromStart(gaussian(CHAINS, CLIENTS))
KINDS = {
    "cavity": FromCavity.known(gaussian(CHAINS, CLIENTS), gaussian(CHAINS)),
    "record": FromRecord(gaussian(CHAINS, CLIENTS)),
    "server": FromServer((), {}, {}, "Coupling"),
    "own point": FromOwnPoint(lambda private: private),
}
LIKELIHOOD = np.ones((CHAINS, DRAWS, CLIENTS))
RUNS: dict[str, Callable[[Any], Any]] = {
    **{f"draws of {name}": lambda at, kind=kind: kind.draws(at, THETA, DRAWS) for name, kind in KINDS.items()},
    **{
        f"draws for sites of {name}": lambda at, kind=kind: kind.for_sites(THETA, DRAWS) for name, kind in KINDS.items()
    },
    "draws of a point": lambda at: STARTED.draws(at, POINT, DRAWS),
    "a point for sites": lambda at: STARTED.for_sites(POINT, DRAWS),
    **{
        f"a client at its site, {kind}": lambda at, kind=kind: client_locals.at_site(kind, at, THETA, lambda own: own)
        for kind in ("given", "recorded", "given_coupled", "own", "globals")
    },
    "draws of the globals": lambda at: gaussian_answer().draws(KEY, DRAWS),
    "log densities of draws": lambda at: gaussian_answer().sample_stats(THETA, LIKELIHOOD),
    "the evidence": lambda at: gaussian_answer().log_evidence(),
    "everybody": lambda at: algorithm.everybody(()),
}
REFUSED: dict[str, Callable[[Any], Any]] = {
    **{f"one chain of {name}": lambda at, kind=kind: kind.draws(at, THETA[0], DRAWS) for name, kind in KINDS.items()},
    "a point without draws": lambda at: STARTED.draws(at, POINT[:, 0], DRAWS),
    "a point without draws for sites": lambda at: STARTED.for_sites(POINT[:, 0], DRAWS),
    "one chain at a site": lambda at: client_locals.at_site("globals", at, THETA[0], lambda own: own),
    "one mean for all chains": lambda at: client_locals.sampled(at.reply, np.ones(D), (CHAINS, DRAWS)),
    "two keys": lambda at: gaussian_answer().draws(jax.random.split(KEY), DRAWS),
    "likelihoods of other draws": lambda at: gaussian_answer().sample_stats(THETA, LIKELIHOOD[:, 1:]),
}
PLANTED: dict[str, tuple] = {
    "who is used, by numbers": (algorithm.Replies((), (), jnp.ones(CLIENTS)),),
    "teams by real numbers": (algorithm.Teams((), jnp.ones(CLIENTS)),),
    "places for another number of chains": (Wanted(np.ones((CHAINS, D)), np.ones((CHAINS + 1, DRAWS))),),
    "draws of one chain": (Personal(THETA[0], {}),),
}


@pytest.mark.parametrize("name", RUNS)
def test_what_comes_out_has_the_shape_that_the_signature_says(shapes, monkeypatch, at, name) -> None:
    shapes.switch_on(monkeypatch, MODULES)
    with jax.enable_x64(True):
        RUNS[name](at)


@pytest.mark.parametrize("name", REFUSED)
def test_another_shape_is_refused(shapes, monkeypatch, at, name) -> None:
    shapes.switch_on(monkeypatch, MODULES)
    with pytest.raises(TypeCheckError, match="checking the parameters"):
        REFUSED[name](at)


@pytest.mark.parametrize("name", PLANTED)
def test_fields_that_do_not_fit_are_refused(shapes, name) -> None:
    with pytest.raises(TypeCheckError, match="checking the parameters"):
        shapes.check_fields(PLANTED[name], ROOMS)


def test_fields_that_fit_are_let_through(shapes) -> None:
    everyone, teams = jnp.ones(CLIENTS, bool), jnp.arange(CLIENTS)
    shapes.check_fields((algorithm.Replies((), (), everyone), algorithm.Teams((), teams)), ROOMS)


def test_a_client_that_answers_for_one_chain_is_caught(shapes, monkeypatch, at) -> None:
    at.private = lambda: np.ones((DRAWS, D + M))
    shapes.switch_on(monkeypatch, MODULES)
    with pytest.raises(TypeCheckError, match="draws"):
        KINDS["own point"].draws(at, THETA, DRAWS)
