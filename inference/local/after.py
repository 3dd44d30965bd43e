"""What clients are asked once the rounds are over: log-likelihoods of the draws, and draws of their own posterior.

Each is an update like those of the rounds, with a name, so that a client over a network runs it on its own side. The
broadcast's shapes say how much is wanted.
"""

from collections.abc import Mapping
from typing import NamedTuple

import jax
import jax.numpy as jnp
from jax import Array

from fedbayes.algorithm import Reply, Update, Wanted
from fedbayes.errors import ResultCode
from fedbayes.gaussian import LOG_2PI, Gaussian, log_det, whitener
from fedbayes.importance import log_mean_exp, quasi_normal, random_shift
from fedbayes.inference.local.draws import by_importance, by_nuts, importance_inputs, nuts_inputs
from fedbayes.inference.local.resampling import Resampling, equal_weights, pool_size, resampling
from fedbayes.inference.local.tilted import Tilted, cold_chains
from fedbayes.problem.clients import Client

_LOCAL_DRAWS = 64  # that integrate out the locals at each draw of the globals


class Personal(NamedTuple):
    """Draws ``(num, d + m)`` of a client's own posterior, and the tail shape of the importance weights behind them."""

    draws: Array
    k_hat: Array


def log_likelihoods(client: Client, cavity: Gaussian, theta: Array, shift: Array) -> Array:
    """Log factor with the locals integrated out, ``log f(theta)``, at each row of ``theta``, shape ``(n, d)``.

    The locals are drawn from the Laplace approximation of their law given ``theta``, by a quasi-random sequence with
    the given shift, ``(m,)``.
    """
    size = theta.shape[1]
    if client.num_locals == 0:
        return client.at_many(client.log_factor, theta)
    mode = Tilted(client, cavity).mode(jnp.concatenate([theta[0], jnp.zeros(client.num_locals)]))
    white = whitener(mode.curvature[size:, size:])
    slope = white.T @ white @ mode.curvature[size:, :size]
    noise = quasi_normal(shift, _LOCAL_DRAWS)
    log_noise = -0.5 * jnp.sum(noise**2, axis=1)
    constant = 0.5 * (client.num_locals * LOG_2PI - log_det(white))

    def at(one: Array) -> Array:
        z = mode.position[size:] - slope @ (one - mode.position[:size]) + noise @ white
        logs = jax.vmap(lambda local: client.log_factor(jnp.concatenate([one, local])))(z)
        return log_mean_exp(logs - log_noise) + constant

    return jax.lax.map(at, theta, batch_size=32)


def _log_likelihood(
    theta: Array, cavity: Gaussian, private: tuple[()], client: Client, shift: Array
) -> tuple[Reply, tuple[()]]:
    return Reply(each=log_likelihoods(client, cavity, theta, shift), code=_ok()), private


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


AFTER: Mapping[str, Update] = {
    "log_likelihood": Update(_log_likelihood, lambda key, shared, num_locals: random_shift(key, num_locals)),
    "resampled": Update(_resampled, _resampled_inputs),
    "chained": Update(_chained, lambda key, wanted, num_locals: nuts_inputs(key, wanted.mean.shape[0] + num_locals)),
}
