"""What clients are asked once the rounds are over: their own posteriors, and their log-likelihoods."""

from collections.abc import Callable, Mapping, Sequence
from copy import copy
from typing import Any, NamedTuple

import jax
import numpy as np
from jax import Array
from scipy.special import logsumexp

from fedbayes.contract.answer import Answer
from fedbayes.contract.client_locals import sampled
from fedbayes.contract.locals_from import Personal
from fedbayes.contract.state import RunState
from fedbayes.correction.correct import Correction, correctable, num_first
from fedbayes.correction.pool import HALVED_OF_FEW, LEAST, NOISE, tail_shape, trusted, weighted_noise
from fedbayes.correction.proposal import systematic
from fedbayes.correction.recipe import Drawn, Recipe
from fedbayes.numerics.gaussian import Gaussian, unpacked
from fedbayes.numerics.host import gaussian_moments
from fedbayes.problem.checks import same_globals
from fedbayes.problem.data.explained import explaining
from fedbayes.problem.data.reading import ClientArrays, prepare_like
from fedbayes.problem.problem import Problem, make_problem
from fedbayes.results.rounds import Communication
from fedbayes.rounds.exchange import Heard, Round
from fedbayes.rounds.executors import Batched, Executor
from fedbayes.rounds.memory import memory_explained
from fedbayes.rounds.programs import Programs
from fedbayes.runtime.keys import Purpose, fingerprint, key_for
from fedbayes.runtime.lru import Kept

_KEPT = 64  # clients whose draws are kept


class Asked(NamedTuple):
    """One exchange with all clients once the rounds are over.

    Attributes
    ----------
    what
        What it was for: ``"posterior"``, which is the check and ``fit.idata``, or another question.
    bytes_down, bytes_up
        To and from each client.
    """

    what: str
    bytes_down: int
    bytes_up: int


def asked_for(exchanges: Sequence[Asked]) -> Communication | None:
    """What some exchanges have cost; ``None`` if there were none."""
    down, up = sum(each.bytes_down for each in exchanges), sum(each.bytes_up for each in exchanges)
    return Communication(len(exchanges), down, up) if exchanges else None


class Clients:
    """The clients of a fit, asked once its rounds are over; in double precision, which the caller switches on.

    Attributes
    ----------
    exchanges
        The ledger of all exchanges with all clients. What a client answers to itself alone, such as draws of its own
        posterior, stays there and is not counted.
    """

    def __init__(self, problem: Problem, answer: Answer, run: RunState, executor: Executor, key: Array) -> None:
        self._problem, self._answer, self._run, self._executor = problem, answer, run, executor
        self._key = key_for(key, Purpose.ASKED)
        self._kept: Kept[Personal] = Kept(_KEPT)
        self._kept_cavities: Kept[Gaussian] = Kept(1)
        self.exchanges: list[Asked] = []

    def aside(self) -> "Clients":
        """The same clients with a ledger of their own, for questions that are not the user's."""
        other = copy(self)
        other.exchanges = []
        return other

    def log_likelihood(
        self, drawn: Drawn, turn: int = 0, *, what: str = "posterior", finer: bool = False, single: bool = False
    ) -> Heard:
        """One more exchange: clients are told of draws ``(chain, draw, d)``, and answer with their log-likelihoods.

        In one process these are seen client by client. Over a network their sum is enough, unless ``single`` ones are
        asked for: all clients then stand as one. Each ``turn`` has random numbers of its own. With ``finer`` clients
        integrate out their locals by more draws. ``what`` the exchange is for stands in the ledger.
        """
        together = self._problem.elsewhere and not single
        name = f"log_likelihood{'_finer' if finer else ''}{'_sum' if together else ''}"
        heard = self._ask(name, drawn.theta, np.arange(len(self._problem.names)), turn, drawn.recipe)
        self.exchanges.append(Asked(what, heard.bytes_down, heard.bytes_up))
        return _as_one(heard) if together else heard

    def own_log_likelihood(self, place: int, points: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """One client's log-likelihood at points ``(n, d)``, and its variance, each ``(n,)``; in one process only.

        There it is no exchange. With locals each replicate is an estimate of the likelihood, and this is their mean.
        """
        posterior = self._answer.posterior
        assert isinstance(posterior, Gaussian)  # noqa: S101  (others have no conflicts)
        num = len(posterior.shift)
        heard = self._ask("log_likelihood", np.tile(points, (num, 1, 1)), np.asarray([place]))
        values = logsumexp(np.asarray(heard.replies.each[place]), axis=0) - np.log(num)
        noise = heard.infos["noise"][place].reshape(num, -1)  # one number where nobody has locals
        return values, np.broadcast_to(noise.mean(axis=0) / num, values.shape)

    def compile_ahead(self, num_draws: int) -> None:
        """Let other threads compile the check, and draws of one client's locals, while the rounds go on."""
        roster, posterior = self._problem.roster, self._answer.posterior
        if not correctable(self._answer) or not isinstance(posterior, Gaussian):
            return
        chains, size = posterior.shift.shape
        theta = jax.ShapeDtypeStruct((chains, sum(num_first(num_draws, chains)), size), np.float64)
        self._executor.asked_ahead("log_likelihood", theta, self._told("log_likelihood"), self._key, roster.num_clients)
        if roster.num_locals.any() and len(self._problem.buckets) == 1:  # of many programs most would never be asked
            self._executor.asked_ahead("given", theta, self._told("given"), self._key, 1)

    def cavities(self) -> Gaussian | None:
        """The posterior without each client's site, leading axes replicate and client; ``None`` where there is none.

        Where clients form their cavities themselves they are asked for them, once; in one process that is no exchange.
        """
        source = self._answer.locals_from
        if source.others is not None or not source.has_cavities:
            return source.others
        return self._kept_cavities.get("cavities", self._asked_for_cavities)

    def cavities_at_hand(self) -> bool:
        """Whether :meth:`cavities` takes no exchange."""
        source, elsewhere = self._answer.locals_from, self._problem.elsewhere
        return source.others is not None or not elsewhere or bool(self._kept_cavities)

    def _asked_for_cavities(self) -> Gaussian:
        posterior = self._answer.posterior
        assert isinstance(posterior, Gaussian)  # noqa: S101  (others have no cavities)
        chains, size = posterior.shift.shape
        heard = self._ask("cavity", np.zeros((chains, 0, size)), np.arange(len(self._problem.names)))
        if self._problem.elsewhere:
            self.exchanges.append(Asked("cavities", heard.bytes_down, heard.bytes_up))
        return jax.tree.map(lambda leaf: np.swapaxes(leaf, 0, 1), unpacked(heard.replies.each))

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
        update, me = "given_finer" if correction.finer else "given", np.asarray([place])
        found = [self._ask(update, each.theta, me, turn).replies.each[place] for turn, each in correction.exchanged()]
        mine = correction.at(np.concatenate(found, axis=1))
        return Personal(np.concatenate([correction.theta, mine], axis=-1), attrs)

    def _drawn(self, place: int, theta: np.ndarray, num_draws: int) -> Personal:
        return self._answer.locals_from.draws(_Client(self, place), theta, num_draws)

    def _ask(self, update: str, shared: Any, active: np.ndarray, turn: int = 0, recipe: Recipe | None = None) -> Heard:
        key = jax.random.fold_in(self._key, turn) if turn else self._key
        updates = [update] * self._problem.roster.num_clients
        order = Round(None, shared, self._told(update), key, active, updates, recipe)
        with memory_explained(f"The clients' answer '{update}'"):
            return self._executor.run(order)

    def _told(self, update: str) -> Any:
        """What each client is told beside what all are: without locals no client needs its cavity for its factor."""
        without = update.startswith("log_likelihood") and not self._problem.roster.num_locals.any()
        return () if without else self._answer.locals_from.told()


class _Client:
    """One of the clients, as :class:`~fedbayes.contract.locals_from.AtClient`."""

    def __init__(self, clients: Clients, place: int) -> None:
        self._clients, self._place = clients, place

    @property
    def update(self) -> str:
        """See :class:`~fedbayes.contract.locals_from.AtClient`."""
        return self._clients._run.updates[self._place]

    def reply(self, update: str, shared: Any) -> Any:
        """See :class:`~fedbayes.contract.locals_from.AtClient`."""
        return _of(self._place, self._clients._ask(update, shared, np.asarray([self._place])))

    def private(self) -> Any:
        """See :class:`~fedbayes.contract.locals_from.AtClient`."""
        return self._clients._executor.private(self._place)

    def recorded(self, num: int) -> np.ndarray:
        """See :class:`~fedbayes.contract.locals_from.AtClient`."""
        return self._clients._executor.recorded(self._place)[-num:]


def _as_one(heard: Heard) -> Heard:
    """The sum of all clients' answers as that of one client; not known where one of them is missing."""
    values, infos = heard.replies.total
    missing = ~heard.replies.used.all(axis=0)
    values = np.where(missing.reshape(missing.shape + (1,) * (values.ndim - 1)), np.nan, values)
    codes = heard.codes.max(axis=0, keepdims=True)
    replies = heard.replies._replace(total=(), each=values[None], used=~missing[None])
    return heard._replace(replies=replies, codes=codes, infos={name: value[None] for name, value in infos.items()})


def _of(place: int, heard: Heard) -> Any:
    """One client's answer."""
    return jax.tree.map(lambda leaf: np.asarray(leaf[place]), heard.replies.each)


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
    theta: np.ndarray,
) -> Newcomer:
    """The posterior of a client that was no part of the fit, see :meth:`~fedbayes.FederatedFit.adapt`.

    ``theta`` are the draws of ``fit.idata``, ``(chain, draw, d)``.
    """
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

    def ask(update: str, shared: Any) -> Heard:
        return executor.run(Round(None, shared, cavity, key_for(key, Purpose.ASKED), np.zeros(1, int), [update]))

    def reply(update: str, shared: Any) -> Any:
        return _of(0, ask(update, shared))

    mean, shape = gaussian_moments(posterior)[0], (posterior.shift.shape[0], theta.shape[1])
    draws, attrs = sampled(reply, mean, shape, lambda: _weighed(ask, theta, key))
    return Newcomer(problem, Personal(draws, {**attrs, "draws": f"by {attrs['solver']}"}))


def _weighed(ask: Callable[[str, Any], Heard], theta: np.ndarray, key: Array) -> Personal | None:
    """Draws of the globals taken by their weights, a newcomer's factor, with its locals; ``None`` if not to be trusted.

    The factor has the locals integrated out, so that it does not matter how they depend on the globals. Draws of a
    corrected fit may be there several times: copies count as one draw, with the weight of all.
    """
    heard = ask("log_likelihood", theta)
    logs, noise, halved = np.asarray(heard.replies.each)[0], heard.infos["noise"][0], heard.infos["halved"][0]
    logs = np.where(np.isfinite(logs), logs, -np.inf)
    if not np.all(np.any(np.isfinite(logs), axis=1)):
        return None
    logs = logs - logsumexp(logs, axis=1, keepdims=True)  # each chain has its own draws, by its own weights
    _, first, copies = np.unique(theta.reshape(-1, theta.shape[-1]), axis=0, return_index=True, return_counts=True)
    distinct = logs.reshape(-1)[first] + np.log(copies)
    weights, k_hat = np.exp(distinct - logsumexp(distinct)), tail_shape(distinct)
    imprecise = weighted_noise(weights, noise.reshape(-1)[first], halved.reshape(-1)[first], HALVED_OF_FEW)
    if not (trusted(distinct, k_hat) and np.sum(weights**2) <= 1.0 / LEAST and imprecise <= NOISE):
        return None
    joint = np.concatenate([theta, np.asarray(ask("given", theta).replies.each)[0]], axis=-1)
    rng = np.random.default_rng(np.asarray(jax.random.key_data(key)))
    places = [systematic(np.exp(each), theta.shape[1], rng) for each in logs]
    draws = np.stack([own[at] for own, at in zip(joint, places, strict=True)])
    return Personal(draws, {"k_hat": k_hat, "solver": "importance weights of the fit's draws"})
