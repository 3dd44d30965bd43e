"""What one round asks of the clients, and what it brings."""

from collections.abc import Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array

from fedbayes.contract.algorithm import Key, Personal, Replies, Reply, Shared, Teams
from fedbayes.errors import ResultCode, usable
from fedbayes.runtime.compiling import num_bytes, shapes_of


class Round(NamedTuple):
    """What one round asks of the clients.

    Attributes
    ----------
    phase
        Index of the phase whose updates are meant; ``None``: those for after the rounds.
    shared, personal
        The broadcast; ``personal`` has a leading axis of all clients.
    key
        Of this round, known to everybody; a client folds it into its own secret.
    active
        Places of the clients that take part.
    updates
        Update of each client, by name.
    recipe
        Arrays from which a client over a network makes ``shared`` itself; ``None``: it is sent.
    """

    phase: int | None
    shared: Shared
    personal: Personal
    key: Key
    active: np.ndarray
    updates: Sequence[str]
    recipe: Any = None


class Heard(NamedTuple):
    """What a round brought.

    Attributes
    ----------
    replies
        The sums, what is seen client by client, and whose reply is used.
    codes
        Result codes of all clients, shape ``(K, replicate)``.
    infos
        Diagnostics, leading axis of all clients; NaN or zero where a client was not active.
    bytes_down, bytes_up
        Sent to and by one active client.
    """

    replies: Replies
    codes: np.ndarray
    infos: dict[str, np.ndarray]
    bytes_down: int
    bytes_up: int


def told(shared: Shared, places: Array | np.ndarray) -> Shared:
    """What some clients are told by :class:`~fedbayes.contract.algorithm.Teams`, along a leading axis of clients."""
    team = jnp.asarray(shared.team)[:, places]
    pick = jax.vmap(lambda parts, which: parts[which], out_axes=1)  # over the replicates
    return jax.tree.map(lambda leaf: pick(jnp.asarray(leaf), team), shared.shared)


def sum_of_used(total: Any, used: Array) -> Any:
    """The sum over the leading axis of clients, of those that are used, shape ``(K, ...)``."""
    return jax.tree.map(lambda leaf: jnp.sum(_where(used, leaf), axis=0), total)


def sums_by_team(total: Any, used: Array, shared: Teams, places: Array | np.ndarray) -> Any:
    """The same team by team: leaves ``(replicate, team, ...)``."""
    team = jnp.asarray(shared.team)[:, places]
    num = jax.tree.leaves(shared.shared)[0].shape[1]

    def add(leaf: Array, which: Array) -> Array:
        return jnp.zeros((num, *leaf.shape[1:]), leaf.dtype).at[which].add(leaf)

    return jax.tree.map(lambda leaf: jax.vmap(add, (1, 0))(_where(used, leaf), team), total)


def _where(used: Array, leaf: Array) -> Array:
    return jnp.where(used.reshape(used.shape + (1,) * (leaf.ndim - used.ndim)), leaf, 0)


def _of_one(leaf: Any) -> jax.ShapeDtypeStruct:
    """The shape of one client's part, for its number of bytes: to take the part itself would compile a program."""
    return jax.ShapeDtypeStruct(leaf.shape[1:], leaf.dtype)


class Ahead(NamedTuple):
    """Shapes of what the first round of a phase will bring.

    Attributes
    ----------
    replies
        What the server will hear.
    states
        The clients' private states, for each bucket.
    """

    replies: Replies
    states: list


def replies_like(reply: Reply, num_clients: int) -> Replies:
    """The shapes of what the server hears of so many clients, from those of some clients' replies."""
    each, codes = jax.tree.map(
        lambda leaf: jax.ShapeDtypeStruct((num_clients, *leaf.shape[1:]), leaf.dtype), (reply.each, reply.code)
    )
    return Replies(shapes_of(reply.total), each, jax.ShapeDtypeStruct(codes.shape, bool))  # type: ignore[arg-type]


class Collected:
    """Collects replies as they come in: adds up the sums, and keeps what is seen client by client."""

    def __init__(self, order: Round, num_clients: int) -> None:
        self._num, self._order = num_clients, order
        self._total: Any = None
        self._parts: list[tuple[np.ndarray, Any]] = []

    def add(self, places: np.ndarray, reply: Reply) -> None:
        """The replies of some clients, whose ``total`` is their sum; copies beyond ``places`` are dropped."""
        # dispatched, and copied to the host once all are on their way
        self._total = reply.total if self._total is None else jax.tree.map(jnp.add, self._total, reply.total)
        self._parts.append((places, (reply.each, reply.code, reply.info)))

    def leave(self, most: int) -> None:
        """Wait until fewer than ``most`` of the calls that reply are under way: each holds its working memory."""
        if len(self._parts) >= most:
            jax.block_until_ready(self._parts[-most][1])

    def finish(self) -> Heard:
        """All that was heard."""
        host = [
            (places, jax.tree.map(lambda leaf, places=places: np.asarray(leaf)[: len(places)], part))
            for places, part in self._parts
        ]
        each, codes, infos = jax.tree.map(lambda *leaves: self._placed(host, leaves), *(part for _, part in host))
        missing = np.setdiff1d(np.arange(self._num), self._order.active)
        codes[missing] = ResultCode.INACTIVE
        for values in infos.values():
            values[missing] = np.nan if values.dtype.kind == "f" else 0
        total = jax.tree.map(np.asarray, self._total)
        one = jax.tree.map(_of_one, (each, codes, infos, self._order.personal))
        shared, sent = self._order.shared, total
        if self._order.recipe is not None:
            shared = self._order.recipe
        if isinstance(shared, Teams):  # a client is told, and adds to, its own team's part
            shared, sent = jax.tree.map(lambda leaf: np.asarray(leaf)[:, 0], (shared.shared, total))
        down = num_bytes((shared, one[3])) + num_bytes(jax.random.key_data(self._order.key))
        return Heard(Replies(total, each, usable(codes)), codes, infos, down, num_bytes((sent, *one[:3])))

    def _placed(self, host: list[tuple[np.ndarray, Any]], leaves: tuple[np.ndarray, ...]) -> np.ndarray:
        full = np.zeros((self._num, *leaves[0].shape[1:]), leaves[0].dtype)
        for (places, _), leaf in zip(host, leaves, strict=True):
            full[places] = leaf
        return full
