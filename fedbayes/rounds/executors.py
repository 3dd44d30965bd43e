"""Where a client's update runs: batched in one process, sharded over devices, one by one, or through bytes.

Executors differ in nothing else: the same keys, the same data, the same pure functions, so the same answers. An
executor owns the clients' private states: the loop never sees them.
"""

import os
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from contextlib import nullcontext
from dataclasses import replace
from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array
from jax.sharding import Mesh, PartitionSpec

from fedbayes.contract.algorithm import Key, Personal, Private, Reply, Shared, State, Teams, Update
from fedbayes.errors import usable
from fedbayes.problem.client import Client, length
from fedbayes.problem.data.padding import bucket_lengths
from fedbayes.problem.problem import Problem, naming
from fedbayes.rounds.chains import fused_block
from fedbayes.rounds.exchange import Ahead, Collected, Heard, Round, replies_like, sum_of_used, sums_by_team, told
from fedbayes.rounds.programs import Programs, client_key, client_secrets
from fedbayes.rounds.wire import arrays_of, decode, encode
from fedbayes.runtime.compiling import Compiled, jit_by_work, jit_quickly, shapes_of

# Rows of one compiled call: with some hundred draws each, the working set stays in a processor's cache, or fills an
# accelerator without filling its memory.
_CHUNK_ROWS = {"cpu": 1 << 11}
_CHUNK_ROWS_ELSEWHERE = 1 << 17
# Globals of all its clients, for the same reason: of networks with a million weights each client is a call of its own,
# which is also how XLA multiplies large matrices fastest.
_CHUNK_VALUES = {"cpu": 1 << 20}
_CHUNK_VALUES_ELSEWHERE = 1 << 26
# Evaluations of a row's log density, in one exchange and of padding alone, that are worth a program for shorter
# clients: a second or more of a processor. It takes four to trace and compile, once for many exchanges and fits.
_WORTH_A_PROGRAM = 1e8
# Compiled calls under way at once: JAX would begin all of them, each with its working memory, whatever there are cores.
_UNDER_WAY = max(2, os.cpu_count() or 1)


class Executor(ABC):
    """Runs clients' updates and owns their private states, or knows the processes that do."""

    _programs: Programs
    _problem: Problem

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


class _Part(NamedTuple):
    """All clients of a bucket with their first so many rows, and the places of those that have no more."""

    clients: Client
    members: np.ndarray


class Batched(InProcess):
    """All clients of a bucket in one compiled program, chunk by chunk.

    Parameters
    ----------
    mesh
        One-dimensional device mesh; the clients of a chunk are shared out over its devices.
    chunk
        Clients per compiled call; ``None`` chooses it so that the working set stays in cache.
    """

    def __init__(self, mesh: Mesh | None = None, chunk: int | None = None) -> None:
        super().__init__()
        if mesh is not None and len(mesh.axis_names) != 1:
            raise ValueError(f"`mesh` has the axes {mesh.axis_names}; clients are shared out over exactly one.")
        self.mesh = mesh
        self.chunk = chunk
        self._shorter: dict[tuple[int, int], Client] = {}

    def connect(self, programs: Programs, problem: Problem, key: Key) -> None:
        """See :class:`Executor`."""
        super().connect(programs, problem, key)
        self._shorter = {}

    def run(self, order: Round) -> Heard:
        """See :class:`Executor`."""
        heard = Collected(order, len(self._problem.names))
        active = np.zeros(len(self._problem.names), bool)
        active[order.active] = True
        updates = list(dict.fromkeys(order.updates))
        for b, bucket in enumerate(self._problem.buckets):
            for name in updates:
                chosen = active[bucket.members]
                if len(updates) > 1:
                    chosen = chosen & [order.updates[place] == name for place in bucket.members]
                if np.any(chosen):
                    self._bucket(name, b, np.flatnonzero(chosen), order, heard)
        return heard.finish()

    def _bucket(self, name: str, b: int, at: np.ndarray, order: Round, heard: Collected) -> None:
        """Some clients of one shape."""
        for part in self._parts(order.phase, name, b, order.shared):
            chosen = np.intersect1d(at, part.members)
            if len(chosen):
                self._part(name, b, part, chosen, order, heard)

    def _part(self, name: str, b: int, whole: _Part, at: np.ndarray, order: Round, heard: Collected) -> None:
        """Some clients of one shape that are padded to one length, chunk by chunk."""
        bucket, states = self._problem.buckets[b], self._private(order.phase, name, b)
        program = self._program(order.phase, name)
        draw = self._programs.inputs(order.phase, name, bucket.clients.num_locals)
        size, after = self._chunk_size(whole, len(at)), []
        for begin in range(0, len(at), size):
            part = at[begin : begin + size]
            padded = np.resize(part, size)  # repeat clients to fill the chunk; the copies count for nothing
            places, real = bucket.members[padded], np.arange(size) < len(part)
            inputs = draw(self._secrets, places, order.shared, order.key)
            heard.leave(_UNDER_WAY)
            reply, state = program(order.shared, order.personal, states, whole.clients, padded, places, real, inputs)
            after.append((len(part), state))
            heard.add(bucket.members[part], reply)
        if len(after) == 1 and after[0][0] == size and self.mesh is None:
            self._keep(order.phase, b, at, after[0][1])
            return
        parts = [jax.tree.map(lambda leaf, n=n: np.asarray(leaf)[:n], state) for n, state in after]
        self._keep(order.phase, b, at, jax.tree.map(lambda *leaves: np.concatenate(leaves), *parts))

    def _whole(self, b: int) -> _Part:
        bucket = self._problem.buckets[b]
        return _Part(bucket.clients, np.arange(len(bucket.members)))

    def _parts(self, phase: int | None, name: str, b: int, shared: Shared) -> list[_Part]:
        """The clients of a bucket; after the rounds by lengths, where much is evaluated that is padding.

        What a bucket is padded to serves all programs. Those of rounds compile longer, and evaluate less.
        """
        whole, program = self._whole(b), self._problem.buckets[b].clients.program
        if phase is not None or self.mesh is not None or program.row_locals or not program.row_arguments:
            return [whole]
        rows = np.asarray(whole.clients.mask).sum(axis=1)
        padded = length(whole.clients.data, axis=1) * len(rows)
        each = self._programs.evaluations(phase, name, shared, whole.clients) / padded
        lengths = bucket_lengths(rows.tolist(), worth=_WORTH_A_PROGRAM / each) if 0.0 < each < np.inf else []
        if len(lengths) < 2:
            return [whole]
        places = np.searchsorted(lengths, rows)
        return [_Part(self._cut(b, most), np.flatnonzero(places == i)) for i, most in enumerate(lengths)]

    def _cut(self, b: int, rows: int) -> Client:
        """The clients of a bucket with their first rows, which are all rows of the shorter ones."""
        clients = self._problem.buckets[b].clients
        if rows == clients.mask.shape[1]:
            return clients
        if (b, rows) not in self._shorter:
            cut = lambda leaf: jax.device_put(np.asarray(leaf)[:, :rows])  # noqa: E731
            shorter = {name: cut(clients.data[name]) for name in clients.program.row_arguments}
            self._shorter[b, rows] = replace(clients, data=clients.data | shorter, mask=cut(clients.mask))
        return self._shorter[b, rows]

    def batched(self, update: Update, *, teams: bool = False) -> Callable:
        """``(shared, personal, states, clients, inputs)`` for clients along a leading axis, not yet compiled.

        With teams ``shared`` has that axis too.
        """
        batched: Callable = jax.vmap(update.run, in_axes=(0 if teams else None, 0, 0, 0, 0))
        return batched if self.mesh is None else _sharded(batched, self.mesh, teams=teams)

    def _program(self, phase: int | None, name: str) -> Compiled:
        update = self._programs.update(phase, name)

        def program(
            shared: Shared,
            personal: Personal,
            states: Private,
            clients: Client,
            at: Array,
            places: Array,
            real: Array,
            inputs: Any,
        ) -> tuple[Reply, Private]:
            take = partial(jax.tree.map, lambda leaf: leaf[at])
            mine, teams = jax.tree.map(lambda leaf: leaf[places], personal), isinstance(shared, Teams)
            batched = self.batched(update, teams=teams)
            part = told(shared, places) if teams else shared
            reply, after = batched(part, mine, take(states), take(clients), inputs)
            return reply._replace(total=summed(reply, real, shared, places)), after

        def evaluations(shared: Shared, personal: Personal, states: Private, clients: Client, *_: Any) -> float:
            return self._programs.evaluations(phase, name, shared, clients)

        kept = "batched", phase, name, self.mesh
        return self._programs.kept(kept, lambda: Compiled(jit_by_work(program, evaluations, newer=phase is None)))

    @property
    def compiles_ahead(self) -> bool:
        """See :class:`Executor`; what is shared out over devices is not compiled ahead."""
        return self.mesh is None

    def ahead(self, phase: int, shared: Shared, personal: Personal, key: Key, before: Any) -> Ahead:
        """See :class:`Executor`."""
        algorithm, buckets = self._programs.phases[phase].algorithm, self._problem.buckets
        name, states = next(iter(algorithm.updates)), []
        goes_on = algorithm.continue_client is not None and before
        each = zip(buckets, before if goes_on else [None] * len(buckets), strict=True)
        for b, (bucket, kept) in enumerate(each):
            states.append(shapes_of(self._begins(phase).ahead(shared, bucket.clients, self._secrets, key, kept)))
            told = shared, personal, states[-1]
            reply = self._update_ahead((phase, name), told, key, self._whole(b), len(bucket.members))
        return Ahead(replies_like(reply, len(self._problem.names)), states)

    def asked_ahead(self, name: str, shared: Shared, personal: Personal, key: Key, num_clients: int) -> None:
        """See :class:`Executor`."""
        for b in range(len(self._problem.buckets)):
            told = shared, personal, shapes_of(self._private(None, name, b))
            for part in self._parts(None, name, b, shared):
                self._update_ahead((None, name), told, key, part, min(num_clients, len(part.members)))

    def _update_ahead(self, address: tuple[int | None, str], told: tuple, key: Key, part: _Part, num: int) -> Reply:
        """Begin to compile an update, as some clients of a bucket will run it; the shapes of a chunk's replies."""
        shared, personal, states = told
        places = np.zeros(self._chunk_size(part, num), int)
        inputs = self._programs.inputs(*address, part.clients.num_locals).ahead(self._secrets, places, shared, key)
        asked = shared, personal, states, part.clients, places, places, places == 0, inputs
        reply: Reply = self._program(*address).ahead(*asked)[0]
        return reply

    def _chunk_size(self, part: _Part, num_active: int) -> int:
        members, rows = len(part.members), length(part.clients.data, axis=1)
        backend, num_globals = jax.default_backend(), self._problem.globals.size
        by_rows = _CHUNK_ROWS.get(backend, _CHUNK_ROWS_ELSEWHERE) // max(rows, 16)
        by_values = _CHUNK_VALUES.get(backend, _CHUNK_VALUES_ELSEWHERE) // max(num_globals, 1)
        size = self.chunk or max(1, min(by_rows, by_values))
        devices = 1 if self.mesh is None else self.mesh.size
        # few active clients are filled up to a power of two at most; each size compiles once
        num = min(members, 1 << (num_active - 1).bit_length())
        even = -(-num // -(-num // size))  # in as many chunks as needed, all of one size
        return -(-even // devices) * devices

    def fuse(self, phase: int, block: int) -> Callable | None:
        """See :class:`Executor`."""
        programs, buckets = self._programs, self._problem.buckets
        (update,) = programs.phases[phase].algorithm.updates.values()
        members = tuple(tuple(bucket.members.tolist()) for bucket in buckets)
        devices = 1 if self.mesh is None else self.mesh.size
        program = programs.kept(
            ("fused", phase, block, members, self.mesh),
            # thousands of rounds in one program: what counts is how fast it runs
            lambda: Compiled(
                jax.jit(fused_block(programs.phases[phase], update, self.batched(update), members, devices, block))
            ),
        )

        def run(state: State, key: Key, first: int, stride: int, size: int) -> Any:
            clients = [bucket.clients for bucket in buckets]
            done = program(state, self._states, clients, self._secrets, key, first, stride, size)
            done = jax.tree.map(np.asarray, done)
            self._states = done.states
            self._draws.append([mine[:size] for mine in done.private])
            return done._replace(theta=done.theta[:size])

        return run


def summed(reply: Reply, real: Array | np.ndarray, shared: Shared, places: Array | np.ndarray) -> Any:
    """The sum of ``reply.total`` over the leading axis of clients, of those that are real and usable; or by team."""
    used = usable(reply.code) & real.reshape(real.shape + (1,) * (reply.code.ndim - 1))
    if isinstance(shared, Teams):
        return sums_by_team(reply.total, used, shared, places)
    return sum_of_used(reply.total, used)


def _sharded(batched: Callable, mesh: Mesh, *, teams: bool) -> Callable:
    axis = PartitionSpec(mesh.axis_names[0])
    everywhere = PartitionSpec()
    # check_vma=False: with the default, jax.grad inside shard_map silently sums over the devices
    return jax.shard_map(
        batched,
        mesh=mesh,
        in_specs=(axis if teams else everywhere, axis, axis, axis, axis),
        out_specs=axis,
        check_vma=False,
    )


class Sequential(InProcess):
    """One client after the other, each named in whatever it raises: for debugging.

    Parameters
    ----------
    compiled
        ``False`` runs without ``jit``, so that ``print`` and a debugger work inside the model.
    """

    def __init__(self, *, compiled: bool = True) -> None:
        super().__init__()
        self.compiled = compiled

    def run(self, order: Round) -> Heard:
        """See :class:`Executor`."""
        heard = Collected(order, len(self._problem.names))
        for place in order.active.tolist():
            b, at = self._problem.locate(place)
            client = jax.tree.map(lambda leaf, at=at: leaf[at], self._problem.buckets[b].clients)
            personal = jax.tree.map(lambda leaf, place=place: leaf[place], order.personal)
            shared, places = order.shared, np.asarray([place])
            if isinstance(shared, Teams):
                shared = jax.tree.map(lambda leaf: leaf[0], told(shared, places))
            with naming(self._problem.names[place], f"the update '{order.updates[place]}'"):
                reply = self._one(place, order._replace(shared=shared, personal=personal), client)
            alone = jax.tree.map(lambda leaf: jnp.asarray(leaf)[None], reply)
            heard.add(places, alone._replace(total=summed(alone, np.ones(1, bool), order.shared, places)))
        return heard.finish()

    def _one(self, place: int, order: Round, client: Client) -> Reply:
        """One client's round; its private state is replaced."""
        name, (b, at) = order.updates[place], self._problem.locate(place)
        private = jax.tree.map(lambda leaf: leaf[at], self._private(order.phase, name, b))
        draw = self._programs.inputs(order.phase, name, client.num_locals)
        inputs = jax.tree.map(lambda leaf: leaf[0], draw(self._secrets, np.asarray([place]), order.shared, order.key))
        asked = (order.phase, name)
        program = self._program(*asked) if self.compiled else self._programs.update(*asked).run
        with nullcontext() if self.compiled else jax.disable_jit():
            reply, state = program(order.shared, order.personal, private, client, inputs)
        self._keep(order.phase, b, at, state)
        return reply

    def _program(self, phase: int | None, name: str) -> Compiled:
        return self._programs.kept(("sequential", phase, name), lambda: Compiled(self._programs.one(phase, name)))


class Loopback(Sequential):
    """Every broadcast and every reply goes through bytes, as over a network, and clients share nothing with the server.

    Attributes
    ----------
    bytes_down, bytes_up
        Sent to and by the clients so far.
    """

    def __init__(self) -> None:
        super().__init__(compiled=True)
        self.bytes_down = 0
        self.bytes_up = 0

    def _one(self, place: int, order: Round, client: Client) -> Reply:
        request = {"shared": order.shared, "personal": order.personal, "key": jax.random.key_data(order.key)}
        sent = encode(request)
        received = jax.tree.map(jnp.asarray, decode(sent, request))
        key = jax.random.wrap_key_data(received.pop("key"), impl=jax.random.key_impl(order.key))
        reply = super()._one(place, order._replace(key=key, **received), client)
        answer = encode(reply)
        self.bytes_down += len(sent)
        self.bytes_up += len(answer)
        return jax.tree.map(jnp.asarray, decode(answer, reply))


EXECUTORS: Mapping[str, Callable[[], Executor]] = {"batched": Batched, "sequential": Sequential, "loopback": Loopback}
