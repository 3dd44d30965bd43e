"""The folder that a fit is saved to: its posterior, what it says of itself, and what makes it anew."""

import os
from pathlib import Path
from typing import TYPE_CHECKING

from fedbayes.questions.summary import conflict_at_hand, summary, trouble
from fedbayes.results.corrected import check_is_due, checked, is_checked, weighed
from fedbayes.results.fitted import Fitted, cost, cost_of_posterior, labels, rounds, was_asked
from fedbayes.results.posterior import idata
from fedbayes.results.quantities import error, long_tailed
from fedbayes.results.saved.folder import Said, Saved, about, check_savable, write_fit

if TYPE_CHECKING:
    import xarray as xr


def save(fitted: Fitted, path: str | os.PathLike) -> None:
    """Write the fit to a folder: ``posterior.nc``, ``rounds.nc``, and the rest for :func:`fedbayes.load_fit`.

    The clients' data and the model are not in it.

    Parameters
    ----------
    path
        The folder, which need not exist.

    Raises
    ------
    ValueError
        An option of the method is or holds a function, which can't be written to a file; or the path is a file.
    """
    problem, method = fitted.problem, fitted.method
    options, posterior = check_savable(method), idata(fitted)
    clients = {**about(fitted.roster), **({"elsewhere": True} if problem.elsewhere else {})}
    check = checked(fitted)
    said = Said(summary(fitted), "" if check_is_due(fitted) else trouble(fitted), labels(fitted), cost(fitted))
    saved = Saved(
        type(method).__name__,
        options,
        fitted.key,
        str(problem.programs[0].dtype),
        fitted.shown,
        clients,
        cost_of_posterior(fitted),
        None if check is None else check._replace(long_tailed=long_tailed(fitted)),
        fitted.unchecked,
        said,
    )
    write_fit(Path(path), posterior, _tables(fitted), saved, problem.description(), fitted.run, fitted.executor)


def _tables(fitted: Fitted) -> dict[str, "xr.Dataset"]:
    """What is known of the fit beside its posterior, without asking anybody."""
    found = {"rounds": rounds(fitted)}
    if is_checked(fitted) and not fitted.unchecked and was_asked(fitted, weighed):
        found["error"] = error(fitted)
    elif fitted.saved is not None and (known := fitted.saved.error()) is not None:
        found["error"] = known
    if (disagreement := conflict_at_hand(fitted)) is not None:
        found["conflict"] = disagreement
    return found
