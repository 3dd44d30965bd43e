"""The server's step in EP: towards the clients' new sites, as far as noise and propriety allow."""

from functools import partial
from typing import NamedTuple, Protocol

import jax
import jax.numpy as jnp
from jax import Array

from fedbayes.numerics.gaussian import Gaussian, eigenvectors, log_det, whitener

NOISE_TARGET = 0.1  # Monte Carlo noise of the global, in posterior sds, that needs no damping
# Two undamped rounds at the fixed point differ by 1.4 times their noise (root mean square), rarely by three times.
_AT_NOISE, ABOVE_NOISE, _NEAR_NOISE = 2.0, 3.0, 4.0
_IMPROPER_SLACK = 1e-9  # a cavity may be singular where only its own client knows a direction, as under a flat prior
_BACKOFF, _MAX_BACKOFF = 0.8, 40
HOPELESS = 8  # rounds without progress after which a fit stops


class EPState(NamedTuple):
    """The server's state, and so the checkpoint.

    Attributes
    ----------
    sites
        The clients' sites, leading axis of clients.
    prior
        The prior's site: exact for a Gaussian prior, refined at the server otherwise.
    white
        Whitener of the global's precision, shape ``(d, d)``; not finite where the global is improper.
    ceiling
        Largest step allowed, lowered when the iteration oscillates.
    change
        Of the last round, see ``info``; infinite where it is not known.
    noise
        Monte Carlo noise of the global in the last round, in posterior sds; infinite before the first.
    opening
        Whether the coming round is the opening one, in which clients send Laplace approximations.
    stuck
        Number of the last rounds without progress, see :func:`makes_progress`.
    """

    sites: Gaussian
    prior: Gaussian
    white: Array
    ceiling: Array
    change: Array
    noise: Array
    opening: Array
    stuck: Array

    def global_(self) -> Gaussian:
        """The posterior: prior times sites, summed afresh so that it always equals the product."""
        return (self.prior + self.sites.summed()).symmetrised()

    def mean(self) -> Array:
        """Of the global, shape ``(d,)``; not finite where it is improper."""
        everybody = self.prior.shift + jnp.sum(self.sites.shift, axis=0)
        return self.white.T @ (self.white @ everybody)


class Product(Protocol):
    """A prior times the clients' sites."""

    @property
    def sites(self) -> Gaussian:
        """Leading axis of clients."""
        ...

    def global_(self) -> Gaussian:
        """The product."""
        ...


def damping(noise: Array, last_change: Array) -> Array:
    """The largest step whose stationary noise ``sqrt(eta / (2 - eta)) noise`` meets the target; one far from there."""
    ratio = (NOISE_TARGET / jnp.maximum(noise, 1e-12)) ** 2
    return jnp.where(last_change > ABOVE_NOISE * noise, 1.0, jnp.minimum(1.0, 2.0 * ratio / (1.0 + ratio)))


def noise_limited(noise: Array, change: Array, last_change: Array, step: Array) -> Array:
    """Whether no smaller undamped change is to be had, because this round and the last differ by noise alone.

    They do where the change is twice the noise. Where it is up to four times the noise, which is itself an estimate,
    they do if the change has not shrunk as by a step towards a fixed point with contraction 1/2.
    """
    shrinks = change <= (1.0 - 0.5 * step) * last_change
    near = (change <= _NEAR_NOISE * noise) & ~shrinks
    return ((change <= _AT_NOISE * noise) | near) & (noise <= NOISE_TARGET)


def makes_progress(noise: Array, change: Array, last_change: Array, step: Array) -> Array:
    """Whether a round has brought the fixed point nearer, as with a contraction up to 0.95, or is noise.

    The budget of rounds would not do for a slower iteration.
    """
    shrinks = jnp.isfinite(change) & (change <= (1.0 - 0.05 * step) * last_change)
    return (step > 0.0) & (shrinks | (change <= _NEAR_NOISE * noise))


def largest_proper_step(
    state: EPState, target: Gaussian, prior_target: Gaussian, wanted: Array
) -> tuple[EPState, Array]:
    """Back off from the wanted step until the global and every cavity are proper; no step as the last resort.

    A trust region besides: no direction of a proper global loses more than nine tenths of its precision in one round.
    """

    def at(step: Array) -> EPState:
        mix = partial(jax.tree.map, lambda old, new: old + step * (new - old))
        return state._replace(sites=mix(state.sites, target).symmetrised(), prior=mix(state.prior, prior_target))

    was_proper = jnp.all(jnp.isfinite(state.white))
    identity = jnp.eye(state.white.shape[0])

    def fails(carry: tuple[Array, Array]) -> Array:
        step, tries = carry
        new = at(step)
        relative = state.white @ new.global_().precision @ state.white.T - 0.1 * identity
        kept = jnp.where(was_proper, relative, identity)
        return ~all_proper(new, kept) & (tries < _MAX_BACKOFF)

    step, tries = jax.lax.while_loop(fails, lambda carry: (_BACKOFF * carry[0], carry[1] + 1), (wanted, jnp.asarray(0)))
    step = jnp.where(tries < _MAX_BACKOFF, step, 0.0)
    moved = at(step)
    moved = moved._replace(white=whitener(moved.global_().precision))
    return jax.tree.map(lambda new, old: jnp.where(step > 0, new, old), moved, state), step


def all_proper(state: Product, other: Array) -> Array:
    """Whether the global, every cavity, and one ``other`` matrix of the same size are positive definite."""
    everybody = state.global_().precision
    # one elimination for all that is known from the start: the time to compile is that of the number of eliminations
    white, other_white = jax.vmap(whitener)(jnp.stack([everybody, other]))

    def cavity_is_proper(site: Gaussian) -> Array:
        relative = white @ (everybody - site.precision) @ white.T
        return jnp.all(jnp.isfinite(whitener(relative + _IMPROPER_SLACK * jnp.eye(white.shape[0]))))

    return jnp.all(jnp.isfinite(white) & jnp.isfinite(other_white)) & jnp.all(jax.vmap(cavity_is_proper)(state.sites))


def smallest_eigenvalue(white: Array, site: Gaussian) -> Array:
    """Smallest eigenvalue of the cavity's precision in units of the global's: 0 for a client that decides alone.

    Parameters
    ----------
    white
        Whitener of the global's precision.
    site
        The client's, whose share of the global has the largest eigenvalue that is sought.
    """
    share = white @ site.precision @ white.T
    eye = jnp.eye(white.shape[0])

    def square(_: int, matrix: Array) -> Array:
        matrix = matrix @ matrix
        return matrix / jnp.trace(matrix)

    power = jax.lax.fori_loop(0, 12, square, share + jnp.sqrt(jnp.sum(share**2)) * eye + 1e-300 * eye)
    return 1.0 - jnp.sum(power * share) / jnp.trace(power)


def divergence(new: EPState, old: EPState) -> Array:
    """``KL(new || old)`` of two proper globals, in nats, from their whiteners."""
    gap, precision = new.mean() - old.mean(), old.global_().precision
    log_ratio = log_det(new.white) - log_det(old.white)
    covariance = new.white.T @ new.white
    return 0.5 * (jnp.sum(precision * covariance) + gap @ precision @ gap - gap.shape[0] + log_ratio)


def convex(sites: Gaussian, position: Array) -> Gaussian:
    """Sites with the same slope at ``position`` and without negative curvature."""
    values, vectors = jax.vmap(eigenvectors)(sites.precision)
    precision = (vectors * jnp.maximum(values, 0.0)[:, None, :]) @ jnp.swapaxes(vectors, 1, 2)
    slope = sites.shift - sites.precision @ position
    return Gaussian(slope + precision @ position, precision, sites.log_scale)
