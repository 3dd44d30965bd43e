"""The clients' own posteriors: of one of them, of all side by side, and of one that joins after the fit.

Functions of a :class:`~fedbayes.results.fitted.Fitted`. Whoever predicts, draws replicates or leaves out rows takes the
draws of a client's latents from here.
"""

from collections.abc import Mapping
from typing import Any

import numpy as np

from fedbayes.contract.answer import shortened
from fedbayes.contract.locals_from import Question, check
from fedbayes.problem.program.program import Program
from fedbayes.results import arviz
from fedbayes.results.conditional import Rows, rows_of, rows_of_newcomer
from fedbayes.results.corrected import correction, theta
from fedbayes.results.fitted import Fitted, attrs
from fedbayes.results.personal import like_first, newcomer
from fedbayes.results.posterior import idata
from fedbayes.results.presented import presented_client
from fedbayes.runtime.precision import computing

Client = str | Mapping[str, Any]  # a client of the fit by its name, or the arguments of one that was no part of it


def client_posterior(fitted: Fitted, name: str) -> Any:
    """One client's posterior: its local latents and the globals, given everybody's data.

    Of a corrected fit: the draws of ``fit.idata``, each with draws of the client's locals given the globals. Else draws
    of the tilted density with the client's cavity (equation 3.10 of Yue 2023; with the global posterior in its place
    the client's data would count twice), by importance weights or, where these can't be trusted, the client's locals
    given the draws of ``fit.idata``; a client without locals then has chains of NUTS. With Markov chains: the draws of
    the globals, and the client's own draws of its locals. Where clients keep points of their own: the client's point.

    Parameters
    ----------
    name
        The client.

    Returns
    -------
    InferenceData or DataTree
        Group ``posterior``.

    Raises
    ------
    KeyError
        Unknown client.
    ValueError
        The posterior has low rank, or the fit is an ensemble of points of a model with local latents.

    Warns
    -----
    UnreliableWarning
        NUTS has not mixed.

    Examples
    --------
    >>> import jax, fedbayes as fb
    >>> from fedbayes.models import linear
    >>> clients, _ = linear.simulate(jax.random.key(0))
    >>> fit = fb.fit_federated(linear.model, clients, key=jax.random.key(1), progress=False)
    >>> list(fit.client_posterior("client0")["posterior"].data_vars)
    ['beta']
    """
    check(fitted.answer.locals_from, Question.CLIENT_POSTERIOR)
    place, draws = fitted.problem.place(name), theta(fitted)
    with computing():
        mine = fitted.clients.posterior(place, draws, fitted.shown.num_draws, correction(fitted))
    return presented_client(fitted.problem, name, mine, fitted.shown, fitted.key, attrs(fitted))


def client_posteriors(fitted: Fitted) -> Any:
    """All clients' local latents in one ArviZ object, for ``az.plot_forest`` and its like.

    The dimension ``client_name`` comes before those of the site. Where clients have different numbers of groups,
    the entries that a client does not have are NaN.

    Returns
    -------
    InferenceData or DataTree
        Group ``posterior``: what differs between clients, see :meth:`client_posterior`.

    Raises
    ------
    ValueError
        The model has no local latents, or as for :meth:`client_posterior`.
    """
    if not fitted.roster.num_locals.any() and not fitted.problem.integrated:
        raise ValueError("The model has no local latents: every client's posterior is the global one, `fit.idata`.")
    groups = {name: client_posterior(fitted, name).posterior for name in fitted.roster.names}
    values, dims, coords = stacked(groups, {str(name) for name in idata(fitted).posterior.data_vars})
    return arviz.to_arviz({"posterior": values}, coords, dims, attrs(fitted))


def stacked(clients: Mapping[str, Any], shared: set[str]) -> tuple[dict[str, np.ndarray], dict, dict]:
    """Variables of the clients' posteriors, with a dimension of the clients, their dims and coords.

    Parameters
    ----------
    clients
        From name to the group ``posterior``.
    shared
        Variables that are left out, because they are the same on all clients.
    """
    values, dims, coords = {}, {}, {arviz.CLIENTS: list(clients)}
    names = {str(name): None for group in clients.values() for name in group.data_vars if name not in shared}
    for name in names:
        mine = {client: group[name] for client, group in clients.items() if name in group.data_vars}
        largest = max(mine.values(), key=lambda array: array.size)
        shape = np.max([array.shape for array in mine.values()], axis=0)
        together = np.full((*shape[:2], len(clients), *shape[2:]), np.nan)
        for place, client in enumerate(clients):
            if client in mine:
                filled = tuple(slice(length) for length in mine[client].shape[2:])
                index: Any = (slice(None), slice(None), place, *filled)
                together[index] = mine[client].values
        values[name] = together
        own = [str(dim) for dim in largest.dims[2:]]
        dims[name] = [arviz.CLIENTS, *own]
        coords |= {dim: largest[dim].values for dim in own if len(largest[dim]) >= len(coords.get(dim, ()))}
    return values, dims, coords


def adapt(fitted: Fitted, new_client: Mapping[str, Any]) -> Any:
    """Posterior of a client that joins after the fit: the global posterior, as a Gaussian, is its prior.

    Where ``fit.idata`` is corrected the Gaussian has the moments of its draws, and not those of the approximation.
    Where importance weights of globals and locals together can't be trusted, the draws of ``fit.idata`` themselves are
    taken by their weights, the new client's factor with its locals integrated out, each with locals given the globals.
    Chains of NUTS are run where these can't be trusted either, and for a client without locals whose weights fail.

    Parameters
    ----------
    new_client
        The model's keyword arguments.

    Returns
    -------
    InferenceData or DataTree
        Group ``posterior``: its local latents, and the globals updated by its data.

    Raises
    ------
    ClientDataError
        Its data are no data of the model, or have other arguments or columns than the fit's clients.
    ModelError
        The program has other globals for it than for them.
    ValueError
        The posterior has low rank, or the method couples its own clients and knows nothing of others.

    Warns
    -----
    UnreliableWarning
        Weights can't be trusted for this client, and NUTS, which is then run, has not mixed.
    """
    check_newcomers(fitted, "adapt")
    posterior, shown, draws = fitted.dense("adapt"), fitted.shown, theta(fitted)
    found = correction(fitted)
    with computing():
        posterior = posterior if found is None else found.gaussian
        problem, mine = newcomer(
            fitted.problem,
            new_client,
            posterior,
            fitted.programs,
            fitted.key,
            local=shown.local,
            theta=draws,
        )
    return presented_client(problem, problem.names[0], mine, shown, fitted.key, attrs(fitted))


def check_newcomers(fitted: Fitted, question: str) -> None:
    """Whether a client that was no part of the fit can be spoken of.

    Raises
    ------
    ValueError
        It can't.
    """
    if reason := fitted.answer.locals_from.refuses(Question.NEW_CLIENT):
        raise ValueError(f"`fit.{question}` can't be answered: {reason} They are {shortened(fitted.roster.names)}.")


def posterior_for(fitted: Fitted, client: Client | None, program: Program) -> Any:
    """The client's own posterior, or the global posterior for a new client or a client without locals."""
    if client is None:
        check_newcomers(fitted, "predict(client=None)")
    shared = not fitted.answer.locals_from.own_posterior(program.locals.size)
    if isinstance(client, Mapping):
        return idata(fitted) if not program.locals.size and fitted.posterior is None else adapt(fitted, client)
    return idata(fitted) if client is None or shared else client_posterior(fitted, client)


def latents(fitted: Fitted, client: Client | None, program: Program) -> dict[str, np.ndarray]:
    """Draws of the globals, or of a client's globals and locals, constrained."""
    named = {arviz.shown(name): name for name in (*program.globals.names, *program.locals.names)}
    known = posterior_for(fitted, client, program).posterior.data_vars
    return {named[str(name)]: np.asarray(known[name]) for name in known if name in named}


def own_rows(fitted: Fitted, client: Client | None, program: Program) -> Rows | None:
    """The rows on which a client's new ones are conditioned; ``None`` where rows do not depend on each other."""
    if client is None or not program.processes:
        return None
    if isinstance(client, str):
        return rows_of(fitted.problem, client)
    return rows_of_newcomer(program, like_first(fitted.problem, client))


def arguments_of(fitted: Fitted, client: str) -> dict[str, Any]:
    """What :func:`fedbayes.fit_federated` was called with, for one client alone; without the method.

    Parameters
    ----------
    client
        Its name.

    Raises
    ------
    KeyError
        Unknown client.
    ClientDataError
        Its data are in another process.
    """
    program, mine = fitted.problem.program(client), fitted.problem.held(client)
    return {
        "model": program.model,
        "clients": {client: {**program.static, **mine.arrays}},
        "key": fitted.key,
        "local": fitted.shown.local,
        "num_draws": fitted.shown.num_draws,
        "dtype": program.dtype,
    }
