"""Local solvers: four ways from a tilted density to a Gaussian site, all pure and batched over clients by ``vmap``."""

from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax import Array
from jaxtyping import Float, Key

from fedbayes.contract.work import GRADIENT, Work
from fedbayes.inference.local.density.moments import Estimator, SiteError, locals_integrated_out
from fedbayes.inference.local.density.quadrature import NODES
from fedbayes.inference.local.density.tilted import (
    NUM_CHAINS,
    LaplaceSite,
    LocalSite,
    Tilted,
    Warm,
    laplace_site,
    site_of_gaussian,
)
from fedbayes.inference.local.density.work import joint_search, plain_draws
from fedbayes.inference.local.sampling.draws import Drawn, by_importance, by_nuts, importance_inputs, nuts_inputs
from fedbayes.inference.local.sampling.integration import MANY_SINGLES
from fedbayes.inference.local.sampling.nested import nested_site, work_of_nested
from fedbayes.numerics.gaussian import LOG_2PI, Gaussian, log_det, symmetrised, whitener
from fedbayes.numerics.importance import quasi_normal
from fedbayes.problem.client import Client

_LEAPFROGS = 10  # of a step of NUTS, most often


class Solver(NamedTuple):
    """A way from a tilted density to a site.

    Attributes
    ----------
    run
        ``(tilted, warm, inputs) -> site``.
    inputs
        ``(key, size) -> inputs``: the random numbers that ``run`` needs in ``size`` joint dimensions.
    in_turn
        See :class:`~fedbayes.contract.algorithm.Update`: draws are many points at once, steps of Newton's method or of
        a Markov chain are few.
    work
        Of ``run`` at a client; ``None``: not known.
    """

    run: Callable[[Tilted, Warm, Any], LocalSite]
    inputs: Callable[[Array, int], Any]
    in_turn: bool = False
    work: Callable[[Client], Work] | None = None


def laplace() -> Solver:
    """Gaussian approximation at the joint mode; deterministic."""

    def run(tilted: Tilted, warm: Warm, inputs: tuple[()]) -> LocalSite:
        mode = tilted.mode(warm.position, tolerance=1e-8)
        found = laplace_site(mode, tilted.cavity)
        return _deterministic(found.site, found.log_evidence, warm._replace(position=mode.position), found)

    return Solver(run, lambda key, size: (), work=joint_search)


def importance(*, num_samples: int, estimator: Estimator) -> Solver:
    """Importance sampling from the Laplace approximation; the default.

    Parameters
    ----------
    num_samples
        A power of two, above ``2 d + 2``.
    estimator
        Turns the draws into a site.
    """

    def run(tilted: Tilted, warm: Warm, inputs: Float[Array, " p"]) -> LocalSite:
        return _estimated(by_importance(tilted, warm, inputs, num_samples=num_samples), tilted, estimator)

    return Solver(run, importance_inputs, in_turn=True, work=partial(plain_draws, num=num_samples))


def nested(*, num_samples: int, estimator: Estimator, many: int = MANY_SINGLES, nodes: int = NODES) -> Solver:
    """Importance sampling of the globals, and of the locals given them, for clients with locals.

    Parameters
    ----------
    num_samples
        Draws of the globals, a power of two, above ``2 d + 2``.
    estimator
        Turns the draws into a site.
    many, nodes
        See :func:`~fedbayes.inference.local.sampling.nested.nested_site`.
    """
    plain = importance(num_samples=num_samples, estimator=estimator)

    def run(tilted: Tilted, warm: Warm, inputs: Float[Array, " p"]) -> LocalSite:
        if tilted.factor.num_locals == 0:
            return plain.run(tilted, warm, inputs)
        return nested_site(tilted, warm, inputs, num_samples=num_samples, estimator=estimator, many=many, nodes=nodes)

    def work(client: Client) -> Work:
        if client.num_locals == 0:
            return plain_draws(client, num_samples)
        return work_of_nested(client, num_samples, many, nodes)

    return Solver(run, importance_inputs, in_turn=True, work=work)


def nuts(*, num_samples: int, num_warmup: int, estimator: Estimator) -> Solver:
    """NumPyro's NUTS.

    Parameters
    ----------
    num_samples
        In all chains together.
    num_warmup
        Steps per chain that adapt the step size and are thrown away.
    estimator
        Turns the draws into a site.
    """
    draw = partial(by_nuts, num_samples=num_samples, num_warmup=num_warmup, num_proposed=num_samples)

    def run(tilted: Tilted, warm: Warm, inputs: tuple[Float[Array, " p"], Key[Array, ""]]) -> LocalSite:
        return _estimated(draw(tilted, warm, inputs), tilted, estimator)

    def work(client: Client) -> Work:
        return joint_search(client).and_then(Work((num_samples + NUM_CHAINS * num_warmup) * _LEAPFROGS * GRADIENT))

    return Solver(run, nuts_inputs, work=work)


def _estimated(drawn: Drawn, tilted: Tilted, estimator: Estimator) -> LocalSite:
    found = estimator(drawn.draws, tilted.cavity)
    return LocalSite(
        Gaussian(found.shift, found.precision, jnp.zeros(())),
        drawn.log_evidence,
        found.error,
        drawn.k_hat,
        drawn.draws.effective,
        drawn.warm,
        laplace_site(drawn.mode, tilted.cavity),
        drawn.reliable,
    )


def variational(*, num_samples: int, num_steps: int = 8) -> Solver:
    """Gaussian variational approximation of the tilted density by natural gradients.

    Each step draws from the current Gaussian and regresses the full score on the draws: by Stein's identity the slope
    is the mean Hessian ``E_q[H]``, so ``Lambda <- -E_q[H]``, ``mean <- mean + Lambda^-1 E_q[score]`` (Opper and
    Archambeau 2009). The same draws in every step make it a deterministic fixed-point iteration.

    Parameters
    ----------
    num_samples
        A power of two.
    num_steps
        Of the iteration.
    """

    def run(tilted: Tilted, warm: Warm, inputs: Float[Array, " p"]) -> LocalSite:
        mode = tilted.mode(warm.position)
        noise = quasi_normal(inputs, num_samples)
        noise = noise - jnp.mean(noise, axis=0)
        # second moments exact, and so is the bound for a Gaussian
        noise = noise @ whitener(noise.T @ noise / num_samples).T
        gradient = partial(tilted.factor.at_many, jax.value_and_grad(tilted.log_density))

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
        size, laplace = tilted.cavity.size, laplace_site(mode, tilted.cavity)
        precision, _ = locals_integrated_out(curvature, size)
        site = site_of_gaussian(mean[:size], precision, tilted.cavity)
        return _deterministic(site, jnp.mean(log_density) + entropy, warm._replace(position=mean), laplace)

    def work(client: Client) -> Work:
        return plain_draws(client, (num_steps + 1) * num_samples)

    return Solver(run, importance_inputs, in_turn=True, work=work)


def _deterministic(site: Gaussian, log_evidence: Array, warm: Warm, laplace: LaplaceSite) -> LocalSite:
    certain = SiteError.none(site.size)
    return LocalSite(site, log_evidence, certain, jnp.zeros(()), jnp.full((), jnp.inf), warm, laplace)
