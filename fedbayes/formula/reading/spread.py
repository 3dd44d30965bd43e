"""How much sites differ: sds of effects, and the share of the outcome's variance that they make."""

from collections.abc import Mapping
from typing import Any

import numpy as np

from fedbayes.errors import FormulaError
from fedbayes.formula.described import sd_of, with_slopes
from fedbayes.formula.reading.places import NO_ROWS, global_posterior
from fedbayes.formula.regression import Regression
from fedbayes.questions.hypothesis import check_level
from fedbayes.questions.regression.entries import stacked
from fedbayes.questions.regression.estimates import Estimates
from fedbayes.results.arviz import shown
from fedbayes.results.saved.regression import Entry


class Heterogeneity(Estimates):
    """How much sites differ, dimension ``quantity``; ``.notes`` say what is not defined, and why."""

    def _columns(self) -> list[str]:
        return ["quantity", "median", "lower", "upper"]


def heterogeneity(reg: Regression, fit: Any, level: float = 0.9) -> Heterogeneity:
    """Sds of effects, their share of the variance (ICC), and of a meta-analysis I2, each with its draws.

    ``tau`` is the sd of the effects of a group, on the scale of the link. ``ICC = tau^2 / (sum of all groups' tau^2 +
    v)`` at each draw, with ``v`` the variance of an outcome around its linear predictor on that scale: ``sigma^2`` of
    gaussian and log-normal outcomes, ``pi^2 / 3`` of log odds (bernoulli, binomial, cumulative), ``pi^2 / 6`` of a
    Weibull law's log cumulative hazard, ``pi^2 / (3 shape^2)`` of a log-logistic log time. With known standard errors
    ``s_i``, ``I2 = tau^2 / (tau^2 + s^2)``, where ``s^2 = (k - 1) sum w_i / ((sum w_i)^2 - sum w_i^2)`` and ``w_i = 1 /
    s_i^2`` (Higgins and Thompson 2002).

    Parameters
    ----------
    reg
        The regression.
    fit
        Its fit.
    level
        Probability of the intervals.

    Returns
    -------
    Heterogeneity
        ``.draws`` with the dimensions ``chain, draw, quantity``: ``tau of 1|site``, ``ICC of 1|site``, ``I2``. What is
        not defined is not there, and stands in ``.notes`` with the reason.

    Raises
    ------
    FormulaError
        The regression has no effects of groups, or the fit is of another one.

    See Also
    --------
    random_effects : The groups' effects themselves.
    summary_table : All coefficients.
    federation_gain : What each client has of the others.

    Examples
    --------
    >>> fb.heterogeneity(reg, fit)  # doctest: +SKIP
    """
    level, posterior = check_level(level), global_posterior(reg, fit)
    found = reg.described.heterogeneity(posterior)
    if not found:
        raise FormulaError("The formula has no effects of groups, and so no heterogeneity. Write `(1 | site)` in it.")
    squared, reason = _i_squared(reg, posterior)
    draws, _ = stacked([*found, *squared], "quantity")
    return Heterogeneity(draws, "Heterogeneity", level, np.nan, (*reg.described.notes, *reason))


def _i_squared(reg: Regression, posterior: Any) -> tuple[list[Entry], list[str]]:
    """I2, and why there is none."""
    main = reg.parts.predictors[0]
    if reg.parts.outcome.errors is None or not main.groups:
        return [], []
    if with_slopes(main.groups) or len(main.groups) > 1:
        return [], ["I2 is not defined: it is about one group with one effect each."]
    if not reg.clients:
        return [], ["I2 is not defined here: it needs the standard errors of all rows." + NO_ROWS]
    typical = typical_variance(reg.clients)
    (group,) = main.groups
    variance = np.asarray(posterior[shown(sd_of(group, main))], float) ** 2
    return [Entry("I2", "I2", variance / (variance + typical))], []


def typical_variance(clients: Mapping[str, Mapping[str, Any]]) -> float:
    """The typical variance within studies, from the standard errors of all rows."""
    weights = np.concatenate([np.asarray(each["errors"], float) for each in clients.values()]) ** -2.0
    return float((len(weights) - 1) * weights.sum() / (weights.sum() ** 2 - (weights**2).sum()))
