"""The probability that an event comes later than a time, and the expected time until it or a horizon."""

from collections.abc import Callable
from dataclasses import dataclass, field
from numbers import Real
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array

from fedbayes.errors import FormulaError
from fedbayes.formula.families.times import Times
from fedbayes.formula.reading.reader import Reader, reader_of, warn_outside
from fedbayes.formula.regression import Regression
from fedbayes.questions.hypothesis import check_level
from fedbayes.questions.regression.estimates import Estimates, named_draws

_SURVIVAL = ("weibull", "loglogistic", "piecewise_exponential")


@dataclass(frozen=True, eq=False, repr=False)
class SurvivalCurves(Estimates):
    """Survival curves with their draws, dimensions ``chain, draw, row, time``."""

    _integral: Callable[[float], np.ndarray] = field(default=lambda horizon: np.zeros(0), kw_only=True)

    def restricted_mean(self, horizon: float) -> Estimates:
        """The expected time until the event or a horizon, whichever is first: ``integral of S(t) from 0 to horizon``.

        Parameters
        ----------
        horizon
            A time above zero, in the outcome's unit.

        Returns
        -------
        Estimates
            ``.draws`` with the dimensions ``chain, draw, row``.

        Raises
        ------
        ValueError
            The horizon is no time above zero.

        Examples
        --------
        >>> curves.restricted_mean(365.0).summary["median"]  # doctest: +SKIP
        """
        if isinstance(horizon, bool) or not (isinstance(horizon, Real) and 0.0 < float(horizon) < np.inf):
            raise ValueError(f"`horizon` is {horizon!r}; write a time above zero, such as 365.")
        draws = named_draws(self._integral(float(horizon)), {"row": self.draws["row"].values})
        place = self.title.partition(" at ")[2]
        return Estimates(draws, f"Expected time until the event or {horizon:g} at {place}", self.level)


def survival_curves(
    reg: Regression,
    fit: Any,
    rows: Any,
    times: Any,
    *,
    where: Any = "average",
    level: float = 0.9,
    new_groups: bool = False,
    key: Array | None = None,
) -> SurvivalCurves:
    """The probability ``S(t | row) = exp(-H(t | row))`` that the event comes later than ``t``, for each row.

    The cumulative hazard ``H`` is the family's: ``exp(eta) (t / T)^shape`` of ``weibull``, ``log(1 + (t /
    exp(eta))^shape)`` of ``loglogistic``, and ``exp(eta)`` times the integral of the pieces' hazards.

    Parameters
    ----------
    reg, fit, rows, where, level, new_groups, key
        See :func:`fedbayes.predictions`; neither the time nor its censoring need be in the rows.
    times
        From zero on, shape ``(m,)``.

    Returns
    -------
    SurvivalCurves
        ``.draws`` with the dimensions ``chain, draw, row, time``; ``.summary`` has bands that hold at each time by
        itself; ``.restricted_mean(horizon)``.

    Raises
    ------
    FormulaError, ClientDataError
        As for :func:`fedbayes.predictions`; or the outcomes are no times until an event.
    ValueError
        The times are no list of numbers from zero on.

    See Also
    --------
    predictions : The same for other outcomes.
    plots.plot_survival : Draws the curves.
    regression : ``Surv(time, event) ~ x``.

    Examples
    --------
    >>> curves = fb.survival_curves(reg, fit, {"age": [60]}, times=[0, 90, 365])  # doctest: +SKIP
    """
    level, points = check_level(level), _check_times(times)
    if isinstance(reg, Regression) and reg.family not in _SURVIVAL:
        raise FormulaError(
            f"The family {reg.family} has no times until an event; survival curves are of {', '.join(_SURVIVAL)}."
        )
    reader = reader_of(reg, fit, where, key, new_groups)
    table = reader.table(rows)
    warn_outside(reg, [table])
    values = reader.read(table, lambda law: _survival(law, points), len(points))
    return SurvivalCurves(
        named_draws(values, {"row": np.arange(table.num_rows), "time": points}),
        f"Survival {reader.place.words}",
        level,
        _integral=lambda horizon: _restricted(reader, rows, horizon),
    )


def _survival(law: Times, points: np.ndarray) -> Any:
    return jnp.moveaxis(jax.vmap(law.survival)(points), 0, -1)


def _restricted(reader: Reader, rows: Any, horizon: float) -> np.ndarray:
    return reader.read(reader.table(rows), lambda law: law.restricted_mean(horizon))


def _check_times(times: Any) -> np.ndarray:
    try:
        found = np.atleast_1d(np.asarray(times, float))
    except (TypeError, ValueError):
        found = np.zeros(0)
    if found.ndim != 1 or not found.size or not np.isfinite(found).all() or (found < 0).any():
        raise ValueError(f"`times` is {times!r}; write numbers from zero on, such as [0, 30, 90].")
    return found
