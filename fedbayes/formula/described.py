"""What a regression was made of, and how its fits are read, as a value that is saved with them."""

from collections.abc import Mapping
from itertools import product
from typing import NamedTuple

import numpy as np

from fedbayes.formula.design.factors import Levels
from fedbayes.formula.families.family import Family, Reading
from fedbayes.formula.outcome import OutcomePlan
from fedbayes.formula.program.gaps import Gaps
from fedbayes.formula.program.groups import Group, Kind
from fedbayes.formula.program.predictor import Predictor
from fedbayes.formula.program.source import plain
from fedbayes.results.saved.regression import Effects, Read, Regressed, Share, effect_in_words


class Parts(NamedTuple):
    """What a regression was made of, for whoever reads its fits.

    Attributes
    ----------
    predictors
        The linear predictors, that of the outcome first.
    outcome, family
        What is on the left of the formula, and its law.
    needs_rows
        Whether the program takes an argument that says how many rows there are.
    gaps
        Covariates whose missing values are imputed.
    """

    predictors: tuple[Predictor, ...]
    outcome: OutcomePlan
    family: Family
    needs_rows: bool
    gaps: Gaps


def described(
    parts: Parts,
    formulas: Mapping[str, str],
    source: str,
    priors: Mapping[str, str],
    coords: Mapping[str, list[str]],
    dims: Mapping[str, list[str]],
) -> Regressed:
    """The regression as a value; arguments are those of :class:`fedbayes.Regression`."""
    reads = [each for predictor in parts.predictors for each in _of_predictor(parts, predictor)]
    for parameter in parts.family.parameters:
        axes = [coords[dim] for dim in dims.get(parameter.name, ())]
        reads.append(Read(parameter.name, parameter.name, axes, may_lack=True))
    for predictor in parts.predictors:
        reads += _of_groups(predictor, levels_of(parts, predictor))
    shares, notes = _shares(parts)
    reading = parts.family.reading
    scale = f"log {reading.intercept}" if reading.ratio else reading.intercept
    spread = [
        _sds(group, predictor, levels_of(parts, predictor))._replace(what="tau")
        for predictor in parts.predictors
        for group in predictor.groups
    ]
    family = parts.family
    return Regressed(
        formulas, family.name, family.link, scale, source, priors, tuple(reads), tuple(spread), shares, notes
    )


def _of_predictor(parts: Parts, predictor: Predictor) -> list[Read]:
    reading, several = reading_of(parts, predictor), levels_of(parts, predictor)
    found = [Read(f"{predictor.prefix}Intercept", reading.intercept, several, np.nan, reading.ratio, may_lack=True)]
    for block in predictor.design.blocks:
        axes = [list(block.labels), *several]
        factor = predictor.design.factors.get(block.name)
        # each level by itself, where there is no intercept: compared with nothing
        alone = isinstance(factor, Levels) and len(block.labels) == len(factor.levels)
        what, reference = (reading.intercept, np.nan) if alone else (reading.coefficient, 0.0)
        found.append(Read(plain(predictor.prefix + block.name), what, axes, reference, reading.ratio))
    return found


def levels_of(parts: Parts, predictor: Predictor) -> list[list[str]]:
    """The further axis of coefficients and effects: the outcome's levels but the first, where each has its own."""
    return [list(parts.outcome.levels[1:])] if parts.family.several and not predictor.parameter else []


def reading_of(parts: Parts, predictor: Predictor) -> Reading:
    """How the coefficients of a predictor are read."""
    family, name = parts.family, predictor.parameter
    if not name:
        return family.reading
    inverse = next(parameter.inverse for parameter in family.parameters if parameter.name == name)
    words = (f"odds ratio of {name}", f"odds of {name}") if inverse == "expit" else (f"ratio of {name}", name)
    return family.reading._replace(coefficient=words[0], intercept=words[1], ratio=True)


def _of_groups(predictor: Predictor, several: list[list[str]]) -> list[Read]:
    """Sds and correlations of effects."""
    found = []
    for group in predictor.groups:
        found.append(_sds(group, predictor, several))
        effects = list(group.effects)
        if len(effects) > 1 and group.joint:
            pairs = [f"{effects[row]}, {effects[column]}" for row in range(len(effects)) for column in range(row)]
            site = f"{plain(predictor.prefix + group.name)}_correlation"
            found.append(Read(site, "correlation of effects", [pairs], 0.0))
    return found


def _sds(group: Group, predictor: Predictor, several: list[list[str]]) -> Read:
    axes = [list(group.effects) if len(group.effects) > 1 else [""], *several]
    return Read(sd_of(group, predictor), "sd of effects", axes)


def effects_of(parts: Parts) -> tuple[Effects, ...]:
    """The effects of groups, term by term; those for a level of the outcome are called ``Intercept, level``."""
    found = []
    for predictor in parts.predictors:
        levels, reading = levels_of(parts, predictor), reading_of(parts, predictor)
        for group in predictor.groups:
            labels = tuple(effect_in_words(", ".join(each)) for each in product(group.effects, *levels))
            within = group.grouping.name if group.grouping.kind is Kind.WITHIN else ""
            ratio = reading.coefficient if reading.ratio else ""
            name = plain(predictor.prefix + group.name)
            found.append(Effects(name, labels, within, group.grouping.levels, ratio))
    return tuple(found)


def sd_of(group: Group, predictor: Predictor) -> str:
    """The site of the sd of a group's effects."""
    return f"{plain(predictor.prefix + group.name)}_sigma"


def _shares(parts: Parts) -> tuple[tuple[Share, ...], tuple[str, ...]]:
    """The ICC of each group, and why there is none."""
    main, family = parts.predictors[0], parts.family
    if not main.groups:
        return (), ()
    residual, own = family.reading.residual, {predictor.parameter for predictor in parts.predictors[1:]}
    if slopes := with_slopes(main.groups):
        why = f"with the effects {slopes} it is another one for each row."
    elif parts.outcome.errors is not None:
        why = "each row has a standard error of its own; I2 has a typical one."
    elif residual is None:
        why = f"the variance of a {family.name} outcome depends on its mean, or has none on the scale of the link."
    elif residual.parameter in own:
        why = f"{residual.parameter} has a formula of its own, and is another for each row."
    else:
        sds = [sd_of(group, main) for group in main.groups]
        return tuple(Share(sd, sds, *residual) for sd in sds), ()
    return (), (f"The ICC is not defined: {why}",)


def with_slopes(groups: tuple[Group, ...]) -> list[str]:
    """The groups that have other effects than on the intercept."""
    return [group.name for group in groups if group.effects != ("1",)]
