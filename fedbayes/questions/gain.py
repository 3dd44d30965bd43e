"""What a client gains by joining: the federation's prediction of its held-out rows against its own."""

import warnings
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import numpy as np

from fedbayes.errors import FederatedError, NotConvergedWarning
from fedbayes.fit import fit_federated
from fedbayes.results.fit import FederatedFit
from fedbayes.results.predictive import check_held_out, flat_densities
from fedbayes.runtime.keys import Purpose, key_for

if TYPE_CHECKING:
    import xarray as xr


def federation_gain(fit: FederatedFit, held_out: Mapping[str, Mapping[str, Any]]) -> "xr.Dataset":
    """Held-out log predictive density of each client: given everybody's data, and given its own alone.

    ``gain = mean_i [log p(y_i | everybody) - log p(y_i | the client alone)]`` in nats per outcome, by
    :meth:`~fedbayes.FederatedFit.log_predictive_density`: above zero, joining helps. The client alone is fitted by the
    same method with the same options. Theory has the ratio of two squared errors instead, which needs the truth
    (:func:`fedbayes.theory.averaging.gain`; Su, Xu and Yang 2023, definition 1).

    Parameters
    ----------
    fit
        Of all clients, by any method.
    held_out
        From client name to the model's keyword arguments: rows that were not in the fit, with their outcomes. It may
        leave clients out.

    Returns
    -------
    xarray.Dataset
        By client: ``together`` and ``alone``, in nats per outcome; ``gain``, and ``gain_se``, its standard error over
        the held-out outcomes, which knows nothing of other training rows; ``outcomes``, their number; and
        ``alone_converged``. A client whose own posterior is not proper, or predicts nothing finite, has NaN in
        ``alone``, and an infinite gain.

    Raises
    ------
    KeyError
        An unknown client.
    ValueError
        No held-out rows.

    See Also
    --------
    fairness_report : How well each client is predicted.
    heterogeneity : How unlike the clients are.

    Examples
    --------
    >>> import jax, fedbayes as fb
    >>> from fedbayes.models import linear
    >>> clients, truth = linear.simulate(jax.random.key(0), rows=(30, 60, 90))
    >>> train = {name: {k: v[10:] for k, v in data.items()} for name, data in clients.items()}
    >>> test = {name: {k: v[:10] for k, v in data.items()} for name, data in clients.items()}
    >>> fit = fb.fit_federated(linear.model, train, key=jax.random.key(1), progress=False)
    >>> gains = fb.federation_gain(fit, test)
    >>> list(gains)
    ['together', 'alone', 'gain', 'gain_se', 'outcomes', 'alone_converged']
    """
    import xarray as xr

    check_held_out(held_out)
    rows = {str(name): _compared(fit, str(name), data) for name, data in held_out.items()}
    columns = {key: ("client", np.array([row[key] for row in rows.values()])) for key in next(iter(rows.values()))}
    found = xr.Dataset(columns, coords={"client": list(rows)})
    for name in ("together", "alone", "gain", "gain_se"):
        found[name].attrs["units"] = "nats per outcome"
    return found


def _compared(fit: FederatedFit, name: str, data: Mapping[str, Any]) -> dict[str, Any]:
    """One client."""
    together = flat_densities(fit.log_predictive_density(name, **data))
    alone = _alone(fit, name)
    own = None if alone is None else flat_densities(alone.log_predictive_density(name, **data))
    if alone is None or own is None or not np.all(np.isfinite(own)):
        nothing = {"alone": np.nan, "gain": np.inf, "gain_se": np.nan}
        return {"together": together.mean(), **nothing, "outcomes": together.size, "alone_converged": False}
    gain = together - own
    return {
        "together": together.mean(),
        "alone": own.mean(),
        "gain": gain.mean(),
        "gain_se": gain.std(ddof=1) / np.sqrt(gain.size) if gain.size > 1 else np.nan,
        "outcomes": gain.size,
        "alone_converged": alone.converged,
    }


def _alone(fit: FederatedFit, name: str) -> FederatedFit | None:
    """The same fit to one client's data; ``None`` where its posterior is not proper."""
    if sum(seen.size for seen in fit.problem.outcomes(name).values()) < fit.roster.prior.num_flat():
        return None
    arguments = fit.arguments_of(name)
    key = key_for(arguments.pop("key"), Purpose.ALONE)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", NotConvergedWarning)  # the table says so
        try:
            return fit_federated(**arguments, method=fit.method.for_one_client(), key=key, progress=False)
        except FederatedError:
            return None
