"""What clients are asked beside the rounds: log-likelihoods of the draws, and draws of their own posterior.

Each is an update like those of the rounds, with a name, so that a client over a network runs it on its own side. The
broadcast's shapes say how much is wanted.
"""

from collections.abc import Mapping
from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax import Array
from jaxtyping import Bool, Float

from fedbayes.contract.algorithm import Inputs, Method, Private, Reply, Shared, Update, no_inputs
from fedbayes.contract.locals_from import Wanted
from fedbayes.contract.work import Work
from fedbayes.errors import ResultCode
from fedbayes.inference.local.density.laplace import find_mode
from fedbayes.inference.local.density.tilted import Tilted, cold_chains, cold_start
from fedbayes.inference.local.log_factors import (
    NUM_LOCAL,
    NUM_LOCAL_FINER,
    locals_given,
    log_factors,
    work_of_log_factors,
)
from fedbayes.inference.local.sampling.draws import by_importance, by_nuts, importance_inputs, nuts_inputs
from fedbayes.inference.local.sampling.resampling import Resampling, equal_weights, pool_size, resampling
from fedbayes.numerics.gaussian import STRUCTURE, Gaussian, packed
from fedbayes.numerics.importance import random_shift
from fedbayes.problem.client import Client

_MOST_SEARCHED = 512  # latents: steps to the mode of more take their number cubed


class Personal(NamedTuple):
    """Joint draws of a client's own posterior, and the tail shape of the importance weights behind them."""

    draws: Float[Array, "draw p"]
    k_hat: Float[Array, ""]


def _given(
    num_local: int,
    theta: Array,
    cavity: Gaussian,
    private: tuple[()],
    client: Client,
    inputs: tuple[Array, Array, Array],
) -> tuple[Reply, tuple[()]]:
    """One draw of the locals for each draw of the globals.

    With the key of an earlier log-likelihood call it picks among the draws used there.
    """
    return Reply(each=locals_given(client, theta, *inputs, num_local), code=_ok()), private


def _given_inputs(key: Array, theta: Array, num_locals: int) -> tuple[Array, Array, Array]:
    picks = jax.random.uniform(jax.random.fold_in(key, 1), (theta.shape[0],), dtype=jnp.float64)
    levels = jax.random.uniform(jax.random.fold_in(key, 2), (theta.shape[0], num_locals), dtype=jnp.float64)
    return random_shift(key, num_locals), picks, levels


def _log_likelihood(
    num_local: int, theta: Array, cavity: Gaussian, private: tuple[()], client: Client, shift: Array
) -> tuple[Reply, tuple[()]]:
    found = log_factors(client, theta, shift, num_local)
    if not jax.tree.leaves(cavity):  # nobody has locals: all is exact
        found = found._replace(noise=jnp.zeros(()), halved=jnp.zeros(()))
    return Reply(each=found.values, code=_ok(), info={"noise": found.noise, "halved": found.halved}), private


def _work_of_log_likelihood(theta: Array, client: Client) -> Work:
    return work_of_log_factors(client, theta.shape[0])


def _own_values(
    theta: Array, nothing: tuple[()], private: tuple[()], client: Client, shift: Array
) -> tuple[Reply, tuple[()]]:
    """The client's log factor plus the log prior, the locals integrated out, at each of the globals."""
    log_prior = client.at_many(lambda one: client.program.log_prior(one, client.data), theta)
    return Reply(each=log_factors(client, theta, shift).values + log_prior, code=_ok()), private


def _own_mode(
    nowhere: Array, nothing: tuple[()], private: tuple[()], client: Client, inputs: tuple[()]
) -> tuple[Reply, tuple[()]]:
    """The globals of :func:`own_mode`."""
    size = nowhere.shape[-1]
    return Reply(each=own_mode(client, size)[0][:size], code=_ok()), private


def own_mode(client: Client, size: int) -> tuple[Float[Array, " p"], Bool[Array, ""]]:
    """The mode of prior times a client's factor, jointly with its locals, and whether a search has led anywhere.

    Where the latents are many there is none, and it is where one would start.
    """
    start = cold_start(size + client.num_locals)
    if len(start) > _MOST_SEARCHED:
        return start, jnp.zeros((), bool)

    def log_joint(position: Array) -> Array:
        return client.log_factor(position) + client.program.log_prior(position[:size], client.data)

    mode = find_mode(log_joint, start, jacobian=client.jacobian)
    moved = jnp.any(mode.position[:size] != start[:size])
    return mode.position, moved & jnp.isfinite(mode.value) & jnp.all(jnp.isfinite(mode.position))


def _cavity(
    nowhere: Array, cavity: Gaussian, private: tuple[()], client: Client, inputs: tuple[()]
) -> tuple[Reply, tuple[()]]:
    """The client's cavity, its precision as a triangle: what the global less the cavity gives is the client's site."""
    return Reply(each=packed(cavity), code=_ok()), private


def _resampled(
    wanted: Wanted, cavity: Gaussian, private: tuple[()], client: Client, inputs: tuple[Array, Resampling]
) -> tuple[Reply, tuple[()]]:
    """Importance resampling from about four times as many draws."""
    shift, picking = inputs
    warm = cold_chains(jnp.concatenate([wanted.mean, jnp.zeros(client.num_locals)]))
    drawn = by_importance(Tilted(client, cavity), warm, shift, num_samples=pool_size(wanted.slots.shape[0]))
    return Reply(each=Personal(equal_weights(drawn.draws, picking), drawn.k_hat), code=_ok()), private


def _resampled_inputs(key: Array, wanted: Wanted, num_locals: int) -> tuple[Array, Resampling]:
    shift_key, pick_key = jax.random.split(key)
    num = wanted.slots.shape[0]
    shift = importance_inputs(shift_key, wanted.mean.shape[0] + num_locals)
    return shift, resampling(pick_key, pool_size(num), num)


def _chained(
    wanted: Wanted, cavity: Gaussian, private: tuple[()], client: Client, inputs: tuple[Array, Array]
) -> tuple[Reply, tuple[()]]:
    """NUTS, for heavy tails."""
    warm = cold_chains(jnp.concatenate([wanted.mean, jnp.zeros(client.num_locals)]))
    num = wanted.slots.shape[0]
    drawn = by_nuts(Tilted(client, cavity), warm, inputs, num_samples=num, num_warmup=300, num_proposed=256)
    return Reply(each=Personal(drawn.draws.position, drawn.k_hat), code=_ok()), private


def _ok() -> Array:
    return jnp.asarray(int(ResultCode.OK))


def _log_likelihood_inputs(key: Array, theta: Array, num_locals: int) -> Array:
    return random_shift(key, num_locals)


def _chained_inputs(key: Array, wanted: Wanted, num_locals: int) -> tuple[Array, Array]:
    return nuts_inputs(key, wanted.mean.shape[0] + num_locals)


AFTER: Mapping[str, Update] = {
    "cavity": Update(_cavity, no_inputs, STRUCTURE),
    "log_likelihood": Update(
        partial(_log_likelihood, NUM_LOCAL),
        _log_likelihood_inputs,
        STRUCTURE,
        in_turn=True,
        work=_work_of_log_likelihood,
    ),
    "log_likelihood_finer": Update(
        partial(_log_likelihood, NUM_LOCAL_FINER), _log_likelihood_inputs, STRUCTURE, in_turn=True
    ),
    "own_values": Update(_own_values, _log_likelihood_inputs, stays=True),
    "own_mode": Update(_own_mode, no_inputs, stays=True),
    "given": Update(partial(_given, NUM_LOCAL), _given_inputs, STRUCTURE, stays=True, in_turn=True),
    "given_finer": Update(partial(_given, NUM_LOCAL_FINER), _given_inputs, STRUCTURE, stays=True, in_turn=True),
    "resampled": Update(_resampled, _resampled_inputs, STRUCTURE, stays=True, in_turn=True),
    "chained": Update(_chained, _chained_inputs, STRUCTURE, stays=True),
}


def forming_cavities(update: Update, method: Method, told: Any) -> Update:
    """An update for after the rounds, addressed by a cavity, for clients that form their cavities from what is told.

    A newcomer, who has kept nothing, is told its cavity; without locals a client may be told nothing. Updates that are
    addressed by nothing stay as they are.
    """
    if told is STRUCTURE or update.personal is not STRUCTURE:
        return update

    def run(shared: Shared, personal: Any, private: Private, client: Client, inputs: Inputs) -> Any:
        formed = isinstance(personal, Gaussian) or not jax.tree.leaves(personal)
        cavity = personal if formed else method.own_cavity(personal, private)
        return update.run(shared, cavity, (), client, inputs)

    return update._replace(run=run, personal=told, private=True)


def in_sum(update: Update) -> Update:
    """An update for after the rounds whose answer is seen client by client, as one of which the sum alone is seen."""

    def run(shared: Shared, personal: Any, private: Private, client: Client, inputs: Inputs) -> Any:
        reply, private = update.run(shared, personal, private, client, inputs)
        return Reply(total=(reply.each, reply.info), code=reply.code), private

    return update._replace(run=run)
