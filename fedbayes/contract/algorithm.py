"""The contract: what a federated method is.

In a round the server broadcasts, every active client runs one pure function on its own data, and the server moves with
what it hears. One value, an :class:`Algorithm`, holds both halves; a :class:`Method` is one or several of them, run one
after the other as phases, and the answer that they lead to. No method loops over clients, sees data at the server, or
knows where it runs.
"""

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, NamedTuple, Self

import jax.numpy as jnp
import numpy as np
from jax import Array
from jaxtyping import Bool, Int

from fedbayes.contract.answer import Answer, Diagnostic
from fedbayes.contract.state import RunState
from fedbayes.contract.work import Work
from fedbayes.errors import ResultCode
from fedbayes.numerics.accounting import Release
from fedbayes.numerics.gaussian import STRUCTURE, Gaussian
from fedbayes.problem.client import Client
from fedbayes.problem.roster import Roster

Key = Array
Info = dict[str, Array]
# pytrees of arrays, whose structure is an algorithm's own business
State = Any
Shared = Any
Personal = Any
Private = Any
Inputs = Any

CONTROL = ("converged", "proper", "hopeless", "opening")  # what `aggregate` tells the loop, not the user
OPENING = "opening"  # an update about a client's own mode, which reads no broadcast: all clients run it, or none
EACH_SEARCH = "each_search"  # see `Reply.total`


class Reply(NamedTuple):
    """What one client answers in a round.

    Attributes
    ----------
    total
        The server sees only the sum of these over the clients, which the executor takes. Weighted means carry their
        weight: ``(w x, w)``. Numbers are finite, but for those of a field named ``each_search``, in which several
        answers stand side by side along the first axis. One of them that is of no use is NaN as a whole.
    each
        Seen client by client. An algorithm whose replies have none can run under secure aggregation.
    code
        A :class:`~fedbayes.errors.ResultCode`; a reply that is not usable counts neither in ``total`` nor in ``each``.
    info
        Diagnostics, declared by the method.
    """

    total: Any = ()
    each: Any = ()
    code: Array = ResultCode.OK  # type: ignore[assignment]  # an integer is an array to JAX
    info: Info = {}  # noqa: RUF012  (JAX knows it as an empty pytree; it is never written to)


class Replies(NamedTuple):
    """What the server hears in a round.

    Attributes
    ----------
    total
        Sum over the clients whose replies are used.
    each
        Leading axis of all clients; meaningless where not used.
    used
        Whose reply is used.
    """

    total: Any
    each: Any
    used: Bool[Array, " client"]


class Teams(NamedTuple):
    """A broadcast of which each client gets one of a few parts; the server's sums are kept apart in the same way.

    A client's update takes its team's part for ``shared``, and ``Replies.total`` has a leading axis of teams.

    Attributes
    ----------
    shared
        Leading axis of teams.
    team
        Each client's team in this round.
    """

    shared: Shared
    team: Int[Array, " client"]


def its_key(key: Key, shared: Shared, num_locals: int) -> Key:
    """The inputs of an update that draws inside its own program."""
    return key


def no_inputs(key: Key, shared: Shared, num_locals: int) -> tuple[()]:
    """The inputs of an update without randomness."""
    return ()


class Update(NamedTuple):
    """One client's half of a round.

    Attributes
    ----------
    run
        ``(shared, personal, private, client, inputs) -> (reply, private)``: pure, jit- and vmap-able.
    inputs
        ``(key, shared, num_locals) -> inputs``: the random numbers that ``run`` needs, drawn from the client's key of
        this round by a small program of its own. Drawn inside ``run``, under ``vmap``, they would cost XLA seconds of
        compilation.
    personal
        Of an update for after the rounds: the structure of what is addressed to each client, whatever its leaves. Over
        a network the client reads its message by it.
    stays
        Whether the reply is the client's own, such as draws of its locals: over a network it never leaves the client.
    private
        Of an update for after the rounds: whether it reads what the client has kept from the last one.
    in_turn
        Whether a CPU computes the replicates one after the other. This is faster for updates that evaluate the density
        at hundreds of points: side by side their arrays do not fit into its caches, and every search takes as many
        steps as the longest one. Accelerators compute them side by side.
    work
        ``(shared, client) -> work`` of one replicate, by shapes alone, from which it follows how long a fit will take.
        ``None``: not known.
    """

    run: Callable[[Shared, Personal, Private, Client, Inputs], tuple[Reply, Private]]
    inputs: Callable[[Key, Shared, int], Inputs] = its_key
    personal: Any = ()
    stays: bool = False
    private: bool = False
    in_turn: bool = False
    work: Callable[[Shared, Client], Work] | None = None


def keep(updates: Sequence[str], infos: Mapping[str, np.ndarray]) -> list[str]:
    """``choose`` of an algorithm whose clients stay with their updates."""
    return list(updates)


def everybody(state: State) -> Bool[Array, ""]:
    """``participants`` of an algorithm that needs all clients in every round."""
    return jnp.ones((), bool)


class Algorithm(NamedTuple):
    """Both halves of a federated algorithm as pure functions.

    Attributes
    ----------
    name
        For progress and reports.
    init
        ``(key, previous) -> state``; ``previous`` is the last state of the phase before, or ``None``, which also asks
        for shapes alone: every phase has to bear it.
    broadcast
        ``(state) -> (shared, personal)``: the same for all, or :class:`Teams`, and a part addressed to each client
        (leading axis of clients), which may be ``()``.
    init_client
        ``(client, shared, key) -> private``: never leaves the client; ``shared`` is the first broadcast.
    continue_client
        ``(client, shared, key, before) -> private``: the same of a client that has taken part in the phase before, with
        what it has kept from there; ``None``: it starts anew.
    updates
        Named variants of a client's half. All clients start with the first; ``choose`` may change that.
    aggregate
        ``(state, replies, key) -> (state, info)``. ``info["converged"]``, which each round must give, stops the loop.
        Three more it may have: where ``info["proper"]`` is false and no reply could be used, and where
        ``info["hopeless"]`` is true, the loop gives up; ``info["opening"]`` is for ``choose``.
    choose
        ``(updates, infos) -> updates``: the update of each client in the next round, from what clients and server
        reported.
    participants
        ``(state) -> (K,)`` booleans: the clients that this round needs.
    asked_at
        ``(shared) -> (..., d)``: the values of the globals around which the broadcast has the clients evaluate their
        densities. A client over a network answers none that is farther from the prior than its owner allows, and few
        that its own data find implausible. ``None`` where a broadcast names no such values.
    found_at
        ``(shared, total) -> (..., d)``: where an answer to the first broadcast was expanded, if a client looks for that
        itself; ``None``: where ``asked_at`` says.
    released
        ``(shared, client) -> releases``, on the host, leading axis of replicates: what the replies to a broadcast tell
        of the client's records, worked out at the client from what it is told. Raises ``ValueError`` where that can't
        be bounded. ``None``: the replies have no noise that would hide a record.
    """

    name: str
    init: Callable[[Key, State | None], State]
    broadcast: Callable[[State], tuple[Shared, Personal]]
    init_client: Callable[[Client, Shared, Key], Private]
    updates: Mapping[str, Update]
    aggregate: Callable[[State, Replies, Key], tuple[State, Info]]
    choose: Callable[[Sequence[str], Mapping[str, np.ndarray]], list[str]] = keep
    participants: Callable[[State], Array] = everybody
    continue_client: Callable[[Client, Shared, Key, Private], Private] | None = None
    asked_at: Callable[[Shared], Array] | None = None
    found_at: Callable[[Shared, Any], Array] | None = None
    released: Callable[[Shared, Client], Sequence[Release]] | None = None


class Recording(NamedTuple):
    """How the rounds of a Markov chain become draws.

    Attributes
    ----------
    draw
        ``(state) -> (d,)``: the chain's position in the unconstrained globals.
    private_draw
        ``(shared, private) -> (m,)``: the client's own part of the draw, which stays with it.
    stride
        ``(state) -> rounds`` between two draws.
    num_warmup
        Draws to throw away.
    check
        Raises where the chains can't start, or have diverged. It is called before the first round and after each block.
    """

    draw: Callable[[State], Array]
    private_draw: Callable[[Shared, Private], Array]
    stride: Callable[[State], int]
    num_warmup: int
    check: Callable[[RunState], None]


@dataclass(frozen=True, kw_only=True)
class Phase:
    """One algorithm of a method with its budget of rounds.

    Attributes
    ----------
    algorithm
        What is run.
    max_rounds
        Its budget, where the user gives none.
    recording
        Of an algorithm whose rounds are draws.
    full_participation
        Whether every client takes part whatever the user's ``participation``.
    main
        Whether the user's number of rounds is this phase's: the phases before it prepare it, those after it conclude.
    once
        Whether all replicates share one run of it.
    check
        Raises where the phase can't start from the end of the phase before; it is called with that.
    usual_rounds
        How many it takes most often, for what is said of the time; ``None``: not known.
    """

    algorithm: Algorithm
    max_rounds: int
    recording: Recording | None = None
    full_participation: bool = False
    main: bool = True
    once: bool = False
    check: Callable[[RunState], None] | None = None
    usual_rounds: int | None = None


class Method(ABC):
    """A configured method, such as ``fedbayes.EP(damping=0.5)``.

    Attributes
    ----------
    only_locals
        Whether the method couples the clients' local latents, so that a program may have no globals.
    progress
        The diagnostics of which a picture of the rounds draws the first that has numbers. The first of all is what
        :attr:`tolerance` is compared with, and falls to zero.
    judged_by
        What else a fit needs to have converged, or instead where there is no tolerance: words that go on "Judged by" in
        that picture.
    """

    only_locals: ClassVar[bool] = False
    progress: ClassVar[tuple[str, ...]] = ("change",)
    judged_by: ClassVar[str] = ""

    @property
    @abstractmethod
    def num_replicates(self) -> int:
        """Independent runs of the whole fit, which become the chains of the posterior."""

    @property
    @abstractmethod
    def needs_rows(self) -> bool:
        """Whether single rows of the clients' data are asked for, as by mini-batches."""

    @property
    def single_messages(self) -> str:
        """Why the server reads messages client by client, in a sentence.

        Empty where sums and result codes are all that it sees in the rounds and in the check after them.
        """
        return ""

    @property
    def takes_local_steps(self) -> bool:
        """Whether a client may take several steps on its data in a round, or one that is not linear in the gradient.

        What it sends then is no sum over its rows, and the sum over clients can come apart into single ones, as it can
        where a message says how much each client counts: of such methods this is true as well. True unless a method
        says otherwise, which it may only if that holds for every message that a server can send.
        """
        return True

    @property
    def is_private(self) -> bool:
        """Whether clients answer with noise that hides their records, and with nothing else.

        Over a network they then take part within a budget of their owners, and are asked nothing after the rounds.
        """
        return False

    @property
    def ends_in_chains(self) -> bool:
        """Whether the draws of the globals are Markov chains of the posterior as the program and all rows make it.

        A client's site then compares these with its own rows, and knows by its own copy of the method whether it may.
        """
        return False

    @property
    @abstractmethod
    def diagnostics(self) -> Mapping[str, Diagnostic]:
        """What ``info`` may hold in any of its phases: names, dimensions, meaning, unit."""

    @abstractmethod
    def phases(self, roster: Roster) -> list[Phase]:
        """The algorithms to run one after the other, each from the last state of the one before."""

    @abstractmethod
    def answer(self, roster: Roster, run: RunState) -> Answer:
        """What the last phase has found."""

    @property
    def tolerance(self) -> float | None:
        """Where the rounds end, drawn as a line in a picture of their progress; ``None``: they end for another reason.

        An option of this name takes its place.
        """
        return None

    def after(self, roster: Roster) -> Mapping[str, Update]:
        """What clients can be asked once the rounds are over, by name, beside what all methods ask or in its place.

        Such an update forms its cavity itself where clients keep their own sites: it then has ``private`` set, and
        :meth:`told_at_end` for ``personal``.
        """
        return {}

    def for_one_client(self) -> Self:
        """The same method for a single client: without options that only several clients give a meaning."""
        return self

    def cheaper(self, roster: Roster) -> Mapping[str, "Method"]:
        """What may compute less in the place of this method, by its words; first what changes the answer least.

        Whether one does for these clients is counted (:class:`~fedbayes.contract.work.Work`) before it is offered.
        """
        return {}

    def told_at_end(self, roster: Roster) -> Any:
        """The structure of what a client forms its cavity from (:meth:`own_cavity`), whatever the leaves."""
        return STRUCTURE

    def own_cavity(self, told: Any, private: Private) -> Gaussian:
        """A client's cavity, from what it is told at the end and from what it has kept; pure, jit- and vmap-able.

        By default it is told the cavity itself. Where the server knows sums alone, the client has kept its site:
        :mod:`fedbayes.inference.own_site` has what both sides need for that.
        """
        return told

    def own_draws(self, private: Private) -> np.ndarray:
        """The points that a client keeps for itself, see :mod:`fedbayes.contract.client_locals`.

        Raises
        ------
        NotImplementedError
            The clients of this method keep none.
        """
        raise NotImplementedError(f"The clients of {type(self).__name__} keep no points of their own.")
