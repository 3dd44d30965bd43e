"""The posterior in numbers: a row for each quantity in ``fit.idata``."""

import warnings
from collections.abc import Iterator
from itertools import islice
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from fedbayes.numerics.chains import chain_diagnostics
from fedbayes.problem.program.program import entry_labels
from fedbayes.results.arviz import shown

if TYPE_CHECKING:
    import xarray as xr

PROBABILITIES = (0.05, 0.5, 0.95)


class Quantity(NamedTuple):
    """One number of the posterior, in its own units.

    Attributes
    ----------
    name
        ``beta[age]`` by the coordinates.
    mean, mean_error, sd
        Posterior mean, its Monte Carlo error, posterior sd.
    low, median, high
        5, 50 and 95 percent quantiles.
    r_hat, effective
        Of the chains; NaN of a single one.
    """

    name: str
    mean: float
    mean_error: float
    sd: float
    low: float
    median: float
    high: float
    r_hat: float
    effective: float


def quantities_of(idata: Any, error: "xr.Dataset | None", most: int) -> tuple[list[Quantity], int]:
    """The first ``most`` quantities, and how many there are.

    Their Monte Carlo errors are those of the check after the rounds, where it has measured them, else ArviZ's.
    """
    posterior = idata["posterior"]
    found = list(islice(_entries(posterior), most))
    total = sum(int(np.prod(values.shape[2:])) for values in posterior.data_vars.values())
    if not found:
        return [], total
    names, draws = [name for name, _ in found], np.stack([values for _, values in found], axis=-1).astype(float)
    with warnings.catch_warnings(), np.errstate(all="ignore"):
        warnings.simplefilter("ignore")  # of a constant quantity there is nothing to diagnose: NaN says so
        chains, errors = chain_diagnostics(draws), _errors(names, draws, error)
        low, median, high = np.quantile(draws, PROBABILITIES, axis=(0, 1))
    numbers = (
        draws.mean(axis=(0, 1)), errors, draws.std(axis=(0, 1), ddof=1), low, median, high,
        chains["r_hat"].values, chains["ess"].values,
    )  # fmt: skip
    columns = zip(*(column.tolist() for column in numbers), strict=True)
    return [Quantity(name, *row) for name, row in zip(names, columns, strict=True)], total


def _entries(posterior: Any) -> Iterator[tuple[str, np.ndarray]]:
    """Each quantity's name and draws ``(chain, draw)``."""
    for variable, values in posterior.data_vars.items():
        axes = [posterior[dim].values.tolist() for dim in values.dims[2:]]
        flat = values.values.reshape(*values.shape[:2], -1)
        for place, name in enumerate(entry_labels(str(variable), axes)):
            yield name, flat[..., place]


def _errors(names: list[str], draws: np.ndarray, error: "xr.Dataset | None") -> np.ndarray:
    """Monte Carlo errors of the means."""
    if error is not None and "quantity_mean_mcse" in error:
        measured = dict(
            zip(map(shown, error["quantity"].values.tolist()), error["quantity_mean_mcse"].values, strict=True)
        )
        if set(names) <= measured.keys():
            return np.array([measured[name] for name in names], float)
    import arviz as az
    import xarray as xr

    chains = xr.Dataset({"theta": (("chain", "draw", "coordinate"), draws)})
    return np.asarray(az.mcse(chains, method="mean")["theta"])
