"""The executor of a server: clients are asked over a transport; who does not answer is left out of the round."""

import logging
import secrets
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any, NoReturn

import jax
import jax.numpy as jnp
import numpy as np

from fedbayes.contract.algorithm import Key, Reply, Shared
from fedbayes.errors import UNREADABLE, FederatedError, ResultCode, are_codes
from fedbayes.network.charter import Seat, written_roster
from fedbayes.network.draws import by_recipe
from fedbayes.network.fixed_point import fits
from fedbayes.network.messages import HIDDEN, Message, Refusal, pack, unpack
from fedbayes.network.replies import plausible
from fedbayes.network.server import secure
from fedbayes.network.server.described import elsewhere
from fedbayes.network.server.register import Register
from fedbayes.network.server.replies import nothing, part_of, reply_template
from fedbayes.network.transport import Failure
from fedbayes.problem.problem import Problem
from fedbayes.rounds.exchange import Collected, Heard, Round
from fedbayes.rounds.executors import Executor, summed
from fedbayes.rounds.programs import Programs
from fedbayes.rounds.wire import arrays_of, decode, encode, from_arrays
from fedbayes.runtime.compiling import num_bytes

log = logging.getLogger(__name__)

_IN_VAIN = (
    Refusal.SINGLE, Refusal.PARTNERS, Refusal.TICKET, Refusal.CHARTER, Refusal.EXACT, Refusal.BUDGET, Refusal.SPENT,
    Refusal.MOST, Refusal.FAILURES, Refusal.METHOD, Refusal.LOCAL_STEPS, Refusal.QUESTION,
)  # fmt: skip
_SPENT = (
    "No round can go on without it. The checkpoint, where one was asked for, holds the draws so far: the same run with "
    "a smaller `num_draws` ends with them."
)
_MOST_IDLE = 20  # rounds in a row without a sum: a search that is damped needs a few
_MOST_DAMAGED = 3  # times that a site's answer may be useless to a sum that needs it, or a refusal
_NOTHING = "the numbers are not finite, or its owner's limits keep them back"
# ``tell(place, made)``: a client's last message, header and arrays; ``made``: it makes the draws itself
Tell = Callable[[int, bool], tuple[Mapping[str, Any], Mapping[str, Any]]]
_CODES = {Failure.LATE: ResultCode.NO_REPLY, Failure.GONE: ResultCode.NO_REPLY, Failure.FAILED: ResultCode.FAILED}


@dataclass(frozen=True, kw_only=True)
class Patience:
    """How long a server waits, and for how many.

    Attributes
    ----------
    round_timeout
        Seconds that a client has for one answer.
    min_clients
        A round that fewer clients have answered is not used: the server asks the others again.
    give_up_after
        Seconds after which it stops to do so; the state of the last round is in the checkpoint.
    """

    round_timeout: float = 600.0
    min_clients: int = 1
    give_up_after: float = 3600.0


class Remote(Executor):
    """Clients that are other processes.

    Parameters
    ----------
    register
        Who they are.
    seats
        How each reads its data.
    patience
        How long to wait.
    resumable
        Whether a checkpoint is written after the rounds, to which the server may go back.
    secure_sums
        Whether sites hide their terms of sums, wherever these are over all sites and over at least three.

    Attributes
    ----------
    lenient
        Whether what follows the rounds may do without clients that are not there: NaN then stands for their answers.
    bytes_down, bytes_up
        Sent to and by all clients.
    """

    def __init__(
        self,
        register: Register,
        seats: tuple[Seat, ...],
        patience: Patience,
        *,
        resumable: bool,
        secure_sums: bool = True,
    ) -> None:
        self._register, self._seats, self._patience, self._resumable = register, seats, patience, resumable
        self._secure_sums = secure_sums
        self._void: list[int] = []  # the rounds since the last sum, which had none
        self._idle: set[str] = set()  # the sites that had nothing to add in any of these
        self._refusals: dict[str, Refusal] = {}  # of the requests that were sent last
        self._fewest: dict[str, int] = {}  # the sites among them that want more in a sum, and how many
        self.run_name = secrets.token_hex(8)
        self._order = self._saved = self._phase = 0
        self._first: Shared = ()
        self._broadcasts: dict[int, Shared] = {}  # at the draws of which some client has yet to hear
        self._unrecorded: dict[int, list[int]] = {}  # the numbers of these, by client
        self._phase_key: Key
        self._begun: set[int] = set()
        self._unlike: set[int] = set()  # clients that make other draws by a recipe than the server
        self.bytes_down = self.bytes_up = 0
        self.lenient = False

    def connect(self, programs: Programs, problem: Problem, key: Key) -> None:
        """See :class:`~fedbayes.rounds.executors.Executor`; the clients' secrets are their own."""
        super().connect(programs, problem, key)
        self._impl = str(jax.random.key_impl(key))
        keys = [self._register.hellos[name].mask_key for name in problem.names]
        self._charter = {**written_roster(problem.roster), "impl": self._impl, "mask_keys": keys}
        self._hindrance = secure.hindrance(dict(zip(problem.names, keys, strict=True)))
        if self._secure_sums and self._hindrance:
            log.warning("%s", self._hindrance)
        elif why := secure.of_method(self._register.study.configured):
            log.warning("%s Each site's owner has to let them leave: `single = true` under [sums] of its policy.", why)
        self._secure_sums = self._secure_sums and not self._hindrance

    def begin(self, phase: int, shared: Shared, key: Key) -> None:
        """See :class:`~fedbayes.rounds.executors.Executor`: the first broadcast goes out with the first order."""
        self._phase, self._first, self._phase_key = phase, jax.tree.map(np.asarray, shared), key
        self._begun, self._broadcasts, self._unrecorded = set(), {}, {}

    def record(self, phase: int, shared: Shared) -> None:
        """See :class:`~fedbayes.rounds.executors.Executor`: each client is told with its next order.

        Its private state does not change before that, however many rounds go on without it.
        """
        mine = np.flatnonzero(self._problem.roster.num_locals).tolist()
        if mine:
            self._broadcasts[self._order] = jax.tree.map(np.asarray, shared)
        for place in mine:
            self._unrecorded.setdefault(place, []).append(self._order)

    def recorded(self, place: int) -> NoReturn:
        """Refused: a client's own draws are at the client."""
        raise elsewhere(self._problem.names[place])

    def private(self, place: int) -> NoReturn:
        """Refused: a client's private state is at the client."""
        raise elsewhere(self._problem.names[place])

    def snapshot(self) -> bytes:
        """See :class:`~fedbayes.rounds.executors.Executor`."""
        self._saved = self._order
        known = np.frombuffer(bytes.fromhex(self.run_name), np.uint8)
        begun = np.asarray(sorted(self._begun), np.int64)
        pending = [(place, number) for place, numbers in self._unrecorded.items() for number in numbers]
        draws = {
            "numbers": np.asarray(sorted(self._broadcasts), np.int64),
            "unrecorded": np.asarray(pending, np.int64).reshape(-1, 2),
            "broadcasts": [self._broadcasts[number] for number in sorted(self._broadcasts)],
        }
        about = {"run": known, "order": np.asarray(self._order), "void": np.asarray(self._void, np.int64)}
        idle = np.asarray([place for place, name in enumerate(self._problem.names) if name in self._idle], np.int64)
        return encode({**about, "begun": begun, "idle": idle, "first": self._first, **draws})

    def restore(self, saved: bytes) -> None:
        """See :class:`~fedbayes.rounds.executors.Executor`."""
        arrays = arrays_of(saved)
        told = {name: array for name, array in arrays.items() if name.split("/")[0] in ("first", "broadcasts")}
        numbers = arrays["numbers"].tolist()
        found = from_arrays(told, {"first": self._first, "broadcasts": [self._first] * len(numbers)})
        self._first, self._broadcasts = found["first"], dict(zip(numbers, found["broadcasts"], strict=True))
        self._unrecorded = {}
        for place, number in arrays["unrecorded"].tolist():
            self._unrecorded.setdefault(place, []).append(number)
        self.run_name = arrays["run"].tobytes().hex()
        self._order = self._saved = int(arrays["order"])
        self._void = arrays.get("void", np.zeros(0)).tolist()
        self._idle = {self._problem.names[place] for place in arrays.get("idle", np.zeros(0, np.int64)).tolist()}
        self._begun = set(arrays["begun"].tolist())

    def run(self, order: Round) -> Heard:
        """See :class:`~fedbayes.rounds.executors.Executor`.

        Raises
        ------
        FederatedError
            Fewer clients than needed have answered for longer than the server's patience.
        """
        if order.phase is None:
            self._refuse_private(order)
        self._order += 1
        active = order.active.tolist()
        templates = {
            place: reply_template(self._programs, self._problem, order, place, self._phase, self._first)
            for place in active
        }
        self._no_sum = self._hindrance or secure.no_sum(order, list(templates.values()))
        hidden = self._secure_sums and not self._no_sum
        answers = self._terms(order, templates) if hidden else self._answers(order, templates)
        terms = {place: answer for place, answer in answers.items() if isinstance(answer, secure.Term)}
        if hidden and len(terms) == len(active):
            return self._added(order, terms, templates[active[0]])
        self._heard_of(order, {place for place in active if not isinstance(answers[place], ResultCode)})
        return self._collected(order, answers, templates)

    def _added(self, order: Round, answers: Mapping[int, secure.Term], template: Reply) -> Heard:
        """The sum of what all sites have hidden; where some have nothing to add, theirs alone.

        Without them the sum would be over fewer sites, and its difference from another sum a single site's message. So
        nobody's reply counts then, and all sites go back to where they were before: those that had something to add
        have moved on alone.
        """
        heard, places = Collected(order, len(self._problem.names)), np.asarray(sorted(answers))
        terms = [answers[place] for place in places]
        idle = {self._problem.names[place]: answers[place] for place in places if answers[place].is_open}
        unused = np.full_like(terms[0].code, int(ResultCode.NOT_SUMMED))
        codes: Any = np.stack([unused if idle and not term.is_open else term.code for term in terms])
        total = secure.total(list(idle.values()) or terms, template)
        if idle:
            self._tell_idle(order, idle)
        else:
            self._void = []
            self._heard_of(order, set(answers))
        heard.add(places, Reply(total=total, code=codes))
        found = heard.finish()._replace(bytes_up=num_bytes(terms[0][:2]))
        used = found.replies.used & (not idle)
        return found._replace(replies=found.replies._replace(used=used))

    def _tell_idle(self, order: Round, idle: Mapping[str, secure.Term]) -> None:
        """Say why there is no sum; end a fit that has had none for many rounds, or can have none any more."""
        names = list(idle)
        if lost := [name for name in names if np.any(np.equal(idle[name].code, int(ResultCode.LOST)))]:
            raise FederatedError(
                f"The sites {lost} have lost what they kept of this run: it was in their state folders. No secure sum "
                "comes out without it. Begin a new run."
            )
        told = "The sites %s have nothing to add to the sum, so there is none in this round: of each %s."
        log.warning(told, names, _NOTHING)
        if order.phase is None:
            return
        self._idle = set(names) & (self._idle if self._void else set(names))
        self._void.append(self._order)
        if len(self._void) >= _MOST_IDLE:
            num = len(self._void)
            raise self._without(
                f"There was no secure sum for {num} rounds, as the sites {names} have nothing to add: of each "
                f"{_NOTHING}; their own logs say which.",
                {
                    name: f"had nothing to add to the last {num} sums: {_NOTHING}"
                    for name in self._problem.names
                    if name in self._idle
                },
            )

    def _without(self, said: str, sites: Mapping[str, str]) -> secure.NoSum:
        """The end of a run whose sums these sites keep from coming out, each with why; ``said`` tells of it."""
        others = [name for name in self._problem.names if name not in sites]
        return secure.NoSum(said, sites, others, self.run_name)

    def _collected(self, order: Round, answers: Mapping[int, Any], templates: Mapping[int, Reply]) -> Heard:
        """What each has answered by itself; nothing of those who have not."""
        heard = Collected(order, len(self._problem.names))
        for place, template in templates.items():
            reply, places = answers[place], np.asarray([place])
            alone = nothing(template, order, reply) if isinstance(reply, ResultCode) else reply
            alone = jax.tree.map(lambda leaf: jnp.asarray(leaf)[None], alone)
            heard.add(places, alone._replace(total=summed(alone, np.ones(1, bool), order.shared, places)))
        return heard.finish()

    def _heard_of(self, order: Round, places: set[int]) -> None:
        """After a round these clients have begun the phase, and know of all draws."""
        if order.phase is None:
            return
        self._begun |= places
        self._unrecorded = {place: numbers for place, numbers in self._unrecorded.items() if place not in places}
        waiting = {number for numbers in self._unrecorded.values() for number in numbers}
        self._broadcasts = {number: each for number, each in self._broadcasts.items() if number in waiting}

    def _refuse_private(self, order: Round) -> None:
        if self._register.study.configured.is_private:
            raise FederatedError(
                "The sites answer in the rounds, with noise, and no questions about the finished fit, which need exact "
                f"numbers ('{order.updates[int(order.active[0])]}'). What can be computed from its draws alone, can."
            )
        for place in order.active.tolist():
            if self._programs.after[order.updates[place]].stays:
                raise elsewhere(self._problem.names[place])

    def conclude(self, tell: Tell) -> dict[str, bool]:
        """Send each client what its own posterior is computed from.

        Returns
        -------
        dict[str, bool]
            Whether a site finds the posterior in agreement with its own data, by its name; only of those that say.
        """
        self._order += 1
        places, unlike = set(range(len(self._problem.names))), set(self._unlike)
        found = self._conclude(places, tell)
        found |= self._conclude(self._unlike - unlike, tell)  # who can't make the draws is sent them
        return {name: found[place] for place, name in enumerate(self._problem.names) if place in found}

    def _conclude(self, places: set[int], tell: Tell) -> dict[int, bool]:
        requests, found = {}, {}
        for place in sorted(places):
            header, arrays = tell(place, place not in self._unlike)
            told_last = {"phase_key": jax.random.key_data(self._phase_key), "broadcast": part_of(self._first, place)}
            about = {**self._about(place), "phase": self._phase, "begun": place in self._begun, **header}
            about["records"], told_last["recorded"] = self._draws_for(place)
            requests[place] = pack({"kind": "conclude", **about}, encode({**arrays, **told_last}))
        for place, answer in self._send(requests, self._checked):
            if isinstance(answer, ResultCode):
                log.warning(
                    "Site %s does not have the run's end: it can't compute its own posterior.",
                    self._problem.names[place],
                )
                continue
            told = answer.header.get("told")
            if isinstance(told, dict) and isinstance(told.get("agrees"), bool):
                found[place] = told["agrees"]
        return found

    def _about(self, place: int) -> dict[str, Any]:
        seat = asdict(self._seats[place])
        study = self._register.study.digest
        about = {"study": study, "run": self.run_name, "order": self._order, "seat": seat, "charter": self._charter}
        return {**about, "void": self._void}

    def _request(self, order: Round, place: int, ticket: str | None = None) -> bytes:
        """All that a client needs for a round, also one that has just been started."""
        personal = jax.tree.map(lambda leaf: np.asarray(leaf)[place], order.personal)
        arrays = {"shared": part_of(order.shared, place), "personal": personal, "key": jax.random.key_data(order.key)}
        header = {**self._about(place), "update": order.updates[place]}
        if ticket is not None:
            header["ticket"] = ticket
        if order.phase is None:
            # masks depend on what all are told: where one needs the draws themselves, all get them
            if order.recipe is not None and not (self._unlike if ticket else place in self._unlike):
                del arrays["shared"]
                arrays |= by_recipe([order.recipe])
            return pack({"kind": "after", **header}, encode(arrays))
        begins = place not in self._begun
        if begins:
            arrays["first"] = part_of(self._first, place)
        oldest = self._saved if self._resumable else self._order - 1
        header |= {"phase": order.phase, "begins": begins, "oldest": oldest}
        header["records"], arrays["recorded"] = self._draws_for(place)
        arrays["phase_key"] = jax.random.key_data(self._phase_key)
        return pack({"kind": "round", **header}, encode(arrays))

    def _draws_for(self, place: int) -> tuple[list[int], list[Shared]]:
        """The draws of which a client has yet to hear: their numbers, and the broadcasts there."""
        numbers = self._unrecorded.get(place, [])
        return numbers, [part_of(self._broadcasts[number], place) for number in numbers]

    def _terms(self, order: Round, templates: Mapping[int, Reply]) -> dict[int, secure.Term | ResultCode]:
        """Each site's hidden term. Where one is missing all are asked again, since it would leave the others' masks.

        Raises
        ------
        NoSum
            What a site answers can't be used, however often it is asked.
        FederatedError
            As :meth:`run`; or a site refuses, however often it is asked.
        """
        hidden = {place: secure.masked(template) for place, template in templates.items()}
        started, names = time.monotonic(), self._problem.names
        damaged: Counter[str] = Counter()
        refused: Counter[str] = Counter()
        while True:
            there = self._register.look()
            present = [place for place in templates if names[place] in there]
            if len(present) < len(templates):  # they would compute in vain
                if not self._wait(order, present, len(templates), started):
                    return dict.fromkeys(templates, ResultCode.NO_REPLY)
                continue
            ticket, unlike = secrets.token_hex(16), len(self._unlike)
            found: dict[int, secure.Term | ResultCode] = dict.fromkeys(templates, ResultCode.NO_REPLY)
            requests = {place: self._request(order, place, ticket) for place in templates}
            for place, answer in self._send(requests, lambda place, content: self._term(place, content, hidden)):
                found[place] = answer
            codes = {place: each for place, each in found.items() if isinstance(each, ResultCode)}
            if not codes:
                return found
            if len(self._unlike) > unlike:
                continue
            for place in templates.keys() - codes.keys():  # it can answer after all
                del damaged[names[place]], refused[names[place]]
            refused.update(self._refusals.keys())
            damaged.update(names[place] for place, code in codes.items() if code == ResultCode.REFUSED)
            self._stop_with_refusals([name for name, times in refused.items() if times >= _MOST_DAMAGED])
            self._stop_with_damage([name for name, times in damaged.items() if times >= _MOST_DAMAGED])
            if not self._wait(order, [place for place in templates if place not in codes], len(templates), started):
                return {place: codes.get(place, ResultCode.NO_REPLY) for place in templates}

    def _stop_with_refusals(self, sites: Sequence[str]) -> None:
        """An honest no is final, and the site is none that the others should go on without."""
        if said := [f"Site '{name}' {self._refusals[name].value}." for name in sites]:
            raise FederatedError(
                f"{' '.join(said)} A secure sum needs all sites. The checkpoint, where one was asked for, holds the "
                "state after the last round: start the same run again when that is put right."
            )

    def _stop_with_damage(self, sites: Sequence[str]) -> None:
        if sites:
            raise self._without(
                f"The sites {list(sites)} have answered {_MOST_DAMAGED} times what can't be used; the server's log "
                "says what.",
                dict.fromkeys(sites, f"has answered {_MOST_DAMAGED} times what can't be used"),
            )

    def _answers(self, order: Round, templates: Mapping[int, Reply]) -> dict[int, Reply | ResultCode]:
        """Each active client's reply, or why there is none; those without one are asked again where too few answer."""
        active = list(templates)
        found: dict[int, Reply | ResultCode] = dict.fromkeys(active, ResultCode.NO_REPLY)
        needed = len(active) if order.phase is None else min(self._patience.min_clients, len(active))
        started = time.monotonic()
        while True:
            missing, unlike = [place for place in active if isinstance(found[place], ResultCode)], len(self._unlike)
            requests = {place: self._request(order, place) for place in missing}
            for place, answer in self._send(
                requests, lambda place, content: self._reply(place, content, templates, order)
            ):
                found[place] = answer
            answered = [place for place in active if not isinstance(found[place], ResultCode)]
            if len(answered) >= needed:
                return found
            if len(self._unlike) > unlike:  # who can't make the draws is sent them now
                continue
            if not self._wait(order, answered, needed, started):
                return found

    def _wait(self, order: Round, answered: list[int], needed: int, started: float) -> bool:
        """Whether to ask again."""
        absent = [name for place, name in enumerate(self._problem.names) if place not in answered]
        waited = time.monotonic() - started
        what = "a round" if order.phase is not None else "what follows the rounds"
        if waited > self._patience.give_up_after:
            if order.phase is None and self.lenient:
                return False
            raise FederatedError(
                f"{len(answered)} clients have answered for {what}, and {needed} are needed: nothing was heard of "
                f"{absent} for {waited:.0f} s. The checkpoint, where one was asked for, holds the state after the last "
                "round: start the same run again when they are back."
            )
        log.warning("Waiting for %s: %d of %d clients that are needed have answered.", absent, len(answered), needed)
        time.sleep(min(1.0, self._patience.give_up_after / 10.0))
        return True

    def _send(
        self, requests: Mapping[int, bytes], read: Callable[[int, bytes], Any]
    ) -> Iterator[tuple[int, Any | ResultCode]]:
        """Each client's answer, read, as it comes in, or why there is none."""
        names = self._problem.names
        self._refusals, self._fewest = {}, {}
        there = self._register.look()
        places = {there[names[place]]: place for place in requests if names[place] in there}
        sent = {address: requests[place] for address, place in places.items()}
        self.bytes_down += sum(map(len, sent.values()))
        for address, answer in self._register.transport.send(sent, self._patience.round_timeout) if sent else ():
            place = places.pop(address, None)
            if place is None:  # a second answer to one request
                continue
            if isinstance(answer, Failure):
                log.warning("Site %s %s.", names[place], answer.value)
                yield place, _CODES[answer]
                continue
            self.bytes_up += len(answer)
            yield place, read(place, answer)
        self._stop_with_too_few()

    def _checked(self, place: int, content: bytes) -> Any:
        """An answer's message if it is one to this order, else why it can't be used."""
        site = self._problem.names[place]
        try:
            message = unpack(content)
            header = message.header
            if header["kind"] == "refusal":
                reason = Refusal[str(header["reason"])]
                log.warning("Site %s %s.", site, reason.value)
                found = header.get("found")
                told: dict[str, Any] = found if isinstance(found, dict) else {}
                self._refusals[site] = reason
                if reason is Refusal.DRAWS:
                    self._unlike.add(place)
                if reason is Refusal.FEWEST:
                    self._fewest[site] = int(told["fewest"])
                self._stop_where_in_vain(site, reason, told)
                return ResultCode.FAILED
            if (header["run"], header["order"], header["site"]) != (self.run_name, self._order, site):
                log.warning("Site %s has answered for another round, or another site; the answer is not used.", site)
                return ResultCode.REFUSED
            return message
        except UNREADABLE as error:
            log.warning("The answer of site %s can't be read (%s); it is not used.", site, type(error).__name__)
            return ResultCode.REFUSED

    def _stop_with_too_few(self) -> None:
        """Sites that want more in a sum, which they say at once, are named together: each owner has to change it."""
        if not self._fewest:
            return
        num = len(self._problem.names)
        (site, fewest), *others = self._fewest.items()
        as_well = f" So do the sites {[name for name, _ in others]}." if others else ""
        raise FederatedError(
            f"Site '{site}' {Refusal.FEWEST.value}. It wants at least {fewest} sites, and there are {num}.{as_well} "
            f"A site whose policy says `fewest = {num}` adds up with {num}; one whose policy says nothing, with all "
            "partners that it knows. What that costs: the difference of two runs tells about the site that left."
        )

    def _stop_where_in_vain(self, site: str, reason: Refusal, known: Mapping[str, Any]) -> None:
        """No other round would be answered."""
        if reason in _IN_VAIN:
            causes = [f"Site '{site}' {reason.value}."]
            if reason is Refusal.PARTNERS and site in known:
                causes.append("Its own key is another by now: its state folder was lost. Begin a new run.")
            elif reason is Refusal.PARTNERS and (names := [name for name in self._problem.names if name in known]):
                causes.append(f"It does not know the keys of {names}.")
            if reason is Refusal.SINGLE:
                off = "" if self._secure_sums or self._hindrance else "The run has `secure_sums=False`."
                causes += [off, self._no_sum, secure.of_method(self._register.study.configured)]
            if reason is Refusal.SPENT:
                causes.append(_SPENT)
            raise FederatedError(" ".join(filter(None, causes)))
        if reason is Refusal.CHANGED:
            raise FederatedError(
                f"Site '{site}' has other data than when this run began: what it has said so far is of the old ones. "
                "Give it back its old data, or start a new run, in another folder."
            )

    def _reply(self, place: int, content: bytes, templates: Mapping[int, Any], order: Round) -> Reply | ResultCode:
        """A reply that has the names, shapes and dtypes expected, and numbers that can be meant."""
        reply: Reply | ResultCode = self._read(place, content, templates)
        if isinstance(reply, Reply) and order.phase is not None and not plausible(reply):
            name = self._problem.names[place]
            log.warning("The answer of site %s holds numbers that can't be meant; it is not used.", name)
            return ResultCode.REFUSED
        of_draws = order.phase is None and order.updates[place].startswith("log_likelihood")
        if isinstance(reply, Reply) and of_draws:
            return self._within(place, reply)
        return reply

    def _within(self, place: int, reply: Reply) -> Reply:
        """Log-likelihoods of the finished fit, NaN where they are no numbers, or larger than a secure sum would hold.

        Beside such a log-likelihood those of all other sites would be rounded away.
        """
        num, beyond = len(self._problem.names), 0

        def known(leaf: np.ndarray) -> np.ndarray:
            nonlocal beyond
            if not np.issubdtype(leaf.dtype, np.floating):
                return leaf
            fine = fits(leaf, num) & (np.isfinite(leaf) | (leaf == -np.inf))
            beyond += int(np.count_nonzero(~fine))
            return np.where(fine, leaf, np.nan)

        found: Reply = reply._replace(total=jax.tree.map(known, reply.total), each=jax.tree.map(known, reply.each))
        if beyond:
            log.warning(
                "%d numbers in the answer of site %s can't be meant; they are not used.",
                beyond,
                self._problem.names[place],
            )
        return found

    def _term(self, place: int, content: bytes, templates: Mapping[int, Any]) -> secure.Term | ResultCode:
        """A hidden term, or why it can't be used."""
        message = self._checked(place, content)
        found = message if isinstance(message, ResultCode) else self._decoded(place, message, templates)
        if isinstance(found, ResultCode):
            return found
        told = message.header.get("told")
        is_open = isinstance(told, dict) and told.get("open") is True
        return secure.Term(found[HIDDEN], found["code"], is_open)

    def _read(self, place: int, content: bytes, templates: Mapping[int, Any]) -> Any | ResultCode:
        """An answer that has the names, shapes and dtypes expected, or why it can't be used."""
        message = self._checked(place, content)
        return message if isinstance(message, ResultCode) else self._decoded(place, message, templates)

    def _decoded(self, place: int, message: Message, templates: Mapping[int, Any]) -> Any | ResultCode:
        try:
            found = decode(message.body, templates[place])
            if not are_codes(found["code"] if isinstance(found, dict) else found.code):
                raise ValueError("its codes are none")
            return found
        except ValueError as error:
            log.warning("The answer of site %s is not what was asked for: %s", self._problem.names[place], error)
            return ResultCode.REFUSED
