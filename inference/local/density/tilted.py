"""The tilted density of one client: its cavity times its factor."""

from collections.abc import Callable
from typing import Any, NamedTuple, Protocol

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array
from jaxtyping import Bool, Float, Int

from fedbayes.inference.local.density.laplace import Mode, find_mode
from fedbayes.inference.local.density.moments import SiteError, locals_integrated_out
from fedbayes.numerics.gaussian import LOG_2PI, Gaussian, log_det

NUM_CHAINS = 4  # of a local Markov chain sampler


class Factor(Protocol):
    """A factor of the posterior: a client's, or the prior's."""

    @property
    def num_locals(self) -> int:
        """Number of local latents."""
        ...

    @property
    def jacobian(self) -> Callable:
        """How the gradient is differentiated, see :attr:`fedbayes.problem.program.program.Program.jacobian`."""
        ...

    @property
    def groups(self) -> Int[np.ndarray, "group size"]:
        """Places of the locals of each group: independent given the globals."""
        ...

    def log_factor(self, position: Float[Array, " p"]) -> Float[Array, ""]:
        """Log factor at the joint position, of ``p = d + m`` numbers."""
        ...

    def given(self, theta: Float[Array, " d"]) -> Callable[[Array], Array]:
        """The log factor as a function of the locals, ``(m,) -> ()``, at the globals."""
        ...

    def at_many(
        self,
        function: Callable[[Any], Any],
        points: Any,
        evaluations: int = 1,
        most: int | None = None,
        num: Int[Array, ""] | None = None,
    ) -> Any:
        """``function`` of each row of ``points``, side by side or one after the other.

        ``evaluations`` of the log factor are made for each, and at most ``most`` points are side by side. Where
        ``num`` is given, only the first so many rows are needed, and nothing is said of the others.
        """
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
        Where else the search for the mode may start: globals, or ``None``.
    spread
        Precision with which the globals are known there, or ``None``.
    """

    factor: Factor
    cavity: Gaussian
    guess: Float[Array, " d"] | None = None
    spread: Float[Array, "d d"] | None = None

    def log_density(self, position: Float[Array, " p"]) -> Float[Array, ""]:
        """Log of the tilted density."""
        return self.log_cavity(position) + self.factor.log_factor(position)

    def log_cavity(self, position: Float[Array, " p"]) -> Float[Array, ""]:
        """Log of the cavity's kernel, without its scale, which may be infinite."""
        theta = position[: self.cavity.size]
        return self.cavity.shift @ theta - 0.5 * theta @ self.cavity.precision @ theta

    def log_cavities(self, position: Float[Array, "draw p"]) -> Float[Array, " draw"]:
        """:meth:`log_cavity` at many positions."""
        theta = position[:, : self.cavity.size]
        return theta @ self.cavity.shift - 0.5 * jnp.sum((theta @ self.cavity.precision) * theta, axis=1)

    def mode(self, start: Float[Array, " p"], *, tolerance: float = 0.1) -> Mode:
        """Mode and curvature, see :func:`~fedbayes.inference.local.density.laplace.find_mode`.

        Parameters
        ----------
        start
            Joint position; or the guess of the globals with its locals, if that is likelier.
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

    def scores(self, position: Float[Array, "draw p"]) -> tuple[Float[Array, " draw"], Float[Array, "draw p"]]:
        """Log factor and its gradient at many positions."""
        return self.factor.at_many(jax.value_and_grad(self.factor.log_factor), position)

    def scores_of_sides(
        self,
        theta: Float[Array, "draw d"],
        sides: Float[Array, "side draw m"],
        most: int | None = None,
        num: Int[Array, ""] | None = None,
    ) -> tuple[Float[Array, " sided"], Float[Array, "sided p"]]:
        """The same where several locals have the same globals: one side after the other, ``sided = side * draw``.

        What depends on the globals alone is computed once for all sides. ``most`` and ``num`` are of :meth:`at_many`.
        """

        def at(point: tuple[Array, Array]) -> tuple[Array, tuple[Array, Array]]:
            score = jax.value_and_grad(lambda theta, z: self.factor.given(theta)(z), argnums=(0, 1))
            return jax.vmap(score, (None, 0), out_axes=0)(*point)

        found = self.factor.at_many(at, (theta, jnp.swapaxes(sides, 0, 1)), len(sides), most, num)
        values, (of_globals, of_locals) = jax.tree.map(
            lambda leaf: jnp.swapaxes(leaf, 0, 1).reshape(-1, *leaf.shape[2:]), found
        )
        return values, jnp.concatenate([of_globals, of_locals], axis=1)


class Warm(NamedTuple):
    """What a client keeps between rounds; none of it is sent.

    Attributes
    ----------
    position
        Mode of the last tilted density.
    chains
        Last positions of the Markov chains; NaN before the first.
    step_size
        Of the Markov chains.
    """

    position: Float[Array, " p"]
    chains: Float[Array, "chain p"]
    step_size: Float[Array, ""]


def cold_chains(position: Float[Array, " p"]) -> Warm:
    """A client before its first round: Newton's start, and no chains yet."""
    return Warm(position, jnp.full((NUM_CHAINS, position.shape[0]), jnp.nan), jnp.full((), 0.5))


def cold_start(size: int) -> Float[Array, " {size}"]:
    """Where Newton starts without better knowledge: near zero in unconstrained space, and off it.

    Some densities have a kink in floating point at exactly zero (the gradient of NumPyro's Bernoulli at logit 0 is off
    by 1/2).
    """
    return 0.01 * (1.0 + jnp.arange(size) / max(size, 1))


class LaplaceSite(NamedTuple):
    """What the Laplace approximation of a tilted density says, its locals integrated out.

    Attributes
    ----------
    site
        With the cavity divided out; its scale is for :func:`with_evidence` to find.
    log_evidence
        Log integral of the tilted density's kernel.
    value
        Log density at the mode.
    converged
        Whether the mode was found.
    """

    site: Gaussian
    log_evidence: Float[Array, ""]
    value: Float[Array, ""]
    converged: Bool[Array, ""]


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
        Effective number of draws, of the globals alone where locals are integrated out; infinite for deterministic
        solvers.
    warm
        For the next round.
    laplace
        The Laplace approximation of the tilted density.
    reliable
        Whether the draws can be trusted: k-hat below 0.7, or weights that hardly vary; and the integrals behind them.
    """

    site: Gaussian
    log_evidence: Float[Array, ""]
    error: SiteError
    k_hat: Float[Array, ""]
    effective: Float[Array, ""]
    warm: Warm
    laplace: LaplaceSite
    reliable: Bool[Array, ""] | bool = True


def with_evidence(site: Gaussian, cavity: Gaussian, log_evidence: Float[Array, ""]) -> Gaussian:
    """The site scaled so that the normalised cavity times the site integrates to the evidence."""
    kernel = Gaussian(cavity.shift + site.shift, cavity.precision + site.precision, jnp.zeros(()))
    return Gaussian(site.shift, site.precision, log_evidence - kernel.log_integral())


def site_of_gaussian(mean: Float[Array, " d"], precision: Float[Array, "d d"], cavity: Gaussian) -> Gaussian:
    """The site of a Gaussian approximation of the tilted density, its locals integrated out: cavity divided out.

    Its scale is for :func:`with_evidence` to find.
    """
    return Gaussian(precision @ mean - cavity.shift, precision - cavity.precision, jnp.zeros(()))


def laplace_site(mode: Mode, cavity: Gaussian) -> LaplaceSite:
    """Of the tilted density with this mode."""
    precision, _ = locals_integrated_out(mode.curvature, cavity.size)
    site = site_of_gaussian(mode.position[: cavity.size], precision, cavity)
    log_evidence = mode.value + 0.5 * (mode.position.shape[0] * LOG_2PI - log_det(mode.white))
    return LaplaceSite(site, log_evidence, mode.value, mode.converged)
