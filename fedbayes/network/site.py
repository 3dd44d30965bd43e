"""A client: it answers requests, holds its data, and keeps its private states; nothing but its answers leaves it."""

import logging
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict
from typing import Any

import jax
import numpy as np

from fedbayes.correction.recipe import OtherDraws
from fedbayes.errors import ClientDataError, FederatedError, ModelError
from fedbayes.fit import updates_after
from fedbayes.network.charter import Hello, Seat, read_roster
from fedbayes.network.client.alone import Alone, after_template, told_template
from fedbayes.network.client.journal import Journal
from fedbayes.network.client.naming import Config, site_folder, site_name
from fedbayes.network.client.policy import Policy, read_policy
from fedbayes.network.client.reading import OwnProblem, digest_of, own_problem, read_own
from fedbayes.network.client.vault import RunVault, Vault
from fedbayes.network.draws import with_draws
from fedbayes.network.messages import Message, Refusal, Refused, pack, unpack
from fedbayes.network.study import Study
from fedbayes.owner.disclosure import Disclosure, disclosure_of_client
from fedbayes.owner.rules import DisclosureRules
from fedbayes.problem.data.reading import ClientArrays
from fedbayes.problem.problem import Problem
from fedbayes.rounds.exchange import Round
from fedbayes.rounds.programs import Programs, programs_for
from fedbayes.rounds.wire import arrays_of, encode, from_arrays
from fedbayes.runtime.precision import computing

LoadData = Callable[[Config], Mapping[str, Any]]
log = logging.getLogger(__name__)

_TOLD = ("round", "after")  # requests whose answers hold arrays


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


class Session:
    """A client in one run: its code, and where it stands.

    Attributes
    ----------
    executor
        Runs its updates.
    at
        The phase and the order after which its private state is; ``None`` without one.
    """

    def __init__(self, study: Study, own: OwnProblem, charter: Mapping[str, Any], vault: RunVault, secret: str) -> None:
        roster = read_roster(charter, own.prior, own.seat.shapes())
        if roster.globals != own.bucket.clients.program.globals:
            log.error(
                "The server has the globals %s, this client %s.", roster.globals, own.bucket.clients.program.globals
            )
            raise Refused(Refusal.MODEL)
        self.study, self.vault, self.place = study, vault, own.seat.place
        self.problem: Problem = own.problem(roster)
        after = updates_after(study.configured, roster)
        self.programs: Programs = programs_for(study.configured, roster, self.problem.programs, after)
        self.executor = Alone(self.programs, self.problem, self.place, secret, charter["impl"])
        self.at: tuple[int, int] | None = None
        self._templates: dict[int, tuple[Any, Any]] = {}
        for warning in self.programs.warnings:
            log.warning("%s", warning)

    def round(self, message: Message) -> bytes:
        """One round: the private state before it, the reply, the state after it."""
        header = message.header
        phase, order = int(header["phase"]), int(header["order"])
        template = self._template(phase, begins=bool(header["begins"]))
        told = message.read({**template, "recorded": self._recorded(header)})
        self._go_to(phase, order, told)
        self._record(header, told["recorded"])
        reply = self.executor.reply(self._round(phase, told, str(header["update"])))
        self.vault.keep_state(phase, order, self.executor.states(), int(header["oldest"]))
        self.at = (phase, order)
        return encode(reply._replace(info={}))  # diagnostics of a single client stay with it

    def record_last(self, message: Message) -> None:
        """The client's own part of the last draws, of which the last message of a run tells."""
        if message.header["records"]:
            self._record(message.header, self._at_the_end(message))

    def last_private(self, message: Message) -> Any:
        """The private state at the end of a run, of which its last message tells.

        Raises
        ------
        FederatedError
            It is lost.
        """
        header = message.header
        if header["begun"] and self.vault.last_order(int(header["phase"]), int(header["order"])) is None:
            raise FederatedError(
                "The site's own point of this run is lost: it was in its state folder, and is not there any more. "
                "Run the fit again."
            )
        self._at_the_end(message)
        return self.executor.private(self.place)

    def _at_the_end(self, message: Message) -> Any:
        """Go to the last private state; the broadcasts of draws that are still to be recorded."""
        header, arrays = message.header, arrays_of(message.body)
        phase, order = int(header["phase"]), int(header["order"])
        shared = self._template(phase, begins=False)["shared"]
        mine = {name: array for name, array in arrays.items() if name.split("/")[0] in ("broadcast", "recorded")}
        told = from_arrays(mine, {"broadcast": shared, "recorded": self._recorded(header)})
        self._go_to(phase, order, {"shared": told["broadcast"], "phase_key": arrays["phase_key"]})
        return told["recorded"]

    def _recorded(self, header: Mapping[str, Any]) -> list[Any]:
        """Shapes of the broadcasts at the draws of which a message tells."""
        return [self._template(int(header["phase"]), begins=False)["shared"]] * len(header["records"])

    def after(self, message: Message) -> bytes:
        """What is asked once the rounds are over."""
        name = str(message.header["update"])
        update = self.programs.after.get(name)
        if update is None or update.stays:
            raise Refused(Refusal.PRIVATE)
        return encode(self.executor.reply(self._after(message, name)))

    def own_reply(self, message: Message, name: str) -> Any:
        """The same for the client itself: what never leaves it."""
        return self.executor.reply(self._after(message, name)).each

    def _after(self, message: Message, name: str) -> Round:
        arrays = with_draws(arrays_of(message.body))
        if self.programs.after[name].private:
            self._go_to_last(int(message.header["order"]))
        shared, personal = after_template(self.programs.after[name], arrays)
        return self._round(None, {"shared": shared, "personal": personal, "key": arrays["key"]}, name)

    def _go_to_last(self, order: int) -> None:
        """The private state at the end of the rounds; one of a client that knows nothing where it is lost."""
        phase = len(self.programs.phases) - 1
        shared, key = told_template(self.programs, phase, self.executor.secret_key)[0], self.executor.secret_key
        nothing = jax.tree.map(lambda leaf: np.zeros(leaf.shape, leaf.dtype), shared)
        self._go_to(phase, order, {"shared": nothing, "phase_key": jax.random.key_data(key)})

    def begin(self, phase: int, order: int, shared: Any, key: np.ndarray) -> None:
        """A private state of a phase from a broadcast, and from that of the phase before it where there is one."""
        before = self.vault.state_before(phase - 1, order) if phase else None
        self.executor.begin(phase, shared, self.executor.key(key), before)

    def _template(self, phase: int, *, begins: bool) -> dict[str, Any]:
        if phase not in self._templates:
            self._templates[phase] = told_template(self.programs, phase, self.executor.secret_key)
        shared, personal = self._templates[phase]
        key = jax.random.key_data(self.executor.secret_key)
        told = {"shared": shared, "personal": personal, "key": key, "phase_key": key}
        return {**told, "first": shared} if begins else told

    def _go_to(self, phase: int, order: int, told: Mapping[str, Any]) -> None:
        """The private state before an order: at hand, from the disk, or from the broadcast where there is none."""
        if self.at == (phase, self.vault.last_order(phase, order)):
            return
        self.begin(phase, order, told.get("first", told["shared"]), told["phase_key"])
        if (states := self.vault.state_before(phase, order)) is not None:
            self.executor.load(states)

    def _record(self, header: Mapping[str, Any], broadcasts: list[Any]) -> None:
        """The client's own parts of the draws since its last order; its private state is still that of all of them."""
        phase, order = int(header["phase"]), int(header["order"])
        self.vault.forget_draws(order)
        for number, shared in zip(header["records"], broadcasts, strict=True):
            self.vault.keep_draw(int(number), order, encode(self.executor.own_draw(phase, shared)))

    def _round(self, phase: int | None, told: Mapping[str, Any], update: str) -> Round:
        num = len(self.problem.names)
        key, active = self.executor.key(told["key"]), np.asarray([self.place])
        return Round(phase, told["shared"], told["personal"], key, active, [update] * num)


class Site:
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
        self.study, self.name = study, site_name(config)
        self.vault = Vault(site_folder(config))
        self.vault.claim(self.name)
        self.journal = Journal(self.vault.folder)
        self._load_data, self._config = load_data, config
        self._data: ClientArrays | None = None
        self._digest = ""  # of the data that were read last
        self._greeting: str | None = None  # for which they were read
        self._passed: tuple[str, DisclosureRules] | None = None  # the data, and the rules that let this study out
        self._owns: dict[str, OwnProblem] = {}
        self._sessions: dict[str, Session] = {}

    def answer(self, request: bytes) -> bytes:
        """The answer to a request; it never raises. What went wrong is said by a code, and explained in the log."""
        counts: dict[str, int] = {}
        asked: dict[str, Any] = {}
        try:
            with computing():
                return self._logged(asked, self._answered(request, asked))
        except Refused as refused:
            reason, counts = refused.reason, refused.counts
            log.error("Site %s %s.", self.name, reason.value)
        except OtherDraws as error:
            reason = Refusal.DRAWS
            log.warning("%s", error)
        except (ClientDataError, ModelError) as error:
            reason = Refusal.DATA if isinstance(error, ClientDataError) else Refusal.MODEL
            log.error("%s", error)
        except Exception:
            reason = Refusal.FAILED
            log.exception("A request could not be answered.")
        told = self.study.description if reason is Refusal.STUDY else {}
        refusal = {"kind": "refusal", "site": self.name, "reason": reason.name, "study": told, "found": counts}
        try:
            self.journal.write(asked, self._digest, 0, reason.name)
        except OSError:  # a refusal says nothing of the data
            log.exception("'%s' can't be written.", self.journal.path)
        return pack(refusal)

    def _logged(self, asked: Mapping[str, Any], answer: bytes) -> bytes:
        """The answer, once the site's log has a line for it: what can't be logged does not leave."""
        numbers = sum(array.size for array in arrays_of(unpack(answer).body).values()) if asked["kind"] in _TOLD else 0
        self.journal.write(asked, self._digest, numbers, "answered")
        return answer

    def _answered(self, request: bytes, asked: dict[str, Any]) -> bytes:
        try:
            message = unpack(request)
        except ValueError:
            log.exception("A request can't be read.")
            raise Refused(Refusal.FORMAT) from None
        header = message.header
        asked.update(header)
        if header.get("study") != self.study.digest:
            raise Refused(Refusal.STUDY)
        kind = header["kind"]
        policy = self._policy()  # before the study's code reads the data
        client = self._greeted(header.get("greeting")) if kind == "hello" else self._client()
        self._let_out(client, policy)
        if kind == "hello":
            return self._reply(header, Hello.of(self.name, client).written())
        if kind == "join":
            return self._reply(header, asdict(self._own(Seat.read(header["seat"])).joined))
        session = self.session(header)
        if kind == "round":
            return self._reply(header, {}, session.round(message))
        if kind == "after":
            return self._reply(header, {}, session.after(message))
        if kind == "conclude":
            return self._conclude(session, message)
        raise Refused(Refusal.FORMAT)

    def disclosure(self) -> Disclosure:
        """What the owner's disclosure rules find in the site's data. Nothing is sent."""
        with computing():
            policy = read_policy(self._config)
            return self._disclosed(self._client(), policy)

    def _disclosed(self, client: ClientArrays, policy: Policy) -> Disclosure:
        with _model_of():
            return disclosure_of_client(self.study.options, self.name, client, policy.rules)

    def _policy(self) -> Policy:
        try:
            return read_policy(self._config)
        except ClientDataError as error:
            log.error("%s", error)
            raise Refused(Refusal.POLICY) from None

    def _let_out(self, client: ClientArrays, policy: Policy) -> None:
        """Ask the owner's rules, once for these data and these rules.

        They are asked of the data as the site has read them: what a server makes of them later, as by the kinds of
        numbers in a seat, is of no account.

        Raises
        ------
        Refused
            Something was found, or the rules can't be asked; the log says what, and the answer how often.
        """
        if self._passed == (self._digest, policy.rules):
            return
        found = self._disclosed(client, policy)
        if found.refused:
            log.error("%r\n  The owner sets the limits in '%s', under [disclosure].", found, policy.path)
            raise Refused(Refusal.DISCLOSURE, found.counts(self.name))
        self._passed = (self._digest, policy.rules)

    def _reply(self, header: Mapping[str, Any], told: Mapping[str, Any], body: bytes = b"") -> bytes:
        about = {name: header[name] for name in ("kind", "study", "run", "order") if name in header}
        return pack({**about, "site": self.name, "told": dict(told)}, body)

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
            raise Refused(Refusal.DATA) from error
        with _model_of():
            self._data = read_own(self.study, self.name, data)
        if (digest := digest_of(self._data)) != self._digest:
            self._owns, self._sessions, self._digest = {}, {}, digest
        return self._data

    def _own(self, seat: Seat) -> OwnProblem:
        key = repr(seat)
        if key not in self._owns:
            client = self._client()
            with _model_of():
                self._owns = {key: own_problem(self.study, self.name, client, seat)}
        return self._owns[key]

    def session(self, header: Mapping[str, Any]) -> Session:
        """The client in the run of a message."""
        run, charter = str(header["run"]), header["charter"]
        if run not in self._sessions:
            own, vault = self._own(Seat.read(header["seat"])), self.vault.run(run)
            data = digest_of(own.client)
            if not vault.same_data(data):
                raise Refused(Refusal.CHANGED)
            self._sessions = {run: Session(self.study, own, charter, vault, self.vault.secret(run, data))}
        return self._sessions[run]

    def _conclude(self, session: Session, message: Message) -> bytes:
        """The last message of a run: keep what the client's own posterior is computed from.

        The draws are kept, not their recipe, which a later version of NumPy may read otherwise.
        """
        session.record_last(message)
        told = encode(with_draws(arrays_of(message.body)))
        session.vault.conclude(pack(message.header, told))
        log.info("The run has ended. `fedbayes client-posterior` writes the posterior of site %s.", self.name)
        return self._reply(message.header, {})
