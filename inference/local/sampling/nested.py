"""Importance sampling of a tilted density whose locals depend strongly on the globals, as in hierarchical models.

One Gaussian for globals and locals together is a bad proposal there: how far the locals spread depends on their scale,
which is a global, and the joint mode may lie far from the globals' own, or nowhere. The proposal is nested instead,

    q(theta, z) = N(theta; mu, Lambda^-1) N(z; z*(theta), H(theta)^-1),

with the mode and curvature of the locals *given* each draw of the globals, so that the locals' scale and the number of
their groups do not matter: where they are Gaussian given the globals, the weights depend on the globals alone. Each
draw of the globals has two opposite draws of the locals. The Gaussian of the globals comes from the same regression as
the site: twice from few draws with equal weights, by which ``Lambda`` becomes minus the mean Hessian of the log
marginal under ``q`` (the variational fixed point of Opper and Archambeau 2009), last from all with the importance
weights. Half of the last draws are twice as wide: that fixed point is too narrow for the long tail of a log scale.
Where single locals are many, whose draws would leave noise in the weights, the last weights have them integrated out by
quadrature, and the two draws are quantiles at opposite levels.
"""

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax import Array
from jaxtyping import Bool, Float

from fedbayes.contract.work import GIVEN, GRADIENT, Work
from fedbayes.inference.local.density import quadrature
from fedbayes.inference.local.density.conditional import (
    NEAR,
    Conditional,
    Line,
    find_conditional,
    find_singles,
    of_globals,
)
from fedbayes.inference.local.density.moments import Estimator, TiltedDraws
from fedbayes.inference.local.density.tilted import LaplaceSite, LocalSite, Tilted, Warm, site_of_gaussian
from fedbayes.inference.local.density.work import search_given
from fedbayes.inference.local.sampling.integration import AT_ONCE, MANY_SINGLES, Batch, Integration, drawn_at, weighed
from fedbayes.numerics.gaussian import LARGE, LOG_2PI, Gaussian, log_det, symmetrised, whitener
from fedbayes.numerics.importance import quasi_normal
from fedbayes.problem.client import Client

_ITERATIONS = 3  # of the Gaussian of the globals, the last with importance weights
_FEWEST = 128  # draws of an iteration that is not the last
_NEWTON = 12  # steps to the mode of the locals given the mean and each draw of the globals
_WIDE = 2.0  # half of the last iteration's draws of the globals spread so much more, for the tails of scales
_STEPS = (1.0, 0.3, 0.1, 0.03)  # towards the next Gaussian of the globals; the first that is not too far


class _Found(NamedTuple):
    """What one iteration's draws say of the weights, the evidence, and the locals' modes."""

    k_hat: Float[Array, ""]
    log_evidence: Float[Array, ""]
    effective: Float[Array, ""]
    reliable: Bool[Array, ""]
    laplace: LaplaceSite
    line: Line


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
        Draws of the globals in the last iteration, a power of two; there are twice as many of the locals.
    estimator
        Turns the draws into a site.
    many
        Single locals from which the last weights have them integrated out by quadrature. The noise of their draws grows
        with their number, while quadrature costs as many gradients whatever it is.
    nodes
        Of that quadrature.
    """
    size, cavity = tilted.cavity.size, tilted.cavity
    noise, few = quasi_normal(shift, num_samples), _few(num_samples, size)
    most = few if _on_cores() else num_samples

    def iterate(carry: tuple[Array, Array, Line], last: Array) -> tuple[tuple, tuple]:
        mean, precision, line = carry
        batch = Batch(noise, jnp.arange(num_samples) < jnp.where(last, num_samples, few), most, last)
        draws, found = _nested_draws(tilted, mean, whitener(precision), line, batch, Integration(many, nodes))
        both = 2.0 * few  # on two sides
        even = jnp.tile(batch.taken, 2) / both
        weight, effective = jnp.where(last, draws.weight, even), jnp.where(last, draws.effective, both)
        site = estimator(draws._replace(weight=weight, effective=effective), cavity)
        mean, precision = _towards(mean, precision, cavity, Gaussian(site.shift, site.precision, jnp.zeros(())))
        return (mean, precision, found.line), (found, site)

    mean, precision = _first(tilted, warm)
    flat = jnp.zeros((warm.position.shape[0] - size, size))
    begin = mean, precision, Line(mean, warm.position[size:], flat)
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


def _few(num_samples: int, size: int) -> int:
    """Draws of all iterations but the last, whose sites are only proposals: half of the default of ``EP``."""
    return min(num_samples, max(_FEWEST, 1 << (4 * (size + 1) - 1).bit_length()))


def work_of_nested(client: Client, num_samples: int, many: int, nodes: int) -> Work:
    """Of :func:`nested_site`."""
    size, few = client.groups.shape[1], _few(num_samples, client.program.globals.size)
    drawn = Work(2.0 * GRADIENT)
    last = Work(nodes * GIVEN * GRADIENT) if size == 1 and client.num_locals >= many else Work(0.0)
    at_once = AT_ONCE if _is_slow(size) else 1  # at least
    draws = num_samples + (_ITERATIONS - 1) * few
    return search_given(client).and_then(drawn).times(draws, at_once).and_then(last.times(num_samples))


def _on_cores() -> bool:
    """Whether draws side by side take more time than one: an accelerator has room for many."""
    return jax.default_backend() == "cpu"


def _is_slow(size: int) -> bool:
    """Whether a step of a search in groups of so many locals takes long.

    A batch takes as many steps as its slowest draw, so that it is small then.
    """
    return size >= LARGE or (size > 1 and _on_cores())


def _first(tilted: Tilted, warm: Warm) -> tuple[Array, Array]:
    """The first Gaussian of the globals: the server's, as far as it is known and proper."""
    size = tilted.cavity.size
    guess = warm.position[:size] if tilted.guess is None else tilted.guess
    mean = jnp.where(jnp.all(jnp.isfinite(guess)), guess, warm.position[:size])
    precision = tilted.cavity.precision if tilted.spread is None else tilted.spread
    proper = jnp.all(jnp.isfinite(whitener(precision)))
    return mean, jnp.where(proper, precision, jnp.eye(size))


def _nested_draws(
    tilted: Tilted, mean: Array, white: Array, line: Line, batch: Batch, integration: Integration
) -> tuple[TiltedDraws, _Found]:
    """Weighted draws of the nested proposal.

    Its globals are half from the Gaussian ``mean``, ``white``, and half from one that is wider in the last iteration;
    weights are with respect to the mixture. Draws that are not taken have no weight.
    """
    size, groups = tilted.cavity.size, jnp.asarray(tilted.factor.groups)
    noise, last = batch.noise, batch.last

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
    at_once, num = AT_ONCE if _is_slow(groups.shape[1]) else batch.most + 1, 1 + jnp.sum(batch.taken)
    searched = tilted.factor.at_many(given, (everywhere, line.at(everywhere)), groups.shape[1], at_once, num)
    (at_mean, found_at_mean), (locals_, found) = _parted(searched)
    drawn = drawn_at(tilted, theta, locals_, found, batch, integration)

    position = jnp.concatenate([jnp.concatenate([theta, side], axis=1) for side in drawn.sides])
    log_weight = drawn.value + tilted.log_cavities(position) - jnp.tile(log_mixture, 2)
    log_weight = jnp.where(jnp.isfinite(log_weight) & jnp.tile(batch.taken, 2), log_weight, -jnp.inf)
    score = jnp.where(jnp.isneginf(log_weight)[:, None], 0.0, drawn.score)
    known = weighed(log_weight, drawn, integration.needed(tilted.factor))
    evidence = known.log_mean + 0.5 * (size * LOG_2PI - log_det(white))

    laplace, precision, coupling = _expanded(tilted, mean, at_mean, found_at_mean)
    centre = jnp.concatenate([mean, at_mean.mode])
    draws = TiltedDraws(position, score, known.weight, centre, precision, coupling, known.effective, sides=2)
    line = Line(mean, at_mean.mode, -coupling.T)
    return draws, _Found(known.k_hat, evidence, known.effective, known.reliable, laplace, line)


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
