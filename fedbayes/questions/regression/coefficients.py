"""A table of all coefficients on the scale on which they are read: a function of a ``Fitted``."""

from typing import Any

import numpy as np

from fedbayes.errors import FormulaError
from fedbayes.questions.hypothesis import check_level
from fedbayes.questions.regression.entries import check_numbers, stacked
from fedbayes.questions.regression.estimates import Estimates
from fedbayes.results.arviz import shown
from fedbayes.results.fitted import Fitted
from fedbayes.results.posterior import idata
from fedbayes.results.saved.regression import Regressed


class Coefficients(Estimates):
    """The coefficients of a regression, dimension ``coefficient``; ``measure`` says what each is."""

    def _columns(self) -> list[str]:
        return ["coefficient", "measure", "median", "lower", "upper", "probability_of_direction"]


def summary_table(fitted: Fitted, level: float = 0.9) -> Coefficients:
    """Every coefficient of a regression on its natural scale, as :func:`fedbayes.summary_table` has it.

    The fit has to be one of ``reg.model``, in one process or over a network, which knows its regression, also when it
    was saved and read again.

    Parameters
    ----------
    level
        Probability of the intervals, which are equal-tailed.

    Returns
    -------
    Coefficients
        As of :func:`fedbayes.summary_table`.

    Raises
    ------
    FormulaError
        The fit knows of no regression.
    ValueError
        ``level`` is no probability.

    Examples
    --------
    >>> reg.fit(key=jax.random.key(0)).summary_table()  # doctest: +SKIP
    """
    return coefficients(known(fitted.regression), idata(fitted)["posterior"], level)


def known(regression: Regressed | None, asked: str = "summary_table") -> Regressed:
    """What a fit knows of its regression; ``asked`` is the name of the question.

    Raises
    ------
    FormulaError
        Nothing.
    """
    if regression is None:
        globals_alone = ", or `arviz.summary(fit.idata)` where there is none" if asked == "summary_table" else ""
        raise FormulaError(
            f"This fit knows of no regression: its model is no `reg.model`. Write `fb.{asked}(reg, fit)` with its "
            f"regression{globals_alone}."
        )
    return regression


def coefficients(regression: Regressed, posterior: Any, level: float) -> Coefficients:
    """The table of a posterior.

    Raises
    ------
    ClientDataError
        Draws are no numbers.
    ValueError
        ``level`` is no probability.
    """
    level = check_level(level)
    for read in regression.coefficients:
        if shown(read.site) in posterior:
            check_numbers(read.site, np.asarray(posterior[shown(read.site)], float))
    found = regression.entries(posterior)
    draws, reference = stacked(found, "coefficient", measure=[entry.what for entry in found])
    return Coefficients(draws, f"Coefficients of {regression.family}", level, reference)
