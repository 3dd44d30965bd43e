"""One number of a regression's posterior after the other, each with what it is called."""

from collections.abc import Sequence
from itertools import product
from typing import Any, NamedTuple

import numpy as np

from fedbayes.formula.reading.estimates import named_draws
from fedbayes.results.arviz import shown


class Entry(NamedTuple):
    """A number with its draws.

    Attributes
    ----------
    name, what
        What it is called in the posterior, and what it is.
    draws
        Shape ``(chain, draw)``.
    reference
        With which it is compared; NaN: with nothing.
    """

    name: str
    what: str
    draws: np.ndarray
    reference: float = np.nan


def entries_of(
    posterior: Any, site: str, what: str, axes: Sequence[Sequence[str]] = (), reference: float = np.nan
) -> list[Entry]:
    """The entries of a site, ``name[label]`` where it has axes.

    Parameters
    ----------
    posterior
        The draws.
    site
        Its name.
    what
        The entries are.
    axes
        Labels along each of its axes.
    reference
        As for :class:`Entry`.
    """
    values = np.asarray(posterior[shown(site)], float)
    flat = values.reshape(*values.shape[:2], -1)
    labels = [", ".join(filter(None, each)) for each in product(*axes)]
    if len(labels) != flat.shape[-1]:  # an axis without names
        labels = [", ".join(map(str, place)) for place in np.ndindex(values.shape[2:])]
    names = [f"{site}[{label}]" if label else site for label in labels]
    return [Entry(name, what, flat[..., place], reference) for place, name in enumerate(names)]


def as_ratio(entry: Entry) -> Entry:
    """The exponential of an entry, whose reference is one."""
    return entry._replace(draws=np.exp(entry.draws), reference=float(np.exp(entry.reference)))


def stacked(entries: Sequence[Entry], dim: str, **coords: Any) -> tuple[Any, Any]:
    """Draws and references of entries along a dimension."""
    import xarray as xr

    names = [entry.name for entry in entries]
    values = np.stack([entry.draws for entry in entries], axis=-1)
    draws = named_draws(values, {dim: names}, **{name: (dim, labels) for name, labels in coords.items()})
    return draws, xr.DataArray([entry.reference for entry in entries], dims=dim, coords={dim: names})
