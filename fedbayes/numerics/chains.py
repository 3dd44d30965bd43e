"""Whether chains have mixed, and how many effective draws they have, by ArviZ."""

from typing import TYPE_CHECKING

import numpy as np
from jaxtyping import Float

if TYPE_CHECKING:
    import xarray as xr


def chain_diagnostics(theta: Float[np.ndarray, "chain draw d"]) -> "xr.Dataset":
    """R-hat and bulk effective sample size of chains.

    Returns
    -------
    xarray.Dataset
        Variables ``r_hat`` and ``ess`` along ``coordinate``; both are NaN for a single chain, with which R-hat has
        nothing to compare.
    """
    import arviz as az
    import xarray as xr

    num_chains, num_draws, size = theta.shape
    if num_chains == 1:
        unknown = ("coordinate", np.full(size, np.nan))
        return xr.Dataset({"r_hat": unknown, "ess": unknown})
    chains = xr.Dataset({"theta": (("chain", "draw", "coordinate"), theta)})
    # ArviZ lets antithetic chains have more effective draws than draws; in many short chains that is noise
    ess = np.minimum(az.ess(chains)["theta"], num_chains * num_draws)
    return xr.Dataset({"r_hat": az.rhat(chains)["theta"], "ess": ess})


def worst_mixing(theta: Float[np.ndarray, "chain draw d"]) -> tuple[float, float]:
    """The largest R-hat and the smallest bulk effective sample size; NaN where one of them is not known."""
    found = chain_diagnostics(theta)
    return float(found["r_hat"].max(skipna=False)), float(found["ess"].min(skipna=False))
