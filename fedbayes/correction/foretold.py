"""How long a fit will take, with the check of its answer that follows the rounds."""

import warnings

import jax
import numpy as np

from fedbayes.contract.algorithm import Method
from fedbayes.contract.answer import Answer
from fedbayes.contract.state import RunState
from fedbayes.correction.correct import correctable, num_first
from fedbayes.problem.problem import Problem
from fedbayes.problem.roster import Roster
from fedbayes.rounds.forecast import Asked, Forecast
from fedbayes.rounds.programs import Programs


def forecast_of(method: Method, problem: Problem, programs: Programs, num_draws: int | None) -> Forecast:
    """What says how long a fit will take.

    Parameters
    ----------
    method, problem, programs
        Of the fit.
    num_draws
        Posterior draws per chain at which the answer will be checked; ``None``: it is not.
    """
    roster = problem.roster

    def is_checked(current: RunState) -> bool:
        return correctable(answer_so_far(method, roster, current))

    check = None if num_draws is None else _check_to_come(method, programs, roster, num_draws)
    return Forecast(programs, problem, check, is_checked, method.cheaper(roster))


def answer_so_far(method: Method, roster: Roster, current: RunState) -> Answer:
    """The answer if the rounds ended here, for its shapes and its kind."""
    with warnings.catch_warnings(), np.errstate(all="ignore"):
        warnings.simplefilter("ignore")  # of a state that is no answer yet
        return method.answer(roster, current)


def _check_to_come(method: Method, programs: Programs, roster: Roster, num_draws: int) -> Asked | None:
    """What clients will be asked after the rounds; nothing where rounds are draws."""
    if programs.phases[-1].recording is not None:
        return None

    def draws(chains: int) -> jax.ShapeDtypeStruct:
        return jax.ShapeDtypeStruct((sum(num_first(num_draws, chains)), roster.size), np.float64)

    least = num_first(1, method.num_replicates)
    fewer = [f"`num_draws={least[0]}`"] if draws(method.num_replicates).shape[0] > sum(least) else []
    return Asked(draws, fewer)
