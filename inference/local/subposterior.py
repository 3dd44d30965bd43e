"""One client's subposterior, its factor times its share of the prior, summed up as a Gaussian and as draws."""

from collections.abc import Callable
from functools import partial
from typing import NamedTuple

import jax
import jax.numpy as jnp
from jax import Array

from fedbayes.gaussian import Gaussian
from fedbayes.inference.local.importance import K_HAT_LIMIT
from fedbayes.inference.local.moments import Estimator, TiltedDraws
from fedbayes.inference.local.nuts import NUM_CHAINS, nuts_chains
from fedbayes.inference.local.sampling import equal_weights, pool_size
from fedbayes.inference.local.solvers import importance_draws
from fedbayes.inference.local.tilted import Tilted, Warm, laplace_evidence, site_of_gaussian, with_evidence
from fedbayes.problem.clients import Client
from fedbayes.problem.prior import Prior


class Subposterior(NamedTuple):
    """``f_k(theta, z) p(theta)^share`` in unconstrained space: the product over clients is the posterior.

    Attributes
    ----------
    client
        Gives the factor.
    prior
        Of the globals, with its Jacobian.
    share
        This client's; the shares of all clients sum to one, so that the prior counts once.
    """

    client: Client
    prior: Prior
    share: Array

    @property
    def num_locals(self) -> int:
        """Number of local latents."""
        return self.client.num_locals

    def log_factor(self, position: Array) -> Array:
        """Log density at the joint position ``(theta, z)``, unnormalised."""
        return self.client.log_factor(position) + self.share * self.prior.log_density(position[: self.prior.size])

    def alone(self) -> Tilted:
        """The subposterior as a density to be sampled: nobody else's knowledge goes in."""
        return Tilted(self, Gaussian.neutral(self.prior.size))


class Summary(NamedTuple):
    """What a client finds out about its subposterior's globals; local latents are integrated out.

    Attributes
    ----------
    gaussian
        Mean and precision as natural parameters, with the evidence as its integral.
    draws
        Draws of equal weight, shape ``(n, d)``; ``n`` is zero where nobody asked for any.
    k_hat, effective
        Of the importance weights; zero and infinite without randomness.
    reliable
        Whether the draws can be trusted.
    mode
        Joint mode, shape ``(d + m,)``: the next start.
    """

    gaussian: Gaussian
    draws: Array
    k_hat: Array
    effective: Array
    reliable: Array
    mode: Array


Summariser = Callable[[Subposterior, Array, Array], Summary]


def by_laplace(sub: Subposterior, start: Array, key: Array) -> Summary:
    """Mode and curvature; exact for Gaussian clients."""
    tilted = sub.alone()
    mode = tilted.mode(start, tolerance=1e-8)
    gaussian = site_of_gaussian(mode.position, mode.curvature, tilted.cavity, laplace_evidence(tilted, mode))
    nothing = jnp.zeros((0, sub.prior.size))
    return Summary(gaussian, nothing, jnp.zeros(()), jnp.full((), jnp.inf), jnp.array(True), mode.position)


def by_importance(
    sub: Subposterior, start: Array, key: Array, *, num_draws: int, num_kept: int, estimator: Estimator
) -> Summary:
    """Importance sampling from the Laplace approximation with ``num_draws`` draws, ``num_kept`` of them resampled."""
    tilted, (draw_key, pick_key) = sub.alone(), jax.random.split(key)
    draws, k_hat, evidence, mode = importance_draws(tilted, start, draw_key, num_draws)
    found = estimator(draws, tilted.cavity)
    gaussian = with_evidence(found.shift, found.precision, tilted.cavity, evidence)
    kept = equal_weights(draws, pick_key, num_kept)[:, : sub.prior.size]
    reliable = (k_hat <= K_HAT_LIMIT) | (draws.effective > 0.99 * num_draws)
    return Summary(gaussian, kept, k_hat, draws.effective, reliable, mode.position)


def by_nuts(
    sub: Subposterior,
    start: Array,
    key: Array,
    *,
    num_draws: int,
    num_kept: int,
    num_warmup: int,
    estimator: Estimator,
) -> Summary:
    """NumPyro's NUTS, whitened by the Laplace approximation: four chains, ``num_draws`` draws in all."""
    tilted, (pool_key, chain_key, mix_key) = sub.alone(), jax.random.split(key, 3)
    proposed, k_hat, evidence, mode = importance_draws(tilted, start, pool_key, 256)
    warm = Warm(start, jnp.full((NUM_CHAINS, start.shape[0]), jnp.nan), jnp.asarray(0.5))
    position, _, _, effective = nuts_chains(
        tilted.log_density, mode, warm, proposed, chain_key, num_draws=num_draws, num_warmup=num_warmup
    )
    _, score = tilted.scores(position)
    weight = jnp.full(num_draws, 1.0 / num_draws)
    found = estimator(TiltedDraws(position, score, weight, mode.position, mode.curvature, effective), tilted.cavity)
    gaussian = with_evidence(found.shift, found.precision, tilted.cavity, evidence)
    # consensus pairs draws of different clients: neighbours in a chain must not meet neighbours
    mixed = jax.random.permutation(mix_key, position)[:num_kept, : sub.prior.size]
    return Summary(gaussian, mixed, k_hat, effective, jnp.array(True), mode.position)


def samplers(name: str, num_samples: int, num_kept: int, estimator: Estimator) -> dict[str, Summariser]:
    """The ways to sum up that a sampler's name stands for, its first choice first.

    Parameters
    ----------
    name
        ``"importance"``, ``"nuts"``, ``"laplace"``, or ``"auto"``: importance sampling, and NUTS for the unreliable.
    num_samples, num_kept
        Draws for the moments, and those handed on.
    estimator
        Turns the draws into a Gaussian.
    """
    if name == "laplace":
        return {"laplace": by_laplace}
    pool = max(256, pool_size(num_samples)) if num_kept else 1 << (num_samples - 1).bit_length()
    chains = max(64, 4 * -(-num_samples // 4))
    known: dict[str, Summariser] = {
        "importance": partial(by_importance, num_draws=pool, num_kept=num_kept, estimator=estimator),
        "nuts": partial(by_nuts, num_draws=chains, num_kept=num_kept, num_warmup=100, estimator=estimator),
    }
    return known if name == "auto" else {name: known[name]}
