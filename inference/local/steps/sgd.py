"""Samples of a client's subposterior from gradient steps that start at the server's position.

Two samplers share the loop. Iterate-averaged SGD (Mandt, Hoffman and Blei 2017, section 5; FedPA's client) averages
windows of mini-batch steps: their covariance is the posterior's times a known factor. Stochastic gradient Langevin
dynamics adds noise and keeps the last step of each window. Both move in the federation's shared coordinates and in the
client's own ones of its locals, which precondition them.
"""

from typing import NamedTuple

import jax
import jax.numpy as jnp
from jax import Array
from jaxtyping import Float, Int, Key, Real

from fedbayes.inference.local.steps.energy import Energy


class Steps(NamedTuple):
    """How many steps make the samples.

    Attributes
    ----------
    burn_in
        Steps thrown away.
    window
        Steps per sample.
    num_samples
        Samples l.
    average
        Whether a sample is its window's mean, or its last step.
    noisy
        Whether Langevin noise is added.
    """

    burn_in: int
    window: int
    num_samples: int
    average: bool
    noisy: bool


def gradient_samples(
    energy: Energy,
    u: Float[Array, " d"],
    v: Float[Array, " m"],
    key: Key[Array, ""],
    *,
    step_size: Float[Array, ""],
    steps: Steps,
) -> tuple[Float[Array, "{steps.num_samples} d"], Float[Array, " m"]]:
    """Samples of the globals in shared coordinates, and the locals where they ended.

    With ``E`` the client's energy and ``p`` its weight, whose product is the energy of the subposterior,

        u <- u - eta grad_u E    + sqrt(2 eta / p) xi
        v <- v - eta grad_v (pE) + sqrt(2 eta) zeta

    where the noise is left out unless ``steps.noisy``.

    Parameters
    ----------
    energy
        Of the client, with the size of its batches.
    u, v
        Where the steps begin.
    key
        Of this client and round.
    step_size
        ``eta``.
    steps
        How many.
    """

    def step(i: Array, carry: tuple[Array, Array, Array]) -> tuple[Array, Array, Array]:
        u, v, total = carry
        batch_key, noise_key = step_keys(key, i)
        slope, slope_v = energy.slopes(u, v, batch_key)
        u, v = u - step_size * slope, v - step_size * slope_v
        if steps.noisy:
            noise = jax.random.normal(noise_key, (u.size + v.size,)) * jnp.sqrt(2.0 * step_size)
            u, v = u + noise[: u.size] / jnp.sqrt(energy.weight), v + noise[u.size :]
        return u, v, total + u

    def sample(carry: tuple[Array, Array], t: Array) -> tuple[tuple[Array, Array], Array]:
        begin = steps.burn_in + t * steps.window
        u, v, total = jax.lax.fori_loop(begin, begin + steps.window, step, (*carry, jnp.zeros_like(carry[0])))
        return (u, v), total / steps.window if steps.average else u

    u, v, _ = jax.lax.fori_loop(0, steps.burn_in, step, (u, v, jnp.zeros_like(u)))
    (_, v), samples = jax.lax.scan(sample, (u, v), jnp.arange(steps.num_samples))
    return samples, v


def step_keys(key: Key[Array, ""], i: Int[Array, ""]) -> Key[Array, "2"]:
    """The keys of a step's batch and of its noise."""
    return jax.random.split(jax.random.fold_in(key, i))


def covariance_factor(num_rows: Real[Array, ""], batch_size: int, window: int) -> Float[Array, ""]:
    """What iterate averages' covariance has to be multiplied by to be the posterior's: ``T b / (n - b)``.

    Batches of b rows out of n, drawn without replacement, leave the gradient a noise of covariance ``n (n - b) / b C``
    with ``C`` that of one row's, about ``H / n`` for a model that fits its data; averages over ``T`` steps have the
    covariance ``H^-1 (n - b) / (b T)``.
    """
    return window * batch_size / (num_rows - batch_size)
