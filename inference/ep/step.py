"""The server's step in EP: towards the clients' new sites, as far as noise and propriety allow.

The server knows the product of all sites and the sum of their changes, so it sees that the global stays proper. A
cavity is its client's, which deals with one that a step has made improper (:mod:`fedbayes.inference.ep.client`).
"""

from types import ModuleType
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array

from fedbayes.contract.modes import Modes
from fedbayes.inference.own_site import Counted
from fedbayes.numerics.gaussian import Gaussian, log_det, whitener
from fedbayes.numerics.host import product_of

NOISE_TARGET = 0.1  # Monte Carlo noise of the global, in posterior sds, that needs no damping
# Two undamped rounds at the fixed point differ by 1.4 times their noise (root mean square), rarely by three times.
_AT_NOISE, ABOVE_NOISE, _NEAR_NOISE = 2.0, 3.0, 4.0
_BACKOFF, _MAX_BACKOFF = 0.8, 40
_SLOWEST = 0.95  # ratio of two changes from which on they tell no more than a bound
HOPELESS = 8  # rounds without progress after which a fit stops


class Recount(NamedTuple):
    """The sites counted anew, once a client has lost its own; until all have sent theirs, no step is taken.

    Attributes
    ----------
    running
        Whether there is a count.
    sites
        Product of the sites that were sent.
    heard
        Who has sent one, shape ``(K,)``.
    """

    running: Array
    sites: Gaussian
    heard: Array


class EPState(NamedTuple):
    """The server's state, and so the checkpoint. It holds no single site.

    Attributes
    ----------
    base, direction
        The global is ``base`` times ``direction`` to the power ``step``: the global before the last step, and the
        product of what the clients and the prior have proposed.
    prior, prior_direction
        The prior's part in both: exact for a Gaussian prior, refined at the server otherwise.
    step
        The last step, from 0 to 1.
    white
        Whitener of the global's precision, shape ``(d, d)``; not finite where the global is improper.
    counted
        For each client, its last reply that counts and the step towards it.
    round
        Number of the present round.
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
    recount
        The sites counted anew.
    modes
        That searches from several starts have found, see :class:`~fedbayes.inference.mode.ModeState`.
    """

    base: Gaussian
    direction: Gaussian
    prior: Gaussian
    prior_direction: Gaussian
    step: Array
    white: Array
    counted: Counted
    round: Array
    ceiling: Array
    change: Array
    noise: Array
    opening: Array
    stuck: Array
    recount: Recount
    modes: Modes | tuple[()] = ()

    @classmethod
    def start(cls, prior: Gaussian, white: Array, num_clients: int, opening: bool) -> "EPState":
        """All sites flat: the global is the prior."""
        flat, zero, infinity = Gaussian.neutral(prior.size), jnp.zeros(()), jnp.full((), jnp.inf)
        recount = Recount(jnp.asarray(False), flat, jnp.zeros(num_clients, bool))
        return cls(
            base=prior,
            direction=flat,
            prior=prior,
            prior_direction=flat,
            step=zero,
            white=white,
            counted=Counted.none(num_clients),
            round=zero,
            ceiling=jnp.ones(()),
            change=infinity,
            noise=infinity,
            opening=jnp.asarray(opening),
            stuck=zero,
            recount=recount,
        )

    def global_(self) -> Gaussian:
        """The posterior: prior times sites."""
        return (self.base + self.direction.scaled(self.step)).symmetrised()

    def prior_site(self) -> Gaussian:
        """The prior's site in it."""
        return self.prior + self.prior_direction.scaled(self.step)

    def mean(self) -> Array:
        """Of the global, shape ``(d,)``; not finite where it is improper."""
        return self.white.T @ (self.white @ self.global_().shift)


def posterior_of(state: EPState) -> Gaussian:
    """The global of a state on the host, leading axis of replicates."""

    def moved(leaf: np.ndarray) -> np.ndarray:
        step = np.asarray(state.step)
        return step.reshape(step.shape + (1,) * (np.ndim(leaf) - 1)) * leaf

    return product_of(state.base, jax.tree.map(moved, state.direction))


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


def remaining(change: Any, last_change: Any, noise: Any, last_noise: Any, step: Any, xp: ModuleType = jnp) -> Any:
    """Distance that a round has left to the fixed point, in posterior sds; NaN where two rounds don't tell.

    At distance ``e`` from a fixed point with contraction ``rho`` an undamped round changes the global by ``c = (1 -
    rho) e``, and a step ``eta`` leaves ``r e`` with ``r = 1 - eta (1 - rho)``. The changes of two rounds have the ratio
    ``r``, hence ``r e = eta c r / (1 - r)``. From the changes goes what noise alone would cause. Changes near the noise
    that do not shrink tell nothing, and neither does the first round.

    Parameters
    ----------
    change, last_change, noise, last_noise, step
        Of this round, and of the one before it; infinite where they are not known.
    xp
        ``jax.numpy``, or ``numpy`` on the host.
    """
    before, last = (
        xp.sqrt(xp.maximum(c**2 - 2.0 * n**2, 0.0)) for c, n in ((last_change, last_noise), (change, noise))
    )
    told = xp.isfinite(before) & xp.isfinite(last)
    ratio = xp.where(told & (before > 0.0), last / xp.where(before > 0.0, before, 1.0), 1.0)
    slow = xp.clip(ratio, 0.0, _SLOWEST)
    distance = xp.where(last == 0.0, 0.0, step * last * slow / (1.0 - slow))
    return xp.where(told & ((last == 0.0) | (ratio < _SLOWEST) | (last > _NEAR_NOISE * noise)), distance, xp.nan)


def makes_progress(noise: Array, change: Array, last_change: Array, step: Array) -> Array:
    """Whether a round has brought the fixed point nearer, as with a contraction up to 0.95, or is noise.

    The budget of rounds would not do for a slower iteration.
    """
    shrinks = jnp.isfinite(change) & (change <= (1.0 - 0.05 * step) * last_change)
    return (step > 0.0) & (shrinks | (change <= _NEAR_NOISE * noise))


def largest_proper_step(state: EPState, wanted: Array) -> tuple[EPState, Array]:
    """Back off from the wanted step until the global is proper; no step as the last resort.

    A trust region besides: no direction of a proper base loses more than nine tenths of its precision in one round.

    Parameters
    ----------
    state
        With the step's base and direction, and the whitener of the base; not finite where there is nothing to lose.
    wanted
        The longest step.
    """
    was_proper = jnp.all(jnp.isfinite(state.white))
    identity = jnp.eye(state.white.shape[0])

    def fails(carry: tuple[Array, Array]) -> Array:
        step, tries = carry
        precision = state._replace(step=step).global_().precision
        relative = state.white @ precision @ state.white.T - 0.1 * identity
        kept = jnp.where(was_proper, relative, identity)
        both = jax.vmap(whitener)(jnp.stack([precision, kept]))
        return ~jnp.all(jnp.isfinite(both)) & (tries < _MAX_BACKOFF)

    step, tries = jax.lax.while_loop(fails, lambda carry: (_BACKOFF * carry[0], carry[1] + 1), (wanted, jnp.asarray(0)))
    step = jnp.where(tries < _MAX_BACKOFF, step, 0.0)
    moved = state._replace(step=step)
    return moved._replace(white=whitener(moved.global_().precision)), step


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

    shifted = share + jnp.sqrt(jnp.sum(share**2)) * eye + 1e-300 * eye
    power = jax.lax.fori_loop(0, 12, square, shifted / jnp.trace(shifted))
    return 1.0 - jnp.sum(power * share) / jnp.trace(power)


def divergence(new: EPState, old: EPState, before: Gaussian) -> Array:
    """``KL(new || old)`` of two proper globals, in nats, from their whiteners; ``before`` is the old one."""
    gap = new.mean() - old.mean()
    log_ratio = log_det(new.white) - log_det(old.white)
    covariance = new.white.T @ new.white
    return 0.5 * (jnp.sum(before.precision * covariance) + gap @ before.precision @ gap - gap.shape[0] + log_ratio)
