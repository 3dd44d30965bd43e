"""What merging needs of clients and draws, said before work starts."""

import warnings

from fedbayes.errors import ClientDataError, MergeWarning
from fedbayes.inference.local.density.moments import (
    Estimator,
    covariance_inversion,
    proper_regression,
    shrunk_covariance,
)
from fedbayes.problem.roster import Roster

ESTIMATORS: dict[str, Estimator] = {
    "score": proper_regression,
    "sample": covariance_inversion,
    "shrinkage": shrunk_covariance,
}


def draws_needed(estimator: str, size: int) -> int:
    """Fewest draws from which a dense precision of ``size`` globals can be estimated."""
    return {"score": 2 * size + 3, "sample": 2 * size + 3, "shrinkage": 1}[estimator]


def affordable(estimator: str, num_draws: int, size: int) -> str:
    """The estimator asked for, or ``"shrinkage"`` with a :class:`~fedbayes.MergeWarning` where draws are few."""
    if num_draws >= draws_needed(estimator, size):
        return estimator
    warnings.warn(
        f"`num_samples` is {num_draws}, but the dense precision of {size} globals by estimator='{estimator}' needs "
        f"{draws_needed(estimator, size)} draws: using estimator='shrinkage'. Raise `num_samples`, or ask for "
        "'shrinkage' yourself.",
        MergeWarning,
        stacklevel=4,
    )
    return "shrinkage"


def check_subposteriors(roster: Roster) -> None:
    """Refuse clients whose subposterior can't be proper: fewer rows than directions without prior information.

    Raises
    ------
    ClientDataError
        It names the clients.
    """
    flat, rows = roster.prior.num_flat(), roster.rows
    short = [name for name, num in zip(roster.names, rows, strict=True) if num < flat]
    if short:
        first = int(rows[roster.names.index(short[0])])
        raise ClientDataError(
            f"The prior is flat in {flat} directions, but {len(short)} of the {len(rows)} clients have fewer rows than "
            f"that, '{short[0]}' {first}: their own posteriors are not proper. Give the globals proper priors, or use "
            "`method='ep'`, in which clients borrow from each other."
        )
