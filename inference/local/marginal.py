"""A client's factor as a function of the globals alone: its locals integrated out, or put at their mode."""

from typing import NamedTuple

import jax
import jax.numpy as jnp
from jax import Array
from jaxtyping import Float

from fedbayes.contract.work import GIVEN, GRADIENT, Work
from fedbayes.errors import K_HAT_LIMIT
from fedbayes.inference.local.density import quadrature
from fedbayes.inference.local.density.conditional import find_conditional, find_singles
from fedbayes.inference.local.density.work import search_given
from fedbayes.numerics.gaussian import LOG_2PI
from fedbayes.numerics.importance import balanced_normal, log_mean_exp, pareto_smooth
from fedbayes.problem.client import Client


class Marginal(NamedTuple):
    """``log f(theta) = log int f(theta, z) dz``, and its slope.

    Attributes
    ----------
    value
        Of the log integral.
    weighed
        Slope in the globals, by Fisher's identity ``E[grad log f(theta, z)]``. Its Monte Carlo error is another one
        than that of the value: an ascent that asks whether the value has grown does not end where the slope is zero.
    even
        The same with equal weights, that is by the Laplace approximation of the locals.
    k_hat
        Pareto tail shape of the weights; zero for quadrature.
    z
        Mode of the locals given the globals: where the next search may start.
    """

    value: Float[Array, ""]
    weighed: Float[Array, " d"]
    even: Float[Array, " d"]
    k_hat: Float[Array, ""]
    z: Float[Array, " m"]

    @property
    def slope(self) -> Float[Array, " d"]:
        """``weighed``, unless a few draws hold all the weight: then ``even`` is better."""
        return self.slope_for(self.k_hat)

    def slope_for(self, k_hat: Float[Array, "*at"]) -> Float[Array, "*many d"]:
        """The same where ``k_hat``, of one position, decides for all of them.

        The curvature is a difference of slopes at two positions, which must be of one kind.
        """
        return jnp.where(k_hat[..., None] <= K_HAT_LIMIT, self.weighed, self.even)


def integrate_locals(client: Client, theta: Float[Array, " d"], z: Float[Array, " m"], num_samples: int) -> Marginal:
    """Integrate ``z`` out given ``theta``: one by one where they are independent, else by importance sampling.

    One by one it is :mod:`~fedbayes.inference.local.density.quadrature`. The draws are from the Laplace approximation,
    and the same in every call: an optimiser needs one function, not a noisy one. They have exact second moments, which
    makes the result exact for linear-Gaussian clients, and there are at least four for each local.

    Parameters
    ----------
    client
        With locals.
    theta, z
        The globals, and where the search for the locals' mode starts.
    num_samples
        Draws of the locals.
    """
    if client.groups.shape[1] == 1:
        return _by_quadrature(client, theta, z)
    groups = jnp.asarray(client.groups)
    given = find_conditional(client.given(theta), z, groups, max_steps=30, jacobian=client.jacobian)
    z = given.mode
    noise = jnp.asarray(balanced_normal(_num_draws(len(z), num_samples), len(z)))
    locals_ = jax.vmap(lambda one: given.draw(one, groups))(noise)
    # one derivative of the weighted sum, not one for each draw: what depends on the globals alone is there once
    logs, pulled_back = jax.vjp(lambda at: client.at_many(client.given(at), locals_), theta)
    log_weight = logs + 0.5 * jnp.sum(noise**2, axis=1)
    _, k_hat = pareto_smooth(log_weight)
    # not the smoothed weights, which jump from draw to draw where the globals move and two draws change ranks
    weights = jnp.stack([jax.nn.softmax(log_weight), jnp.full(len(noise), 1.0 / len(noise))])
    weighed, even = jax.vmap(pulled_back)(weights)[0]
    value = log_mean_exp(log_weight) + 0.5 * z.shape[0] * LOG_2PI + given.log_spread()
    return Marginal(value, weighed, even, k_hat, z)


def work_of_marginal(client: Client, num_samples: int) -> Work:
    """Of :func:`integrate_locals`."""
    search = search_given(client)
    if client.groups.shape[1] == 1:
        return search.and_then(Work(quadrature.NODES * GIVEN * GRADIENT))
    num = _num_draws(client.num_locals, num_samples)
    return search.and_then(Work(num * GIVEN * GRADIENT, draws=float(num) * client.num_locals))


def _num_draws(size: int, num_samples: int) -> int:
    return max(num_samples, 1 << (4 * size).bit_length())


def _by_quadrature(client: Client, theta: Array, z: Array) -> Marginal:
    """The integral does not depend on where its nodes are, so that they stay while it is differentiated."""
    centre, scale, _ = find_singles(client.given(theta), z, jacobian=client.jacobian)

    def log_integral(at: Array) -> Array:
        there = quadrature.reference_at(client.given(at), centre, scale)
        return quadrature.log_integral(client.given(at), there)[0]

    value, slope = jax.value_and_grad(log_integral)(theta)
    return Marginal(value, slope, slope, jnp.zeros(()), centre)


def profile_locals(
    client: Client, theta: Float[Array, " d"], z: Float[Array, " m"]
) -> tuple[Float[Array, ""], Float[Array, " d"], Float[Array, " m"]]:
    """``max_z log f(theta, z)``, its slope in the globals, and the locals' mode."""
    given = find_conditional(client.given(theta), z, jnp.asarray(client.groups), max_steps=30, jacobian=client.jacobian)
    value, slope = jax.value_and_grad(lambda at: client.given(at)(given.mode))(theta)
    return value, slope, given.mode
