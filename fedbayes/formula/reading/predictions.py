"""What is expected of outcomes of new rows."""

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import jax
import numpy as np
from jax import Array
from numpyro.infer import Predictive

from fedbayes.errors import FormulaError
from fedbayes.formula.design.tables import Table
from fedbayes.formula.planned import groups_of
from fedbayes.formula.program.groups import Kind
from fedbayes.formula.program.source import plain
from fedbayes.formula.reading.places import Place, values_at
from fedbayes.formula.reading.reader import Outcomes, Reader, outcomes_of, warn_outside
from fedbayes.formula.regression import Regression, own_rows
from fedbayes.problem.program.handlers import Unobserved
from fedbayes.questions.hypothesis import check_level
from fedbayes.questions.regression.estimates import Estimates, named_draws
from fedbayes.runtime.precision import computing


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
    return _expected(outcomes, table, level)


def own_predictions(
    reg: Regression, client: str, posterior: Any, rows: Any, *, own: Any = None, level: float = 0.9
) -> tuple[Estimates, Estimates | None]:
    """What is expected of new rows of a client in whose process this is, and what new observations are like.

    Parameters
    ----------
    reg
        The regression.
    client
        The client's name.
    posterior
        Draws of its effects and of the globals.
    rows
        A table with the columns on the right of the formula.
    own
        The client's table that was fitted, which says whose the effects of groups within it are.
    level
        Probability of the intervals.

    Returns
    -------
    tuple
        The expected outcome of each row, as :func:`predictions` has it at the client; and a new outcome with these
        predictors, whose draws vary about the expected ones. That is ``None`` for outcomes of several levels, whose
        probabilities are all there is to say, and where the rows lack their trials or standard errors.

    Raises
    ------
    FormulaError, ClientDataError
        As :func:`predictions`; or the formula has groups within the client, and ``own`` is not given.
    ValueError
        ``level`` is no probability.
    """
    level = check_level(level)
    place = Place(client, f"at '{client}'", posterior, groups=_own_groups(reg, client, own))
    outcomes = Outcomes(Reader(reg, place, jax.random.key(0)), "response")
    table = outcomes.reader.table(rows)
    warn_outside(reg, [table])
    return _expected(outcomes, table, level), _new_outcomes(outcomes, table, level)


def _own_groups(reg: Regression, client: str, own: Any) -> Mapping[str, tuple[str, ...]]:
    """The labels of a client's groups, in the order of their effects."""
    predictors = reg.parts.predictors
    names = [group.grouping.name for each in predictors for group in each.groups if group.grouping.kind is Kind.WITHIN]
    if not names:
        return {}
    if own is None:
        raise FormulaError(
            f"The formula has groups '{names[0]}' within a site, and their labels were not kept. Give the table that "
            "was fitted, `--own FILE`."
        )
    return groups_of(predictors, own_rows(reg, client, own))


def _expected(outcomes: Outcomes, table: Table, level: float) -> Estimates:
    draws = named_draws(outcomes.at(table), {"row": np.arange(table.num_rows), **outcomes.levels})
    return Estimates(draws, f"{_sentence(outcomes.words)} {outcomes.reader.place.words}", level)


def _new_outcomes(outcomes: Outcomes, table: Table, level: float) -> Estimates | None:
    """One outcome of each row at each draw of the parameters."""
    reader, outcome = outcomes.reader, outcomes.reader.reg.parts.outcome
    beside = [each for each in (outcome.trials, outcome.errors) if each is not None]
    if outcomes.levels or not {name for each in beside for name in each.columns} <= {*table.names}:
        return None
    client = reader.place.client
    arguments = replace(reader.reg, groups={client: reader.place.groups or {}}).arguments(client, table)
    with computing():
        values = values_at(reader.reg, reader.place, reader.arguments(table), reader.key)
        law = Predictive(Unobserved(reader.reg.model), values, batch_ndims=2)
        drawn = np.asarray(law(reader.key, **arguments)[plain(outcome.name)], float)
    draws = named_draws(drawn, {"row": np.arange(table.num_rows)})
    return Estimates(draws, f"A new `{outcome.name}` {reader.place.words}", level)


def _sentence(words: str) -> str:
    return words[0].upper() + words[1:]
