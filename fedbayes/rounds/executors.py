"""Where a client's update runs: batched in one process, sharded over devices, one by one, or behind bytes.

Executors differ in nothing else: the same keys, the same padded data, the same pure functions, so the same answers.
"""

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any, NamedTuple, Protocol

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array
from jax.sharding import Mesh, PartitionSpec

from fedbayes.algorithm import ClientState, FederatedAlgorithm, LocalUpdate, ServerState
from fedbayes.problem.clients import Client
from fedbayes.problem.problem import Bucket, Problem, naming
from fedbayes.rounds.wire import decode, encode

_CHUNK_VALUES = 1 << 19  # rows x draws of one compiled call: its working set stays in cache


class Round(NamedTuple):
    """What one round asks of the clients.

    Attributes
    ----------
    shared, personal
        The broadcast; ``personal`` has a leading axis of all clients.
    key
        Of this round; a client's key is ``fold_in(key, index)``.
    active
        Places of the clients that take part.
    variants
        Local update of each client, by name.
    """

    shared: Any
    personal: Any
    key: Array
    active: np.ndarray
    variants: Sequence[str]


class Replies(NamedTuple):
    """What the active clients answered: leading axis in the order of ``Round.active``."""

    messages: Any
    infos: Any


class Executor(Protocol):
    """Runs clients' updates and keeps their private states."""

    def start(
        self, algorithm: FederatedAlgorithm, problem: Problem, state: ServerState, key: Array
    ) -> list[ClientState]:
        """The clients' initial states, given the server's first broadcast."""
        ...

    def run(
        self, updates: Mapping[str, LocalUpdate], problem: Problem, states: list[ClientState], work: Round
    ) -> tuple[Replies, list[ClientState]]:
        """One round of the given local updates, by name."""
        ...


def client_key(key: Array, client: Client) -> Array:
    """Randomness by identity, never by position in a batch."""
    return jax.random.fold_in(key, client.index)


def _call(update: LocalUpdate, shared: Any, personal: Any, state: Any, client: Client, key: Array) -> Any:
    return update(shared, personal, state, client, client_key(key, client))


def initial_states(
    algorithm: FederatedAlgorithm, problem: Problem, state: ServerState, key: Array
) -> list[ClientState]:
    """The clients' initial states, one stacked pytree per bucket."""

    @jax.jit
    def start(state: ServerState, clients: Client, key: Array) -> ClientState:
        shared, _ = algorithm.broadcast(state)
        return jax.vmap(lambda client: algorithm.init_client(client, shared, client_key(key, client)))(clients)

    return [jax.tree.map(np.array, start(state, bucket.clients, key)) for bucket in problem.buckets]


class Batched:
    """All clients of a bucket in one compiled program, chunk by chunk.

    Parameters
    ----------
    mesh
        One-dimensional device mesh; the clients of a chunk are shared out over its devices.
    chunk
        Clients per compiled call; ``None`` chooses it so that the working set stays in cache.
    """

    def __init__(self, mesh: Mesh | None = None, chunk: int | None = None) -> None:
        if mesh is not None and len(mesh.axis_names) != 1:
            raise ValueError(f"`mesh` has the axes {mesh.axis_names}; clients are shared out over exactly one.")
        self.mesh = mesh
        self.chunk = chunk
        self._compiled: dict[int, tuple[Callable, LocalUpdate]] = {}

    def start(
        self, algorithm: FederatedAlgorithm, problem: Problem, state: ServerState, key: Array
    ) -> list[ClientState]:
        """See :class:`Executor`."""
        return initial_states(algorithm, problem, state, key)

    def run(
        self, updates: Mapping[str, LocalUpdate], problem: Problem, states: list[ClientState], work: Round
    ) -> tuple[Replies, list[ClientState]]:
        """See :class:`Executor`."""
        collected, places, states = [], [], list(states)
        active = set(work.active.tolist())
        for b, bucket in enumerate(problem.buckets):
            for variant, update in updates.items():
                at = [i for i, p in enumerate(bucket.members) if p in active and work.variants[p] == variant]
                if at:
                    replies, states[b] = self._bucket(update, bucket, states[b], np.asarray(at), work)
                    collected.append(replies)
                    places.append(bucket.members[at])
        order = np.argsort(np.argsort(work.active))
        back = np.argsort(np.concatenate(places))[order]
        stacked = jax.tree.map(lambda *leaves: np.concatenate(leaves)[back], *collected)
        return Replies(*stacked), states

    def _bucket(
        self, update: LocalUpdate, bucket: Bucket, states: ClientState, at: np.ndarray, work: Round
    ) -> tuple[tuple, ClientState]:
        program = self._program(update)
        clients, members = bucket.clients, bucket.members
        size = self._chunk_size(clients, len(at))
        outputs = []
        for begin in range(0, len(at), size):
            part = at[begin : begin + size]
            padded = np.resize(part, size)  # repeat clients to fill the chunk; the copies are dropped
            places = members[padded]
            message, state, info = program(work.shared, work.personal, states, clients, padded, places, work.key)
            outputs.append(
                (len(part), (message, state, info))
            )  # dispatched; copied to the host once all are on their way
        parts = [jax.tree.map(lambda leaf, n=n: np.asarray(leaf)[:n], output) for n, output in outputs]
        message, state, info = jax.tree.map(lambda *leaves: np.concatenate(leaves), *parts)
        return (message, info), _updated(states, at, state)

    def batched(self, update: LocalUpdate) -> Callable:
        """``(shared, personal, states, clients, key)`` for clients along a leading axis, not yet compiled."""
        batched: Callable = jax.vmap(partial(_call, update), in_axes=(None, 0, 0, 0, None))
        return batched if self.mesh is None else _sharded(batched, self.mesh)

    def _program(self, update: LocalUpdate) -> Callable:
        if id(update) not in self._compiled:
            batched = self.batched(update)

            def program(
                shared: Any, personal: Any, states: Any, clients: Client, at: Array, places: Array, key: Array
            ) -> Any:
                take = partial(jax.tree.map, lambda leaf: leaf[at])
                mine = jax.tree.map(lambda leaf: leaf[places], personal)
                return batched(shared, mine, take(states), take(clients), key)

            # the update is kept beside its program, so that its id can't be given to another
            self._compiled[id(update)] = (jax.jit(program), update)
        return self._compiled[id(update)][0]

    def _chunk_size(self, clients: Client, num_active: int) -> int:
        members, rows = clients.mask.shape
        size = self.chunk or max(1, _CHUNK_VALUES // (256 * max(rows, 16)))
        devices = 1 if self.mesh is None else self.mesh.size
        # of few active clients no more copies than to the next power of two, each of which compiles once
        fewer = 1 << (num_active - 1).bit_length()
        return -(-min(size, members, fewer) // devices) * devices


def _sharded(batched: Callable, mesh: Mesh) -> Callable:
    axis = PartitionSpec(mesh.axis_names[0])
    everywhere = PartitionSpec()
    # check_vma=False: with the default, jax.grad inside shard_map silently sums over the devices
    return jax.shard_map(
        batched, mesh=mesh, in_specs=(everywhere, axis, axis, axis, everywhere), out_specs=axis, check_vma=False
    )


class Sequential:
    """One client after the other, each named in whatever it raises: for debugging.

    Parameters
    ----------
    compiled
        ``False`` runs without ``jit``, so that ``print`` and a debugger work inside the model.
    """

    def __init__(self, *, compiled: bool = True) -> None:
        self.compiled = compiled
        self._programs: dict[int, tuple[Callable, LocalUpdate]] = {}

    def start(
        self, algorithm: FederatedAlgorithm, problem: Problem, state: ServerState, key: Array
    ) -> list[ClientState]:
        """See :class:`Executor`."""
        return initial_states(algorithm, problem, state, key)

    def run(
        self, updates: Mapping[str, LocalUpdate], problem: Problem, states: list[ClientState], work: Round
    ) -> tuple[Replies, list[ClientState]]:
        """See :class:`Executor`."""
        states, replies = list(states), []
        for place in work.active:
            name, (b, at) = problem.names[place], problem.locate(int(place))
            take = partial(jax.tree.map, lambda leaf, at=at: leaf[at])
            personal = jax.tree.map(lambda leaf, place=place: leaf[place], work.personal)
            update = updates[work.variants[place]]
            with naming(name, f"the local update '{work.variants[place]}'"):
                message, state, info = self._one(
                    update, work, personal, take(states[b]), take(problem.buckets[b].clients)
                )
            states[b] = _updated(states[b], at, state)
            replies.append((message, info))
        return Replies(*jax.tree.map(lambda *leaves: np.stack(leaves), *replies)), states

    def _one(self, update: LocalUpdate, work: Round, personal: Any, state: Any, client: Client) -> Any:
        if not self.compiled:
            with jax.disable_jit():
                return _call(update, work.shared, personal, state, client, work.key)
        if id(update) not in self._programs:
            self._programs[id(update)] = (jax.jit(partial(_call, update)), update)
        return self._programs[id(update)][0](work.shared, personal, state, client, work.key)


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

    def _one(self, update: LocalUpdate, work: Round, personal: Any, state: Any, client: Client) -> Any:
        request = {"shared": work.shared, "personal": personal, "key": jax.random.key_data(work.key)}
        sent = encode(request)
        received = decode(sent, request)
        key = jax.random.wrap_key_data(received["key"], impl=jax.random.key_impl(work.key))
        there = work._replace(shared=jax.tree.map(jnp.asarray, received["shared"]), key=key)
        arrived = jax.tree.map(jnp.asarray, received["personal"])
        message, state, info = super()._one(update, there, arrived, state, client)
        reply = encode((message, info))
        self.bytes_down += len(sent)
        self.bytes_up += len(reply)
        message, info = jax.tree.map(jnp.asarray, decode(reply, (message, info)))
        return message, state, info


def _updated(states: ClientState, at: np.ndarray | int, new: ClientState) -> ClientState:
    """The states with some clients' replaced: a copy, so that a failed round leaves the old ones."""

    def replaced(old: np.ndarray, leaf: Array) -> np.ndarray:
        old = np.array(old)
        old[at] = leaf
        return old

    return jax.tree.map(replaced, states, new)


EXECUTORS: Mapping[str, Callable[[], Executor]] = {"batched": Batched, "sequential": Sequential, "loopback": Loopback}
