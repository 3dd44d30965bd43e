"""A client in one run: where it stands, and what it answers to the orders of that run."""

import hashlib
import json
import logging
from collections.abc import Mapping
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from fedbayes.contract.algorithm import OPENING, Reply
from fedbayes.errors import FederatedError, ResultCode, usable
from fedbayes.fit import updates_after
from fedbayes.network.charter import read_roster
from fedbayes.network.client.alone import Alone, after_template, told_template
from fedbayes.network.client.ledger import Ledger
from fedbayes.network.client.points import OwnView, Reach, num_expanded, reach_of, rounded
from fedbayes.network.client.policy import Budget, PointRules, Policy
from fedbayes.network.client.private import charged, check_asked, check_keys, check_rows
from fedbayes.network.client.reading import OwnProblem
from fedbayes.network.client.secure import Sent, Sums, history_after
from fedbayes.network.client.vault import Vault
from fedbayes.network.draws import with_draws
from fedbayes.network.messages import Message, Refusal, Refused
from fedbayes.network.study import Study
from fedbayes.numerics.gaussian import Gaussian, unpacked
from fedbayes.rounds.exchange import Round
from fedbayes.rounds.programs import Programs, programs_for
from fedbayes.rounds.wire import arrays_of, encode, from_arrays
from fedbayes.runtime.compiling import jit_cheaply, num_bytes

log = logging.getLogger(__name__)

# Kinds of keys. JAX's `unsafe_rbg` adds up what a key is made of, so that a server could have the same random numbers
# beside two questions.
_IMPLS = ("threefry2x32", "rbg")


class Session:
    """A client in one run: its code, and where it stands.

    Attributes
    ----------
    roster, problem
        What the server has told of all clients, and this one among them.
    executor
        Runs its updates.
    at
        The phase and the order after which its private state is, as it is kept; ``None`` where it is none of these.
    """

    def __init__(self, study: Study, name: str, own: OwnProblem, header: Mapping[str, Any], vault: Vault) -> None:
        run, charter, data = str(header["run"]), header["charter"], own.digest
        self.vault = vault.run(run)
        if not self.vault.same_data(data):
            raise Refused(Refusal.CHANGED)
        self._told = _digest_of_told(header)
        if not self.vault.same_charter(self._told):
            raise Refused(Refusal.CHARTER)
        roster = read_roster(charter, own.prior, own.seat.shapes())
        if roster.globals != own.bucket.clients.program.globals:
            log.error(
                "The server has the globals %s, this client %s.", roster.globals, own.bucket.clients.program.globals
            )
            raise Refused(Refusal.MODEL)
        self.study, self.place = study, own.seat.place
        if not 0 <= self.place < roster.num_clients or roster.names[self.place] != name:
            log.error("The server gives site %s the place %d among %s.", name, self.place, roster.names)
            raise Refused(Refusal.FORMAT)
        if str(charter["impl"]) not in _IMPLS:
            log.error("The server's keys are of the kind '%s'; answered are %s.", charter["impl"], ", ".join(_IMPLS))
            raise Refused(Refusal.FORMAT)
        self.roster, self.problem = roster, own.problem(roster)
        self._check_own()
        after = updates_after(study.configured, roster)
        self.programs: Programs = programs_for(study.configured, roster, self.problem.programs, after)
        self._secret, self._impl, self._ledger = vault.secret(run, data), str(charter["impl"]), Ledger(vault.folder)
        self.executor = Alone(self.programs, self.problem, self.place, self._secret, self._impl)
        self.sums = Sums(vault, roster.names, self.place, {"study": study.digest, "run": run})
        self._vault, self._data = vault, data
        rows, secret = float(self.problem.num_rows()[self.place]), vault.secret("points", data)
        self._view = OwnView(self.executor.own, roster.size, self.programs.num_replicates, rows, secret)
        self._log_prior = jit_cheaply(jnp.vectorize(self.problem.prior.log_density, signature="(d)->()"))
        self.at: tuple[int, int] | None = None
        for warning in self.programs.warnings:
            log.warning("%s", warning)

    def _check_own(self) -> None:
        """That the server tells of this site's rows and locals as they are.

        Every site's term is weighed by what is told of all of them. Told alike of one site with next to no rows, sites
        had masks that cancelled, and the sum was that site's term: each can say what is wrong of its own.

        Raises
        ------
        Refused
            It does not.
        """
        name, place = self.roster.names[self.place], self.place
        told = float(self.roster.rows[place]), int(self.roster.num_locals[place])
        known = float(self.problem.num_rows()[place]), self.problem.program(name).locals.size
        if told != known:
            log.error(
                "The server tells of site %s that it has %g rows and %d locals; it has %g and %d.", name, *told, *known
            )
            raise Refused(Refusal.FORMAT)

    def check_told(self, header: Mapping[str, Any]) -> None:
        """That a message tells of the same sites as the first of the run, from which this session was made.

        Masks depend on what each message tells of them, and terms on what the first has told: with other weights in
        that, all terms but one would be nothing, under masks that cancel.

        Raises
        ------
        Refused
            It does not.
        """
        if _digest_of_told(header) != self._told:
            raise Refused(Refusal.CHARTER)

    def go_back(self, header: Mapping[str, Any]) -> None:
        """Give up what came of orders in which there was no secure sum, of which a message tells all sites alike.

        A site that had something to add while others had nothing has moved on alone: they have kept nothing. Until it
        is told so their histories differ, and no sum comes out that would have its change beside nothing of theirs.

        Raises
        ------
        Refused
            These are no orders.
        """
        void = header.get("void", [])
        if not isinstance(void, list) or any(type(order) is not int for order in void):
            raise Refused(Refusal.FORMAT)
        self.vault.forget_orders(void)

    def round(self, message: Message, policy: Policy) -> Sent:
        """One round: the private state before it, the reply, the state after it."""
        header = message.header
        phase, order, oldest = int(header["phase"]), int(header["order"]), int(header["oldest"])
        if phase < 0:
            raise Refused(Refusal.FORMAT)
        noisy = self.programs.phases[phase].algorithm.released is not None
        check_asked(policy, noisy=noisy)
        if noisy:
            check_keys(self._impl)
            check_rows(self.executor.client, policy.constants)
        history = self.vault.history_before(phase, order)
        hiding = self.sums.hiding(message, policy.sums, history)
        template = self._template(phase, begins=bool(header["begins"]))
        told = message.read({**template, "recorded": self._recorded(header)})
        self._go_to(phase, order, told)
        self._record(header, told["recorded"])
        secret = self._charged(phase, told["shared"], policy.privacy) if policy.privacy is not None else None
        self.at = None  # until what this leads to is kept: masks are about what was kept
        reply = self.executor.reply(self._round(phase, told, str(header["update"])), secret)
        far = self._is_far(phase, told, policy)
        withheld = far or (not noisy and self._asks_too_much(phase, header, told, reply, policy))
        reply = _nothing(reply) if withheld else reply
        sent = self.sums.sent(reply._replace(info={}), hiding)  # diagnostics of a single client stay with it
        sent = sent._replace(failures=0) if far else sent  # the same whatever the data are
        # who adds nothing does not move, so that a common past is one of common sums
        if withheld or sent.told.get("open"):
            self.vault.forget_from(order)
        else:
            self.vault.keep_history(phase, order, history_after(message, history))
            self.vault.keep_state(phase, order, self.executor.states(), oldest)
            self.at = (phase, order)
        return sent._replace(told={**sent.told, "noisy": True}) if noisy else sent

    def _charged(self, phase: int, shared: Any, budget: Budget) -> str:
        """Enter a noisy answer in the site's ledger before anything is computed; a secret for its noise."""
        released = self.programs.phases[phase].algorithm.released
        try:
            releases = released(shared, self.executor.client)  # type: ignore[misc]  # asked for before
        except ValueError as error:
            log.error("What the answer to this request would tell can't be bounded. %s", error)
            raise Refused(Refusal.FORMAT) from None
        return charged(self._ledger, releases, budget, self._secret)

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

    def after(self, message: Message, policy: Policy) -> Sent:
        """What is asked once the rounds are over."""
        check_asked(policy, noisy=False)
        name = str(message.header["update"])
        update = self.programs.after.get(name)
        if update is None or update.stays:
            raise Refused(Refusal.PRIVATE)
        if not policy.answers.answers(name):
            raise Refused(Refusal.QUESTION)
        last = (len(self.programs.phases) - 1, int(message.header["order"]))
        hiding = self.sums.hiding(message, policy.sums, self.vault.history_before(*last) if update.private else "")
        order = self._after(message, name)
        if name.startswith("log_likelihood"):
            reply, near, num_low = self._log_likelihoods(order, policy)
            sent = self.sums.sent(reply, hiding, finite=False, counted=near)
            return sent._replace(failures=sent.failures + -(-num_low // _LOW_A_FAILURE))
        return self.sums.sent(self.executor.reply(order), hiding, finite=False)

    def _log_likelihoods(self, order: Round, policy: Policy) -> tuple[Reply, Reply, int]:
        """What the site says of the draws of an order: nothing of some, and not too finely.

        Nothing is said of draws that are too far away, in whose place it computes the prior's centre; and no term of a
        sum of those that its own data find implausible. Log-likelihoods that are asked for site by site hold all that
        is at stake there, and leaving a client out needs them where they are low.

        Returns
        -------
        Reply, Reply, int
            What it says; the same with what it would say there, whose failures count; and the number of draws that its
            data find implausible.
        """
        nats, far = policy.answers.nats, self._beyond(order.shared, policy)
        near = order if not np.any(far) else order._replace(shared=self._moved(order.shared, far, policy))
        reply = self.executor.reply(near)
        singly = bool(jax.tree.leaves(reply.each))
        low = np.zeros_like(far) if singly else ~far & self._low(reply.total[0], near.shared, policy.points)
        reply = reply if nats is None else rounded(reply, nats)
        return _without(reply, far | low), reply, int(np.sum(low))

    def _low(self, log_likelihood: np.ndarray, theta: np.ndarray, rules: PointRules) -> np.ndarray:
        """Which of the draws this site's own data find implausible, by its log-likelihoods there."""
        values = np.asarray(log_likelihood + self._log_prior(theta))
        low = self._view.implausible(theta, rules.nats_per_row, values) & ~np.isnan(values)  # NaN is told as it is
        if np.any(low):
            log.info(_LOW, np.sum(low), rules.nats_per_row)
        return low

    def _moved(self, points: np.ndarray, far: np.ndarray, policy: Policy) -> np.ndarray:
        """The points, with the prior's centre in the place of those that are too far away."""
        reach = self._reach(policy)
        return points if reach is None else np.where(far[..., None], reach.centre, points)

    def _beyond(self, points: np.ndarray, policy: Policy) -> np.ndarray:
        """Which of the points are too far from the prior's centre."""
        reach, shape = self._reach(policy), np.shape(points)
        if reach is None or shape[-1] != len(reach.centre):
            return np.zeros(shape[:-1], bool)
        far = reach.beyond(points)
        if np.any(far):
            log.warning(_FAR, reach.farthest)
        return far

    def _reach(self, policy: Policy) -> Reach | None:
        return reach_of(self.problem.prior, policy.points.farthest)

    def _is_far(self, phase: int, told: Mapping[str, Any], policy: Policy) -> bool:
        """Whether an order asks about values of the globals at which this site does not answer."""
        return self.is_beyond(self._asked_at(phase, told), policy)

    def is_beyond(self, points: np.ndarray, policy: Policy) -> bool:
        """Whether any of the points is too far from the prior's centre."""
        return bool(np.any(self._beyond(points, policy)))

    def _asked_at(self, phase: int, told: Mapping[str, Any]) -> np.ndarray:
        """The values of the globals at which an order asks, shape ``(n, d)``; none where the site chooses them."""
        asked_at, size = self.programs.phases[phase].algorithm.asked_at, self.roster.size
        broadcasts = [] if asked_at is None else [told[name] for name in ("shared", "first") if name in told]
        points = [np.asarray(asked_at(each)).reshape(-1, size) for each in broadcasts if size]  # type: ignore[misc]
        return np.concatenate([*points, np.zeros((0, size))])

    def _answered_at(self, phase: int, header: Mapping[str, Any], told: Mapping[str, Any], reply: Reply) -> np.ndarray:
        """The values of the globals that an answer is about, shape ``(n, d)``: those asked for, or those found.

        No values where it is about the client's own mode: no message has a say in that.
        """
        if header["update"] == OPENING:
            return np.zeros((0, self.roster.size))
        found_at = self.programs.phases[phase].algorithm.found_at
        if found_at is None or phase or self.vault.last_order(phase, int(header["order"])) is not None:
            return self._asked_at(phase, told)
        found = np.asarray(found_at(told["shared"], reply.total))[np.asarray(usable(reply.code))]
        return found.reshape(-1, self.roster.size)

    def _asks_too_much(
        self, phase: int, header: Mapping[str, Any], told: Mapping[str, Any], reply: Reply, policy: Policy
    ) -> bool:
        """Whether an order asks at values that this site's data find implausible, and no more such answers may leave.

        Nothing of the answer leaves then, and no sum of the others' either: by those with this site's and those without
        the server would know it.
        """
        points, rules = self._answered_at(phase, header, told, reply), policy.points
        if not np.any(usable(reply.code)) or not np.any(self._view.implausible(points, rules.nats_per_row)):
            return False
        numbers = {"total": reply.total, "each": reply.each}
        answer = hashlib.sha256(encode(numbers)).hexdigest()
        whole = len(self._asked_at(phase, {"shared": told["shared"]})) * num_expanded(self.roster.size)
        share = min(1.0, num_bytes(numbers) / (8 * whole))
        if self._vault.use_implausible(self._data, answer, share, rules.implausible_answers):
            return False
        log.warning(_IMPLAUSIBLE, rules.nats_per_row, rules.implausible_answers)
        return True

    def own_reply(self, message: Message, name: str) -> Any:
        """The same for the client itself: what never leaves it."""
        return self.executor.reply(self._after(message, name)).each

    def own_values(self, message: Message, rules: PointRules) -> np.ndarray | None:
        """The client's log-likelihood, its locals integrated out, at the draws of which a message tells.

        ``None``: the client's own data find one of them implausible.
        """
        order = self._after(message, "log_likelihood_sum")
        values = np.asarray(self.executor.reply(order).total[0])
        joint = np.asarray(values + self._log_prior(order.shared))
        if not np.any(self._view.implausible(order.shared, rules.nats_per_row, joint)):
            return values
        log.warning(_NOT_COMPARED, rules.nats_per_row)
        return None

    def own_cavity(self, message: Message) -> Gaussian:
        """What all others say of the globals, leading axis of replicates, by the last message of a run."""
        arrays, update = arrays_of(message.body), self.programs.after["cavity"]
        self._go_to_last(int(message.header["order"]))
        nowhere = np.zeros((len(arrays["posterior/shift"]), 0, self.roster.size))
        shared, personal = after_template(update, {**arrays, "shared": nowhere})
        told = {"shared": shared, "personal": personal, "key": arrays["key"]}
        return unpacked(self.executor.reply(self._round(None, told, "cavity")).each)

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
        shared, personal = told_template(self.programs, phase, self.executor.secret_key)
        key = jax.random.key_data(self.executor.secret_key)
        told = {"shared": shared, "personal": personal, "key": key, "phase_key": key}
        return {**told, "first": shared} if begins else told

    def _go_to(self, phase: int, order: int, told: Mapping[str, Any]) -> None:
        """The private state before an order: at hand, from the disk, or from the broadcast where there is none."""
        last = self.vault.last_order(phase, order)
        if self.at == (phase, last):
            return
        self.at = None
        self.begin(phase, order, told.get("first", told["shared"]), told["phase_key"])
        if last is not None and (states := self.vault.state_before(phase, order)) is not None:
            self.executor.load(states)
            self.at = (phase, last)

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


_LOW_A_FAILURE = 100  # draws at which a log-likelihood is kept back that count as one failure
_FAR = (
    "The server asks at values of the globals that are more than %g prior sds from the prior's centre: this site does "
    "not answer there. Its owner sets that by `farthest` under [points] of the policy."
)
_IMPLAUSIBLE = (
    "The server asks at values of the globals that this site's data find less likely than the likeliest by more than "
    "%g nats a row, where this site gives %d answers: it does not answer. If the fit is honest, it begins far from the "
    "posterior, as priors or units do not suit the data, or with draws of the prior, or the model does not suit the "
    "data of all sites. The owner sets both by `nats_per_row` and `implausible_answers` under [points] of the policy."
)
_LOW = (
    "The server asks for log-likelihoods at %d draws that this site's data find less likely than the likeliest by more "
    "than %g nats a row, as a fit does that looks for other modes: it is told minus infinity there."
)
_NOT_COMPARED = (
    "Among the draws that the server tells are some that this site's data find less likely than the likeliest by more "
    "than %g nats a row: it does not say whether its data agree with them."
)


def _digest_of_told(header: Mapping[str, Any]) -> str:
    """What stands for the study of a run, and all that a message tells of its sites and of this one's seat among them.

    A private state from another study would else be one that masks know nothing of: histories name no study.
    """
    told = [header["study"], header["charter"], header["seat"]]
    return hashlib.sha256(json.dumps(told, sort_keys=True).encode()).hexdigest()


def _nothing(reply: Reply) -> Reply:
    """A reply that counts for nothing."""
    total, each = jax.tree.map(np.zeros_like, (reply.total, reply.each))
    return reply._replace(total=total, each=each, code=jnp.full_like(reply.code, int(ResultCode.NOT_FINITE)))


def _without(reply: Reply, far: np.ndarray) -> Reply:
    """Log-likelihoods that are minus infinity at some draws, of shape ``(chain, draw)``, whatever they are there."""
    if jax.tree.leaves(reply.each):
        return reply._replace(each=np.where(far, -np.inf, reply.each))
    values, *others = reply.total
    return reply._replace(total=(np.where(far, -np.inf, values), *others))
