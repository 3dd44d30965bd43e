"""What is expected of outcomes of new rows."""

from typing import Any

import numpy as np
from jax import Array

from fedbayes.formula.reading.reader import outcomes_of, warn_outside
from fedbayes.formula.regression import Regression
from fedbayes.questions.hypothesis import check_level
from fedbayes.questions.regression.estimates import Estimates, named_draws


def predictions(
    reg: Regression,
    fit: Any,
    rows: Any,
    *,
    where: Any = "average",
    scale: str = "response",
    level: float = 0.9,
    new_groups: bool = False,
    key: Array | None = None,
) -> Estimates:
    """The expected outcome of each row, ``E(y | row, parameters)`` at each draw of the parameters.

    With effects of sites ``eta = x beta + z b``, and the expected outcome is ``g(eta)``, ``g`` the inverse link for
    most families. ``where="average"`` has ``b = 0``: the average site on the scale of the link, which is not the
    average over sites of the response. ``where="new"`` has ``b ~ N(0, Sigma)``, drawn anew with each draw of the
    globals and the same for all rows: the mean over the draws is then ``E(g(eta))`` over sites, and the interval that
    of a site without data. At a client ``b`` are its own effects, with the globals of the same draws. Groups that cross
    sites have their own effects anywhere.

    Parameters
    ----------
    reg
        The regression.
    fit
        Its fit.
    rows
        A table with the columns on the right of the formula, ``n`` rows; ``{"age": 50}`` is one row. Offsets count;
        trials need not be there, because the probability of one trial is read. At a site with data groups are the
        site's; elsewhere groups within a site are new ones, and one for all rows where their column is left out. Rows
        beyond a spline's bounds are warned of.
    where
        ``"average"``, ``"new"``, a client's name, or for a site with data that was no part of the fit what
        ``fit.adapt(reg.arguments(name, table, outcome=True))`` has returned; where the formula has groups within
        sites, ``(fit.adapt(...), table)``: the table says which groups' effects these are.
    scale
        ``"response"``, or ``"link"`` for ``eta``.
    level
        Probability of the intervals.
    new_groups
        Whether rows of a site with data may be of groups within it that are not in these. Their effects are drawn as
        those of a new site's groups are, given the globals of the site's draws.
    key
        For effects that are drawn: ``jax.random.key(seed)``; ``None``: the same draws each time.

    Returns
    -------
    Estimates
        ``.draws`` with the dimensions ``chain, draw, row``; of ordered and categorical outcomes the probabilities of
        ``level``, the last dimension. Of censored times the mean time, infinite for a log-logistic law with a shape of
        at most 1. Of hurdles and inflated zeros the mean with its zeros.

    Raises
    ------
    FormulaError
        ``where`` or ``scale`` is none, a column is missing, or the fit is of another regression.
    ClientDataError
        A level that was not agreed on, values that are missing, or a client whose effects are not known.

    See Also
    --------
    comparisons : Differences between two values of a predictor.
    survival_curves : The same for times to an event.
    FederatedFit.predict : The same for any program.

    Examples
    --------
    >>> fb.predictions(reg, fit, {"age": [50, 60]}, where="north").summary["median"]  # doctest: +SKIP
    """
    level, outcomes = check_level(level), outcomes_of(reg, fit, where, scale, key, new_groups)
    table = outcomes.reader.table(rows)
    warn_outside(reg, [table])
    draws = named_draws(outcomes.at(table), {"row": np.arange(table.num_rows), **outcomes.levels})
    return Estimates(draws, outcomes.title, level)
