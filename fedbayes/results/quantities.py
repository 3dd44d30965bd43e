"""What a fit knows of its own error: of its Gaussian, and of the user's own quantities in `fit.idata`.

The latter are constrained globals, and whatever else is a function of the globals.
"""

from math import prod
from typing import TYPE_CHECKING

import numpy as np

from fedbayes.correction.quantities import PROBABILITIES, Summary, Taken, summarised
from fedbayes.results import arviz
from fedbayes.results.corrected import checked, correction
from fedbayes.results.fitted import Fitted, labels, once
from fedbayes.runtime.precision import computing

if TYPE_CHECKING:
    import xarray as xr

QUANTITY, PROBABILITY = "quantity", "probability"
_MEANINGS = {
    "mean": "posterior mean",
    "mean_mcse": "Monte Carlo error of the posterior mean",
    "mean_reliable": "whether the tail is short enough for the mean and its error",
    "sd": "posterior sd",
    "sd_mcse": "Monte Carlo error of the posterior sd",
    "sd_reliable": "whether the tail is short enough for the sd and its error",
    "quantiles": "posterior quantiles",
    "quantiles_mcse": "Monte Carlo errors of the posterior quantiles",
}


@once
def quantities(fitted: Fitted) -> "xr.Dataset | None":
    """Moments and quantiles of each quantity's posterior, with their errors; ``None``: the answer was not checked."""
    import xarray as xr

    found = correction(fitted)
    if found is None:
        return None
    pool = found.pool
    weights = pool.weights / pool.weights.sum(axis=1, keepdims=True)
    taken = Taken(weights, found.num) if found.applied else Taken.evenly(weights.shape, found.num)
    names, parts = [], []
    with computing(), np.errstate(all="ignore"):  # far draws may overflow
        shapes = arviz.shapes_of(fitted.problem)
        dims = arviz.site_dims(shapes[0].program, shapes[0].ones(), fitted.shown.dims)
        for name, values in arviz.global_values(shapes, pool.theta).items():
            if values.size == 0:  # a site without entries, as slopes of no covariates
                continue
            names += arviz.labels(name, values.shape[2:], dims[name], fitted.shown.coords)
            parts.append(summarised(values.reshape(*values.shape[:2], prod(values.shape[2:])), taken))
    whole = Summary(*map(np.concatenate, zip(*parts, strict=True)))
    coords = {QUANTITY: names, PROBABILITY: list(PROBABILITIES)}
    axes = (QUANTITY, PROBABILITY)
    named = {f"{QUANTITY}_{name}": (axes[: value.ndim], value) for name, value in whole._asdict().items()}
    dataset = xr.Dataset(named, coords=coords)
    for name, meaning in _MEANINGS.items():
        units = "1" if name.endswith("reliable") else "the quantity's own"
        dataset[f"{QUANTITY}_{name}"].attrs |= {"long_name": meaning, "units": units}
    return dataset


def error(fitted: Fitted) -> "xr.Dataset":
    """How far the Gaussian answer is from the posterior, see :attr:`fedbayes.FederatedFit.error`."""
    found = correction(fitted)
    if fitted.unchecked:
        raise ValueError(f"This fit has not measured its error. {fitted.unchecked}")
    if found is None:
        away = ", or a client was away when the rounds were over" if fitted.problem.elsewhere else ""
        raise ValueError(
            f"This fit has not measured its error: it was made with `correct=False`{away}."
            if not fitted.shown.correct
            else "`fit.error` is about a Gaussian approximation, and this fit has none: Markov chains tell of "
            "themselves by R-hat and effective sample size, and a point has no posterior, as where a search for "
            "the mode has stopped too early."
        )
    with computing():
        dataset = found.dataset(labels(fitted))
    own = quantities(fitted)
    return dataset if own is None else dataset.merge(own, combine_attrs="override")


def long_tailed(fitted: Fitted) -> tuple[str, ...]:
    """Quantities whose tail is too long for their sd, as far as that is known; a loaded fit knows it from its file."""
    if fitted.saved is not None and fitted.saved.checked is not None:
        return fitted.saved.checked.long_tailed
    check = checked(fitted)
    found = quantities(fitted) if check is not None and check.reliable else None
    if found is None:
        return ()
    short = found[f"{QUANTITY}_sd_reliable"].values
    return tuple(found[QUANTITY].values[~short].tolist())
