"""How evenly a fit serves its clients: their held-out predictive densities, by group."""

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import numpy as np

from fedbayes.problem.data.groups import Groups, partition
from fedbayes.results.fit import FederatedFit
from fedbayes.results.predictive import check_held_out, flat_densities

if TYPE_CHECKING:
    import xarray as xr


def fairness_report(
    fit: FederatedFit, held_out: Mapping[str, Mapping[str, Any]], groups: Groups | None = None
) -> "xr.Dataset":
    """Log predictive density of each client's held-out rows, by client and by group, and what lies between them.

    A fit by any method is fairer than another if its scores vary less (Yue, Nouiehed and Al Kontar 2023, definition 1).

    Parameters
    ----------
    fit
        Of all clients.
    held_out
        From client name to the model's keyword arguments: rows that were not in the fit, with their outcomes. It may
        leave clients out.
    groups
        From a group's name to the names of its clients; ``None``: each client is a group of its own.

    Returns
    -------
    xarray.Dataset
        By client: ``score``, the mean log predictive density in nats per outcome, ``score_error``, its standard error
        by the spread of the outcomes (NaN for a single one), ``outcomes``, their number, and ``group_of``. By group:
        ``group_score``, the mean of its clients' scores, and ``group_error``, its standard error. In the attributes:
        ``mean`` and ``sd`` of the clients' scores, and ``gap`` between the best group and the worst.

    Raises
    ------
    KeyError
        An unknown client.
    ValueError
        No held-out rows, or groups that are no partition of the clients.

    See Also
    --------
    federation_gain : What each client has of the others.
    GIFAIR : Fits with equal losses.
    plots.plot_fairness : Reports beside each other.

    Examples
    --------
    >>> import jax, fedbayes as fb
    >>> from fedbayes.models import linear
    >>> clients, _ = linear.simulate(jax.random.key(0), rows=(30, 60, 90))
    >>> train = {name: {k: v[10:] for k, v in data.items()} for name, data in clients.items()}
    >>> test = {name: {k: v[:10] for k, v in data.items()} for name, data in clients.items()}
    >>> fit = fb.fit_federated(linear.model, train, key=jax.random.key(1), progress=False)
    >>> report = fb.fairness_report(fit, test, {"few rows": ["client0"], "many": ["client1", "client2"]})
    >>> ax = fb.plots.plot_fairness({"EP": report})
    >>> report["group"].values.tolist()
    ['few rows', 'many']
    """
    import xarray as xr

    check_held_out(held_out)
    names, group = partition(groups, fit.client_names)
    clients = [str(name) for name in held_out]
    densities = [flat_densities(fit.log_predictive_density(str(name), **data)) for name, data in held_out.items()]
    score = np.array([each.mean() for each in densities])
    error = np.array([each.std(ddof=1) / np.sqrt(each.size) if each.size > 1 else np.nan for each in densities])
    home = group[[fit.client_names.index(name) for name in clients]]
    heard = [place for place in range(len(names)) if np.any(home == place)]
    means = np.array([score[home == place].mean() for place in heard])
    errors = np.array([np.sqrt(np.sum(error[home == place] ** 2)) / np.sum(home == place) for place in heard])
    report = xr.Dataset(
        {
            "score": ("client", score),
            "score_error": ("client", error),
            "outcomes": ("client", np.array([each.size for each in densities])),
            "group_of": ("client", np.array(names)[home]),
            "group_score": ("group", means),
            "group_error": ("group", errors),
        },
        coords={"client": clients, "group": [names[place] for place in heard]},
        attrs={"mean": float(score.mean()), "sd": float(score.std()), "gap": float(np.ptp(means))},
    )
    for name in ("score", "score_error", "group_score", "group_error"):
        report[name].attrs["units"] = "nats per outcome"
    return report
