"""The client's half of EP: from its cavity to its site."""

from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax import Array

from fedbayes.algorithm import Reply
from fedbayes.errors import ResultCode
from fedbayes.inference.local.solvers import Solver
from fedbayes.inference.local.tilted import Tilted, Warm, laplace_evidence, site_of_gaussian
from fedbayes.numerics.gaussian import LOG_2PI, Gaussian, log_det, packed, unpacked, whitener
from fedbayes.problem.clients import Client


class SiteMessage(NamedTuple):
    """What a client sends: its site, ``d + d (d + 1) / 2`` numbers, its log scale, and its noise.

    Attributes
    ----------
    site
        Natural parameters; the precision is a triangle (:func:`~fedbayes.numerics.gaussian.packed`), or a vector
        ``(d,)`` for diagonal sites.
    noise
        Expected squared Monte Carlo error of the global that this site causes, in posterior sds, summed over
        coordinates.
    """

    site: Gaussian
    noise: Array


class Shared(NamedTuple):
    """The broadcast.

    Attributes
    ----------
    mean
        Of the global, for warm starts, shape ``(d,)``.
    opening
        Whether Laplace approximations are asked for, as in the first round of ``init="laplace"``.
    precision
        Of the global, as a triangle, where some client has locals.
    """

    mean: Array
    opening: Array
    precision: Array | tuple[()] = ()

    def spread(self) -> Array | None:
        """The global's precision, shape ``(d, d)``, where it was sent."""
        if isinstance(self.precision, tuple):
            return None
        return unpacked(Gaussian(self.mean, self.precision, jnp.zeros(()))).precision


def local_update(
    solver: Solver,
    diagonal: bool,
    shared: Shared,
    cavity: Gaussian,
    warm: Warm,
    client: Client,
    inputs: Any,
) -> tuple[Reply, Warm]:
    """One client's round: its new site, or in the opening round the site of its Laplace approximation."""
    cavity = unpacked(cavity)
    found = solver.run(Tilted(client, cavity, shared.mean, shared.spread()), warm, inputs)
    laplace = site_of_gaussian(found.mode.position, found.mode.curvature, cavity)
    opening = partial(jax.tree.map, partial(jnp.where, shared.opening))
    site, log_evidence = opening((laplace, laplace_evidence(found.mode)), (found.site, found.log_evidence))
    usable = jnp.all(jnp.isfinite(site.shift)) & jnp.all(jnp.isfinite(site.precision))
    usable = usable & (found.mode.converged | ~shared.opening)  # no approximation of what grows for ever
    site, covariance, influence = _scaled(site, cavity, log_evidence)

    # the tilted covariance is the global's where EP has converged
    noise = found.error.noise(covariance)
    noise = jnp.where(jnp.isfinite(noise) & ~shared.opening, noise, 0.0)
    heavy_tailed = ~(jnp.asarray(found.reliable) | shared.opening)
    broken = jnp.where(jnp.isfinite(found.mode.value), ResultCode.IMPROPER, ResultCode.NOT_FINITE)
    code = jnp.where(usable, jnp.where(heavy_tailed, ResultCode.UNRELIABLE, ResultCode.OK), broken)
    info = {
        "heavy_tailed": heavy_tailed.astype(float),
        "k_hat": found.k_hat,
        "effective_draws": found.effective,
        "influence": influence,
        "noise": noise,
    }
    message = SiteMessage(packed(site) if not diagonal else _diagonal(site), noise)
    after = jax.tree.map(lambda new, old: jnp.where(usable, new, old), found.warm, warm)
    return Reply(each=message, code=code, info=info), after


def _scaled(site: Gaussian, cavity: Gaussian, log_evidence: Array) -> tuple[Gaussian, Array, Array]:
    """The site with its scale, the covariance of cavity times site, and the client's influence.

    The scale is that of :func:`~fedbayes.inference.local.tilted.with_evidence`. The influence is how far the client
    moves everybody else's mean, in the cavity's sds (root mean square). All need the same two factorisations, made side
    by side.
    """
    together = cavity.precision + site.precision
    white, other = jax.vmap(whitener)(jnp.stack([together, cavity.precision]))
    half = white @ (cavity.shift + site.shift)
    gap = white.T @ half - other.T @ (other @ cavity.shift)
    log_integral = 0.5 * (half @ half - log_det(white) + site.size * LOG_2PI)
    influence = jnp.sqrt(gap @ cavity.precision @ gap / site.size)
    return Gaussian(site.shift, site.precision, log_evidence - log_integral), white.T @ white, influence


def _diagonal(site: Gaussian) -> Gaussian:
    return Gaussian(site.shift, jnp.diagonal(site.precision), site.log_scale)
