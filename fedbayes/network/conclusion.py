"""The end of a run: what a client is told, and its own posterior, which is computed and kept at the client.

Each draw of the globals gets one draw of the client's locals given it and the client's data: together they are draws of
the joint posterior, ``p(theta | all data) p(z | theta, own data)``.
"""

from collections.abc import Callable, Mapping
from typing import Any

import jax
import numpy as np

from fedbayes.computing import computing
from fedbayes.errors import FederatedError
from fedbayes.keys import Purpose, key_for
from fedbayes.network.messages import Message, unpack
from fedbayes.network.site import Session, Site
from fedbayes.results.fit import FederatedFit
from fedbayes.results.personal import Personal, addressed
from fedbayes.results.presented import presented_client
from fedbayes.results.saved import Presentation
from fedbayes.rounds.state import RunState
from fedbayes.rounds.wire import arrays_of

_POINT = 1  # draws in a chain of an answer that is a point


def telling(fit: FederatedFit, current: RunState) -> Callable[[int], tuple[Mapping[str, Any], Mapping[str, Any]]]:
    """What each client is told at the end: the draws of the globals, and what it needs for its locals."""
    answer, theta = fit._answer, fit.theta
    how = _how(fit)
    if how == "given" and theta.shape[1] == _POINT:
        theta = np.repeat(theta, fit._shown.num_draws, axis=1)
    personal = addressed(answer)
    shown = fit._shown.plain()
    attrs = {name: value for name, value in fit._attrs().items() if isinstance(value, str | int | float)}
    key = jax.random.key_data(key_for(fit._key, Purpose.TOLD))

    def tell(place: int) -> tuple[Mapping[str, Any], Mapping[str, Any]]:
        without = how in ("given", "recorded") and not fit.roster.num_locals[place]  # where others have some
        source = "globals" if without else how
        header = {"how": source, "shown": shown, "attrs": attrs, "update": current.updates[place]}
        mine = jax.tree.map(lambda leaf: np.asarray(leaf)[place], personal)
        return header, {"shared": np.asarray(theta), "key": key, "personal": mine}

    return tell


def _how(fit: FederatedFit) -> str:
    """Where a client's locals come from."""
    answer = fit._answer
    if answer.own_draws is not None:
        return "own"
    if answer.coupled is not None:
        return "given_coupled"
    if answer.records_locals():
        return "recorded"
    ensemble = fit.posterior is None and fit.theta.shape[1] > _POINT
    return "given" if fit.roster.num_locals.any() and not ensemble else "globals"


def client_posterior(site: Site) -> Any:
    """A client's own posterior after its last run, for ArviZ: its locals and the globals, given everybody's data.

    Raises
    ------
    FederatedError
        No run has ended yet.
    """
    told = next((each for run in site.vault.runs() if (each := run.conclusion()) is not None), None)
    if told is None:
        raise FederatedError(
            f"Site '{site.name}' has been in no run that has ended: there is nothing to compute its posterior from. "
            f"Its folder is '{site.vault.folder}'."
        )
    message = unpack(told)
    header = message.header
    if header["study"] != site.study.digest:
        raise FederatedError(
            f"The last run of site '{site.name}' was of another model, method or version of fedbayes. Use those of "
            "that run."
        )
    with computing():
        session = site.session(header)
        theta = arrays_of(message.body)["shared"]
        mine = _DRAWN[str(header["how"])](session, message, theta)
    shown = Presentation(**{**header["shown"], "local": tuple(header["shown"]["local"])})
    key = session.executor.secret_key
    return presented_client(session.problem, site.name, mine, shown, key, header["attrs"])


def _globals(session: Session, message: Message, theta: np.ndarray) -> Personal:
    """Those of a client without locals."""
    return Personal(theta, {"solver": "none: the client has no latents of its own"})


def _given(session: Session, message: Message, theta: np.ndarray) -> Personal:
    locals_ = np.asarray(session.own_reply(message, "given"))
    return Personal(np.concatenate([theta, locals_], axis=-1), {"solver": "importance weights given the globals"})


def _coupled(session: Session, message: Message, theta: np.ndarray) -> Personal:
    found = session.own_reply(message, "given_coupled")
    return Personal(np.asarray(found.draws), {"solver": "server", "k_hat": float(np.max(found.k_hat))})


def _recorded(session: Session, message: Message, theta: np.ndarray) -> Personal:
    """The client's own parts of the chains' draws, which it has kept."""
    draws = [arrays_of(each)["value"] for each in session.vault.draws()]
    if len(draws) < theta.shape[1]:
        raise FederatedError(
            f"The client has {len(draws)} of the {theta.shape[1]} draws of its own latents: the others are lost, and "
            "with them what belongs to the draws of the globals. Run the fit again."
        )
    locals_ = np.swapaxes(np.stack(draws[-theta.shape[1] :]), 0, 1)
    return Personal(np.concatenate([theta, locals_], axis=-1), {"solver": str(message.header["update"])})


def _own(session: Session, message: Message, theta: np.ndarray) -> Personal:
    """The client's own point, in its private state."""
    draws = session.study.configured.own_draws(session.last_private(message))
    return Personal(np.asarray(draws), {"solver": "own steps"})


_DRAWN: Mapping[str, Callable[[Session, Message, np.ndarray], Personal]] = {
    "globals": _globals,
    "given": _given,
    "given_coupled": _coupled,
    "recorded": _recorded,
    "own": _own,
}
