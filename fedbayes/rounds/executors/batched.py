"""All clients of one shape in one compiled program, chunk by chunk, and shared out over devices."""

import os
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import Any, NamedTuple

import jax
import numpy as np
from jax import Array
from jax.sharding import Mesh, PartitionSpec

from fedbayes.contract.algorithm import Key, Personal, Private, Reply, Shared, State, Teams, Update, everybody, keep
from fedbayes.numerics.batches import side_by_side
from fedbayes.problem.client import Client, length
from fedbayes.problem.data.padding import bucket_lengths
from fedbayes.problem.problem import Problem
from fedbayes.rounds.exchange import Ahead, Collected, Heard, Round, replies_like, told
from fedbayes.rounds.executors.executor import InProcess, summed
from fedbayes.rounds.executors.fused import OneRound, SeveralRounds, fused_block, round_of, several_rounds
from fedbayes.rounds.programs import Programs
from fedbayes.runtime.compiling import Compiled, jit_by_work, jit_quickly, shapes_of
from fedbayes.runtime.processes import (
    check_processes,
    copied,
    of_the_first,
    on_each_device,
    own_devices,
    readable,
    spans_processes,
)

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
# Rounds of a phase beyond which several are one program: of fewer the host's part is soon done.
_WORTH_FUSING = 100
MOST_ROUNDS = 256  # in one program
# Compiled calls under way at once: JAX would begin all of them, each with its working memory, whatever there are cores.
_UNDER_WAY = max(2, os.cpu_count() or 1)


class _Part(NamedTuple):
    """All clients of a bucket with their first so many rows, and the places of those that have no more."""

    clients: Client
    members: np.ndarray


class Batched(InProcess):
    """All clients of a bucket in one compiled program, chunk by chunk.

    Parameters
    ----------
    mesh
        One-dimensional device mesh; the clients of a chunk are shared out over its devices, which may belong to several
        processes.
    chunk
        Clients per compiled call; ``None`` chooses it so that the working set stays in cache.
    """

    def __init__(self, mesh: Mesh | None = None, chunk: int | None = None) -> None:
        super().__init__()
        self.mesh = None if mesh is None else _checked(mesh)
        self.chunk = chunk
        self._devices = self.mesh
        self._clients: list[Client] = []
        self._shorter: dict[tuple[int, int], Client] = {}

    def connect(self, programs: Programs, problem: Problem, key: Key) -> None:
        """See :class:`Executor`."""
        if self._clients and spans_processes(self.mesh):
            raise ValueError(
                "This executor has served a fit, whose questions each process asks by itself. Give each fit over "
                "several processes an executor of its own, or `mesh=`."
            )
        super().connect(programs, problem, key)
        self._share_out_over(self.mesh)

    @property
    def layout(self) -> list:
        """See :class:`Executor`."""
        devices: list = [] if self.mesh is None else self.mesh.devices.tolist()
        return [self.chunk, [(device.id, device.device_kind) for device in devices]]

    def work_alone(self) -> None:
        """See :class:`Executor`."""
        if self._devices is not None and spans_processes(self._devices):
            self._share_out_over(own_devices(self._devices))

    def _share_out_over(self, mesh: Mesh | None) -> None:
        self._devices, self._shorter = mesh, {}
        self._clients = [bucket.clients for bucket in self._problem.buckets]
        if mesh is not None:
            self._clients = on_each_device(self._clients, mesh)

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
        if len(at) > size:  # else each chunk's call would send the states of all clients anew
            states = jax.device_put(states) if self._devices is None else on_each_device(states, self._devices)
        for begin in range(0, len(at), size):
            part = at[begin : begin + size]
            padded = np.resize(part, size)  # repeat clients to fill the chunk; the copies count for nothing
            places, real = bucket.members[padded], np.arange(size) < len(part)
            inputs = draw(self._secrets, places, order.shared, order.key)
            heard.leave(_UNDER_WAY)
            reply, state = program(order.shared, order.personal, states, whole.clients, padded, places, real, inputs)
            after.append((len(part), state))
            heard.add(bucket.members[part], reply)
        if len(after) == 1 and after[0][0] == size and self._devices is None:
            self._keep(order.phase, b, at, after[0][1])
            return
        parts = [jax.tree.map(lambda leaf, n=n: np.asarray(leaf)[:n], state) for n, state in after]
        self._keep(order.phase, b, at, jax.tree.map(lambda *leaves: np.concatenate(leaves), *parts))

    def _whole(self, b: int) -> _Part:
        return _Part(self._clients[b], np.arange(len(self._problem.buckets[b].members)))

    def _parts(self, phase: int | None, name: str, b: int, shared: Shared) -> list[_Part]:
        """The clients of a bucket; after the rounds by lengths, where much is evaluated that is padding.

        What a bucket is padded to serves all programs. Those of rounds compile longer, and evaluate less.
        """
        whole, program = self._whole(b), self._problem.buckets[b].clients.program
        if phase is not None or self._devices is not None or program.row_locals or not program.row_arguments:
            return [whole]
        rows = np.asarray(whole.clients.mask).sum(axis=1)
        power = 2 if program.rows_by_rows else 1
        padded = length(whole.clients.data, axis=1) ** power * len(rows)
        each = self._programs.evaluations(phase, name, shared, whole.clients) / padded
        if not 0.0 < each < np.inf:
            return [whole]
        lengths = bucket_lengths(rows.tolist(), worth=_WORTH_A_PROGRAM / each, power=power)
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

    def _program(self, phase: int | None, name: str) -> Compiled:
        # programs outlive this executor, and must not hold it and its clients
        programs, devices = self._programs, self._devices
        update = programs.update(phase, name)

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
            batched = batched_over(devices, update, teams=teams)
            part = told(shared, places) if teams else shared
            reply, after = batched(part, mine, take(states), take(clients), inputs)
            return reply._replace(total=summed(reply, real, shared, places)), after

        def evaluations(shared: Shared, personal: Personal, states: Private, clients: Client, *_: Any) -> float:
            return programs.evaluations(phase, name, shared, clients)

        kept = "batched", phase, name, devices
        return programs.kept(
            kept, lambda: Compiled(jit_by_work(readable(program, devices), evaluations, newer=phase is None))
        )

    @property
    def compiles_ahead(self) -> bool:
        """See :class:`Executor`; what is shared out over devices is not compiled ahead."""
        return self._devices is None

    def ahead(self, phase: int, shared: Shared, personal: Personal, key: Key, before: Any) -> Ahead:
        """See :class:`Executor`."""
        name = next(iter(self._programs.phases[phase].algorithm.updates))
        states = self._begins_ahead(phase, shared, key, before)
        for b, bucket in enumerate(self._problem.buckets):
            told = shared, personal, states[b]
            reply = self._update_ahead((phase, name), told, key, self._whole(b), len(bucket.members))
        return Ahead(replies_like(reply, len(self._problem.names)), states)

    def _begins_ahead(self, phase: int, shared: Shared, key: Key, before: Any) -> list:
        """Begin to compile what makes the private states of a phase; their shapes."""
        algorithm, program = self._programs.phases[phase].algorithm, self._begins(phase)
        goes_on = algorithm.continue_client is not None and before
        each = zip(self._clients, before if goes_on else [None] * len(self._clients), strict=True)
        return [shapes_of(program.ahead(shared, clients, self._secrets, key, kept)) for clients, kept in each]

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
        devices = 1 if self._devices is None else self._devices.size
        # few active clients are filled up to a power of two at most; each size compiles once
        num = min(members, 1 << (num_active - 1).bit_length())
        even = -(-num // -(-num // size))  # in as many chunks as needed, all of one size
        return -(-even // devices) * devices

    def fuse(self, phase: int, block: int) -> Callable | None:
        """See :class:`Executor`."""
        # thousands of rounds in one program: what counts is how fast it runs
        kept = "fused", phase, block, self._members, self._devices
        rounds = self._programs.phases[phase]
        program = self._programs.kept(
            kept, lambda: Compiled(jax.jit(readable(fused_block(rounds, self._one_round(phase), block), self._devices)))
        )

        def run(state: State, key: Key, first: int, stride: int, size: int) -> Any:
            done = jax.tree.map(
                np.asarray, program(state, self._states, self._clients, self._secrets, key, first, stride, size)
            )
            self._states = done.states
            self._draws.append([mine[:size] for mine in done.private])
            return done._replace(theta=done.theta[:size])

        return run

    def several(self, phase: int, rounds: int) -> Callable | None:
        """See :class:`Executor`; of few clients, whose round is one call for each bucket, and of many rounds.

        Data sets that are fitted side by side stop one by one, of which a program of rounds knows nothing.
        """
        algorithm = self._programs.phases[phase].algorithm
        alike = len(algorithm.updates) == 1 and algorithm.choose is keep and algorithm.participants is everybody
        if rounds <= _WORTH_FUSING or not alike or self._programs.own_data:
            return None
        if not all(map(self._at_once, range(len(self._problem.buckets)))):
            return None
        program = self._several(phase)

        def run(state: State, key: Key, first: int, size: int) -> SeveralRounds:
            size = of_the_first(size, self._devices)  # processes have clocks of their own
            done = jax.tree.map(
                np.asarray, program(state, self._states, self._clients, self._secrets, key, *_counts(first, size))
            )
            self._states = done.states
            return done

        return run

    def several_ahead(self, phase: int, state: State, shared: Shared, key: Key, before: Any) -> tuple[State, Any]:
        """See :class:`Executor`."""
        states = self._begins_ahead(phase, shared, key, before)
        asked = state, states, self._clients, self._secrets, key, *_counts(0, 1)
        done = shapes_of(self._several(phase).ahead(*asked))
        return done.state, done.states

    def _several(self, phase: int) -> Compiled:
        kept = "several", phase, self._members, self._devices
        rounds = several_rounds(self._one_round(phase), MOST_ROUNDS)
        return self._programs.kept(kept, lambda: Compiled(jit_quickly(readable(rounds, self._devices))))

    def _one_round(self, phase: int) -> OneRound:
        rounds = self._programs.phases[phase]
        (update,) = rounds.algorithm.updates.values()
        num_devices = 1 if self._devices is None else self._devices.size
        return round_of(rounds, update, partial(batched_over, self._devices, update), self._members, num_devices)

    def _at_once(self, b: int) -> bool:
        """Whether all clients of a bucket are asked by one call."""
        whole = self._whole(b)
        return self._chunk_size(whole, len(whole.members)) >= len(whole.members)

    @property
    def _members(self) -> tuple[tuple[int, ...], ...]:
        return tuple(tuple(bucket.members.tolist()) for bucket in self._problem.buckets)


def batched_over(devices: Mesh | None, update: Update, *, teams: bool = False) -> Callable:
    """``(shared, personal, states, clients, inputs)`` for clients along a leading axis, not yet compiled.

    With teams ``shared`` has that axis too.
    """

    def batched(shared: Shared, personal: Personal, states: Private, clients: Client, inputs: Any) -> Any:
        def one(each: tuple) -> Any:
            told, *mine = each
            return update.run(told if teams else shared, *mine)

        each = (shared if teams else (), personal, states, clients, inputs)
        return side_by_side(one, len(clients.index))(each)

    return batched if devices is None else _sharded(batched, devices, teams=teams)


def _checked(mesh: Mesh) -> Mesh:
    """A mesh for clients along its one axis."""
    if not isinstance(mesh, Mesh):
        raise TypeError(f"`mesh` is {mesh!r}; write `jax.make_mesh((jax.device_count(),), ('clients',))`.")
    if len(mesh.axis_names) != 1:
        raise ValueError(f"`mesh` has the axes {mesh.axis_names}; clients are shared out over exactly one.")
    check_processes(mesh)
    # the axes of `jax.make_mesh` are explicit: shardings would be a part of all types, within the user's model, too
    return Mesh(mesh.devices, mesh.axis_names)


def _counts(*numbers: int) -> tuple[np.ndarray, ...]:
    """As a program takes them that is compiled ahead."""
    return tuple(np.asarray(number, np.int64) for number in numbers)


def _sharded(batched: Callable, mesh: Mesh, *, teams: bool) -> Callable:
    axis = PartitionSpec(mesh.axis_names[0])
    everywhere = PartitionSpec()
    # check_vma=False: with the default, jax.grad inside shard_map silently sums over the devices
    shared_out = jax.shard_map(
        batched,
        mesh=mesh,
        in_specs=(axis if teams else everywhere, axis, axis, axis, axis),
        out_specs=axis,
        check_vma=False,
    )
    return (lambda *arguments: copied(shared_out(*arguments), mesh)) if spans_processes(mesh) else shared_out
