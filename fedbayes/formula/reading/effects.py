"""The effects of sites and of groups of a fit, with its regression."""

from typing import Any

from fedbayes.errors import ClientDataError
from fedbayes.formula.reading.places import NO_ROWS, global_posterior
from fedbayes.formula.regression import Regression
from fedbayes.questions.regression.effects import RandomEffects, effects


def random_effects(reg: Regression, fit: Any, level: float = 0.9) -> RandomEffects:
    """The effects of each site, of the groups within it, and of groups that cross sites, on the scale of the link.

    Each site is asked for its own (:meth:`fedbayes.FederatedFit.client_posterior`); one that does not tell is left out
    and named in ``.notes``. A fit of ``reg.model`` has it by itself: ``fit.random_effects()``.

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
    RandomEffects
        ``.draws`` with the dimensions ``chain, draw, unit``; ``.summary`` has the effects beside ``tau``, the sd of all
        such effects, and ``shrinkage``, ``Var(b | data) / E(tau^2 | data)``; ``.contrast(first, second)``.

    Raises
    ------
    FormulaError
        The regression has no effects of groups, or the fit is of another one.
    ClientDataError
        No site tells its effects.

    See Also
    --------
    heterogeneity : How large they are.
    summary_table : The coefficients that they vary about.

    Examples
    --------
    >>> fb.random_effects(reg, fit).contrast("north", "south")  # doctest: +SKIP
    """
    posterior = global_posterior(reg, fit)
    carried = reg.carried
    if not reg.clients and carried.effects and all(not term.levels for term in carried.effects):
        raise ClientDataError("The effects of sites are not known here." + NO_ROWS)
    return effects(carried, posterior, tuple(reg.clients), lambda name: fit.client_posterior(name).posterior, level)
