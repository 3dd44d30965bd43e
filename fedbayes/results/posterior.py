"""The global posterior of a fit for ArviZ: functions of a ``Fitted``."""

from collections.abc import Mapping
from typing import Any

import numpy as np

from fedbayes.numerics.host import log_joint
from fedbayes.results import arviz, corrected
from fedbayes.results.fitted import Fitted, attrs, once
from fedbayes.results.presented import presented
from fedbayes.runtime.precision import computing


@once
def idata(fitted: Fitted) -> Any:
    """The global posterior, see :attr:`fedbayes.FederatedFit.idata`; a loaded fit reads it from its file."""
    if fitted.saved is not None and (found := fitted.saved.read()) is not None:
        return found
    correction, theta = corrected.correction(fitted), corrected.theta(fitted)
    if fitted.unchecked or fitted.is_closed:
        with computing():
            return of_globals(fitted, theta, None, {}, {"correction": "failed" if fitted.unchecked else "none"})
    log_likelihood = corrected.log_likelihood(fitted)
    with computing():
        if correction is not None and correction.applied:
            stats = {"lp": log_joint(fitted.roster.prior.log_densities, theta, log_likelihood)}
        else:
            stats = fitted.answer.sample_stats(theta, log_likelihood)
        return of_globals(fitted, theta, log_likelihood, stats, {} if correction is None else correction.attrs())


@once
def single_idata(fitted: Fitted) -> Any:
    """:func:`idata` with the clients' log-likelihoods, for which clients over a network are asked."""
    if not (fitted.problem.elsewhere or fitted.unchecked):
        return idata(fitted)
    single = corrected.single_log_likelihood(fitted)
    with computing():
        return of_globals(fitted, corrected.theta(fitted), single, {}, {})


@once
def approximate_idata(fitted: Fitted) -> Any:
    """The same with the draws of the answer itself, whether the posterior is corrected or not."""
    theta, log_likelihood = corrected.approximate_theta(fitted), corrected.approximate_log_likelihood(fitted)
    with computing():
        stats = fitted.answer.sample_stats(theta, log_likelihood)
        return of_globals(fitted, theta, log_likelihood, stats, {"correction": "none"})


def of_globals(
    fitted: Fitted,
    theta: np.ndarray,
    log_likelihood: np.ndarray | None,
    stats: Mapping[str, np.ndarray],
    told: Mapping[str, Any],
) -> Any:
    """Draws ``(chain, draw, d)`` of the globals and what belongs to them, for ArviZ.

    Parameters
    ----------
    fitted
        Whose globals they are.
    theta
        The draws, unconstrained.
    log_likelihood
        Of each client, shape ``(chain, draw, client)``; or of all together, shape ``(chain, draw, 1)``, which is no
        group of the posterior; or ``None``, where the clients could not be asked.
    stats
        The group ``sample_stats``.
    told
        Attributes beside those of the fit.
    """
    shapes, source = arviz.shapes_of(fitted.problem), fitted.answer.locals_from
    extra = source.variables
    groups = {
        "posterior": arviz.global_values(shapes, theta) | {name: values for name, (values, _) in extra.items()},
        "sample_stats": stats,
    }
    if (
        log_likelihood is not None and log_likelihood.shape[-1] == fitted.roster.num_clients
    ):  # and not of all clients together
        groups["log_likelihood"] = {"client": log_likelihood}
    coords = {arviz.CLIENTS: list(fitted.roster.names), **source.coords}
    dims = {"client": [arviz.CLIENTS], **{name: labels for name, (_, labels) in extra.items()}}
    program, data = shapes[0].program, shapes[0].ones()
    return presented(groups, program, data, fitted.shown, attrs(fitted) | dict(told), dims, coords)
