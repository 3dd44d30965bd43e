"""Randomised posterior modes: each mode's energy is tilted by noise with the covariance of the energy's own slope."""

from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array

from fedbayes.errors import ModelError
from fedbayes.inference.fedavg.client import Own, Shared, start_own
from fedbayes.inference.options import DENSE_LIMIT
from fedbayes.problem.client import Client
from fedbayes.problem.program.prior import Prior
from fedbayes.problem.program.program import Arrays, Program

_OFF_DIAGONAL = 1e-6  # of a random product with the prior's Hessian, relative, that counts as none


class Perturbed:
    """A client's private state, with the tilt ``s`` of its energy ``U(theta) - s' theta``.

    ``s = grad log f(theta0; y*) + sqrt(p) B e``: the score of outcomes ``y*`` drawn anew from the client's own
    likelihood at the mode ``theta0``, whose covariance is the Fisher information, and the client's share of noise with
    the covariance ``B B' = -grad^2 log p(theta0)`` of the prior. For a linear-Gaussian model that is what noise on the
    outcomes and a draw from the prior for its mean do, and the tilted modes are draws of the posterior.

    Parameters
    ----------
    prior
        Of the globals.
    weights
        The clients' shares p, shape ``(N,)``.

    Raises
    ------
    ModelError
        The prior would need too large a matrix, see :func:`has_independent_globals`.
    """

    def __init__(self, prior: Prior, weights: np.ndarray) -> None:
        self._prior, self._weights = prior, weights
        self._independent = has_independent_globals(prior)

    def untilted(self, client: Client, shared: Shared, key: Array) -> Own:
        """``init_client`` of the rounds before, which refuses likelihoods that can't be drawn from."""
        jax.eval_shape(partial(_checked_score, client.program), shared.position, client.data, client.mask, key)
        return start_own(client, shared, key)

    def __call__(self, client: Client, shared: Shared, key: Array) -> Own:
        """``init_client`` of the rounds."""
        of_data, of_prior = jax.random.split(key)
        score = client.program.simulated_score(shared.position, client.data, client.mask, of_data)
        share = jnp.sqrt(jnp.asarray(self._weights)[client.index])
        noise = share * prior_noise(self._prior, shared.position, of_prior, independent=self._independent)
        return start_own(client, shared, key)._replace(tilt=score + noise)


def _checked_score(program: Program, theta: Array, data: Arrays, mask: Array | None, key: Array) -> Array:
    """The score of outcomes drawn anew.

    Raises
    ------
    ModelError
        They can't be drawn.
    """
    for name in program.not_simulable(theta, data):
        raise ModelError(
            f"`randomised=True` draws the outcomes anew, and the site '{name}' has none, or counts them by other "
            "weights: it is a `numpyro.factor`, masked or scaled. Write it as an observed distribution, or leave "
            "`randomised` out."
        )
    return program.simulated_score(theta, data, mask, key)


def prior_noise(prior: Prior, theta: Array, key: Array, *, independent: bool) -> Array:
    """Noise with the covariance ``-grad^2 log p(theta)``, shape ``(d,)``; none along directions that curve upwards.

    ``independent`` is what :func:`has_independent_globals` says of the prior.
    """
    noise = jax.random.normal(key, theta.shape)
    if independent:
        diagonal = -_product(prior, theta, jnp.ones_like(theta))
        return jnp.sqrt(jnp.maximum(diagonal, 0.0)) * noise
    values, vectors = jnp.linalg.eigh(prior.tangent(theta).precision)
    return vectors @ (jnp.sqrt(jnp.maximum(values, 0.0)) * noise)


def has_independent_globals(prior: Prior) -> bool:
    """Whether the prior's Hessian is diagonal, as for a network's weights: then no matrix is needed.

    ``H v = (H 1) v`` entry by entry for a random ``v``.

    Raises
    ------
    ModelError
        It is not, and there are too many globals for a matrix.
    """
    at, direction = np.random.default_rng(0).normal(size=(2, prior.size))
    ones = np.asarray(_product(prior, at, np.ones(prior.size)))
    found = np.asarray(_product(prior, at, direction))
    diagonal = bool(np.allclose(found, ones * direction, rtol=_OFF_DIAGONAL, atol=_OFF_DIAGONAL * np.abs(ones).max()))
    if not diagonal and prior.size > DENSE_LIMIT:
        raise ModelError(
            f"`randomised=True` needs noise with the covariance of the prior's slope, and under this prior the "
            f"{prior.size} globals depend on one another: a matrix of them is needed, for {DENSE_LIMIT} at most. Give "
            "the globals independent priors, or leave `randomised` out."
        )
    return diagonal


def _product(prior: Prior, theta: Array | np.ndarray, direction: Array | np.ndarray) -> Array:
    """Of the log prior's Hessian with a direction, shape ``(d,)``."""
    return jax.jvp(jax.grad(prior.log_density), (jnp.asarray(theta),), (jnp.asarray(direction),))[1]
