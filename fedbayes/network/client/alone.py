"""The executor of a client that is by itself: its own updates, with a secret that nobody else knows."""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from fedbayes.contract.algorithm import Key, Reply, Shared, Teams, Update
from fedbayes.problem.client import Client
from fedbayes.problem.problem import Problem
from fedbayes.rounds.exchange import Round
from fedbayes.rounds.executors import Sequential
from fedbayes.rounds.programs import Programs
from fedbayes.rounds.wire import decode, encode, named_arrays
from fedbayes.runtime.wide import wide_key


class Alone(Sequential):
    """Runs one client's updates.

    Parameters
    ----------
    programs, problem
        The method's code, and a problem of which this client alone has data.
    place
        Of the client.
    secret
        Hexadecimal digits, from which the client's keys are made.
    impl
        JAX's name of the kind of keys.
    """

    def __init__(self, programs: Programs, problem: Problem, place: int, secret: str, impl: str) -> None:
        super().__init__()
        self._place, self._impl, self._num = place, impl, len(problem.names)
        keys = self._keys(secret)
        self.connect(programs, problem, keys[0])
        self._secrets = keys

    def _keys(self, secret: str) -> Key:
        """A secret as a key in each client's place."""
        size = jax.random.key_data(jax.random.key(0, impl=self._impl)).shape[0]
        words = np.frombuffer(bytes.fromhex(secret), np.uint32)[:size]
        return jax.random.wrap_key_data(jnp.asarray(np.tile(words, (self._num, 1))), impl=self._impl)

    def key(self, data: np.ndarray) -> Key:
        """A key of the fit from its data."""
        return jax.random.wrap_key_data(jnp.asarray(data, jnp.uint32), impl=self._impl)

    @property
    def secret_key(self) -> Key:
        """The client's secret as a key, for what it draws for itself."""
        return self._secrets[self._place]

    def begin(self, phase: int, shared: Shared, key: Key, before: bytes | None = None) -> None:
        """See :class:`~fedbayes.rounds.executors.Executor`; ``before`` is the private state of the phase before it."""
        self._states = [] if before is None else decode(before, self._shapes(phase - 1))
        super().begin(phase, shared, key)

    def _shapes(self, phase: int) -> list[Any]:
        """Shapes of the private state of a phase."""
        begin, clients = self._programs.phases[phase].algorithm.init_client, self._problem.buckets[0].clients
        shared, _ = told_template(self._programs, phase, self.secret_key)
        start = lambda shared, clients, key: jax.vmap(lambda client: begin(client, shared, key))(clients)  # noqa: E731
        return [jax.eval_shape(start, shared, clients, self.secret_key)]

    def states(self) -> bytes:
        """The private state."""
        return encode(self._states)

    def load(self, states: bytes) -> None:
        """Go on from a private state; ``begin`` was called for its phase."""
        self._states = decode(states, self._states)

    def own_draw(self, phase: int, shared: Shared) -> np.ndarray:
        """The client's own part of the draw that the chains have just made, shape ``(replicate, m)``."""
        self.record(phase, shared)
        draw: np.ndarray = self._draws.pop()[0][0, 0]
        return draw

    @property
    def client(self) -> Client:
        """The client, with its data."""
        found: Client = jax.tree.map(lambda leaf: leaf[0], self._problem.buckets[0].clients)
        return found

    def own(self, update: str, points: np.ndarray) -> np.ndarray:
        """What an update that stays with the client says at globals of shape ``(replicate, n, d)``."""
        order = Round(None, points, (), self.secret_key, np.asarray([self._place]), [update] * self._num)
        return np.asarray(self._one(self._place, order, self.client).each)

    def reply(self, order: Round, secret: str | None = None) -> Reply:
        """The client's half of a round; where a secret is given, with a key of all its 256 bits."""
        kept = self._secrets
        if secret is not None:
            self._secrets = jnp.broadcast_to(wide_key(secret), (self._num,))
        try:
            found: Reply = jax.tree.map(np.asarray, self._one(self._place, order, self.client))
        finally:
            self._secrets = kept
        return found


def told_template(programs: Programs, phase: int, key: Key) -> tuple[Any, Any]:
    """Shapes of what one client is told in a phase: its part of the broadcast, and what is addressed to it."""

    def made() -> tuple[Any, Any]:
        state = None
        for each in programs.phases[: phase + 1]:
            state = jax.eval_shape(each.algorithm.init, key, state)
        shared, personal = jax.eval_shape(programs.phases[phase].algorithm.broadcast, state)
        if isinstance(shared, Teams):
            shared = jax.tree.map(lambda leaf: _without(leaf, 1), shared.shared)
        return shared, jax.tree.map(lambda leaf: _without(leaf, 0), personal)

    found: tuple[Any, Any] = programs.kept(("told", phase, key.dtype), made)
    return found


def _without(leaf: jax.ShapeDtypeStruct, axis: int) -> jax.ShapeDtypeStruct:
    return jax.ShapeDtypeStruct(leaf.shape[:axis] + leaf.shape[axis + 1 :], leaf.dtype)


def after_template(update: Update, arrays: dict[str, np.ndarray]) -> tuple[Any, Any]:
    """The same for what is asked after the rounds, where the shapes say how much is wanted.

    Raises
    ------
    ValueError
        The arrays are not those that the update needs.
    """
    shared = arrays.get("shared")
    if shared is None or shared.ndim != 3 or shared.dtype != np.float64:
        raise ValueError("After the rounds a client is asked at draws `shared` of shape (chain, draw, d) in float64.")
    personal: Any = ()
    if any(name.startswith("personal") for name in arrays):
        names = named_arrays({"personal": update.personal})
        if missing := [name for name in names if name not in arrays]:
            raise ValueError(f"A message lacks the arrays {missing}.")
        personal = jax.tree.unflatten(jax.tree.structure(update.personal), [arrays[name] for name in names])
    return shared, personal
