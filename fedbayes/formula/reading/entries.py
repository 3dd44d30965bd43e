"""Numbers of a regression's posterior along one dimension, each with what it is called."""

from collections.abc import Sequence
from typing import Any

import numpy as np

from fedbayes.formula.reading.estimates import named_draws
from fedbayes.results.saved.regression import Entry


def stacked(entries: Sequence[Entry], dim: str, **coords: Any) -> tuple[Any, Any]:
    """Draws and references of entries along a dimension."""
    import xarray as xr

    names = [entry.name for entry in entries]
    values = np.stack([entry.draws for entry in entries], axis=-1)
    draws = named_draws(values, {dim: names}, **{name: (dim, labels) for name, labels in coords.items()})
    return draws, xr.DataArray([entry.reference for entry in entries], dims=dim, coords={dim: names})
