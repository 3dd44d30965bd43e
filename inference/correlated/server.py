"""The server's half: from the clients' sites to what each of them should look at next."""

from functools import partial
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array

from fedbayes.contract.algorithm import Info, Replies
from fedbayes.contract.answer import ERROR_LIMIT
from fedbayes.inference.correlated.client import Own, Shared, SiteMessage
from fedbayes.inference.correlated.gibbs import Moments, first_position, short_chain, turned
from fedbayes.inference.correlated.options import Layout
from fedbayes.inference.local.density.moments import score_regression
from fedbayes.inference.local.density.tilted import Tilted, cold_chains
from fedbayes.inference.local.solvers import importance
from fedbayes.numerics.gaussian import (
    Gaussian,
    eigenvectors,
    gaussian_from_moments,
    log_det,
    packed,
    unpacked,
    where,
    whitener,
)
from fedbayes.problem.program.prior import Prior

_WIDE = 0.01  # precision of what is not known yet
_LEAST = 1e-3  # share of its posterior's precision that a client is told by the others, in any direction
_PRIOR_DRAWS = 256


class State(NamedTuple):
    """The server's state.

    Attributes
    ----------
    sites
        The clients', over ``(phi, theta_k)``, leading axis of clients.
    prior
        The site of the globals' prior: exact for a Gaussian prior, refined at the server otherwise.
    means
        Of each client's ``(phi, theta_k)`` given everybody's data, shape ``(K, d + m)``.
    cavities
        What the others know of them.
    opening
        Whether the coming round is the first.
    change
        Of the last round, see the diagnostics; infinite where it is not known.
    ceiling
        Largest step, lowered when the rounds oscillate.
    rounds
        How many are done.
    key
        Of the server's chains, shape ``(2,)``.
    """

    sites: Gaussian
    prior: Gaussian
    means: Array
    cavities: Gaussian
    opening: Array
    change: Array
    ceiling: Array
    rounds: Array
    key: Array


def init(layout: Layout, prior: Prior, key: Array, previous: None) -> State:
    """Sites that say nothing, and wide cavities."""
    size, num = layout.joint, layout.num_clients
    known = prior.gaussian
    if known is None:
        known = Gaussian(jnp.zeros(prior.size), _WIDE * jnp.eye(prior.size), jnp.zeros(()))
    flat = 1e-2 * _WIDE * jnp.eye(prior.size) if prior.gaussian is not None and prior.is_flat() else 0.0
    precision = _WIDE * jnp.eye(size).at[: prior.size, : prior.size].set((known.precision + flat) / _WIDE)
    shift = jnp.zeros(size).at[: prior.size].set(known.shift)
    white = whitener(precision)
    repeat = partial(jax.tree.map, lambda leaf: jnp.broadcast_to(leaf, (num, *leaf.shape)))
    return State(
        sites=Gaussian.neutral(size, (num,)),
        prior=Gaussian(known.shift, known.precision, jnp.zeros(())),
        means=repeat(white.T @ (white @ shift)),
        cavities=repeat(Gaussian(shift, precision, jnp.zeros(()))),
        opening=jnp.asarray(True),
        change=jnp.full((), jnp.inf),
        ceiling=jnp.ones(()),
        rounds=jnp.zeros(()),
        key=jax.random.bits(key, (2,), jnp.uint32),
    )


def broadcast(others: bool, state: State) -> tuple[Shared, Own]:
    """Each client's mean and cavity, and the precision of both its and the others' knowledge where it helps."""
    together = jax.vmap(packed)(state.cavities + state.sites).precision if others else ()
    return Shared(state.opening), Own(state.means, jax.vmap(packed)(state.cavities), together)


def chain_key(words: Array) -> Array:
    """A key from the state's words."""
    return jax.random.wrap_key_data(words, impl="threefry2x32")


def averaged(old: State, new: State, rounds: Array) -> State:
    """Cavities and means, from the fourth round on the averages of all since then.

    A chain of a few hundred sweeps leaves them a Monte Carlo error, which moves the sites of clients whose likelihood
    is not Gaussian. Averages over rounds settle (Robbins and Monro 1951).
    """
    weight = 1.0 / jnp.maximum(rounds - 2.0, 1.0)
    mix = partial(jax.tree.map, lambda one, two: one + weight * (two - one))
    return new._replace(cavities=mix(old.cavities, new.cavities), means=mix(old.means, new.means))


def aggregate(
    layout: Layout, prior: Prior, num_sweeps: int, tolerance: float, state: State, replies: Replies, key: Array
) -> tuple[State, Info]:
    """Take the new sites, as far as the rounds do not oscillate, and run the chain given them."""
    messages: SiteMessage = replies.each
    used = replies.used
    target = where(used, unpacked(messages.site), state.sites)
    change = _change(state.cavities, state.sites, target, used)
    oscillates = ~state.opening & (change > state.change) & (change > tolerance)
    ceiling = jnp.where(oscillates, 0.7 * state.ceiling, state.ceiling)
    step = jnp.where(state.opening, 1.0, ceiling)
    sites = jax.tree.map(lambda old, new: old + step * (new - old), state.sites, target).symmetrised()

    proper = jax.vmap(convex)(sites, state.means)
    phi = jnp.mean(state.means[:, : prior.size], axis=0)
    prior_site = state.prior if prior.gaussian is not None else _refined(layout, prior, state)
    moments = posterior_moments(layout, num_sweeps, prior_site, proper, phi, key)
    cavities = jax.vmap(cavity_of)(moments, sites)
    fine = jnp.all(jnp.isfinite(moments.mean)) & jnp.all(jnp.isfinite(cavities.precision))
    known = jnp.where(state.opening | ~jnp.any(used), jnp.inf, change)
    rounds = state.rounds + 1.0
    moved = State(sites, prior_site, moments.mean, cavities, jnp.asarray(False), known, ceiling, rounds, state.key)
    moved = averaged(state, moved, rounds)
    moved = jax.tree.map(partial(jnp.where, fine), moved, state)
    noise = jnp.sqrt(jnp.sum(jnp.where(used, messages.noise, 0.0)) / jnp.maximum(jnp.sum(used), 1) / layout.joint)
    info = {
        "change": jnp.where(fine, known, jnp.inf),
        "monte_carlo_noise": noise,
        "step": step,
        "converged": fine & (known <= min(tolerance, ERROR_LIMIT)),
        "proper": fine,
    }
    return moved, info


def posterior_moments(
    layout: Layout, num_sweeps: int, prior: Gaussian, sites: Gaussian, phi: Array, key: Array
) -> Moments:
    """Moments of each client's ``(phi, theta_k)`` from a short chain that begins anew."""
    start_key, sweep_key = jax.random.split(key)
    told = turned(prior, sites)
    start = first_position(told, phi, layout.rank, start_key)
    return short_chain(told, start, sweep_key, num_warmup=num_sweeps // 2, num_samples=num_sweeps)


def convex(site: Gaussian, position: Array) -> Gaussian:
    """The site with the same slope at ``position`` and without negative curvature; itself where it has none."""
    values, vectors = eigenvectors(site.precision)
    least = -1e-10 * jnp.max(jnp.abs(values))
    precision = (vectors * jnp.maximum(values, 0.0)) @ vectors.T
    shift = site.shift + (precision - site.precision) @ position
    fine = jnp.min(values) >= least
    return Gaussian(jnp.where(fine, site.shift, shift), jnp.where(fine, site.precision, precision), site.log_scale)


def cavity_of(moments: Moments, site: Gaussian) -> Gaussian:
    """The Gaussian that times the site has the posterior's moments, as far as that is a precision.

    A posterior given heavy-tailed coupling may be wider in some direction than the site alone; there the client is told
    a thousandth of the posterior's precision. The product keeps its mean.
    """
    white = whitener(moments.covariance)
    back = moments.covariance @ white.T
    values, vectors = eigenvectors(back.T @ site.precision @ back)
    turn = vectors.T @ white
    precision = turn.T @ (jnp.maximum(1.0 - values, _LEAST)[:, None] * turn)
    slope = site.precision @ moments.mean - site.shift  # of the log cavity at the mean
    return Gaussian(precision @ moments.mean + slope, precision, jnp.zeros(())).symmetrised()


def _change(cavities: Gaussian, old: Gaussian, new: Gaussian, used: Array) -> Array:
    """What the new sites change of the clients' posteriors, in posterior sds: root mean square of ``sqrt(2 KL)``."""

    def one(cavity: Gaussian, before: Gaussian, after: Gaussian) -> Array:
        white, other = jax.vmap(whitener)(
            jnp.stack([cavity.precision + after.precision, cavity.precision + before.precision])
        )
        mean = white.T @ (white @ (cavity.shift + after.shift))
        gap = mean - other.T @ (other @ (cavity.shift + before.shift))
        precision = cavity.precision + before.precision
        trace = jnp.sum(precision * (white.T @ white)) - len(gap)
        return jnp.maximum(trace + gap @ precision @ gap + log_det(white) - log_det(other), 0.0)

    each = jnp.where(used, jax.vmap(one)(cavities, old, new), 0.0)
    rms = jnp.sqrt(jnp.sum(each) / jnp.maximum(jnp.sum(used), 1) / old.shift.shape[1])
    return jnp.where(jnp.isfinite(rms), rms, jnp.inf)


def _refined(layout: Layout, prior: Prior, state: State) -> Gaussian:
    """The site of a prior that is not Gaussian, matched to it where the posterior of the globals is."""
    size = prior.size
    together = state.cavities + state.sites
    first = jax.tree.map(lambda leaf: leaf[0], together)
    white = whitener(first.precision)
    covariance = (white.T @ white)[:size, :size]
    everybody = gaussian_from_moments(state.means[0, :size], covariance)
    cavity = everybody - state.prior
    proper = jnp.all(jnp.isfinite(whitener(cavity.precision)))
    wide = Gaussian(jnp.zeros(size), _WIDE * jnp.eye(size), jnp.zeros(()))
    cavity = jax.tree.map(partial(jnp.where, proper & ~state.opening), cavity, wide)
    solver = importance(num_samples=max(_PRIOR_DRAWS, 1 << (8 * (size + 1)).bit_length()), estimator=score_regression)
    shift = jnp.asarray(np.full(size, 0.5))
    found = solver.run(Tilted(prior, cavity.symmetrised()), cold_chains(state.means[0, :size]), shift).site
    usable = jnp.all(jnp.isfinite(found.shift)) & jnp.all(jnp.isfinite(found.precision))
    found = Gaussian(found.shift, found.precision, jnp.zeros(()))
    return jax.tree.map(partial(jnp.where, usable), found, state.prior)
