"""Hypotheses about a posterior: its direction, and whether its interval excludes a value."""

from numbers import Real
from typing import TYPE_CHECKING, Any

from fedbayes.contract.renamed import refused_names

if TYPE_CHECKING:
    import xarray as xr

SAMPLES = ["chain", "draw"]


def probability_of_direction(draws: Any, reference: float = 0.0) -> "xr.DataArray | xr.Dataset":
    """The posterior probability of the likelier side of ``reference``, between 1/2 and 1; draws at it count half.

    Parameters
    ----------
    draws
        Posterior draws with the dimensions ``chain`` and ``draw``, such as ``fit.idata.posterior["beta"]``, or
        ``fit.idata``: the answer is then one for each of its variables.
    reference
        The value whose sides are compared.

    Raises
    ------
    TypeError
        ``draws`` are no labelled arrays.
    ValueError
        ``draws`` has no sample dimensions.

    See Also
    --------
    excludes : Whether an interval excludes a value.
    summary_table : Reports both for a regression.

    Examples
    --------
    >>> import numpy as np, xarray as xr, fedbayes as fb
    >>> draws = xr.DataArray(np.array([[-1.0, 1.0, 2.0, 3.0]]), dims=("chain", "draw"))
    >>> float(fb.probability_of_direction(draws))
    0.75
    """
    draws = _sampled(draws)
    at = (draws == reference).mean(SAMPLES) / 2.0
    above = (draws > reference).mean(SAMPLES) + at
    below = (draws < reference).mean(SAMPLES) + at
    return above.where(above >= below, below)


@refused_names(prob="level")
def excludes(draws: Any, reference: float = 0.0, level: float = 0.9) -> "xr.DataArray | xr.Dataset":
    """Whether the equal-tailed credible interval excludes ``reference`` (selection rule of Yue 2023, 3.4.3).

    Parameters
    ----------
    draws
        Posterior draws with the dimensions ``chain`` and ``draw``, or ``fit.idata``, as above.
    reference
        The value in question.
    level
        Probability of the interval: 0.9 runs from the 5th to the 95th percentile.

    Raises
    ------
    TypeError
        ``draws`` are no labelled arrays.
    ValueError
        ``level`` outside (0, 1), or no sample dimensions.

    See Also
    --------
    probability_of_direction : How sure the sign is.
    summary_table : Reports both for a regression.

    Examples
    --------
    >>> import numpy as np, xarray as xr, fedbayes as fb
    >>> draws = xr.DataArray(np.linspace(0.1, 2.0, 100)[None], dims=("chain", "draw"))
    >>> bool(fb.excludes(draws))
    True
    """
    draws = _sampled(draws)
    lower, upper = equal_tailed(draws, check_level(level))
    return (lower > reference) | (upper < reference)


def check_level(level: Any) -> float:
    """The probability of an interval.

    Raises
    ------
    ValueError
        It is none.
    """
    if isinstance(level, bool) or not (isinstance(level, Real) and 0.0 < float(level) < 1.0):
        raise ValueError(
            f"`level` is {level!r}; it is the probability of the interval and lies in (0, 1), such as 0.9."
        )
    return float(level)


def equal_tailed(draws: Any, level: float) -> tuple[Any, Any]:
    """Lower and upper bound of the equal-tailed credible interval of labelled draws."""
    return tuple(draws.quantile(tail, SAMPLES).drop_vars("quantile") for tail in (0.5 - level / 2, 0.5 + level / 2))


def _sampled(draws: Any) -> "xr.DataArray | xr.Dataset":
    """The draws themselves, or the posterior of an ArviZ object."""
    import xarray as xr

    found = draws
    if not isinstance(draws, xr.DataArray | xr.Dataset):
        group: Any = getattr(draws, "posterior", draws)  # an InferenceData's is a Dataset, a DataTree's another tree
        found = group.to_dataset() if hasattr(group, "to_dataset") else group
    if not isinstance(found, xr.DataArray | xr.Dataset):
        raise TypeError(
            f"`draws` is a {type(draws).__name__}; write posterior draws of xarray, such as "
            "`fit.idata.posterior['beta']`, or `fit.idata` for all of them."
        )
    if not set(SAMPLES) <= set(found.dims):
        raise ValueError(
            f"`draws` has the dimensions {tuple(found.dims)}; it needs 'chain' and 'draw', as in "
            "`fit.idata.posterior['beta']`."
        )
    return found
