"""A client's factor as a function of the globals alone: its locals integrated out, or put at their mode."""

from typing import NamedTuple

import jax
import jax.numpy as jnp
from jax import Array
from jaxtyping import Float

from fedbayes.errors import K_HAT_LIMIT
from fedbayes.inference.local.density.conditional import find_conditional
from fedbayes.numerics.gaussian import LOG_2PI
from fedbayes.numerics.importance import balanced_normal, log_mean_exp, pareto_smooth
from fedbayes.problem.client import Client


class Marginal(NamedTuple):
    """``log f(theta) = log int f(theta, z) dz`` by importance sampling, and its slope.

    Attributes
    ----------
    value
        Of the log integral.
    slope
        In the globals, by Fisher's identity ``E[grad log f(theta, z)]``. Its Monte Carlo error is another one than that
        of the value: an ascent that asks whether the value has grown does not end where the slope is zero.
    z
        Mode of the locals given the globals: where the next search may start.
    """

    value: Float[Array, ""]
    slope: Float[Array, " d"]
    z: Float[Array, " m"]


def integrate_locals(client: Client, theta: Float[Array, " d"], z: Float[Array, " m"], num_samples: int) -> Marginal:
    """Importance sampling of ``z`` given ``theta`` from its Laplace approximation.

    The draws are the same in every call: an optimiser needs one function, not a noisy one. They have exact second
    moments, which makes the result exact for linear-Gaussian clients, and there are at least four for each local.

    Parameters
    ----------
    client
        With locals.
    theta, z
        The globals, and where the search for the locals' mode starts.
    num_samples
        Draws of the locals.
    """
    groups, size = jnp.asarray(client.groups), theta.shape[0]
    at = lambda local: client.log_factor(jnp.concatenate([theta, local]))  # noqa: E731
    given = find_conditional(at, z, groups, max_steps=30, jacobian=client.jacobian)
    z = given.mode
    noise = jnp.asarray(balanced_normal(max(num_samples, 1 << (4 * z.shape[0]).bit_length()), z.shape[0]))
    locals_ = jax.vmap(lambda one: given.draw(one, groups))(noise)
    draws = jnp.concatenate([jnp.broadcast_to(theta, (len(noise), size)), locals_], axis=1)
    logs, scores = client.at_many(jax.value_and_grad(client.log_factor), draws)
    log_weight = logs + 0.5 * jnp.sum(noise**2, axis=1)
    weight, k_hat = pareto_smooth(log_weight)
    # the Laplace approximation of the locals is better than a few draws that hold all the weight
    weight = jnp.where(k_hat <= K_HAT_LIMIT, weight, 1.0 / len(noise))
    value = log_mean_exp(log_weight) + 0.5 * z.shape[0] * LOG_2PI + given.log_spread()
    return Marginal(value, weight @ scores[:, :size], z)


def profile_locals(
    client: Client, theta: Float[Array, " d"], z: Float[Array, " m"]
) -> tuple[Float[Array, ""], Float[Array, " d"], Float[Array, " m"]]:
    """``max_z log f(theta, z)``, its slope in the globals, and the locals' mode."""
    at = lambda local: client.log_factor(jnp.concatenate([theta, local]))  # noqa: E731
    given = find_conditional(at, z, jnp.asarray(client.groups), max_steps=30, jacobian=client.jacobian)
    value, slope = jax.value_and_grad(client.log_factor)(jnp.concatenate([theta, given.mode]))
    return value, slope[: theta.shape[0]], given.mode
