"""A client: it answers requests, holds its data, and keeps its private states; nothing but its answers leaves it."""

import logging
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict
from typing import Any

from fedbayes.errors import ClientDataError, MissingColumnsError, ModelError
from fedbayes.network.agreement import agrees, asks_for_test
from fedbayes.network.answering import Answer, AnsweringSite, LoadData
from fedbayes.network.charter import Hello, Seat
from fedbayes.network.client.naming import Config
from fedbayes.network.client.partners import own_key
from fedbayes.network.client.policy import Policy, read_policy
from fedbayes.network.client.private import check_asked
from fedbayes.network.client.reading import OwnProblem, digest_of, own_problem, read_own, rows_as_bytes
from fedbayes.network.client.secure import Sent
from fedbayes.network.client.session import Session
from fedbayes.network.draws import with_draws
from fedbayes.network.messages import Message, Refusal, Refused, pack
from fedbayes.network.study import Study
from fedbayes.owner.disclosure import Disclosure, disclosure_of_client
from fedbayes.owner.rules import DisclosureRules
from fedbayes.problem.data.reading import ClientArrays
from fedbayes.rounds.wire import arrays_of, encode
from fedbayes.runtime.precision import computing

log = logging.getLogger(__name__)

_MOST_AGREEMENTS = 20  # runs on the same data whose server hears whether these agree with the posterior


@contextmanager
def _model_of() -> Iterator[None]:
    """Where the user's model runs: what it raises is the model's failure; the log has the text."""
    try:
        yield
    except (ClientDataError, ModelError, Refused):
        raise
    except Exception as error:
        log.exception("The model can't be run on this site's data.")
        raise Refused(Refusal.MODEL) from error


class Site(AnsweringSite):
    """A client that answers requests.

    Parameters
    ----------
    study
        The model and the method, as the server has them.
    load_data
        ``(config) -> data``: the model's keyword arguments, as for one client of :func:`fedbayes.fit_federated`. It is
        called once for each run, and again when that is resumed.
    config
        Of the node: ``site-id`` names the holder of the data, ``state-dir`` the folder of its private states, and
        ``policy`` its owner's file of disclosure rules, by default ``policy.toml`` in that folder.
    """

    def __init__(self, study: Study, load_data: LoadData, config: Config) -> None:
        super().__init__(study, load_data, config)
        self.study = study
        self._data: ClientArrays | None = None
        self._greeting: str | None = None  # for which they were read
        self._passed: tuple[str, DisclosureRules, bool] | None = None  # the data, and the rules that let them out
        self._owns: dict[str, OwnProblem] = {}
        self._sessions: dict[tuple[str, bool], Session] = {}

    def _obeyed(self, message: Message, policy: Policy) -> Answer:
        """See :class:`~fedbayes.network.answering.AnsweringSite`."""
        header = message.header
        kind = header["kind"]
        methods, asked_for = policy.answers.methods, type(self.study.configured).__name__
        if methods is not None and asked_for.lower() not in [each.lower().replace("_", "") for each in methods]:
            log.error("The study's method is %s; the owner's policy allows %s.", asked_for, list(methods))
            raise Refused(Refusal.METHOD)
        if self.study.configured.takes_local_steps and not policy.answers.local_steps:
            raise Refused(Refusal.LOCAL_STEPS)
        client = self._greeted(header.get("greeting")) if kind == "hello" else self._client()
        self._let_out(client, policy)
        if kind == "hello":
            return Answer(self._reply(header, Hello.of(self.name, client, own_key(self.vault)).written()))
        private = policy.privacy is not None
        if kind == "join":
            if private:
                check_asked(policy, noisy=self.study.configured.is_private)
            return Answer(self._reply(header, asdict(self._own(Seat.read(header["seat"]), private).joined)))
        session = self.session(header, private)
        if kind == "round":
            return self._answer(header, session.round(message, policy))
        if kind == "after":
            return self._answer(header, session.after(message, policy))
        if kind == "conclude":
            return Answer(self._conclude(session, message, policy))
        raise Refused(Refusal.FORMAT)

    def _answer(self, header: Mapping[str, Any], sent: Sent) -> Answer:
        return Answer(self._reply(header, sent.told, sent.body), sent.failures)

    def disclosure(self) -> Disclosure:
        """What the owner's disclosure rules find in the site's data. Nothing is sent."""
        with computing():
            policy = read_policy(self._config)
            return self._disclosed(self._client(), policy)

    def _disclosed(self, client: ClientArrays, policy: Policy) -> Disclosure:
        with _model_of():
            return disclosure_of_client(self.study.options, self.name, client, policy.rules)

    def _let_out(self, client: ClientArrays, policy: Policy) -> None:
        """Ask the owner's rules, once for these data and these rules.

        They are asked of the data as the site has read them: what a server makes of them later, as by the kinds of
        numbers in a seat, is of no account.

        Raises
        ------
        Refused
            Something was found, or the rules can't be asked; the log says what, and the answer how often.
        """
        exact = policy.privacy is None
        if self._passed == (self._digest, policy.rules, exact):
            return
        found = self._disclosed(client, policy)
        if found.refused:
            log.error("%r\n  The owner sets the limits in '%s', under [disclosure].", found, policy.path)
            # how often is an exact number about the data
            raise Refused(Refusal.DISCLOSURE, found.counts(self.name) if exact else None)
        if exact:  # noise hides single rows
            self._check_changed(rows_as_bytes(client), policy.rules.smallest_cell)
        self._passed = (self._digest, policy.rules, exact)

    def _client(self) -> ClientArrays:
        """The data as they were read last."""
        return self._read() if self._data is None else self._data

    def _greeted(self, greeting: str | None) -> ClientArrays:
        """The data, read anew when a server greets this site for the first time: a file may have changed since a run.

        A server that greets again, since reading takes long, does not wait for that twice.
        """
        if greeting is None or greeting != self._greeting:
            self._data = None
        data = self._client()
        self._greeting = greeting
        return data

    def _read(self) -> ClientArrays:
        """Read the data; what was made of others is forgotten."""
        try:
            data = self._load_data(self._config)
        except Exception as error:
            log.exception("`load_data` failed.")
            missing = error.missing if isinstance(error, MissingColumnsError) else ()
            raise Refused(Refusal.DATA, missing=missing) from error
        with _model_of():
            self._data = read_own(self.study, self.name, data)
        if (digest := digest_of(self._data)) != self._digest:
            self._owns, self._sessions, self._digest = {}, {}, digest
        return self._data

    def _own(self, seat: Seat, private: bool) -> OwnProblem:
        key = repr((seat, private))
        if key not in self._owns:
            client = self._client()
            with _model_of():
                self._owns = {key: own_problem(self.study, self.name, client, seat, made_up=private)}
        return self._owns[key]

    def session(self, header: Mapping[str, Any], private: bool = False) -> Session:
        """The client in the run of a message; with a budget nothing of its rows but noisy answers is told."""
        key = str(header["run"]), private  # one from before there was a budget has looked at the rows
        if key in self._sessions:
            self._sessions[key].check_told(header)
        else:
            own = self._own(Seat.read(header["seat"]), private)
            self._sessions = {key: Session(self.study, self.name, own, header, self.vault)}
        session = self._sessions[key]
        session.go_back(header)
        return session

    def _conclude(self, session: Session, message: Message, policy: Policy) -> bytes:
        """The last message of a run: keep what the client's own posterior is computed from.

        The draws are kept, not their recipe, which a later version of NumPy may read otherwise.
        """
        session.record_last(message)
        told = with_draws(arrays_of(message.body))
        session.vault.conclude(pack(message.header, encode(told)))
        log.info("The run has ended. `fedbayes client-posterior` writes the posterior of site %s.", self.name)
        if policy.privacy is not None or not policy.answers.agreement:
            return self._reply(message.header, {})
        found = session.vault.once(lambda: self._agrees(session, message, told, policy))
        return self._reply(message.header, {"agrees": found})

    def _agrees(self, session: Session, message: Message, told: Mapping[str, Any], policy: Policy) -> bool | None:
        """Whether the site's data agree with the posterior; the end of a run does not fail on that."""
        try:
            if not asks_for_test(session, message, told, policy):
                return None
            if not self.vault.count_run(self._digest, _MOST_AGREEMENTS):
                log.warning("Of %d runs the server knows whether these data agree: of no more.", _MOST_AGREEMENTS)
                return None
            return agrees(session, message, told["shared"], policy)
        except Exception:
            log.exception("The site could not compare the posterior with its own data.")
            return None
