"""Predictions of a client's new rows, or of a client that was no part of the fit: functions of a ``Fitted``."""

from collections.abc import Mapping
from typing import Any

import numpy as np
from jax import Array

from fedbayes.problem.program.program import Program
from fedbayes.questions.clients import Client, latents, own_rows
from fedbayes.results import arviz
from fedbayes.results.fitted import Fitted, attrs
from fedbayes.results.personal import like_first
from fedbayes.results.predictive import check_call, class_probabilities, log_densities, predictive_draws, read_arguments
from fedbayes.runtime.keys import Purpose, fingerprint, key_for, typed_key
from fedbayes.runtime.precision import computing


def predict(fitted: Fitted, /, client: Client | None = None, *, key: Array | None = None, **arguments: Any) -> Any:
    """Posterior predictive draws of the observed sites.

    Where the rows of an outcome depend on each other, as by a Gaussian process, new rows are predicted given the
    client's own, at the client.

    Parameters
    ----------
    client
        Predict for this client, with its local latents; the arguments of a client that was no part of the fit, as
        for :meth:`adapt`; ``None``: for a new client without data, whose locals come from the model.
    key
        Defaults to one derived from the fit's and the client, so that the noise of two clients is not the same.
    **arguments
        The model's keyword arguments, such as ``x=new_rows``, in all forms that the fit takes; sizes, flags and
        names that are left out are those of the client, or of the first one. An outcome among them is not
        conditioned on: ``fit.predict(name, **clients[name])`` draws replicates of the client's own outcomes, for a
        posterior predictive check.

    Returns
    -------
    InferenceData or DataTree
        Group ``posterior_predictive``. Of dependent rows it also has ``y_mean`` and ``y_sd``, by the name of the
        outcome: mean and standard deviation of each, its noise included, at each draw of the latents.

    Raises
    ------
    KeyError
        Unknown client.
    TypeError
        The model does not take these arguments, or needs more.
    ClientDataError
        An argument holds no numbers, missing values, or other columns or axes than in the fit; outcomes may be missing.
    ValueError
        A client that was no part of the fit would need local latents, which this posterior can't give.

    Examples
    --------
    >>> import jax, fedbayes as fb
    >>> from fedbayes.models import linear
    >>> clients, _ = linear.simulate(jax.random.key(0))
    >>> fit = fb.fit_federated(linear.model, clients, key=jax.random.key(1), progress=False)
    >>> found = fit.predict("client0", x=clients["client0"]["x"][:3])
    >>> found["posterior_predictive"]["y"].sizes["y_dim_0"]
    3
    """
    like = fitted.roster.names[0] if client is None or isinstance(client, Mapping) else client
    program, arguments, draws = _read(fitted, client, like, arguments)
    with computing():
        key = key_of_predictions(fitted, client) if key is None else typed_key(key)
        predictive = predictive_draws(program, draws, key, arguments, own_rows(fitted, client, program))
    predicted = {name: np.asarray(value) for name, value in predictive.items() if name not in draws}
    shown = fitted.shown
    dims = {name: [f"{name}_dim_{i}" for i in range(value.ndim - 2)] for name, value in predicted.items()}
    dims |= shown.dims
    for site in program.processes:
        dims |= {name: dims[site] for name in (f"{site}_mean", f"{site}_sd") if name in predicted}
    return arviz.to_arviz({"posterior_predictive": predicted}, shown.coords, dims, attrs(fitted))


def predict_probabilities(fitted: Fitted, /, client: str | None = None, **arguments: Any) -> dict[str, np.ndarray]:
    """Probability of each value that an outcome can take, averaged over the draws: the prediction of a classifier.

    ``p(y = v) = mean_s p(y = v | theta_s, z_s)``; for the modes of an ensemble that is their average prediction.

    Parameters
    ----------
    client, **arguments
        As in :meth:`predict`.

    Returns
    -------
    dict
        By observed site; the last axis runs over the values, in the order of the distribution's support, such as
        0 and 1.

    Raises
    ------
    KeyError, TypeError, ClientDataError
        As in :meth:`predict`.
    ValueError
        No outcome has finitely many values, or their probabilities depend on what else is drawn.
    """
    like = fitted.roster.names[0] if client is None else client
    program, arguments, draws = _read(fitted, client, like, arguments)
    with computing():
        return class_probabilities(program, draws, arguments, fitted.problem.outcomes(like))


def log_predictive_density(fitted: Fitted, /, client: Client, **arguments: Any) -> dict[str, np.ndarray]:
    """Log density of a client's new outcomes, each by itself, under the posterior given everybody's data.

    ``log mean_s p(y_i | theta_s, z_s)`` over the draws, by NumPyro's ``log_likelihood``. Sums of it over
    held-out rows compare fits (:func:`fedbayes.federation_gain`).

    Parameters
    ----------
    client
        Whose rows they are; its local latents are those of the fit. Or the arguments of a client that was no part
        of the fit, as in :meth:`predict`.
    **arguments
        The model's keyword arguments with the outcomes, in all forms that the fit takes.

    Returns
    -------
    dict
        By observed site, in the shape of its outcomes.

    Raises
    ------
    KeyError, TypeError
        As in :meth:`predict`.
    ClientDataError
        As there, or outcomes are missing.
    """
    like = fitted.roster.names[0] if isinstance(client, Mapping) else client
    program, arguments, draws = _read(fitted, client, like, arguments)
    with computing():
        return log_densities(program, draws, arguments, own_rows(fitted, client, program))


def _read(
    fitted: Fitted, client: Client | None, like: str, arguments: Mapping[str, Any]
) -> tuple[Program, dict[str, Any], dict[str, np.ndarray]]:
    """The program, its arguments read as those of the client ``like``, and draws of the latents of ``client``."""
    program, read = fitted.problem.program(like), read_arguments(fitted.problem, like, arguments)
    check_call(program.model, read)
    return program, read, latents(fitted, client, program)


def key_of_predictions(fitted: Fitted, client: Client | None) -> Array:
    """A key of its own for each client, for a new one, and for each data set of one that was no part of the fit."""
    num = fitted.roster.num_clients
    if isinstance(client, Mapping):
        data = like_first(fitted.problem, client).arrays
        return key_for(fitted.key, Purpose.PREDICTIONS, num + 1, fingerprint(data))
    return key_for(fitted.key, Purpose.PREDICTIONS, num if client is None else fitted.problem.place(client))
