"""The end of a run: what a client is told, and its own posterior, which is computed and kept at the client."""

from collections.abc import Mapping
from importlib.metadata import version
from typing import Any

import jax
import numpy as np

from fedbayes.contract.client_locals import at_site, kind_of
from fedbayes.errors import FederatedError
from fedbayes.network.agreement import told_for_test
from fedbayes.network.client.session import Session
from fedbayes.network.draws import by_recipe
from fedbayes.network.messages import Message, unpack
from fedbayes.network.server.remote import Tell
from fedbayes.network.site import Site
from fedbayes.results.corrected import recipes, theta
from fedbayes.results.fitted import Fitted, attrs
from fedbayes.results.presented import Presentation, presented_client
from fedbayes.rounds.wire import arrays_of
from fedbayes.runtime.keys import Purpose, key_for
from fedbayes.runtime.precision import computing


def telling(fitted: Fitted) -> Tell:
    """What each client is told at the end: of the draws of the globals, and what it needs for its locals."""
    source, shown = fitted.answer.locals_from, fitted.shown.plain()
    of_globals, personal = theta(fitted), source.told()
    draws = source.for_sites(of_globals, fitted.shown.num_draws)
    making = recipes(fitted) if draws is of_globals else None
    plain = {name: value for name, value in attrs(fitted).items() if isinstance(value, str | int | float)}
    key = jax.random.key_data(key_for(fitted.key, Purpose.TOLD))
    tested, for_test = told_for_test(fitted)

    def tell(place: int, made: bool) -> tuple[Mapping[str, Any], Mapping[str, Any]]:
        kind = kind_of(source, int(fitted.roster.num_locals[place]))
        header = {"how": kind, "shown": shown, "attrs": plain, "update": fitted.run.updates[place], "by_draws": tested}
        mine = jax.tree.map(lambda leaf: np.asarray(leaf)[place], personal)
        told = by_recipe(*making) if made and making is not None else {"shared": np.asarray(draws)}
        return header, {**told, **for_test, "key": key, "personal": mine}

    return tell


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
        then, now = header["attrs"], site.study
        raise FederatedError(
            f"The last run of site '{site.name}' was of study {header['study'][:8]}, by {then.get('method')} of "
            f"fedbayes {then.get('inference_library_version')}; the study here is {now.digest[:8]}, by "
            f"{now.configured!r} of fedbayes {version('fedbayes')}. Use model, method and version of that run."
        )
    with computing():
        session = site.session(header)
        draws = arrays_of(message.body)["shared"]
        mine = at_site(str(header["how"]), _Here(session, message), draws, session.study.configured.own_draws)
    shown = Presentation(**{**header["shown"], "local": tuple(header["shown"]["local"])})
    key = session.executor.secret_key
    return presented_client(session.problem, site.name, mine, shown, key, header["attrs"])


class _Here:
    """The client at its own site, as :class:`~fedbayes.contract.locals_from.AtClient`."""

    def __init__(self, session: Session, message: Message) -> None:
        self._session, self._message = session, message

    @property
    def update(self) -> str:
        """See :class:`~fedbayes.contract.locals_from.AtClient`."""
        return str(self._message.header["update"])

    def reply(self, update: str, shared: Any) -> Any:
        """See :class:`~fedbayes.contract.locals_from.AtClient`."""
        return self._session.own_reply(self._message, update)

    def private(self) -> Any:
        """See :class:`~fedbayes.contract.locals_from.AtClient`."""
        return self._session.last_private(self._message)

    def recorded(self, num: int) -> np.ndarray:
        """See :class:`~fedbayes.contract.locals_from.AtClient`.

        Raises
        ------
        FederatedError
            Some are lost.
        """
        draws = [arrays_of(each)["value"] for each in self._session.vault.draws()]
        if len(draws) < num:
            raise FederatedError(
                f"The client has {len(draws)} of the {num} draws of its own latents: the others are lost, and with "
                "them what belongs to the draws of the globals. Run the fit again."
            )
        return np.stack(draws[-num:])
