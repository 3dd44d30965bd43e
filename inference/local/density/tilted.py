"""The tilted density of one client: its cavity times its factor."""

from collections.abc import Callable
from typing import Any, NamedTuple, Protocol

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array

from fedbayes.inference.local.density.laplace import Mode, find_mode
from fedbayes.inference.local.density.moments import SiteError
from fedbayes.numerics.gaussian import LOG_2PI, Gaussian, log_det, symmetrised, whitener

NUM_CHAINS = 4  # of a local Markov chain sampler


class Factor(Protocol):
    """A factor of the posterior: a client's, or the prior's."""

    @property
    def num_locals(self) -> int:
        """Number of local latents."""
        ...

    @property
    def jacobian(self) -> Callable:
        """How the gradient is differentiated: ``jax.jacfwd`` or ``jax.jacrev``."""
        ...

    @property
    def groups(self) -> np.ndarray:
        """Places of the locals of each group, shape ``(groups, size)``: independent given the globals."""
        ...

    def log_factor(self, position: Array) -> Array:
        """Log factor at the joint position, shape ``(d + m,)``."""
        ...

    def at_many(self, function: Callable[[Array], Any], points: Array) -> Any:
        """``function`` of each row of ``points``, side by side or one after the other."""
        ...


class Tilted(NamedTuple):
    """``t(theta, z) = cavity(theta) f(theta, z)`` on the joint unconstrained vector, unnormalised.

    Attributes
    ----------
    factor
        The client's, or the prior's.
    cavity
        Everybody else's knowledge of the globals; normalised when it is proper.
    guess
        Where else the search for the mode may start: globals ``(d,)``, or ``None``.
    spread
        Precision ``(d, d)`` with which the globals are known there, or ``None``.
    """

    factor: Factor
    cavity: Gaussian
    guess: Array | None = None
    spread: Array | None = None

    def log_density(self, position: Array) -> Array:
        """Log of the tilted density at ``position``, shape ``(d + m,)``."""
        return self.log_cavity(position) + self.factor.log_factor(position)

    def log_cavity(self, position: Array) -> Array:
        """Log of the cavity's kernel, without its scale, which may be infinite."""
        theta = position[: self.cavity.size]
        return self.cavity.shift @ theta - 0.5 * theta @ self.cavity.precision @ theta

    def log_cavities(self, position: Array) -> Array:
        """:meth:`log_cavity` at many positions, shape ``(n,)``."""
        theta = position[:, : self.cavity.size]
        return theta @ self.cavity.shift - 0.5 * jnp.sum((theta @ self.cavity.precision) * theta, axis=1)

    def mode(self, start: Array, *, tolerance: float = 0.1) -> Mode:
        """Mode and curvature, see :func:`~fedbayes.inference.local.density.laplace.find_mode`.

        Parameters
        ----------
        start
            Joint position, shape ``(d + m,)``; or the guess of the globals with its locals, if that is likelier.
        tolerance
            Of the Newton decrement, in nats.
        """
        if self.guess is None:
            return find_mode(self.log_density, start, tolerance=tolerance, jacobian=self.factor.jacobian)
        size = self.cavity.size
        known = jnp.isfinite(self.guess) & (self.guess != 0.0)  # zero is what a prior says, and no place to start
        guess = jnp.where(known, self.guess, jnp.where(self.guess == 0.0, 1e-3 * cold_start(size), start[:size]))
        starts = jnp.stack([start, jnp.concatenate([guess, start[size:]])])
        return find_mode(self.log_density, starts, tolerance=tolerance, jacobian=self.factor.jacobian)

    def scores(self, position: Array) -> tuple[Array, Array]:
        """Log factor and its gradient at many positions, shapes ``(n,)`` and ``(n, d + m)``."""
        return self.factor.at_many(jax.value_and_grad(self.factor.log_factor), position)


class Warm(NamedTuple):
    """What a client keeps between rounds; none of it is sent.

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


def cold_chains(position: Array) -> Warm:
    """A client before its first round: Newton's start ``(d + m,)``, and no chains yet."""
    return Warm(position, jnp.full((NUM_CHAINS, position.shape[0]), jnp.nan), jnp.full((), 0.5))


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
        Natural parameters of its Gaussian site; the scale is for :func:`with_evidence` to find.
    log_evidence
        Log integral of the tilted density's kernel.
    error
        Monte Carlo error of the site; none for deterministic solvers.
    k_hat
        Pareto tail shape of the importance weights; zero for deterministic solvers.
    effective
        Effective number of draws; infinite for deterministic solvers.
    warm
        For the next round.
    mode
        Of the tilted density.
    reliable
        Whether the draws can be trusted: k-hat below 0.7, or weights that hardly vary.
    """

    site: Gaussian
    log_evidence: Array
    error: SiteError
    k_hat: Array
    effective: Array
    warm: Warm
    mode: Mode
    reliable: Array | bool = True


def with_evidence(site: Gaussian, cavity: Gaussian, log_evidence: Array) -> Gaussian:
    """The site scaled so that the normalised cavity times the site integrates to the evidence."""
    kernel = Gaussian(cavity.shift + site.shift, cavity.precision + site.precision, jnp.zeros(()))
    return Gaussian(site.shift, site.precision, log_evidence - kernel.log_integral())


def site_of_gaussian(mean: Array, curvature: Array, cavity: Gaussian) -> Gaussian:
    """The site of a joint Gaussian approximation of the tilted density: locals integrated out, cavity divided out.

    Its scale is for :func:`with_evidence` to find.
    """
    size = cavity.size
    white = whitener(curvature[size:, size:])
    half = white @ curvature[size:, :size]
    marginal = symmetrised(curvature[:size, :size] - half.T @ half)
    return Gaussian(marginal @ mean[:size] - cavity.shift, marginal - cavity.precision, jnp.zeros(()))


def laplace_evidence(mode: Mode) -> Array:
    """Log integral of the tilted density's kernel in the Laplace approximation."""
    return mode.value + 0.5 * (mode.position.shape[0] * LOG_2PI - log_det(mode.white))
