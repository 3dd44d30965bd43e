"""A table of all coefficients on the scale on which they are read."""

from typing import Any

from fedbayes.formula.reading.places import global_posterior
from fedbayes.formula.regression import Regression
from fedbayes.questions.regression.coefficients import Coefficients, coefficients


def summary_table(reg: Regression, fit: Any, level: float = 0.9) -> Coefficients:
    """Every coefficient on its natural scale: odds, rate, hazard and time ratios, ratios of means, or differences.

    Where the link is a logarithm or log odds, ``exp(b)`` is read of each draw of a coefficient ``b``: median and
    interval are the exponentials of those of ``b``, the mean is not. Of an interaction it is a ratio of ratios. What a
    coefficient is called is what it is called in ``fit.idata``. A fit of ``reg.model`` has it by itself:
    ``fit.summary_table()``.

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
    posterior = global_posterior(reg, fit)
    return coefficients(reg.described, posterior, level)
