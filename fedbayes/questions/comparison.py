"""Two posteriors of the same parameters side by side: how far the means lie apart, and how the spreads compare."""

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np


class Row(NamedTuple):
    """One scalar parameter in both posteriors.

    Attributes
    ----------
    name
        As in ``az.summary``: ``intercept``, ``beta[age]``.
    mean, sd
        Of the posterior in question.
    reference_mean, reference_sd
        Of the one it is compared with.
    monte_carlo_error, reference_monte_carlo_error
        Standard errors of the two means, from the effective number of draws.
    """

    name: str
    mean: float
    sd: float
    reference_mean: float
    reference_sd: float
    monte_carlo_error: float
    reference_monte_carlo_error: float

    @property
    def difference(self) -> float:
        """Difference of the means, in sds of the reference."""
        return (self.mean - self.reference_mean) / self.reference_sd

    @property
    def sd_ratio(self) -> float:
        """Standard deviation over that of the reference."""
        return self.sd / self.reference_sd


class Comparison(NamedTuple):
    """A posterior against a reference, parameter by parameter."""

    rows: tuple[Row, ...]

    @property
    def rms_difference(self) -> float:
        """Root mean square difference of the means, in sds of the reference."""
        return _rms([row.difference for row in self.rows])

    @property
    def monte_carlo_error(self) -> float:
        """What the posterior's finite number of draws alone puts into :attr:`rms_difference`."""
        return _rms([row.monte_carlo_error / row.reference_sd for row in self.rows])

    @property
    def reference_monte_carlo_error(self) -> float:
        """What the reference's finite number of draws alone puts into :attr:`rms_difference`."""
        return _rms([row.reference_monte_carlo_error / row.reference_sd for row in self.rows])

    @property
    def largest_sd_error(self) -> float:
        """Largest relative error of a standard deviation, ``max |ratio - 1|``."""
        return max(abs(row.sd_ratio - 1.0) for row in self.rows)


def compare(idata: Any, reference: Any) -> Comparison:
    """Compare the parameters that two posteriors share.

    Parameters
    ----------
    idata, reference
        ArviZ objects with a group ``posterior``.

    Returns
    -------
    Comparison
        One row per scalar parameter, in the order of ``idata``.

    Raises
    ------
    ValueError
        The posteriors have no parameter in common.
    """
    ours, theirs = flat_draws(idata), flat_draws(reference)
    shared = [name for name in ours if name in theirs]
    if not shared:
        raise ValueError(
            f"The posteriors share no parameter: one has {_some(ours)}, the other {_some(theirs)}. "
            "Give both the same `coords` and `dims`."
        )
    return Comparison(tuple(_row(name, ours[name], theirs[name]) for name in shared))


def flat_draws(idata: Any, var_names: Sequence[str] | None = None) -> dict[str, np.ndarray]:
    """Draws of every scalar parameter, ``(chain, draw)``, under the name ``az.summary`` gives it.

    Parameters
    ----------
    idata
        ArviZ object with a group ``posterior``.
    var_names
        Variables to take; ``None``: all.

    Returns
    -------
    dict
        Scalars first, then vectors; within these, the order of the posterior.
    """
    posterior = idata["posterior"]
    names = [str(name) for name in posterior.data_vars] if var_names is None else list(var_names)
    found = {}
    for name in sorted(names, key=lambda name: posterior[name].ndim > 2):
        variable = posterior[name].transpose("chain", "draw", ...)
        values = np.asarray(variable)
        labels = [np.asarray(variable[dim]) if dim in variable.coords else None for dim in variable.dims[2:]]
        for index in np.ndindex(values.shape[2:]):
            where = ", ".join(str(i if label is None else label[i]) for i, label in zip(index, labels, strict=True))
            found[f"{name}[{where}]" if index else name] = values[(slice(None), slice(None), *index)]
    return found


def _row(name: str, ours: np.ndarray, theirs: np.ndarray) -> Row:
    return Row(
        name, ours.mean(), ours.std(ddof=1), theirs.mean(), theirs.std(ddof=1), _mean_error(ours), _mean_error(theirs)
    )


def _mean_error(draws: np.ndarray) -> float:
    from numpyro.diagnostics import effective_sample_size

    return float(draws.std(ddof=1) / np.sqrt(effective_sample_size(draws)))


def _rms(values: Sequence[float]) -> float:
    return float(np.sqrt(np.mean(np.square(values))))


def _some(draws: Mapping[str, np.ndarray], most: int = 5) -> str:
    return ", ".join([*list(draws)[:most], *(["..."] if len(draws) > most else [])]) or "none"
