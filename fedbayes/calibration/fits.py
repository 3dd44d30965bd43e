"""The fits of many data sets: side by side in one program, or one after the other."""

import warnings
from collections.abc import Sequence
from dataclasses import fields, is_dataclass, replace
from typing import Any, NamedTuple, Protocol

import jax
import numpy as np
from jax import Array

from fedbayes.calibration.correction import corrected_draws
from fedbayes.calibration.data_sets import read_like_first, side_by_side
from fedbayes.calibration.rounds import SimulatedRun, why_not_at_once
from fedbayes.calibration.simulators import Clients
from fedbayes.contract.algorithm import Method
from fedbayes.contract.answer import Answer
from fedbayes.errors import K_HAT_LIMIT, FederatedError, NotConvergedWarning, UnreliableWarning
from fedbayes.fit import fit_federated, updates_after
from fedbayes.numerics.gaussian import Gaussian
from fedbayes.problem.problem import Problem
from fedbayes.problem.program.program import Model
from fedbayes.results.fit import FederatedFit
from fedbayes.rounds.exchange import Heard, Round
from fedbayes.rounds.executors import Batched
from fedbayes.rounds.programs import programs_for
from fedbayes.rounds.progress import Silent
from fedbayes.runtime.keys import Purpose, key_for
from fedbayes.runtime.precision import computing

_WORK = 1 << 13  # rows times data sets of one compiled call, for whose draws a processor's cache has room


class Options(NamedTuple):
    """What all fits have in common.

    Attributes
    ----------
    method
        Configured, with one replicate.
    num_draws
        Of each posterior.
    correction
        Whether draws are corrected by importance weights.
    num_rounds, local, dtype
        As in :func:`fedbayes.fit_federated`.
    """

    method: Method
    num_draws: int
    correction: bool
    num_rounds: int | None
    local: Sequence[str]
    dtype: Any


class Fits(NamedTuple):
    """What was found of some data sets, leading axis of these.

    Attributes
    ----------
    theta
        Draws of the unconstrained globals, shape ``(data set, draw, d)``; NaN where there is no posterior.
    converged, rounds
        Shape ``(data set,)``.
    k_hat
        Of the correction's weights; NaN without correction.
    """

    theta: np.ndarray
    converged: np.ndarray
    rounds: np.ndarray
    k_hat: np.ndarray


class Fitter(Protocol):
    """Fits a batch of data sets, which always has the same number of them but for the last."""

    def __call__(self, numbers: Sequence[int], data_sets: Sequence[Clients], key: Array) -> Fits:
        """Fit them; ``numbers`` say which they are."""
        ...


def with_one_replicate(method: Method) -> Method:
    """The method with one run for each data set; chains stay as they are."""
    if is_dataclass(method) and "num_replicates" in {field.name for field in fields(method)}:
        return replace(method, num_replicates=1)
    return method


class AtOnce:
    """Many data sets as the replicates of one run.

    Parameters
    ----------
    problem
        Of the first data set.
    options
        Of the fits.
    size
        Data sets in a batch; a smaller last one is filled up, so that nothing is compiled for it.

    Raises
    ------
    ValueError
        The method's data sets can't be fitted side by side.
    """

    def __init__(self, problem: Problem, options: Options, size: int) -> None:
        self._problem, self._options, self._size = problem, options, size
        method, self._roster = options.method, problem.roster
        after = updates_after(method, self._roster)
        self._programs = programs_for(method, self._roster, problem.programs, after, data_sets=size)
        if (reason := why_not_at_once(method, self._programs.phases)) is not None:
            raise ValueError(
                f"`vectorised` is True, but {type(method).__name__} can't fit data sets side by side: {reason}. Write "
                "`vectorised=False`, which fits one after the other, or leave it out."
            )
        rows = max(bucket.clients.mask.shape[1] for bucket in problem.buckets)
        self._chunk = max(1, _WORK // (rows * size))

    def __call__(self, numbers: Sequence[int], data_sets: Sequence[Clients], key: Array) -> Fits:
        """See :class:`Fitter`."""
        with computing():
            run, answer, executor = self.fitted(numbers, data_sets, key)
            theta, k_hat = self._draws(answer, executor, key)
        theta = np.where(run.failed[:, None, None], np.nan, theta)
        found = Fits(theta, run.converged, run.rounds, k_hat)
        return Fits(*(leaf[: len(data_sets)] for leaf in found))

    def fitted(
        self, numbers: Sequence[int], data_sets: Sequence[Clients], key: Array
    ) -> tuple[SimulatedRun, Answer, Batched]:
        """All rounds, and what they have found of each data set; in double precision, which the caller switches on."""
        read = [
            read_like_first(self._problem, number, clients) for number, clients in zip(numbers, data_sets, strict=True)
        ]
        filled = [read[place % len(read)] for place in range(self._size)]
        executor = Batched(chunk=self._chunk)
        executor.connect(self._programs, side_by_side(self._problem, filled), key)
        run = SimulatedRun(self._programs, self._roster, executor, key)
        state = run.run(self._options.num_rounds, Silent())
        return run, self._options.method.answer(self._roster, state), executor

    def _draws(self, answer: Answer, executor: Batched, key: Array) -> tuple[np.ndarray, np.ndarray]:
        num, draw_key = self._options.num_draws, key_for(key, Purpose.DRAWS)
        if not self._options.correction:
            return answer.draws(draw_key, num), np.full(self._size, np.nan)
        everybody = np.arange(self._roster.num_clients)
        cavities: Any = ()
        if self._roster.num_locals.any():  # a client without locals needs no place to look for them
            cavities = answer.locals_from.told()

        def ask(theta: np.ndarray, turn: int) -> Heard:
            updates = ["log_likelihood"] * len(everybody)
            asked_key = key_for(key, Purpose.ASKED, turn)
            return executor.run(Round(None, theta, cavities, asked_key, everybody, updates))

        return corrected_draws(_gaussian(answer), self._roster.prior, ask, draw_key, num)


class OneByOne:
    """Each data set by a call of :func:`fedbayes.fit_federated`, whatever the method and the shapes.

    Parameters
    ----------
    model
        Of one client.
    options
        Of the fits.
    size
        Number d of unconstrained globals.
    """

    def __init__(self, model: Model, options: Options, size: int) -> None:
        self._model, self._options, self._size = model, options, size

    def __call__(self, numbers: Sequence[int], data_sets: Sequence[Clients], key: Array) -> Fits:
        """See :class:`Fitter`."""
        found = [self._one(clients, jax.random.fold_in(key, place)) for place, clients in enumerate(data_sets)]
        return Fits(*(np.stack(leaves) for leaves in zip(*found, strict=True)))

    def _one(self, clients: Clients, key: Array) -> Fits:
        options = self._options
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", NotConvergedWarning)  # the calibration counts them
            warnings.simplefilter("ignore", UnreliableWarning)
            try:
                fit = fit_federated(
                    self._model,
                    clients,
                    method=options.method,
                    key=key,
                    num_rounds=options.num_rounds,
                    local=options.local,
                    num_draws=options.num_draws,
                    correct=options.correction,
                    progress=False,
                    dtype=options.dtype,
                )
            except FederatedError:
                nothing = np.full((options.num_draws, self._size), np.nan)
                return Fits(nothing, np.asarray(False), np.asarray(0), np.asarray(np.nan))
        drawn = fit.theta.reshape(-1, self._size)
        theta = drawn[np.linspace(0, len(drawn) - 1, options.num_draws).astype(int)]  # thins chains
        return Fits(theta, np.asarray(fit.converged), np.asarray(fit.communication.exchanges), _tail_shape(fit))


def _tail_shape(fit: FederatedFit) -> np.ndarray:
    """Of the weights that have corrected a fit; at most 0.7 where they can be trusted."""
    if fit.correction is None:
        return np.asarray(np.nan)
    k_hat = fit.correction.pool.k_hat
    return np.asarray(min(k_hat, K_HAT_LIMIT) if fit.correction.reliable else k_hat)


def _gaussian(answer: Answer) -> Gaussian:
    """The Gaussian that draws are corrected from.

    Raises
    ------
    ValueError
        The answer is no Gaussian.
    """
    if not isinstance(answer.posterior, Gaussian) or not answer.locals_from.has_cavities:
        raise ValueError(
            "`correction` is True, but the method's answer is no Gaussian posterior whose draws could be weighted. "
            "Write `correction=False`."
        )
    return answer.posterior
