"""What an executor is, and what those in one process share: clients, their secrets, their private states."""

from abc import ABC, abstractmethod
from collections.abc import Callable
from typing import Any

import jax
import numpy as np
from jax import Array
from jax.sharding import Mesh

from fedbayes.contract.algorithm import Key, Personal, Private, Reply, Shared, State, Teams
from fedbayes.errors import usable
from fedbayes.problem.client import Client
from fedbayes.problem.problem import Problem
from fedbayes.rounds.exchange import Ahead, Heard, Round, sum_of_used, sums_by_team
from fedbayes.rounds.programs import Programs, client_key, client_secrets
from fedbayes.rounds.wire import arrays_of, decode, encode
from fedbayes.runtime.compiling import Compiled, jit_quickly


class Executor(ABC):
    """Runs clients' updates and owns their private states, or knows the processes that do."""

    _programs: Programs
    _problem: Problem
    mesh: Mesh | None = None  # the devices among which clients are shared out in a fit

    @property
    def layout(self) -> list:
        """How they are shared out: processes that fit together must have the same."""
        return []

    def work_alone(self) -> None:  # noqa: B027
        """After a fit: answer questions without the devices of other processes, which may never ask them."""

    @property
    def compiles_ahead(self) -> bool:
        """Whether programs can be compiled before they are called, by :meth:`ahead` and :meth:`asked_ahead`."""
        return False

    def connect(self, programs: Programs, problem: Problem, key: Key) -> None:
        """Before a fit: the code, the clients with what is known of their data, and the fit's key."""
        self._programs, self._problem = programs, problem

    @abstractmethod
    def begin(self, phase: int, shared: Shared, key: Key) -> None:
        """Every client makes its private state for a phase, from the first broadcast."""

    @abstractmethod
    def run(self, order: Round) -> Heard:
        """One round."""

    @abstractmethod
    def record(self, phase: int, shared: Shared) -> None:
        """Every client keeps its own part of the draw that the chains have just made."""

    @abstractmethod
    def recorded(self, place: int) -> np.ndarray:
        """One client's own part of all draws, shape ``(draw, replicate, m)``; refused where clients are elsewhere."""

    @abstractmethod
    def private(self, place: int) -> Private:
        """One client's private state, for what it is asked itself; refused where clients are elsewhere."""

    def ahead(self, phase: int, shared: Shared, personal: Personal, key: Key, before: Any) -> Ahead:
        """Begin to compile a later phase's programs, from shapes alone.

        Parameters
        ----------
        phase
            Index of the phase, whose first round is meant.
        shared, personal, key
            Shapes of what the clients will be told.
        before
            Of the private states in which the phase before leaves them; empty for the first one.
        """
        raise NotImplementedError

    def asked_ahead(self, name: str, shared: Shared, personal: Personal, key: Key, num_clients: int) -> None:
        """Begin to compile what clients will be asked once the rounds are over.

        Parameters
        ----------
        name
            Of the update; the clients' private states are those of the last phase.
        shared, personal, key
            Shapes of what they will be told.
        num_clients
            How many are asked at a time.
        """
        raise NotImplementedError

    def fuse(self, phase: int, block: int) -> Callable | None:
        """A block of rounds as one program, ``(state, key, first_round, stride, size) -> FusedRounds``, or ``None``."""
        return None

    def several(self, phase: int, rounds: int) -> Callable | None:
        """Some rounds as one program, ``(state, key, first_round, size) -> SeveralRounds``, or ``None``.

        It ends sooner where a round is the last one; ``size`` is at most ``MOST_ROUNDS``.

        Parameters
        ----------
        phase
            Index of the phase, in all of whose rounds every client takes part.
        rounds
            Its budget.
        """
        return None

    def several_ahead(self, phase: int, state: State, shared: Shared, key: Key, before: Any) -> tuple[State, Any]:
        """Begin to compile the program of :meth:`several`, from shapes alone.

        Parameters
        ----------
        phase
            Index of the phase.
        state, shared, key
            Shapes of the server's state and of its first broadcast, and of the phase's key.
        before
            As for :meth:`ahead`.

        Returns
        -------
        tuple
            The shapes of the server's state and of the clients' private ones after these rounds.
        """
        raise NotImplementedError

    @abstractmethod
    def snapshot(self) -> bytes:
        """The private states and recorded draws, for a checkpoint; empty where clients keep their own."""

    @abstractmethod
    def restore(self, saved: bytes) -> None:
        """Go on from a snapshot; ``begin`` was called for its phase."""


class InProcess(Executor):
    """What executors in one process share: clients, their secrets, their private states and recorded draws."""

    def __init__(self) -> None:
        self._secrets: Key
        self._states: list[Private] = []
        self._draws: list[list[np.ndarray]] = []

    def connect(self, programs: Programs, problem: Problem, key: Key) -> None:
        """See :class:`Executor`; the clients' secrets are made from the fit's key."""
        super().connect(programs, problem, key)
        self._secrets = client_secrets(key, len(problem.names))
        self._states, self._draws = [], []

    def begin(self, phase: int, shared: Shared, key: Key) -> None:
        """See :class:`Executor`."""
        goes_on = self._programs.phases[phase].algorithm.continue_client is not None and self._states
        before = self._states if goes_on else [None] * len(self._problem.buckets)
        program, each = self._begins(phase), zip(self._problem.buckets, before, strict=True)
        states = [program(shared, bucket.clients, self._secrets, key, kept) for bucket, kept in each]
        self._states, self._draws = jax.tree.map(np.array, states), []

    def _begins(self, phase: int) -> Compiled:
        """``(shared, clients, secrets, key, before) -> states`` of the clients of a bucket."""
        algorithm = self._programs.phases[phase].algorithm

        def start(shared: Shared, clients: Client, secrets: Key, key: Key, before: Private | None) -> Private:
            def of_one(client: Client, kept: Private | None) -> Private:
                own = client_key(secrets[client.index], key)
                if kept is None or algorithm.continue_client is None:
                    return algorithm.init_client(client, shared, own)
                return algorithm.continue_client(client, shared, own, kept)

            return jax.vmap(of_one, (0, None if before is None else 0))(clients, before)

        return self._programs.kept(("begin", phase), lambda: Compiled(jit_quickly(start)))

    def record(self, phase: int, shared: Shared) -> None:
        """See :class:`Executor`."""
        recording = self._programs.phases[phase].recording
        assert recording is not None  # noqa: S101
        draw = self._programs.kept(
            ("record", phase), lambda: jit_quickly(jax.vmap(recording.private_draw, in_axes=(None, 0)))
        )
        self._draws.append([np.asarray(draw(shared, mine))[None] for mine in self._states])

    def recorded(self, place: int) -> np.ndarray:
        """See :class:`Executor`."""
        bucket, at = self._problem.locate(place)
        return np.concatenate([block[bucket][:, at] for block in self._draws])

    def private(self, place: int) -> Private:
        """See :class:`Executor`."""
        bucket, at = self._problem.locate(place)
        return jax.tree.map(lambda leaf: leaf[at], self._states[bucket])

    def _private(self, phase: int | None, name: str, bucket: int) -> Private:
        """The private states of a bucket; after the rounds, for updates that read them. A newcomer has none."""
        wanted = phase is not None or self._programs.update(phase, name).private
        return self._states[bucket] if wanted and self._states else ()

    def _keep(self, phase: int | None, bucket: int, at: np.ndarray | int, new: Private) -> None:
        """Replace the private states of some clients of a bucket; a failed round has left the old ones."""
        if phase is None:
            return
        everybody = np.arange(len(self._problem.buckets[bucket].members))
        if np.array_equal(at, everybody):  # nothing to copy, and nothing that would leave the device
            self._states[bucket] = new
            return

        def replaced(old: np.ndarray, leaf: Array) -> np.ndarray:
            old = np.array(old)
            old[at] = leaf
            return old

        self._states[bucket] = jax.tree.map(replaced, self._states[bucket], new)

    def snapshot(self) -> bytes:
        """See :class:`Executor`."""
        draws = [np.concatenate(blocks) for blocks in zip(*self._draws, strict=True)]
        return encode({"states": np.frombuffer(encode(self._states), np.uint8), "draws": draws})

    def restore(self, saved: bytes) -> None:
        """See :class:`Executor`."""
        arrays = arrays_of(saved)
        self._states = decode(arrays.pop("states").tobytes(), self._states)
        self._draws = [[arrays[f"draws/{b}"] for b in range(len(arrays))]] if arrays else []


def summed(reply: Reply, real: Array | np.ndarray, shared: Shared, places: Array | np.ndarray) -> Any:
    """The sum of ``reply.total`` over the leading axis of clients, of those that are real and usable; or by team."""
    used = usable(reply.code) & real.reshape(real.shape + (1,) * (reply.code.ndim - 1))
    if isinstance(shared, Teams):
        return sums_by_team(reply.total, used, shared, places)
    return sum_of_used(reply.total, used)
