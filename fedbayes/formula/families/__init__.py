"""Families of outcomes, by name."""

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from fedbayes.errors import FormulaError, did_you_mean
from fedbayes.formula.families.binary import BERNOULLI, BETA_BINOMIAL, BINOMIAL
from fedbayes.formula.families.counts import (
    HURDLE_NEGATIVE_BINOMIAL,
    HURDLE_POISSON,
    NEGATIVE_BINOMIAL,
    POISSON,
    ZERO_INFLATED_NEGATIVE_BINOMIAL,
    ZERO_INFLATED_POISSON,
)
from fedbayes.formula.families.family import Family, Outcome, Parameter, Scale, Summary
from fedbayes.formula.families.gaussian import GAUSSIAN, STUDENT
from fedbayes.formula.families.levels import CATEGORICAL, CUMULATIVE
from fedbayes.formula.families.positive import BETA, GAMMA, LOGNORMAL
from fedbayes.formula.families.survival import COX, LOGLOGISTIC, PIECEWISE_EXPONENTIAL, WEIBULL

__all__ = ["FAMILIES", "Family", "Outcome", "Parameter", "Scale", "Summary", "family_of"]

FAMILIES: Mapping[str, Family] = {
    family.name: family
    for family in (
        GAUSSIAN, STUDENT, BERNOULLI, BINOMIAL, BETA_BINOMIAL, POISSON, NEGATIVE_BINOMIAL, ZERO_INFLATED_POISSON,
        ZERO_INFLATED_NEGATIVE_BINOMIAL, HURDLE_POISSON, HURDLE_NEGATIVE_BINOMIAL, GAMMA, LOGNORMAL, BETA, CUMULATIVE,
        CATEGORICAL, WEIBULL, LOGLOGISTIC, PIECEWISE_EXPONENTIAL, COX,
    )
}  # fmt: skip
_ALIASES = {
    "normal": "gaussian",
    "t": "student",
    "logistic": "bernoulli",
    "negbinomial": "negative_binomial",
    "negativebinomial": "negative_binomial",
    "ordinal": "cumulative",
    "multinomial": "categorical",
}


def family_of(name: Any, options: Mapping[str, Any]) -> Family:
    """A family by its name.

    Raises
    ------
    FormulaError
        There is none of this name, or it has no such option.
    """
    known = _ALIASES.get(str(name).lower(), str(name).lower())
    if not isinstance(name, str) or known not in FAMILIES:
        raise FormulaError(
            f"`family` is {name!r}; the families are {', '.join(FAMILIES)}.{did_you_mean(str(name), FAMILIES)}"
        )
    family = FAMILIES[known]
    if unknown := [option for option in options if not (known == "piecewise_exponential" and option == "ends")]:
        raise FormulaError(f"The family {known} has no option `{unknown[0]}`.")
    return replace(family, options=dict(options))
