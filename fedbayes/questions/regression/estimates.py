"""Draws with names, and what is read of them: medians, intervals, and the likelier side of a value."""

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from fedbayes.owner.text import aligned, as_html_table, estimate_cells
from fedbayes.questions.hypothesis import SAMPLES, equal_tailed, probability_of_direction

if TYPE_CHECKING:
    import xarray as xr

_SHOWN = 40  # lines of the table in `repr`


@dataclass(frozen=True, eq=False, repr=False)
class Estimates:
    """Draws of named quantities. Printed, it is a table of them.

    Attributes
    ----------
    draws
        Dimensions ``chain``, ``draw``, and those of the quantities, such as ``row``.
    title
        What the quantities are, in words.
    level
        Probability of the intervals, which are equal-tailed: 0.9 runs from the 5th to the 95th percentile.
    reference
        The value with which the draws are compared for the probability of direction: 0 of differences, 1 of ratios,
        NaN where there is none; a number or an array of the quantities' dimensions.
    notes
        What may surprise.

    See Also
    --------
    predictions : Outcomes of new rows.
    comparisons : Differences between two values of a predictor.

    Examples
    --------
    >>> import numpy as np, xarray as xr, fedbayes as fb
    >>> draws = xr.DataArray(np.linspace(-1.0, 3.0, 9).reshape(1, 9), dims=("chain", "draw"))
    >>> found = fb.Estimates(draws, "A difference", reference=0.0)
    >>> round(float(found.summary["probability_of_direction"]), 2)
    0.72
    """

    draws: "xr.DataArray"
    title: str
    level: float = 0.9
    reference: Any = np.nan
    notes: tuple[str, ...] = ()

    @property
    def summary(self) -> "xr.Dataset":
        """Of each quantity ``mean``, ``sd``, ``median``, ``lower`` and ``upper``, and what it is compared with.

        ``probability_of_direction`` is the probability of the likelier side of ``reference``, between 1/2 and 1. All
        of them are computed from the draws as they are: the mean of a ratio is the mean of its draws, and not the
        exponential of the mean of its logarithm.
        """
        import xarray as xr

        lower, upper = _interval(self.draws, self.level)
        mean = self.draws.mean(SAMPLES)
        with np.errstate(invalid="ignore"):
            sd = self.draws.std(SAMPLES).where(np.isfinite(mean), mean)
        median = self.draws.median(SAMPLES)
        found = {"mean": mean, "sd": sd, "median": median, "lower": lower, "upper": upper}
        if not np.isnan(self.reference).all():
            known = xr.zeros_like(lower) + self.reference
            direction = probability_of_direction(self.draws, known)
            found["probability_of_direction"] = direction.where(~np.isnan(known))
        return xr.Dataset(found, attrs={"title": self.title, "level": self.level})

    def to_pandas(self) -> Any:
        """The summary as a table of pandas, one row for each quantity."""
        summary = self.summary
        if not summary["median"].dims:
            summary = summary.expand_dims("quantity")
        return summary.to_dataframe().reset_index()

    def _columns(self) -> list[str]:
        """Of the printed table: names first. Of ratios no mean and sd, which a few large draws may make."""
        left_out = ("mean", "sd") if np.all(np.asarray(self.reference) == 1.0) else ()
        return [name for name in self.to_pandas().columns if name not in left_out]

    def __repr__(self) -> str:
        lines = (f"  {line}" for line in aligned(self.printed()))
        return "\n".join([self._headline, *lines, *(f"  {line}" for line in self._below())])

    def _repr_html_(self) -> str:
        return as_html_table(self._headline, self.printed(), self._below())

    @property
    def _headline(self) -> str:
        return f"{self.title}, {self.level:.0%} intervals"

    def printed(self) -> list[tuple[str, ...]]:
        """The printed table, its head first."""
        table = self.to_pandas()
        columns = [name for name in self._columns() if name in table]  # nothing may be there to compare with
        if not self.summary["median"].dims:
            columns = columns[1:]  # a single quantity, which the title names
        references = np.broadcast_to(np.asarray(self.reference, float), self.summary["median"].shape).ravel()
        lines = zip(table[columns].head(_SHOWN).to_dict("records"), references, strict=False)
        cells = [estimate_cells(line, is_ratio=reference == 1.0) for line, reference in lines]
        named = {"probability_of_direction": "direction"}
        return [tuple(named.get(name, name).replace("_", " ") for name in columns), *cells]

    def _below(self) -> list[str]:
        """What does not fit, and what may surprise."""
        left = len(self.to_pandas()) - _SHOWN
        more = [f"... and {left} more, in `.to_pandas()`"] if left > 0 else []
        return [*more, *(f"note: {note}" for note in self.notes)]


def _interval(draws: "xr.DataArray", level: float) -> tuple[Any, Any]:
    """The equal-tailed interval; of infinite draws by draws themselves, between which nothing can be interpolated."""
    if np.isfinite(draws).all():
        return equal_tailed(draws, level)
    tails = (0.5 - level / 2.0, 0.5 + level / 2.0)
    lower, upper = (draws.quantile(tail, SAMPLES, method="inverted_cdf").drop_vars("quantile") for tail in tails)
    return lower, upper


def named_draws(values: np.ndarray, dims: dict[str, Any], **coords: Any) -> "xr.DataArray":
    """Draws ``(chain, draw, ...)`` with names: each further dimension with its labels, and coordinates beside these."""
    import xarray as xr

    labels = {"chain": np.arange(values.shape[0]), "draw": np.arange(values.shape[1]), **dims}
    return xr.DataArray(values, dims=list(labels), coords={**labels, **coords})
