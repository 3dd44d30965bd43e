"""Draws from a tilted density for people: equal weights, shuffled, as many as asked for."""

import jax
import jax.numpy as jnp
from jax import Array

from fedbayes.gaussian import LOG_2PI, Gaussian, log_det, whitener
from fedbayes.inference.local.importance import log_mean_exp, quasi_normal
from fedbayes.inference.local.moments import TiltedDraws
from fedbayes.inference.local.nuts import NUM_CHAINS, nuts_chains
from fedbayes.inference.local.solvers import importance_draws
from fedbayes.inference.local.tilted import Tilted, Warm
from fedbayes.problem.clients import Client


def resampled(tilted: Tilted, start: Array, key: Array, num: int) -> tuple[Array, Array]:
    """Draws ``(num, d + m)`` by importance resampling from four times as many, and their k-hat."""
    draw_key, pick_key = jax.random.split(key)
    draws, k_hat, _, _ = importance_draws(tilted, start, draw_key, pool_size(num))
    return equal_weights(draws, pick_key, num), k_hat


def pool_size(num: int) -> int:
    """Weighted draws from which ``num`` are resampled: about four times as many, a power of two."""
    return 1 << (4 * num - 1).bit_length()


def equal_weights(draws: TiltedDraws, key: Array, num: int) -> Array:
    """``num`` of the weighted draws, shuffled, shape ``(num, d + m)``.

    Systematic resampling: one uniform, evenly spaced levels, so that equal weights give distinct draws. Not in the
    draws' own order: every fourth point of a Sobol sequence lies in the same quarter of the space.
    """
    pick_key, order_key, shuffle_key = jax.random.split(key, 3)
    order = jax.random.permutation(order_key, draws.weight.shape[0])
    levels = (jax.random.uniform(pick_key) + jnp.arange(num)) / max(num, 1)
    picked = jnp.clip(jnp.searchsorted(jnp.cumsum(draws.weight[order]), levels), 0, draws.weight.shape[0] - 1)
    return draws.position[order[jax.random.permutation(shuffle_key, picked)]]


def chained(tilted: Tilted, start: Array, key: Array, num: int) -> Array:
    """Draws ``(num, d + m)`` by NUTS, for heavy tails; ``num`` is a multiple of the number of chains."""
    pool_key, chain_key = jax.random.split(key)
    proposed, _, _, mode = importance_draws(tilted, start, pool_key, 256)
    warm = Warm(start, jnp.full((NUM_CHAINS, start.shape[0]), jnp.nan), jnp.asarray(0.5))
    draws, *_ = nuts_chains(tilted.log_density, mode, warm, proposed, chain_key, num_draws=num, num_warmup=300)
    return draws


def log_likelihoods(client: Client, cavity: Gaussian, theta: Array, key: Array, num_draws: int = 64) -> Array:
    """Log factor with the locals integrated out, ``log f(theta)``, at each row of ``theta``, shape ``(n, d)``.

    The locals are drawn from the Laplace approximation of their law given ``theta``.
    """
    size = theta.shape[1]
    if client.num_locals == 0:
        return jax.vmap(client.log_factor)(theta)
    mode = Tilted(client, cavity).mode(jnp.concatenate([theta[0], jnp.zeros(client.num_locals)]))
    white = whitener(mode.curvature[size:, size:])
    slope = white.T @ white @ mode.curvature[size:, :size]
    noise = quasi_normal(key, num_draws, client.num_locals)
    log_noise = -0.5 * jnp.sum(noise**2, axis=1)
    constant = 0.5 * (client.num_locals * LOG_2PI - log_det(white))

    def at(one: Array) -> Array:
        z = mode.position[size:] - slope @ (one - mode.position[:size]) + noise @ white
        logs = jax.vmap(lambda local: client.log_factor(jnp.concatenate([one, local])))(z)
        return log_mean_exp(logs - log_noise) + constant

    return jax.lax.map(at, theta, batch_size=32)
