"""The server's step in EP: towards the clients' new sites, as far as noise and propriety allow."""

from functools import partial
from typing import NamedTuple

import jax
import jax.numpy as jnp
from jax import Array

from fedbayes.gaussian import Gaussian, kl_divergence, whitener

NOISE_TARGET = 0.1  # Monte Carlo noise of the global, in posterior sds, that needs no damping
_IMPROPER_SLACK = 1e-9  # a cavity may be singular where only its own client knows a direction, as under a flat prior
_BACKOFF, _MAX_BACKOFF = 0.8, 40


class EPState(NamedTuple):
    """The server's state, and so the checkpoint.

    Attributes
    ----------
    sites
        The clients' sites, leading axis of clients.
    prior
        The prior's site: exact for a Gaussian prior, refined at the server otherwise.
    ceiling
        Largest step allowed, lowered when the iteration oscillates.
    change
        Of the last round, see ``info``.
    """

    sites: Gaussian
    prior: Gaussian
    ceiling: Array
    change: Array

    def global_(self) -> Gaussian:
        """The posterior: prior times sites, summed afresh so that it always equals the product."""
        return (self.prior + self.sites.summed()).symmetrised()


def damping(noise: Array, last_change: Array) -> Array:
    """The largest step whose stationary noise ``sqrt(eta / (2 - eta)) noise`` meets the target; one far from there."""
    ratio = (NOISE_TARGET / jnp.maximum(noise, 1e-12)) ** 2
    return jnp.where(last_change > 5.0 * noise, 1.0, jnp.minimum(1.0, 2.0 * ratio / (1.0 + ratio)))


def largest_proper_step(
    state: EPState, target: Gaussian, prior_target: Gaussian, wanted: Array
) -> tuple[EPState, Array]:
    """Back off from the wanted step until the global and every cavity are proper; no step as the last resort."""

    def at(step: Array) -> EPState:
        mix = partial(jax.tree.map, lambda old, new: old + step * (new - old))
        return state._replace(sites=mix(state.sites, target).symmetrised(), prior=mix(state.prior, prior_target))

    white = whitener(state.global_().precision)
    was_proper = jnp.all(jnp.isfinite(white))

    def keeps_enough(new: EPState) -> Array:
        """A trust region: no direction loses more than nine tenths of its precision in one round."""
        relative = white @ new.global_().precision @ white.T - 0.1 * jnp.eye(white.shape[0])
        return jnp.all(jnp.isfinite(whitener(relative))) | ~was_proper

    def fails(carry: tuple[Array, Array]) -> Array:
        step, tries = carry
        new = at(step)
        return ~(all_proper(new) & keeps_enough(new)) & (tries < _MAX_BACKOFF)

    step, tries = jax.lax.while_loop(fails, lambda carry: (_BACKOFF * carry[0], carry[1] + 1), (wanted, jnp.asarray(0)))
    step = jnp.where(tries < _MAX_BACKOFF, step, 0.0)
    moved = jax.tree.map(lambda new, old: jnp.where(step > 0, new, old), at(step), state)
    return moved, step


def all_proper(state: EPState) -> Array:
    """Whether the global and every cavity are proper."""
    everybody = state.global_()
    white = whitener(everybody.precision)

    def cavity_is_proper(site: Gaussian) -> Array:
        relative = white @ (everybody.precision - site.precision) @ white.T
        return jnp.all(jnp.isfinite(whitener(relative + _IMPROPER_SLACK * jnp.eye(white.shape[0]))))

    return jnp.all(jnp.isfinite(white)) & jnp.all(jax.vmap(cavity_is_proper)(state.sites))


def smallest_eigenvalue(everybody: Gaussian, cavity: Gaussian) -> Array:
    """Smallest eigenvalue of the cavity's precision in units of the global's: 0 for a client that decides alone."""
    white = whitener(everybody.precision)
    eye = jnp.eye(white.shape[0])
    share = eye - white @ cavity.precision @ white.T  # of the site; its largest eigenvalue is sought

    def square(_: int, matrix: Array) -> Array:
        matrix = matrix @ matrix
        return matrix / jnp.trace(matrix)

    power = jax.lax.fori_loop(0, 12, square, share + jnp.sqrt(jnp.sum(share**2)) * eye + 1e-300 * eye)
    return 1.0 - jnp.sum(power * share) / jnp.trace(power)


def rms_change(new: Gaussian, old: Gaussian) -> Array:
    """``sqrt(2 KL(new || old) / d)``: for a shift of the mean, its root mean square in posterior sds."""
    return jnp.sqrt(jnp.maximum(2.0 * kl_divergence(new, old), 0.0) / new.size)


def convex(sites: Gaussian, position: Array) -> Gaussian:
    """Sites with the same slope at ``position`` and without negative curvature."""
    values, vectors = jnp.linalg.eigh(sites.precision)
    precision = (vectors * jnp.maximum(values, 0.0)[:, None, :]) @ jnp.swapaxes(vectors, 1, 2)
    slope = sites.shift - sites.precision @ position
    return Gaussian(slope + precision @ position, precision, sites.log_scale)
