"""Whether a prior that a user gives is one of values that the parameter can have."""

from typing import Any

import numpy as np
import numpyro.distributions as dist
from numpyro.distributions import constraints

from fedbayes.errors import FormulaError
from fedbayes.formula.program.written import written

# What a parameter is and an example of a prior, by the support of its default; of others the default is the example.
_WORDS = (
    (constraints.real, "a real number", "dist.Normal(0.0, 1.0)"),
    (constraints.positive, "above zero", "dist.HalfNormal(1.0)"),
    (constraints.unit_interval, "between 0 and 1", "dist.Beta(2.0, 2.0)"),
    (constraints.simplex, "probabilities that add up to one", ""),
    (constraints.corr_cholesky, "the Cholesky factor of correlations", ""),
)


def check_support(name: str, prior: dist.Distribution, default: dist.Distribution) -> None:
    """Refuse a prior that has values which the parameter can't have.

    Parameters
    ----------
    name
        Of the parameter.
    prior
        That was given.
    default
        In whose support every value of the parameter is.

    Raises
    ------
    FormulaError
        The prior is one of whole numbers, or reaches beyond that support.
    """
    wanted, found = _of_entries(default), _of_entries(prior)
    if _is_within(found, wanted):
        return
    what, example = next((words, example) for support, words, example in _WORDS if support == wanted)
    law = prior
    while isinstance(law, dist.Independent | dist.ExpandedDistribution):
        law = law.base_dist
    raise FormulaError(
        f"`priors[{name!r}]` is of the law {type(law).__name__}, whose values are {_in_words(found)}, but '{name}' "
        f"is {what}. Write a prior of such values, `{example or written(name, default, checked=False)}`."
    )


def _of_entries(law: dist.Distribution) -> Any:
    """The support of a law, of a vector of independent numbers that of one of them."""
    support = law.support
    while hasattr(support, "base_constraint"):
        support = support.base_constraint
    return support


def _is_within(found: Any, wanted: Any) -> bool:
    """Whether every value of one support is in another."""
    if found.is_discrete or wanted == constraints.real:  # entries of vectors and matrices are real, too
        return not found.is_discrete
    inner, outer = _ends(found), _ends(wanted)
    if inner is None or outer is None:
        return bool(found == wanted)
    return inner[0] >= outer[0] and inner[1] <= outer[1]


def _ends(support: Any) -> tuple[float, float] | None:
    """The interval of a support, infinite where it has no end; ``None`` where it is none of numbers."""
    lower, upper = getattr(support, "lower_bound", None), getattr(support, "upper_bound", None)
    if lower is None and upper is None and support != constraints.real:
        return None
    lowest = -np.inf if lower is None else float(np.min(np.asarray(lower)))
    return lowest, np.inf if upper is None else float(np.max(np.asarray(upper)))


def _in_words(support: Any) -> str:
    """A support in words."""
    if support.is_discrete:
        return "whole numbers"
    if (ends := _ends(support)) is None:
        return f"of the kind {type(support).__name__.strip('_')}"
    return "all real numbers" if np.isinf(ends).all() else f"from {ends[0]:g} to {ends[1]:g}"
