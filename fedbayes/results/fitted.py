"""A fit as a value: what it was made of, and the answers that it has given so far.

Whatever a fit can be asked is a function of a :class:`Fitted`, in a file with its subject: its draws and their error in
:mod:`fedbayes.results.corrected`, what it tells of clients, prior and data in :mod:`fedbayes.questions`.
:class:`~fedbayes.FederatedFit` is the face that users see. A question whose answer takes long, or an exchange with the
clients, is marked by :func:`once`: the fit keeps the answer. Nothing else of a fit changes but the ledger of exchanges.
"""

import logging
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import wraps
from importlib.metadata import version
from typing import TYPE_CHECKING, Any, TypeVar

import jax
import numpy as np
from jax import Array

from fedbayes.contract.algorithm import Method
from fedbayes.contract.answer import Answer, Verdict
from fedbayes.contract.client_locals import no_matrix
from fedbayes.contract.state import RunState
from fedbayes.numerics.gaussian import Gaussian
from fedbayes.numerics.host import gaussian_moments
from fedbayes.numerics.low_rank import LowRankGaussian
from fedbayes.problem.problem import Problem
from fedbayes.problem.roster import Roster
from fedbayes.results.personal import Asked, Clients, asked_for
from fedbayes.results.presented import Presentation, labels_of_globals
from fedbayes.results.rounds import Communication, communication, rounds_dataset
from fedbayes.results.saved.folder import SavedPosterior
from fedbayes.results.saved.regression import Carried, Regressed
from fedbayes.rounds.executors import Executor
from fedbayes.rounds.programs import Programs
from fedbayes.runtime.precision import computing

if TYPE_CHECKING:
    import xarray as xr

Found = TypeVar("Found")
log = logging.getLogger(__name__)


@dataclass(frozen=True, eq=False, repr=False)
class Fitted:
    """What a fit was made of, and what it has found.

    Attributes
    ----------
    problem
        The model and the clients as they were read.
    method
        As it was configured.
    run
        Where the rounds have ended.
    programs
        The compiled halves of the rounds, and of what clients can be asked afterwards.
    executor
        Who runs the clients.
    key
        Of the fit.
    shown
        How the posterior is shown.
    answer
        What the method says of the globals.
    clients
        The clients, who can be asked still.
    saved
        The posterior of a loaded fit, in its file; ``None``: the fit was made in this process.
    unchecked
        Why the clients could not be asked once the rounds were over, in a sentence; empty if they could.
    agreement
        Whether a site over a network finds the posterior in agreement with its own data, of those that said so.
    put_out
        Sites over a network that the fit began with and does not hold, each with why: words that go on after its name.
    regression
        What was fitted, where that was a formula; ``None``: a program of the user's own.
    carried
        What the program itself says of it, also of what is the clients' own; ``None``: nothing.
    answers
        To the questions that were asked :func:`once`.
    """

    problem: Problem
    method: Method
    run: RunState
    programs: Programs
    executor: Executor
    key: Array
    shown: Presentation
    answer: Answer
    clients: Clients
    saved: SavedPosterior | None = None
    unchecked: str = ""
    agreement: Mapping[str, bool] = field(default_factory=dict)
    put_out: Mapping[str, str] = field(default_factory=dict)
    regression: Regressed | None = None
    carried: Carried | None = None
    answers: dict[Any, Any] = field(default_factory=dict)

    @property
    def is_closed(self) -> bool:
        """Whether clients answer nothing about the finished fit: exact numbers would undo what noise has hidden."""
        return self.problem.elsewhere and self.method.is_private

    @property
    def roster(self) -> Roster:
        """What the server knows of the clients."""
        return self.problem.roster

    @property
    def posterior(self) -> Gaussian | LowRankGaussian | None:
        """The Gaussian over the unconstrained globals, leading axis of replicates or chains; ``None``: a point."""
        return self.answer.posterior

    def cavities(self) -> Gaussian | None:
        """The posterior without client k's site, leading axes replicate and client; ``None`` where there is none.

        Where clients have kept their own sites they are asked for it, once: over a network in an exchange.
        """
        with computing():
            return self.clients.cavities()

    @property
    def ledger(self) -> Sequence[Asked]:
        """Every exchange with all clients since the rounds."""
        return self.clients.exchanges

    def dense(self, question: str) -> Gaussian:
        """The posterior for a question that needs the precision of all globals as a matrix.

        Raises
        ------
        ValueError
            It has none.
        """
        if not isinstance(self.posterior, Gaussian):
            raise ValueError(no_matrix(question))
        return self.posterior


def fitted_by(
    method: Method,
    problem: Problem,
    run: RunState,
    programs: Programs,
    executor: Executor,
    key: Array,
    shown: Presentation,
    saved: SavedPosterior | None = None,
    *,
    carried: Carried | None = None,
) -> Fitted:
    """The fit that a method makes of its rounds; ``executor`` runs the clients that can be asked still.

    ``carried`` is what the model's program carries, where it is a regression's.
    """
    with computing():
        answer = method.answer(problem.roster, run)
        clients = Clients(problem, answer, run, executor, key)
    regression = None if carried is None else carried.regression
    return Fitted(
        problem, method, run, programs, executor, key, shown, answer, clients, saved,
        regression=regression, carried=carried,
    )  # fmt: skip


def without_check(fitted: Fitted, error: Exception) -> Fitted:
    """The fit where what follows the rounds has failed: with all that the rounds have found, and the reason."""
    log.error("What follows the rounds has failed; the fit is kept without it.", exc_info=error)
    reason = str(error).rstrip(".") or type(error).__name__
    said = f"What follows the rounds has failed: {reason}."
    return replace(fitted, shown=fitted.shown._replace(correct=False), unchecked=said, answers={})


def once(question: Callable[[Fitted], Found]) -> Callable[[Fitted], Found]:
    """A question that a fit is asked once: it keeps the answer."""

    @wraps(question)
    def kept(fitted: Fitted) -> Found:
        if kept not in fitted.answers:
            fitted.answers[kept] = question(fitted)
        found: Found = fitted.answers[kept]
        return found

    return kept


def was_asked(fitted: Fitted, question: Callable[[Fitted], Any]) -> bool:
    """Whether the fit has the answer to a question that is asked :func:`once`."""
    return question in fitted.answers


@once
def labels(fitted: Fitted) -> list[str]:
    """Names of the unconstrained globals, ``beta[0]`` style, or ``beta[age]`` by ``coords``."""
    return labels_of_globals(fitted.problem, fitted.shown)


@once
def rounds(fitted: Fitted) -> "xr.Dataset":
    """Diagnostics of the rounds, with their cost and what the method reports in the attributes."""
    history = fitted.run.history
    dataset = rounds_dataset(history, fitted.roster, fitted.method.diagnostics)
    return dataset.assign_attrs({**communication(history)._asdict(), **fitted.answer.report()})


@once
def verdict(fitted: Fitted) -> Verdict:
    """Whether the answer can be trusted, as its method says."""
    with computing():
        return fitted.answer.verdict(rounds(fitted))


def moments(fitted: Fitted) -> tuple[np.ndarray, np.ndarray]:
    """Mean ``(replicate, d)`` and covariance ``(replicate, d, d)`` of the unconstrained globals.

    Returns
    -------
    mean, covariance
        Of each replicate of the fit, or chain.

    Raises
    ------
    ValueError
        The fit is a point.
    """
    if isinstance(fitted.posterior, LowRankGaussian):
        with computing():
            mean, covariance = jax.vmap(LowRankGaussian.moments)(fitted.posterior)
        return np.asarray(mean), np.asarray(covariance)
    return gaussian_moments(fitted.dense("moments"))


def attrs(fitted: Fitted) -> dict[str, Any]:
    """What every ArviZ object of a fit says of it."""
    return {
        "inference_library": "fedbayes",
        "inference_library_version": version("fedbayes"),
        "method": repr(fitted.method),
        "converged": int(verdict(fitted).converged),
        "remarks": "; ".join(verdict(fitted).remarks),
        **fitted.answer.attrs(),
    }


def cost_of_posterior(fitted: Fitted) -> Communication | None:
    """What check and posterior have taken beyond the rounds; of a loaded fit: when it was made."""
    if fitted.saved is not None and fitted.saved.cost is not None:
        return fitted.saved.cost
    return asked_for([each for each in fitted.ledger if each.what == "posterior"])


def cost_of_questions(fitted: Fitted) -> Communication | None:
    """The same of all other questions, and of what a loaded fit was asked for again."""
    known = fitted.saved is not None and fitted.saved.cost is not None
    return asked_for([each for each in fitted.ledger if known or each.what != "posterior"])


def cost(fitted: Fitted) -> Communication:
    """Exchanges and bytes of a client: of the rounds, of the posterior, and of all questions so far."""
    parts = (communication(fitted.run.history), cost_of_posterior(fitted), cost_of_questions(fitted))
    return Communication(*np.sum([part for part in parts if part is not None], axis=0).tolist())
