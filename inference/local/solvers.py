"""Local solvers: four ways from a tilted density to a Gaussian site, all pure and batched over clients by ``vmap``."""

from collections.abc import Callable

import jax
import jax.numpy as jnp
from jax import Array

from fedbayes.gaussian import LOG_2PI, Gaussian, log_det, symmetrised, whitener
from fedbayes.inference.local.importance import K_HAT_LIMIT, log_mean_exp, pareto_smooth, quasi_normal
from fedbayes.inference.local.laplace import Mode
from fedbayes.inference.local.moments import Estimator, TiltedDraws
from fedbayes.inference.local.nuts import nuts_chains
from fedbayes.inference.local.tilted import LocalSite, Tilted, Warm, laplace_evidence, site_of_gaussian, with_evidence

Solver = Callable[[Tilted, Warm, Array], LocalSite]


def laplace(tilted: Tilted, warm: Warm, key: Array) -> LocalSite:
    """Gaussian approximation at the joint mode; deterministic, so ``key`` is not used."""
    mode = tilted.mode(warm.position, tolerance=1e-8)
    evidence = laplace_evidence(tilted, mode)
    site = site_of_gaussian(mode.position, mode.curvature, tilted.cavity, evidence)
    return _deterministic(site, warm._replace(position=mode.position))


def importance(tilted: Tilted, warm: Warm, key: Array, *, num_draws: int, estimator: Estimator) -> LocalSite:
    """Importance sampling from the Laplace approximation, quasi-random, Pareto-smoothed; the default.

    Parameters
    ----------
    tilted
        The target.
    warm
        Newton starts from its position.
    key
        Shifts the quasi-random sequence.
    num_draws
        A power of two, above ``2 d + 2``.
    estimator
        Turns the draws into a site.
    """
    draws, k_hat, evidence, mode = importance_draws(tilted, warm.position, key, num_draws)
    found = estimator(draws, tilted.cavity)
    site = with_evidence(found.shift, found.precision, tilted.cavity, evidence)
    warm = warm._replace(position=mode.position)
    reliable = (k_hat <= K_HAT_LIMIT) | (draws.effective > 0.99 * num_draws)
    return LocalSite(site, found.shift_variance, found.precision_variance, k_hat, draws.effective, warm, reliable)


def importance_draws(
    tilted: Tilted, start: Array, key: Array, num_draws: int
) -> tuple[TiltedDraws, Array, Array, Mode]:
    """Weighted draws, k-hat, log evidence of the tilted kernel, and the mode."""
    mode = tilted.mode(start)
    noise = quasi_normal(key, num_draws, start.shape[0])
    position = mode.position + noise @ mode.white
    log_factor, score = tilted.scores(position)
    log_weight = log_factor + jax.vmap(tilted.log_cavity)(position) + 0.5 * jnp.sum(noise**2, axis=1)
    log_weight = jnp.where(jnp.isfinite(log_weight), log_weight, -jnp.inf)
    score = jnp.where(jnp.isneginf(log_weight)[:, None], 0.0, score)
    weight, k_hat = pareto_smooth(log_weight)
    evidence = log_mean_exp(log_weight) + 0.5 * (start.shape[0] * LOG_2PI - log_det(mode.white))
    draws = TiltedDraws(position, score, weight, mode.position, mode.curvature, 1.0 / jnp.sum(weight**2))
    return draws, k_hat, evidence, mode


def nuts(tilted: Tilted, warm: Warm, key: Array, *, num_draws: int, num_warmup: int, estimator: Estimator) -> LocalSite:
    """NumPyro's NUTS, whitened by Laplace and warm-started; k-hat and evidence by importance sampling.

    Parameters
    ----------
    tilted
        The target.
    warm
        Positions and step size of the last round; in the first round chains start from importance draws.
    key
        Randomness of this client and round.
    num_draws
        In all chains together.
    num_warmup
        Steps per chain that adapt the step size and are thrown away.
    estimator
        Turns the draws into a site.
    """
    proposal_key, chain_key = jax.random.split(key)
    proposed, k_hat, evidence, mode = importance_draws(tilted, warm.position, proposal_key, num_draws)
    position, step_size, last, effective = nuts_chains(
        tilted.log_density, mode, warm, proposed, chain_key, num_draws=num_draws, num_warmup=num_warmup
    )
    _, score = tilted.scores(position)
    weight = jnp.full(num_draws, 1.0 / num_draws)
    found = estimator(TiltedDraws(position, score, weight, mode.position, mode.curvature, effective), tilted.cavity)
    site = with_evidence(found.shift, found.precision, tilted.cavity, evidence)
    return LocalSite(
        site, found.shift_variance, found.precision_variance, k_hat, effective, Warm(mode.position, last, step_size)
    )


def variational(tilted: Tilted, warm: Warm, key: Array, *, num_draws: int, num_steps: int = 8) -> LocalSite:
    """Gaussian variational approximation of the tilted density by natural gradients.

    Each step draws from the current Gaussian and regresses the full score on the draws: by Stein's identity the slope
    is the mean Hessian ``E_q[H]``, so ``Lambda <- -E_q[H]``, ``mean <- mean + Lambda^-1 E_q[score]`` (Opper and
    Archambeau 2009). The same draws in every step make it a deterministic fixed-point iteration.
    """
    mode = tilted.mode(warm.position)
    noise = quasi_normal(key, num_draws, warm.position.shape[0])
    noise = noise - jnp.mean(noise, axis=0)
    noise = noise @ whitener(noise.T @ noise / num_draws).T  # second moments exact, and so is the bound for a Gaussian
    gradient = jax.vmap(jax.value_and_grad(tilted.log_density))

    def step(carry: tuple[Array, Array, Array], _: None) -> tuple[tuple[Array, Array, Array], None]:
        mean, curvature, white = carry
        offset = noise @ white
        _, score = gradient(mean + offset)
        gram = whitener(offset.T @ offset)
        slope = gram.T @ (gram @ (offset.T @ score))
        proposed = symmetrised(0.5 * curvature - 0.5 * slope)
        proposed_white = whitener(proposed)
        ok = jnp.all(jnp.isfinite(proposed_white))
        white = jnp.where(ok, proposed_white, white)
        move = white.T @ (white @ jnp.mean(score, axis=0))
        return (mean + move, jnp.where(ok, proposed, curvature), white), None

    (mean, curvature, white), _ = jax.lax.scan(step, (mode.position, mode.curvature, mode.white), None, num_steps)
    log_density, _ = gradient(mean + noise @ white)
    entropy = 0.5 * (mean.shape[0] * (LOG_2PI + 1.0) - log_det(white))
    site = site_of_gaussian(mean, curvature, tilted.cavity, jnp.mean(log_density) + entropy)
    return _deterministic(site, warm._replace(position=mean))


def _deterministic(site: Gaussian, warm: Warm) -> LocalSite:
    zero = jnp.zeros(())
    return LocalSite(
        site, jnp.zeros_like(site.shift), jnp.zeros_like(site.precision), zero, jnp.full((), jnp.inf), warm
    )
