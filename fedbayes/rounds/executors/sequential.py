"""One client after the other, with everything in one process or through bytes."""

from contextlib import nullcontext

import jax
import jax.numpy as jnp
import numpy as np

from fedbayes.contract.algorithm import Reply, Teams
from fedbayes.problem.client import Client
from fedbayes.problem.problem import naming
from fedbayes.rounds.exchange import Collected, Heard, Round, told
from fedbayes.rounds.executors.executor import InProcess, summed
from fedbayes.rounds.wire import decode, encode
from fedbayes.runtime.compiling import Compiled


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
