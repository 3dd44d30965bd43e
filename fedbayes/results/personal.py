"""What clients are asked once the rounds are over: their own posteriors, and their log-likelihoods."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import jax
import numpy as np
from jax import Array

from fedbayes.algorithm import Wanted
from fedbayes.answer import Answer
from fedbayes.correction.correct import Correction
from fedbayes.errors import K_HAT_LIMIT
from fedbayes.kept import Kept
from fedbayes.keys import Purpose, fingerprint, key_for
from fedbayes.numerics.gaussian import Gaussian
from fedbayes.numerics.host import gaussian_moments
from fedbayes.problem.checks import same_globals
from fedbayes.problem.clients import ClientArrays, prepare_like
from fedbayes.problem.explained import explaining
from fedbayes.problem.problem import Problem, make_problem
from fedbayes.rounds.exchange import Heard, Round
from fedbayes.rounds.executors import Batched, Executor
from fedbayes.rounds.memory import memory_explained
from fedbayes.rounds.programs import Programs
from fedbayes.rounds.state import RunState

_KEPT = 64  # clients whose draws are kept

Ask = Callable[[str, Any, np.ndarray], Heard]  # an update, what the server sends, and the active clients


class Personal(NamedTuple):
    """Draws of one client's own posterior.

    Attributes
    ----------
    draws
        Globals and locals, unconstrained, shape ``(chain, draw, d + m)``.
    attrs
        How they were made.
    """

    draws: np.ndarray
    attrs: dict[str, Any]


class Clients:
    """The clients of a fit, asked once its rounds are over; in double precision, which the caller switches on."""

    def __init__(self, problem: Problem, answer: Answer, run: RunState, executor: Executor, key: Array) -> None:
        self._problem, self._answer, self._run, self._executor = problem, answer, run, executor
        self._key = key_for(key, Purpose.ASKED)
        self._kept: Kept[Personal] = Kept(_KEPT)

    def log_likelihood(self, theta: np.ndarray, turn: int = 0) -> Heard:
        """One more exchange: draws ``(chain, draw, d)`` go out, each client answers with its log-likelihoods.

        Each ``turn`` has random numbers of its own.
        """
        return self._ask("log_likelihood", theta, np.arange(len(self._problem.names)), turn)

    def posterior(self, place: int, theta: np.ndarray, num_draws: int, correction: Correction | None) -> Personal:
        """One client's posterior given everybody's data; ``theta`` are the draws of the globals.

        Where these are single points: ``num_draws`` draws of the client's locals given the point. The draws of the last
        clients that were asked are kept.
        """
        if correction is not None and correction.applied:
            return self._kept.get(place, lambda: self._corrected(place, correction))
        return self._kept.get(place, lambda: self._drawn(place, theta, num_draws))

    def _corrected(self, place: int, correction: Correction) -> Personal:
        """The corrected draws of the globals, each with one of the client's draws of its locals behind its weight."""
        attrs = {"solver": "importance weights of all clients", "k_hat": correction.pool.k_hat}
        if not self._problem.roster.num_locals[place]:
            return Personal(correction.theta, attrs)
        asked = enumerate(correction.exchanged())
        found = [self._ask("given", theta, np.asarray([place]), turn).replies.each[place] for turn, theta in asked]
        mine = correction.at(np.concatenate(found, axis=1))
        return Personal(np.concatenate([correction.theta, mine], axis=-1), attrs)

    def _drawn(self, place: int, theta: np.ndarray, num_draws: int) -> Personal:
        if self._answer.own_draws is not None:
            return Personal(self._answer.own_draws(self._executor.private(place)), {"solver": "own steps"})
        if self._answer.records_locals():
            mine = np.swapaxes(self._executor.recorded(place)[-theta.shape[1] :], 0, 1)
            return Personal(np.concatenate([theta, mine], axis=-1), {"solver": self._run.updates[place]})
        active, posterior = np.asarray([place]), self._answer.posterior
        if self._answer.coupled is not None:
            found = self._ask("given_coupled", theta, active).replies.each
            k_hat = float(np.max(found.k_hat[place]))
            return Personal(np.asarray(found.draws)[place], {"solver": "server", "k_hat": k_hat})
        if isinstance(posterior, Gaussian):
            return _personal_draws(self._ask, active, gaussian_moments(posterior)[0], theta.shape[:2])
        drawn = _personal_draws(self._ask, active, theta[:, 0], (len(theta), num_draws))
        point = np.broadcast_to(theta, (len(theta), num_draws, theta.shape[-1]))
        return drawn._replace(draws=np.concatenate([point, drawn.draws[..., theta.shape[-1] :]], axis=-1))

    def _ask(self, update: str, shared: Any, active: np.ndarray, turn: int = 0) -> Heard:
        key = jax.random.fold_in(self._key, turn) if turn else self._key
        roster = self._problem.roster
        personal = addressed(self._answer)
        if update == "log_likelihood" and not roster.num_locals.any():
            personal = ()  # without locals no client needs its cavity
        order = Round(None, shared, personal, key, active, [update] * roster.num_clients)
        with memory_explained(f"The clients' answer '{update}'"):
            return self._executor.run(order)


def addressed(answer: Answer) -> Any:
    """What each client is told beside the draws of the globals, leading axes client and chain; ``()``: nothing."""
    if answer.coupled is not None:
        return answer.coupled.told
    cavities = answer.cavities()
    return () if cavities is None else jax.tree.map(lambda leaf: np.swapaxes(np.asarray(leaf), 0, 1), cavities)


def like_first(fitted: Problem, data: Mapping[str, Any]) -> ClientArrays:
    """The arguments of a client that was no part of the fit, read as those of the first one were."""
    known = fitted.names[0]
    return prepare_like("new client", data, known, fitted.arrays[0], np.dtype(fitted.client(known).program.dtype))


class Newcomer(NamedTuple):
    """A client that joins after the fit.

    Attributes
    ----------
    problem
        Of this client alone.
    mine
        Its posterior, with the fit's global posterior as prior.
    """

    problem: Problem
    mine: Personal


def newcomer(
    fitted: Problem,
    data: Mapping[str, Any],
    posterior: Gaussian,
    programs: Programs,
    key: Array,
    *,
    local: Sequence[str],
    num_draws: int,
) -> Newcomer:
    """The posterior of a client that was no part of the fit, see :meth:`~fedbayes.FederatedFit.adapt`."""
    name, known = "new client", fitted.names[0]
    first, read = fitted.client(known).program, like_first(fitted, data)
    clients = {name: {**read.static, **read.arrays}}
    with explaining(clients):
        problem = make_problem(first.model, clients, local=local, dtype=first.dtype)
    same_globals([(known, first), (name, problem.programs[0])])
    key = key_for(key, Purpose.NEWCOMER, fingerprint(read.arrays))
    executor = Batched()
    executor.connect(programs, problem, key)
    cavity = jax.tree.map(lambda leaf: np.asarray(leaf)[None], posterior)

    def ask(update: str, shared: Any, active: np.ndarray) -> Heard:
        return executor.run(Round(None, shared, cavity, key_for(key, Purpose.ASKED), active, [update]))

    shape = posterior.shift.shape[0], num_draws
    draws, attrs = _personal_draws(ask, np.zeros(1, int), gaussian_moments(posterior)[0], shape)
    return Newcomer(problem, Personal(draws, {**attrs, "draws": f"by {attrs['solver']}"}))


def _personal_draws(ask: Ask, active: np.ndarray, mean: np.ndarray, shape: tuple[int, ...]) -> Personal:
    """Draws of one client's own posterior, by importance resampling or, where that can't be trusted, by NUTS."""
    chains, num_draws = shape
    wanted = Wanted(mean, np.zeros((chains, -(-num_draws // 4) * 4)))
    found = ask("resampled", wanted, active).replies.each
    k_hat, solver = float(np.max(found.k_hat[active])), "importance"
    if not k_hat <= K_HAT_LIMIT:
        found, solver = ask("chained", wanted, active).replies.each, "nuts"
    return Personal(found.draws[active[0]][:, :num_draws], {"k_hat": k_hat, "solver": solver})
