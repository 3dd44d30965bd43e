"""Locals at draws of the globals, drawn twice or integrated out by quadrature, and what their weights are worth."""

from typing import NamedTuple

import jax
import jax.numpy as jnp
from jax import Array
from jax.scipy.special import ndtr
from jaxtyping import Bool, Float

from fedbayes.errors import K_HAT_LIMIT
from fedbayes.inference.local.density import quadrature
from fedbayes.inference.local.density.conditional import Conditional
from fedbayes.inference.local.density.tilted import Factor, Tilted
from fedbayes.numerics.gaussian import LOG_2PI
from fedbayes.numerics.importance import log_mean_exp, pareto_smooth

AT_ONCE = 16  # draws of the globals side by side, where each takes much
MANY_SINGLES = 256  # for fewer, two draws are cheaper, and seldom too noisy
_MOST_HALVED = 1.0  # nats, sd under the weights of what half of the nodes change: some ten times the integrals' error
_MOST_LOST = 0.01  # of the weight, where modes of locals were not found
_MOST_LOST_OF_NARROW = 0.1  # of the draws of the narrow half, the same


class Batch(NamedTuple):
    """The draws of one iteration.

    Attributes
    ----------
    noise
        Of all draws.
    taken
        Which of them this iteration takes.
    most
        Side by side.
    last
        Whether it is the last iteration.
    """

    noise: Float[Array, "draw p"]
    taken: Bool[Array, " draw"]
    most: int
    last: Bool[Array, ""]


class Integration(NamedTuple):
    """From how many single locals on the last weights have them integrated out, and by how many nodes."""

    many: int
    nodes: int

    def needed(self, factor: Factor) -> bool:
        """Whether the client has so many."""
        return factor.groups.shape[1] == 1 and factor.groups.shape[0] >= self.many


class Drawn(NamedTuple):
    """Locals at draws of the globals, on two sides.

    Attributes
    ----------
    sides
        The locals.
    value
        The log factor, times the inverse density of the locals' draw; by quadrature its log integral over the locals,
        the same on both sides.
    score
        Gradient of the log factor.
    halved, found
        By quadrature the difference that half of the nodes make; and whether single locals had their modes found, by
        quadrature with finite scores.
    """

    sides: Float[Array, "2 draw m"]
    value: Float[Array, " sided"]
    score: Float[Array, "sided p"]
    halved: Float[Array, " draw"]
    found: Bool[Array, " draw"]


class Weights(NamedTuple):
    """Of the draws on both sides, what they say of the evidence, and whether they can be trusted."""

    weight: Float[Array, " sided"]
    k_hat: Float[Array, ""]
    effective: Float[Array, ""]
    log_mean: Float[Array, ""]
    reliable: Bool[Array, ""]


def drawn_at(
    tilted: Tilted, theta: Array, given: Conditional, found: Array, batch: Batch, integration: Integration
) -> Drawn:
    """Two opposite draws of the locals at each draw of the globals."""
    last, noise = batch.last, batch.noise[:, theta.shape[1] :]
    factor, groups = tilted.factor, jnp.asarray(tilted.factor.groups)
    at = jax.vmap(Conditional.draw, (0, 0, None))
    sides = jnp.stack([at(given, sign * noise, groups) for sign in (1.0, -1.0)])
    integrals = halved = jnp.zeros(len(theta))
    if integration.needed(factor):
        by_draws = sides, integrals, halved
        sides, integrals, halved = jax.lax.cond(
            last, lambda: _by_quadrature(factor, theta, given, noise, integration.nodes), lambda: by_draws
        )
    value, score = tilted.scores_of_sides(theta, sides, batch.most, jnp.sum(batch.taken))
    spread = 0.5 * jnp.sum(noise**2, axis=1) + jax.vmap(Conditional.log_spread)(given)
    value = value + jnp.tile(spread + 0.5 * noise.shape[1] * LOG_2PI, 2)
    if integration.needed(factor):
        finite = jnp.isfinite(value) & jnp.all(jnp.isfinite(score), axis=1)
        value = jnp.where(last, jnp.where(finite, jnp.tile(integrals, 2), -jnp.inf), value)
        found = found & jnp.all(finite.reshape(2, -1), axis=0)
    return Drawn(sides, value, score, halved, found)


def _by_quadrature(
    factor: Factor, theta: Array, given: Conditional, noise: Array, nodes: int
) -> tuple[Array, Array, Array]:
    """Quantiles of single locals, on two sides, the log integral over all, and what half of the nodes change."""

    def at(point: tuple[Array, Array, Array, Array]) -> tuple[Array, Array, Array]:
        one, mode, white, levels = point
        known = quadrature.reference_at(factor.given(one), mode, white[:, 0, 0], nodes=nodes)
        found = quadrature.integrated_and_drawn(factor.given(one), known, jnp.stack([levels, 1.0 - levels]))
        sides = jnp.where(jnp.isfinite(found.drawn), found.drawn, mode)  # where the weight is zero, too
        return sides, found.value, found.halved

    points = theta, given.mode, given.white, ndtr(noise)
    sides, values, halved = factor.at_many(at, points, nodes, AT_ONCE)
    return jnp.swapaxes(sides, 0, 1), values, halved


def weighed(log_weight: Array, drawn: Drawn, integrates: bool) -> Weights:
    """Pareto-smoothed; by quadrature, in the last iteration, both sides of a draw have the same weight and count once.

    Weights by quadrature look well whatever their integrals are, so that these are looked at: what half of the nodes
    would change, and whether modes were found, by weight and, as what is lost may have none, among the narrow half.
    """
    num, known = len(drawn.found), jnp.array(True)
    one_side = jnp.minimum(log_weight[:num], log_weight[num:]) if integrates else log_weight
    weight, k_hat = pareto_smooth(one_side)
    effective = 1.0 / jnp.sum(weight**2)
    even = effective > 0.99 * len(weight)  # then k-hat is noise
    if integrates:
        halved = jnp.where(weight > 0.0, drawn.halved, 0.0)
        sd = jnp.sqrt(weight @ (halved - weight @ halved) ** 2)
        lost = jnp.mean(~drawn.found[: num // 2])
        known = (sd < _MOST_HALVED) & (weight @ ~drawn.found < _MOST_LOST) & (lost < _MOST_LOST_OF_NARROW)
        weight = 0.5 * jnp.tile(weight, 2)
    return Weights(weight, k_hat, effective, log_mean_exp(one_side), ((k_hat <= K_HAT_LIMIT) | even) & known)
