"""A table of all coefficients on the scale on which they are read."""

from typing import Any

import numpy as np

from fedbayes.formula.design.factors import Levels
from fedbayes.formula.families.family import Reading
from fedbayes.formula.program.predictor import Predictor
from fedbayes.formula.program.source import plain
from fedbayes.formula.reading.entries import Entry, as_ratio, entries_of, stacked
from fedbayes.formula.reading.estimates import Estimates
from fedbayes.formula.reading.places import global_posterior
from fedbayes.formula.regression import Regression
from fedbayes.questions.hypothesis import check_level
from fedbayes.results.arviz import shown


class Coefficients(Estimates):
    """The coefficients of a regression, dimension ``coefficient``; ``measure`` says what each is."""

    def _columns(self) -> list[str]:
        return ["coefficient", "measure", "median", "lower", "upper", "probability_of_direction"]


def summary_table(reg: Regression, fit: Any, level: float = 0.9) -> Coefficients:
    """Every coefficient on its natural scale: odds, rate, hazard and time ratios, ratios of means, or differences.

    Where the link is a logarithm or log odds, ``exp(b)`` is read of each draw of a coefficient ``b``: median and
    interval are the exponentials of those of ``b``, the mean is not. Of an interaction it is a ratio of ratios. What a
    coefficient is called is what it is called in ``fit.idata``.

    Parameters
    ----------
    reg
        The regression.
    fit
        Its fit.
    level
        Probability of the intervals, which are equal-tailed.

    Returns
    -------
    Coefficients
        Rows of ``.to_pandas()``, of ``.summary`` and of what is printed: the coefficients of the outcome's formula;
        those of further parameters; these parameters themselves where they have no formula, as they are; sds of
        effects, on the scale of the link, and their correlations. ``Intercept`` is the odds, the rate or the mean where
        all covariates are zero. ``probability_of_direction`` is that of the likelier side of no effect.

    Raises
    ------
    FormulaError
        The fit is of another regression.
    ValueError
        ``level`` is no probability.

    See Also
    --------
    random_effects : The sites' and groups' effects.
    heterogeneity : How unlike they are.
    predictions : Outcomes of new rows.

    Examples
    --------
    >>> fb.summary_table(reg, fit).to_pandas()  # doctest: +SKIP
    """
    level, posterior = check_level(level), global_posterior(reg, fit)
    found: list[Entry] = []
    for predictor in reg.parts.predictors:
        found += _of_predictor(reg, posterior, predictor)
    for parameter in reg.parts.family.parameters:
        if shown(parameter.name) in posterior:
            axes = [reg.coords[dim] for dim in reg.dims.get(parameter.name, ())]
            found += entries_of(posterior, parameter.name, parameter.name, axes)
    for predictor in reg.parts.predictors:
        found += _of_groups(posterior, predictor, levels_of(reg, predictor))
    draws, reference = stacked(found, "coefficient", measure=[entry.what for entry in found])
    return Coefficients(draws, f"Coefficients of {reg.family}", level, reference)


def _of_predictor(reg: Regression, posterior: Any, predictor: Predictor) -> list[Entry]:
    reading = reading_of(reg, predictor)
    several = levels_of(reg, predictor)
    found: list[Entry] = []
    intercept = f"{predictor.prefix}Intercept"
    if shown(intercept) in posterior:
        found += entries_of(posterior, intercept, reading.intercept, several)
    for block in predictor.design.blocks:
        axes = [list(block.labels), *several]
        factor = predictor.design.factors.get(block.name)
        # each level by itself, where there is no intercept: compared with nothing
        alone = isinstance(factor, Levels) and len(block.labels) == len(factor.levels)
        what, reference = (reading.intercept, np.nan) if alone else (reading.coefficient, 0.0)
        found += entries_of(posterior, plain(predictor.prefix + block.name), what, axes, reference)
    return [as_ratio(entry) for entry in found] if reading.ratio else found


def levels_of(reg: Regression, predictor: Predictor) -> list[list[str]]:
    """The further axis of coefficients and effects: the outcome's levels but the first, where each has its own."""
    parts = reg.parts
    return [list(parts.outcome.levels[1:])] if parts.family.several and not predictor.parameter else []


def reading_of(reg: Regression, predictor: Predictor) -> Reading:
    """How the coefficients of a predictor are read."""
    family, name = reg.parts.family, predictor.parameter
    if not name:
        return family.reading
    inverse = next(parameter.inverse for parameter in family.parameters if parameter.name == name)
    words = (f"odds ratio of {name}", f"odds of {name}") if inverse == "expit" else (f"ratio of {name}", name)
    return family.reading._replace(coefficient=words[0], intercept=words[1], ratio=True)


def _of_groups(posterior: Any, predictor: Predictor, several: list[list[str]]) -> list[Entry]:
    """Sds and correlations of effects."""
    found = []
    for group in predictor.groups:
        name, effects = plain(predictor.prefix + group.name), list(group.effects)
        axes = [effects if len(effects) > 1 else [""], *several]
        found += entries_of(posterior, f"{name}_sigma", "sd of effects", axes)
        if len(effects) > 1 and group.joint:
            pairs = [f"{effects[row]}, {effects[column]}" for row in range(len(effects)) for column in range(row)]
            found += entries_of(posterior, f"{name}_correlation", "correlation of effects", [pairs], 0.0)
    return found
