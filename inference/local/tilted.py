"""The tilted density of one client: its cavity times its factor."""

from typing import NamedTuple, Protocol

import jax
import jax.numpy as jnp
from jax import Array

from fedbayes.gaussian import LOG_2PI, Gaussian, log_det, symmetrised, whitener
from fedbayes.inference.local.laplace import Mode, find_mode


class Factor(Protocol):
    """A factor of the posterior: a client's, or the prior's."""

    @property
    def num_locals(self) -> int:
        """Number of local latents."""
        ...

    def log_factor(self, position: Array) -> Array:
        """Log factor at the joint position, shape ``(d + m,)``."""
        ...


class Tilted(NamedTuple):
    """``t(theta, z) = cavity(theta) f(theta, z)`` on the joint unconstrained vector, unnormalised.

    Attributes
    ----------
    client
        Gives the factor.
    cavity
        Everybody else's knowledge of the globals; normalised when it is proper.
    """

    client: Factor
    cavity: Gaussian

    def log_density(self, position: Array) -> Array:
        """Log of the tilted density at ``position``, shape ``(d + m,)``."""
        return self.log_cavity(position) + self.client.log_factor(position)

    def log_cavity(self, position: Array) -> Array:
        """Log of the cavity's kernel, without its scale, which may be infinite."""
        theta = position[: self.cavity.size]
        return self.cavity.shift @ theta - 0.5 * theta @ self.cavity.precision @ theta

    def mode(self, start: Array, *, tolerance: float = 0.1) -> Mode:
        """Mode and curvature from a warm start, see :func:`~fedbayes.inference.local.laplace.find_mode`."""
        return find_mode(self.log_density, start, tolerance=tolerance)

    def scores(self, position: Array) -> tuple[Array, Array]:
        """Log factor and its gradient at many positions, shapes ``(n,)`` and ``(n, d + m)``."""
        return jax.vmap(jax.value_and_grad(self.client.log_factor))(position)


class Warm(NamedTuple):
    """What a client keeps between rounds, and sends to nobody.

    Attributes
    ----------
    position
        Mode of the last tilted density, shape ``(d + m,)``.
    chains
        Last positions of the Markov chains, shape ``(chains, d + m)``; NaN before the first.
    step_size
        Of the Markov chains.
    """

    position: Array
    chains: Array
    step_size: Array


def cold_start(size: int) -> Array:
    """Where Newton starts without better knowledge: near zero in unconstrained space, and off it.

    Some densities have a kink in floating point at exactly zero (the gradient of NumPyro's Bernoulli at logit 0 is off
    by 1/2).
    """
    return 0.01 * (1.0 + jnp.arange(size) / max(size, 1))


class LocalSite(NamedTuple):
    """What a local solver finds out about its tilted density.

    Attributes
    ----------
    site
        Its Gaussian site, whose ``log_scale`` makes the cavity times the site integrate to the evidence.
    shift_variance, precision_variance
        Monte Carlo variances of the site's entries, ``(d,)`` and ``(d, d)``; zero for deterministic solvers.
    k_hat
        Pareto tail shape of the importance weights; zero for deterministic solvers.
    effective
        Effective number of draws; infinite for deterministic solvers.
    warm
        For the next round.
    reliable
        Whether the draws can be trusted: k-hat below 0.7, or weights that hardly vary.
    """

    site: Gaussian
    shift_variance: Array
    precision_variance: Array
    k_hat: Array
    effective: Array
    warm: Warm
    reliable: Array | bool = True


def with_evidence(shift: Array, precision: Array, cavity: Gaussian, log_evidence: Array) -> Gaussian:
    """The site scaled so that the normalised cavity times the site integrates to the evidence."""
    site = Gaussian(shift, precision, jnp.zeros(()))
    kernel = Gaussian(cavity.shift, cavity.precision, jnp.zeros(()))
    return Gaussian(shift, precision, log_evidence - (kernel + site).log_integral())


def site_of_gaussian(mean: Array, curvature: Array, cavity: Gaussian, log_evidence: Array) -> Gaussian:
    """The site of a joint Gaussian approximation of the tilted density: locals integrated out, cavity divided out."""
    size = cavity.size
    white = whitener(curvature[size:, size:])
    half = white @ curvature[size:, :size]
    marginal = symmetrised(curvature[:size, :size] - half.T @ half)
    return with_evidence(marginal @ mean[:size] - cavity.shift, marginal - cavity.precision, cavity, log_evidence)


def laplace_evidence(tilted: Tilted, mode: Mode) -> Array:
    """Log integral of the tilted density's kernel in the Laplace approximation."""
    return tilted.log_density(mode.position) + 0.5 * (mode.position.shape[0] * LOG_2PI - log_det(mode.white))
