"""Numbers of a regression's posterior along one dimension, each with what it is called."""

from collections.abc import Sequence
from typing import Any

import numpy as np

from fedbayes.errors import ClientDataError
from fedbayes.questions.regression.estimates import named_draws
from fedbayes.results.saved.regression import Entry


def stacked(entries: Sequence[Entry], dim: str, **coords: Any) -> tuple[Any, Any]:
    """Draws and references of entries along a dimension."""
    import xarray as xr

    names = [entry.name for entry in entries]
    values = np.stack([entry.draws for entry in entries], axis=-1)
    draws = named_draws(values, {dim: names}, **{name: (dim, labels) for name, labels in coords.items()})
    return draws, xr.DataArray([entry.reference for entry in entries], dims=dim, coords={dim: names})


def check_numbers(name: str, draws: np.ndarray) -> None:
    """Refuse draws of a fit that has failed.

    Raises
    ------
    ClientDataError
        Some are no numbers.
    """
    if not np.isfinite(draws).all():
        raise ClientDataError(
            f"{np.isnan(draws).mean():.0%} of the draws of '{name}' are no numbers: the fit has failed, and "
            "`print(fit)` says how. Fit it again, by another method."
        )
