"""The client's half of Fed-ensemble where it trains all modes in a round; in a team it trains one, as in FedAvg."""

from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array

from fedbayes.contract.algorithm import Algorithm, Reply, Update, no_inputs
from fedbayes.errors import ResultCode, usable
from fedbayes.problem.client import Client


def start_every_mode(averaging: Algorithm, num: int, client: Client, shared: Any, key: Array) -> Any:
    """A client's private state for each of ``num`` modes, leading axis K."""
    return jax.vmap(averaging.init_client, (None, 0, 0))(client, shared, keys_of_modes(key, num))


def train_every_mode(averaging: Algorithm, num: int) -> dict[str, Update]:
    """One update, in which a client takes the steps of ``averaging`` for each of ``num`` modes."""
    (solver, update), *_ = averaging.updates.items()
    inputs = no_inputs if update.inputs is no_inputs else partial(_inputs, update, num)
    return {solver: Update(partial(_run, update, num), inputs)}


def _run(
    update: Update, num: int, shared: Any, personal: Any, own: Any, client: Client, inputs: Any
) -> tuple[Reply, Any]:
    reply, own = jax.vmap(update.run, (0, 0, 0, None, 0), axis_size=num)(shared, personal, own, client, inputs)
    # a mode whose steps are no good gets nothing from this client; the other modes' replies count all the same
    fine = usable(reply.code)
    total = jax.tree.map(lambda leaf: jnp.where(_along(fine, leaf), leaf, 0), reply.total)
    worst = reply.code[jnp.argmin(fine)]
    code = jnp.where(jnp.any(fine) & ~jnp.all(fine), int(ResultCode.IN_PART), worst)
    return Reply(total=total, code=code, info=jax.tree.map(jnp.mean, reply.info)), own


def _inputs(update: Update, num: int, key: Array, shared: Any, num_locals: int) -> Any:
    return jax.vmap(lambda own, told: update.inputs(own, told, num_locals))(keys_of_modes(key, num), shared)


def _along(fine: Array, leaf: Array) -> Array:
    return fine.reshape(fine.shape + (1,) * (leaf.ndim - 1))


def keys_of_modes(key: Array, num: int) -> Array:
    """One for each mode; the first mode's is the key itself, so that one mode alone is federated averaging."""
    return jax.vmap(lambda k: jnp.where(k == 0, key, jax.random.fold_in(key, k)))(np.arange(num))
