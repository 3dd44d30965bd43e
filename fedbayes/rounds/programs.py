"""Programs kept for the process: a method's phases for one roster, and everything they compile to.

``phases(roster)`` sees no data, so what it returns, and what JAX compiles of it, serves every later fit of the same
model by the same method to clients of the same names and sizes: data, keys and private states are arguments.
"""

import warnings
from collections.abc import Callable, Hashable, Mapping
from dataclasses import fields, is_dataclass
from typing import Any, NamedTuple, TypeVar

import jax
import numpy as np
from jax import Array

from fedbayes.contract.algorithm import Key, Method, Phase, Update
from fedbayes.problem.client import Client, length
from fedbayes.problem.program.program import Program
from fedbayes.problem.roster import Roster
from fedbayes.rounds.replicates import replicated, replicated_update
from fedbayes.runtime.compiling import CHEAPLY, Compiled, jit_by_size, jit_by_work, jit_cheaply
from fedbayes.runtime.keys import Purpose, key_for
from fedbayes.runtime.lru import Kept

T = TypeVar("T")


class Server(NamedTuple):
    """The server's half of a phase, compiled."""

    init: Compiled
    broadcast: Compiled
    aggregate: Compiled
    participants: Compiled


class Programs:
    """A method's phases, replicated, and what they compile to.

    Attributes
    ----------
    phases
        In their order.
    after
        Updates that are asked for once the rounds are over, by name.
    num_replicates
        Runs of the whole fit.
    own_data
        Whether each of them has data of its own, as simulated data sets have.
    warnings
        What the method had to say of its options when the phases were made; for every fit to repeat.
    begun_ahead
        What has begun to be compiled before it is called, see :mod:`fedbayes.rounds.ahead`.
    """

    def __init__(
        self, phases: list[Phase], after: Mapping[str, Update], num_replicates: int, *, own_data: bool = False
    ) -> None:
        # of one run for all replicates there can be no question where their data differ
        self._times = [1 if phase.once and not own_data else num_replicates for phase in phases]
        self.phases = tuple(replicated(*each, own_data=own_data) for each in zip(phases, self._times, strict=True))
        self.after = {
            name: replicated_update(update, num_replicates, own_data=own_data) for name, update in after.items()
        }
        self.num_replicates, self.own_data = num_replicates, own_data
        self.warnings: list[Warning] = []
        self.begun_ahead: set[Hashable] = set()
        self._kept: dict[Hashable, Any] = {}

    def update(self, phase: int | None, name: str) -> Update:
        """A client's half by its address: the phase (``None``: after the rounds) and the update's name."""
        return self.after[name] if phase is None else self.phases[phase].algorithm.updates[name]

    def times(self, phase: int | None) -> int:
        """How often a phase is run side by side, or what is asked after the rounds."""
        return self.num_replicates if phase is None else self._times[phase]

    def server(self, phase: int) -> Server:
        """The server's half of a phase."""
        algorithm = self.phases[phase].algorithm
        functions = (algorithm.init, algorithm.broadcast, algorithm.aggregate, algorithm.participants)
        return self.kept(("server", phase), lambda: Server(*(Compiled(jit_by_size(each)) for each in functions)))

    def one(self, phase: int | None, name: str) -> Callable:
        """A client's half, compiled for one client alone."""
        one = self.update(phase, name).run

        def evaluations(shared: Any, personal: Any, private: Any, client: Client, inputs: Any) -> float:
            return self.evaluations(phase, name, shared, client)

        return self.kept(("one", phase, name), lambda: jit_by_work(one, evaluations, newer=phase is None))

    def evaluations(self, phase: int | None, name: str, shared: Any, clients: Client) -> float:
        """Evaluations of a row's log density by all calls of a fit, infinite where that is not known.

        Of one client, or of many along a leading axis. After the rounds clients are asked for few things twice. Where
        data sets are fitted side by side, these fits are repeated, as by a calibration.
        """
        update = self.update(phase, name)
        if update.work is None or self.own_data:
            return np.inf
        work = update.work(jax.tree.map(_of_one_replicate, shared), clients)
        rounds = 1 if phase is None else self.phases[phase].usual_rounds or self.phases[phase].max_rounds
        rows = length(clients.data, axis=clients.index.ndim)
        each = work.of_rows(rows) * (rows if clients.program.rows_by_rows else 1)  # a row's with all others
        return rounds * self.times(phase) * clients.index.size * each

    def inputs(self, phase: int | None, name: str, num_locals: int) -> Compiled:
        """``(secrets, places, shared, key) -> inputs`` of many clients' updates, along a leading axis."""
        update = self.update(phase, name)

        def draw(secrets: Key, places: Array, shared: Any, key: Key) -> Any:
            own = secrets[places]
            return jax.vmap(lambda secret: update.inputs(client_key(secret, key), shared, num_locals))(own)

        return self.kept(("inputs", phase, name, num_locals), lambda: Compiled(jit_cheaply(draw)))

    def kept(self, name: Hashable, build: Callable[[], T]) -> T:
        """What ``build`` made the first time."""
        if name not in self._kept:
            self._kept[name] = build()
        return self._kept[name]


def _of_one_replicate(leaf: Any) -> jax.ShapeDtypeStruct:
    return jax.ShapeDtypeStruct(leaf.shape[1:], leaf.dtype)


def client_key(secret: Key, key: Key) -> Key:
    """A client's own key of a round: the round's key, which everybody knows, folded into the client's secret."""
    for word in jax.random.key_data(key).reshape(-1):
        secret = jax.random.fold_in(secret, word)
    return secret


def client_secrets(key: Key, num_clients: int) -> Key:
    """The secrets of clients in one process, from the fit's key; over a network each client draws its own."""
    return _folded(key_for(key, Purpose.SECRETS), np.arange(num_clients))


@jax.jit(compiler_options=CHEAPLY)
def _folded(key: Key, places: Array) -> Key:
    return jax.vmap(jax.random.fold_in, (None, 0))(key, places)


_KEPT: Kept[Programs] = Kept(16)


def programs_for(
    method: Method,
    roster: Roster,
    clients: tuple[Program, ...],
    after: Mapping[str, Update],
    data_sets: int | None = None,
) -> Programs:
    """The programs of a method for a roster, made now or by an earlier fit.

    Parameters
    ----------
    method
        Configured.
    roster
        Of the clients.
    clients
        The split programs of the clients' shapes: they stand for the model, its static arguments and its precision.
    after
        Updates that are asked for once the rounds are over.
    data_sets
        Number of data sets that are fitted side by side, each a replicate; ``None``: the method's replicates of one.
    """
    key = (_key_of(method), clients, roster.names, roster.rows.tobytes(), roster.num_locals.tobytes(), data_sets)

    def build() -> Programs:
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            num, own_data = (method.num_replicates, False) if data_sets is None else (data_sets, True)
            programs = Programs(method.phases(roster), after, num, own_data=own_data)
        programs.warnings = [each.message for each in caught if isinstance(each.message, Warning)]
        return programs

    return _KEPT.get(key, build)


def forget_programs() -> None:
    """Let go of every kept program."""
    _KEPT.forget()


def _key_of(value: Any) -> Hashable:
    """A configured method, or one of its options, to be compared: arrays by value, functions by identity."""
    if is_dataclass(value) and not isinstance(value, type):
        return (type(value), *(_key_of(getattr(value, field.name)) for field in fields(value)))
    if isinstance(value, Mapping):
        return tuple((str(name), _key_of(each)) for name, each in value.items())
    if isinstance(value, np.ndarray | Array):
        array = np.asarray(value)
        return (array.shape, array.dtype.str, array.tobytes())
    if isinstance(value, list | tuple):
        return (type(value), *map(_key_of, value))
    return (type(value), value)
