"""Draws of a tilted density, by importance sampling or by NUTS, with their scores, weights and evidence."""

from typing import NamedTuple

import jax
import jax.numpy as jnp
from jax import Array
from jaxtyping import Bool, Float, Key

from fedbayes.errors import K_HAT_LIMIT
from fedbayes.inference.local.density.laplace import Mode
from fedbayes.inference.local.density.moments import TiltedDraws, locals_integrated_out
from fedbayes.inference.local.density.tilted import Tilted, Warm
from fedbayes.inference.local.sampling.nuts import nuts_chains
from fedbayes.numerics.gaussian import LOG_2PI, log_det
from fedbayes.numerics.importance import log_mean_exp, pareto_smooth, quasi_normal, random_shift


class Drawn(NamedTuple):
    """What a sampler finds out about a tilted density.

    Attributes
    ----------
    draws
        Weighted draws with their scores.
    k_hat
        Pareto tail shape of the importance weights.
    log_evidence
        Log integral of the tilted kernel, by importance sampling.
    reliable
        Whether the draws can be trusted.
    warm
        Where the next round starts.
    mode
        Of the tilted density.
    """

    draws: TiltedDraws
    k_hat: Float[Array, ""]
    log_evidence: Float[Array, ""]
    reliable: Bool[Array, ""]
    warm: Warm
    mode: Mode


def importance_inputs(key: Key[Array, ""], size: int) -> Float[Array, " {size}"]:
    """The random numbers of :func:`by_importance` in ``size`` joint dimensions."""
    return random_shift(key, size)


def by_importance(tilted: Tilted, warm: Warm, shift: Float[Array, " p"], *, num_samples: int) -> Drawn:
    """Importance sampling from the Laplace approximation: quasi-random draws, Pareto-smoothed weights.

    Parameters
    ----------
    tilted
        The target.
    warm
        Newton starts from its position.
    shift
        Of the quasi-random sequence.
    num_samples
        A power of two.
    """
    mode = tilted.mode(warm.position)
    return _weighted(tilted, mode, warm, shift, num_samples)


def _weighted(tilted: Tilted, mode: Mode, warm: Warm, shift: Array, num_samples: int) -> Drawn:
    noise = quasi_normal(shift, num_samples)
    position = mode.position + noise @ mode.white
    log_factor, score = tilted.scores(position)
    log_weight = log_factor + tilted.log_cavities(position) + 0.5 * jnp.sum(noise**2, axis=1)
    log_weight = jnp.where(jnp.isfinite(log_weight), log_weight, -jnp.inf)
    score = jnp.where(jnp.isneginf(log_weight)[:, None], 0.0, score)
    weight, k_hat = pareto_smooth(log_weight)
    evidence = log_mean_exp(log_weight) + 0.5 * (shift.shape[0] * LOG_2PI - log_det(mode.white))
    effective = 1.0 / jnp.sum(weight**2)
    draws = _tilted_draws(mode, tilted.cavity.size, position, score, weight, effective)
    # weights that hardly vary are fine whatever their k-hat, which is noise there
    reliable = (k_hat <= K_HAT_LIMIT) | (effective > 0.99 * num_samples)
    return Drawn(draws, k_hat, evidence, reliable, warm._replace(position=mode.position), mode)


def _tilted_draws(mode: Mode, size: int, position: Array, score: Array, weight: Array, effective: Array) -> TiltedDraws:
    """With the Laplace approximation at the mode, of ``size`` globals."""
    precision, coupling = locals_integrated_out(mode.curvature, size)
    return TiltedDraws(position, score, weight, mode.position, precision, coupling, effective)


def nuts_inputs(key: Key[Array, ""], size: int) -> tuple[Float[Array, " {size}"], Key[Array, ""]]:
    """The random numbers of :func:`by_nuts` in ``size`` joint dimensions."""
    shift_key, chain_key = jax.random.split(key)
    return random_shift(shift_key, size), chain_key


def by_nuts(
    tilted: Tilted,
    warm: Warm,
    inputs: tuple[Float[Array, " p"], Key[Array, ""]],
    *,
    num_samples: int,
    num_warmup: int,
    num_proposed: int,
) -> Drawn:
    """NumPyro's NUTS, whitened by Laplace and warm-started; k-hat and evidence by importance sampling.

    Parameters
    ----------
    tilted
        The target.
    warm
        Positions and step size of the last round; in the first round chains start from importance draws.
    inputs
        From :func:`nuts_inputs`.
    num_samples
        In all chains together.
    num_warmup
        Steps per chain that adapt the step size and are thrown away.
    num_proposed
        Importance draws, a power of two.
    """
    shift, chain_key = inputs
    mode = tilted.mode(warm.position)
    proposed = _weighted(tilted, mode, warm, shift, num_proposed)
    position, step_size, last, effective = nuts_chains(
        tilted.log_density, mode, warm, proposed.draws, chain_key, num_samples=num_samples, num_warmup=num_warmup
    )
    _, score = tilted.scores(position)
    weight = jnp.full(num_samples, 1.0 / num_samples)
    draws = _tilted_draws(mode, tilted.cavity.size, position, score, weight, effective)
    after = Warm(mode.position, last, step_size)
    return Drawn(draws, proposed.k_hat, proposed.log_evidence, jnp.array(True), after, mode)
