"""Importance sampling of a tilted density whose locals depend strongly on the globals, as in hierarchical models.

One Gaussian for globals and locals together is a bad proposal there: how far the locals spread depends on their scale,
which is a global, and the joint mode may lie far from the globals' own, or nowhere. The proposal is nested instead,

    q(theta, z) = N(theta; mu, Lambda^-1) N(z; z*(theta), H(theta)^-1),

with the mode and curvature of the locals *given* each draw of the globals, so that the locals' scale and the number of
their groups do not matter: where they are Gaussian given the globals, the weights depend on the globals alone. Each
draw of the globals has two opposite draws of the locals. The Gaussian of the globals comes from the same regression as
the site: first with equal weights, by which ``Lambda`` becomes minus the mean Hessian of the log marginal under
``q`` (the variational fixed point of Opper and Archambeau 2009), last with the importance weights. Half of the last
draws are twice as wide: that fixed point is too narrow for the long tail of a log scale. Where single locals are many,
whose draws would leave noise in the weights, the last weights have them integrated out by quadrature, and the two draws
are quantiles at opposite levels.
"""

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax import Array
from jax.scipy.special import ndtr
from jaxtyping import Bool, Float

from fedbayes.errors import K_HAT_LIMIT
from fedbayes.inference.local.density import quadrature
from fedbayes.inference.local.density.conditional import (
    NEAR,
    Conditional,
    find_conditional,
    find_singles,
    of_globals,
)
from fedbayes.inference.local.density.moments import Estimator, TiltedDraws
from fedbayes.inference.local.density.tilted import Factor, LaplaceSite, LocalSite, Tilted, Warm, site_of_gaussian
from fedbayes.numerics.gaussian import LARGE, LOG_2PI, Gaussian, log_det, symmetrised, whitener
from fedbayes.numerics.importance import log_mean_exp, pareto_smooth, quasi_normal

_ITERATIONS = 3  # of the Gaussian of the globals, the last with importance weights
_AT_ONCE = 16  # draws of the globals side by side, where each takes much
_NEWTON = 12  # steps to the mode of the locals given the mean and each draw of the globals
_WIDE = 2.0  # half of the last iteration's draws of the globals spread so much more, for the tails of scales
MANY_SINGLES = 256  # for fewer, two draws are cheaper, and seldom too noisy
_MOST_HALVED = 1.0  # nats, sd under the weights of what half of the nodes change: some ten times the integrals' error
_MOST_LOST = 0.01  # of the weight, where modes of locals were not found
_MOST_LOST_OF_NARROW = 0.1  # of the draws of the narrow half, the same
_STEPS = (1.0, 0.3, 0.1, 0.03)  # towards the next Gaussian of the globals; the first that is not too far


class Integration(NamedTuple):
    """From how many single locals on the last weights have them integrated out, and by how many nodes."""

    many: int
    nodes: int

    def needed(self, factor: Factor) -> bool:
        """Whether the client has so many."""
        return factor.groups.shape[1] == 1 and factor.groups.shape[0] >= self.many


class _Line(NamedTuple):
    """Where the locals' mode is expected: at ``z`` where the globals are at ``theta``, and from there on a line."""

    theta: Float[Array, " d"]
    z: Float[Array, " m"]
    slope: Float[Array, "m d"]

    def at(self, theta: Float[Array, "draw d"]) -> Float[Array, "draw m"]:
        """The locals expected at many globals."""
        return self.z + (theta - self.theta) @ self.slope.T


class _Found(NamedTuple):
    """What one iteration's draws say of the weights, the evidence, and the locals' modes."""

    k_hat: Float[Array, ""]
    log_evidence: Float[Array, ""]
    effective: Float[Array, ""]
    reliable: Bool[Array, ""]
    laplace: LaplaceSite
    line: _Line


class _Drawn(NamedTuple):
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


class _Weights(NamedTuple):
    """Of the draws on both sides, what they say of the evidence, and whether they can be trusted."""

    weight: Float[Array, " sided"]
    k_hat: Float[Array, ""]
    effective: Float[Array, ""]
    log_mean: Float[Array, ""]
    reliable: Bool[Array, ""]


def nested_site(
    tilted: Tilted,
    warm: Warm,
    shift: Float[Array, " p"],
    *,
    num_samples: int,
    estimator: Estimator,
    many: int = MANY_SINGLES,
    nodes: int = quadrature.NODES,
) -> LocalSite:
    """The site by nested importance sampling.

    Parameters
    ----------
    tilted
        The target; its ``guess`` and ``spread`` are the first Gaussian of the globals.
    warm
        Where the locals' modes are sought from.
    shift
        Of the quasi-random sequence.
    num_samples
        Draws of the globals, a power of two; there are twice as many of the locals.
    estimator
        Turns the draws into a site.
    many
        Single locals from which the last weights have them integrated out by quadrature. The noise of their draws grows
        with their number, while quadrature costs as many gradients whatever it is.
    nodes
        Of that quadrature.
    """
    size, cavity = tilted.cavity.size, tilted.cavity
    noise = quasi_normal(shift, num_samples)

    def iterate(carry: tuple[Array, Array, _Line], last: Array) -> tuple[tuple, tuple]:
        mean, precision, line = carry
        draws, found = _nested_draws(tilted, mean, whitener(precision), line, noise, last, Integration(many, nodes))
        even = jnp.full_like(draws.weight, 1.0 / len(draws.weight))
        site = estimator(draws._replace(weight=jnp.where(last, draws.weight, even)), cavity)
        mean, precision = _towards(mean, precision, cavity, Gaussian(site.shift, site.precision, jnp.zeros(())))
        return (mean, precision, found.line), (found, site)

    mean, precision = _first(tilted, warm)
    flat = jnp.zeros((warm.position.shape[0] - size, size))
    begin = mean, precision, _Line(mean, warm.position[size:], flat)
    last = jnp.arange(_ITERATIONS) == _ITERATIONS - 1
    _, outs = jax.lax.scan(iterate, begin, last)
    found, site = jax.tree.map(lambda leaf: leaf[-1], outs)
    return LocalSite(
        Gaussian(site.shift, site.precision, jnp.zeros(())),
        found.log_evidence,
        site.error,
        found.k_hat,
        found.effective,
        warm._replace(position=jnp.concatenate([found.line.theta, found.line.z])),
        found.laplace,
        found.reliable,
    )


def _first(tilted: Tilted, warm: Warm) -> tuple[Array, Array]:
    """The first Gaussian of the globals: the server's, as far as it is known and proper."""
    size = tilted.cavity.size
    guess = warm.position[:size] if tilted.guess is None else tilted.guess
    mean = jnp.where(jnp.all(jnp.isfinite(guess)), guess, warm.position[:size])
    precision = tilted.cavity.precision if tilted.spread is None else tilted.spread
    proper = jnp.all(jnp.isfinite(whitener(precision)))
    return mean, jnp.where(proper, precision, jnp.eye(size))


def _nested_draws(
    tilted: Tilted, mean: Array, white: Array, line: _Line, noise: Array, last: Array, integration: Integration
) -> tuple[TiltedDraws, _Found]:
    """Weighted draws of the nested proposal.

    Its globals are half from the Gaussian ``mean``, ``white``, and half from one that is wider in the last iteration;
    weights are with respect to the mixture.
    """
    size, groups = tilted.cavity.size, jnp.asarray(tilted.factor.groups)

    def given(at: tuple[Array, Array]) -> tuple[Conditional, Array]:
        theta, start = at
        log_density = tilted.factor.given(theta)
        if groups.shape[1] == 1:
            mode, scale, found = find_singles(log_density, start, jacobian=tilted.factor.jacobian)
            return Conditional(mode, scale[:, None, None]), found
        conditional = find_conditional(
            log_density, start, groups, max_steps=_NEWTON, near=NEAR, jacobian=tilted.factor.jacobian
        )
        return conditional, jnp.array(True)

    # each half of a Sobol sequence fills the space; every other point does not
    second, wide = jnp.arange(len(noise)) >= len(noise) // 2, jnp.where(last, _WIDE, 1.0)
    offset = noise[:, :size] * jnp.where(second, wide, 1.0)[:, None]
    squares = 0.5 * jnp.sum(offset**2, axis=1)
    log_mixture = jnp.logaddexp(-squares, -squares / wide**2 - size * jnp.log(wide)) - jnp.log(2.0)
    theta = mean + offset @ white
    # the mean goes with the draws: the search is in the program once
    everywhere = jnp.concatenate([mean[None], theta])
    # a batch takes as many steps as its slowest draw: of large groups, whose steps take long, batches are small
    at_once = None if groups.shape[1] < LARGE else _AT_ONCE
    searched = tilted.factor.at_many(given, (everywhere, line.at(everywhere)), groups.shape[1], at_once)
    (at_mean, found_at_mean), (locals_, found) = _parted(searched)
    drawn = _locals_at(tilted, theta, locals_, found, noise[:, size:], last, integration)

    position = jnp.concatenate([jnp.concatenate([theta, side], axis=1) for side in drawn.sides])
    log_weight = drawn.value + tilted.log_cavities(position) - jnp.tile(log_mixture, 2)
    log_weight = jnp.where(jnp.isfinite(log_weight), log_weight, -jnp.inf)
    score = jnp.where(jnp.isneginf(log_weight)[:, None], 0.0, drawn.score)
    weighed = _weights(log_weight, drawn, integration.needed(tilted.factor))
    evidence = weighed.log_mean + 0.5 * (size * LOG_2PI - log_det(white))

    laplace, precision, coupling = _expanded(tilted, mean, at_mean, found_at_mean)
    centre = jnp.concatenate([mean, at_mean.mode])
    draws = TiltedDraws(position, score, weighed.weight, centre, precision, coupling, weighed.effective, sides=2)
    line = _Line(mean, at_mean.mode, -coupling.T)
    return draws, _Found(weighed.k_hat, evidence, weighed.effective, weighed.reliable, laplace, line)


def _weights(log_weight: Array, drawn: _Drawn, integrates: bool) -> _Weights:
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
    return _Weights(weight, k_hat, effective, log_mean_exp(one_side), ((k_hat <= K_HAT_LIMIT) | even) & known)


def _locals_at(
    tilted: Tilted, theta: Array, given: Conditional, found: Array, noise: Array, last: Array, integration: Integration
) -> _Drawn:
    """Two opposite draws of the locals at each draw of the globals."""
    factor, groups = tilted.factor, jnp.asarray(tilted.factor.groups)
    at = jax.vmap(Conditional.draw, (0, 0, None))
    sides = jnp.stack([at(given, sign * noise, groups) for sign in (1.0, -1.0)])
    integrals = halved = jnp.zeros(len(theta))
    if integration.needed(factor):
        by_draws = sides, integrals, halved
        sides, integrals, halved = jax.lax.cond(
            last, lambda: _by_quadrature(factor, theta, given, noise, integration.nodes), lambda: by_draws
        )
    value, score = tilted.scores_of_sides(theta, sides)
    spread = 0.5 * jnp.sum(noise**2, axis=1) + jax.vmap(Conditional.log_spread)(given)
    value = value + jnp.tile(spread + 0.5 * noise.shape[1] * LOG_2PI, 2)
    if integration.needed(factor):
        finite = jnp.isfinite(value) & jnp.all(jnp.isfinite(score), axis=1)
        value = jnp.where(last, jnp.where(finite, jnp.tile(integrals, 2), -jnp.inf), value)
        found = found & jnp.all(finite.reshape(2, -1), axis=0)
    return _Drawn(sides, value, score, halved, found)


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
    sides, values, halved = factor.at_many(at, points, nodes, _AT_ONCE)
    return jnp.swapaxes(sides, 0, 1), values, halved


def _parted(both: Any) -> tuple[Any, Any]:
    """The first row, and all others."""
    return jax.tree.map(lambda leaf: leaf[0], both), jax.tree.map(lambda leaf: leaf[1:], both)


def _expanded(tilted: Tilted, mean: Array, at_mean: Conditional, found: Array) -> tuple[LaplaceSite, Array, Array]:
    """The Laplace approximation around the mean, the locals integrated out, and how the globals are coupled to them."""
    factor, cavity, groups = tilted.factor, tilted.cavity, jnp.asarray(tilted.factor.groups)
    corner, across = of_globals(factor, mean, at_mean.mode)
    coupling = at_mean.covariance_times(-across, groups)
    precision = symmetrised(cavity.precision - corner + coupling @ across.T)
    value = tilted.log_density(jnp.concatenate([mean, at_mean.mode]))
    of_locals = at_mean.log_spread() + 0.5 * at_mean.mode.shape[0] * LOG_2PI
    evidence = value + of_locals + 0.5 * (len(mean) * LOG_2PI - log_det(whitener(precision)))
    site = site_of_gaussian(mean, precision, cavity)
    return LaplaceSite(site, evidence, value, found), precision, coupling


def _towards(mean: Array, precision: Array, cavity: Gaussian, site: Gaussian) -> tuple[Array, Array]:
    """The Gaussian cavity times site, or as far on the way to it as can be trusted.

    A step is too far if some direction changes its precision tenfold, or the mean moves by four sds a dimension.
    """
    white, size = whitener(precision), cavity.size
    target, shift = cavity.precision + site.precision, cavity.shift + site.shift
    identity = jnp.eye(size)

    def at(step: Array) -> tuple[Array, Array, Array]:
        mixed = symmetrised(precision + step * (target - precision))
        relative = white @ mixed @ white.T
        bounds = jax.vmap(whitener)(jnp.stack([mixed, relative - 0.1 * identity, 10.0 * identity - relative]))
        moved = bounds[0].T @ (bounds[0] @ (precision @ mean + step * (shift - precision @ mean)))
        near = (moved - mean) @ precision @ (moved - mean) < 16.0 * size
        return moved, mixed, jnp.all(jnp.isfinite(bounds)) & near

    means, precisions, trusted = jax.vmap(at)(jnp.asarray(_STEPS))
    first, some = jnp.argmax(trusted), jnp.any(trusted)
    return jnp.where(some, means[first], mean), jnp.where(some, precisions[first], precision)
