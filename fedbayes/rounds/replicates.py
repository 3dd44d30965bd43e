"""Replicates: several independent runs of a whole fit as one, by ``vmap`` over the algorithm."""

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array

from fedbayes.contract.algorithm import (
    Info,
    Inputs,
    Key,
    Personal,
    Phase,
    Private,
    Replies,
    Shared,
    State,
    Update,
    everybody,
)
from fedbayes.numerics.batches import side_by_side
from fedbayes.problem.client import Client


def replicated(phase: Phase, num: int, *, own_data: bool = False) -> Phase:
    """``num`` independent runs of a phase as one: every state and reply gets a leading axis of replicates.

    Their spread is the Monte Carlo error of the answer. No algorithm knows of them.

    Parameters
    ----------
    phase, num
        What is run, and how often.
    own_data
        Whether each replicate has data of its own: the clients' arrays then have the axis of replicates, too.
    """
    algorithm = phase.algorithm

    def init(key: Key, previous: State | None) -> State:
        # a phase that was run once for all starts all the replicates of the next
        return jax.vmap(algorithm.init)(replicate_keys(key, num), jax.tree.map(lambda x: _repeated(x, num), previous))

    def init_client(client: Client, shared: Shared, key: Key) -> Private:
        axes = (_client_axes(client, own_data), 0, 0)
        return jax.vmap(algorithm.init_client, axes)(client, shared, replicate_keys(key, num))

    def continue_client(client: Client, shared: Shared, key: Key, before: Private) -> Private:
        assert algorithm.continue_client is not None  # noqa: S101
        axes, mine = (_client_axes(client, own_data), 0, 0, 0), jax.tree.map(lambda x: _repeated(x, num), before)
        return jax.vmap(algorithm.continue_client, axes)(client, shared, replicate_keys(key, num), mine)

    def aggregate(state: State, replies: Replies, key: Key) -> tuple[State, Info]:
        batched = jax.vmap(algorithm.aggregate, (0, Replies(0, 1, 1), 0))  # type: ignore[arg-type]
        return batched(state, replies, replicate_keys(key, num))

    wrapped = algorithm._replace(
        init=init,
        broadcast=jax.vmap(algorithm.broadcast, out_axes=(0, 1)),
        init_client=init_client,
        updates={name: replicated_update(update, num, own_data=own_data) for name, update in algorithm.updates.items()},
        aggregate=aggregate,
        participants=_of_any(algorithm.participants),
        continue_client=None if algorithm.continue_client is None else continue_client,
        asked_at=None if algorithm.asked_at is None else jax.vmap(algorithm.asked_at),
        found_at=None if algorithm.found_at is None else jax.vmap(algorithm.found_at),
    )
    recording = phase.recording
    if recording is not None:
        recording = recording._replace(
            draw=jax.vmap(recording.draw), private_draw=jax.vmap(recording.private_draw), stride=recording.stride
        )
    return replace(phase, algorithm=wrapped, recording=recording)


def replicated_update(update: Update, num: int, *, own_data: bool = False) -> Update:
    """A client's half for ``num`` replicates at once; ``own_data`` as for :func:`replicated`."""

    def run(shared: Shared, personal: Personal, private: Private, client: Client, inputs: Inputs) -> Any:
        def one(each: tuple) -> Any:
            shared, personal, private, data, inputs = each
            return update.run(shared, personal, private, replace(client, data=data) if own_data else client, inputs)

        all_ = (shared, personal, private, client.data if own_data else {}, inputs)
        if update.in_turn and num > 1 and jax.default_backend() == "cpu":
            return jax.lax.map(one, all_)
        return side_by_side(one, num)(all_)

    return update._replace(
        run=run,
        inputs=lambda key, shared, num_locals: jax.vmap(lambda own, told: update.inputs(own, told, num_locals))(
            replicate_keys(key, num), shared
        ),
    )


def _client_axes(client: Client, own_data: bool) -> Any:
    """The axes of replicates of a client's leaves: its rows' number and its identity are the same for all."""
    return replace(client, data=0, mask=None, index=None) if own_data else None  # type: ignore[arg-type]


def replicate_keys(key: Key, num: int) -> Key:
    """One key per replicate."""
    return jax.vmap(jax.random.fold_in, (None, 0))(key, np.arange(num))


def _of_any(participants: Callable[[State], Array]) -> Callable[[State], Array]:
    """A client is needed where any replicate needs it."""
    if participants is everybody:
        return everybody
    return lambda state: jnp.any(jax.vmap(participants)(state), axis=0)


def _repeated(leaf: Array, num: int) -> Array:
    return jnp.repeat(leaf, num // leaf.shape[0], axis=0)
