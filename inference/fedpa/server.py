"""The server's half of FedPA: an optimiser descends along the clients' mean delta."""

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any, NamedTuple

import jax.numpy as jnp
import numpy as np
import optax
from jax import Array

from fedbayes.contract.algorithm import Algorithm, Info, Replies, Update
from fedbayes.contract.answer import ERROR_LIMIT
from fedbayes.errors import usable
from fedbayes.inference.curvature import largest_curvature, shared_coordinates
from fedbayes.inference.fedavg.server import server_step
from fedbayes.inference.fedpa.client import Clients, LocalDelta, Shared, local_update
from fedbayes.inference.fedpa.options import Options
from fedbayes.inference.merging.server import retry_unreliable
from fedbayes.inference.mode import ModeState
from fedbayes.inference.options import DENSE_LIMIT, given_start
from fedbayes.problem.roster import Roster

_STEP = 0.2  # of the client's gradient steps by default, over the largest curvature


class FedPAState(NamedTuple):
    """The server's state.

    Attributes
    ----------
    shared
        What the clients are told: position, coordinates and step size.
    optimizer
        The optimiser's own state.
    change
        By how much the last round moved the server, in shared coordinates (root mean square); infinite while the
        rounds have not converged.
    """

    shared: Shared
    optimizer: Any
    change: Array


def first_state(config: Options, roster: Roster, weights: np.ndarray, previous: Any) -> FedPAState:
    """The state in which a phase begins: the last one's, the federated mode's, or the user's."""
    if isinstance(previous, FedPAState):
        return previous
    size = roster.size
    mode = previous if isinstance(previous, ModeState) else None
    coordinates = shared_coordinates(mode, size, config.preconditioner, str(config.init))
    if config.preconditioner == "none":  # gradients are then those of the mean loss
        coordinates = coordinates._replace(white=coordinates.white / np.sqrt(roster.rows.sum()))
    if isinstance(config.init, Mapping):
        coordinates = coordinates._replace(center=jnp.asarray(given_start(config.init, roster)))
    step_size = jnp.full((), jnp.nan) if config.step_size is None else jnp.asarray(config.step_size, jnp.float64)
    if mode is not None and config.step_size is None:
        step_size = _STEP / largest_curvature(mode, coordinates, jnp.asarray(weights))
    position = jnp.zeros(size)
    return FedPAState(
        Shared(position, coordinates, step_size), server_optimizer(config).init(position), jnp.full((), jnp.inf)
    )


def server_optimizer(config: Options) -> optax.GradientTransformation:
    """The server's optimiser."""
    return optax.sgd(1.0) if config.server_optimizer is None else config.server_optimizer


def descending(
    config: Options,
    roster: Roster,
    weights: np.ndarray,
    deltas: Mapping[str, LocalDelta],
    clients: Clients,
    start: Callable[[Any], FedPAState],
    name: str,
) -> Algorithm:
    """Rounds in which the server descends along the clients' mean delta."""
    num_clients, optimizer = roster.num_clients, server_optimizer(config)

    def aggregate(state: FedPAState, replies: Replies, key: Array) -> tuple[FedPAState, Info]:
        old, total = state.shared.position, replies.total
        position, kept, taken = server_step(optimizer, state.optimizer, old, total.delta, total.weight)
        change = jnp.where(taken, jnp.sqrt(jnp.mean((position - old) ** 2)), jnp.inf)
        # the server's steps may be so small that they change nothing, wherever the clients want to go
        pull = jnp.sqrt(jnp.mean((total.delta / jnp.where(total.weight > 0, total.weight, 1.0)) ** 2))
        near = taken & (change <= config.tolerance) & (pull <= ERROR_LIMIT)
        info = {"change": change, "pull": pull, "converged": near}
        if old.shape[0] <= DENSE_LIMIT:
            info["server"] = state.shared.coordinates.globals_at(position)
        return FedPAState(state.shared._replace(position=position), kept, jnp.where(near, change, jnp.inf)), info

    def choose(variants: Sequence[str], infos: Mapping[str, np.ndarray]) -> list[str]:
        chosen = retry_unreliable(clients.retry, variants, infos)
        heard = usable(infos["code"]).reshape(num_clients, -1).all(axis=1)
        if "kept" not in deltas:
            return chosen
        return ["kept" if ok and new == old else new for new, old, ok in zip(chosen, variants, heard, strict=True)]

    return Algorithm(
        name=name,
        init=lambda key, previous: start(previous),
        broadcast=lambda state: (state.shared, ()),
        init_client=clients.init,
        updates={
            label: Update(partial(local_update, weights, delta.run), delta.inputs) for label, delta in deltas.items()
        },
        aggregate=aggregate,
        choose=choose,
        asked_at=lambda shared: shared.coordinates.globals_at(shared.position),
    )
