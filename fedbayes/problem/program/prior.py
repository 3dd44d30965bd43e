"""The global prior as a factor of its own: exact where it is Gaussian in unconstrained space."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array

from fedbayes.errors import ModelError
from fedbayes.numerics.gaussian import Gaussian, symmetrised
from fedbayes.runtime.compiling import evaluated

Hierarchy = Mapping[str, tuple[str, ...]]  # from a global to those that its prior's spread depends on


def _no_draw(key: Array) -> Array:
    """Of a prior that is known by its density alone."""
    raise NotImplementedError("this prior is known by its density alone, and can't be drawn from")


@dataclass(frozen=True)
class Prior:
    """The log prior of the unconstrained globals, with its Jacobian.

    Attributes
    ----------
    log_density
        ``(d,) -> ()``; where it comes from a program also of arrays by name.
    size
        Dimension d.
    tolerance
        Relative difference of Hessians that counts as none: the round-off of the model's precision.
    draw
        ``(key) -> (d,)``: a draw of the unconstrained globals; it raises ``NotImplementedError`` where a prior is
        improper or known by its density alone, and leaves out what the program says of the globals beside their priors.
    find_hierarchy
        Finds :attr:`hierarchy`; of a prior that is known by its density alone, none.
    """

    log_density: Callable[[Any], Array]
    size: int
    tolerance: float = 1e-9
    draw: Callable[[Array], Array] = _no_draw
    find_hierarchy: Callable[[], Hierarchy] = dict

    @cached_property
    def hierarchy(self) -> Hierarchy:
        """For each global whose prior's spread depends on other globals, their names; found when a method asks."""
        return self.find_hierarchy()

    @cached_property
    def gaussian(self) -> Gaussian | None:
        """The prior in natural parameters where its log density is quadratic, else ``None``.

        It is quadratic (Gaussian, log-normal, flat) where its Hessian is the same at random points. That is found out
        when a method first asks: for very many globals no method does, and a Hessian would not fit into memory.

        Raises
        ------
        ModelError
            The curvature is not finite there.
        """
        with jax.enable_x64(True):
            if self.size == 0:
                found: Any = Gaussian(np.zeros(0), np.zeros((0, 0)), np.zeros(()))  # type: ignore[arg-type]
            else:
                tangents = evaluated(jax.vmap(self.tangent), _probes(self.size))
                _check_finite(tangents.log_scale)
                spread = np.max(np.abs(tangents.precision - tangents.precision[0]))
                if spread > self.tolerance * (1.0 + np.max(np.abs(tangents.precision))):
                    return None
                found = jax.tree.map(lambda leaf: leaf[0], tangents)
            with jax.ensure_compile_time_eval():  # a program that is being traced may ask first
                return jax.tree.map(jax.device_put, found)

    @property
    def num_locals(self) -> int:
        """A prior is a factor without local latents."""
        return 0

    @property
    def groups(self) -> np.ndarray:
        """No groups of locals, as there are none."""
        return np.zeros((0, 0), int)

    @property
    def jacobian(self) -> Callable:
        """Priors are differentiated forward."""
        return jax.jacfwd

    def log_factor(self, position: Array) -> Array:
        """The log density: the prior as if it were one more client."""
        return self.log_density(position)

    def given(self, theta: Array) -> Callable[[Array], Array]:
        """The log density at the globals, whatever the locals: there are none."""
        return lambda z: self.log_density(theta)

    def at_many(
        self,
        function: Callable[[Any], Any],
        points: Any,
        evaluations: int = 1,
        most: int | None = None,
        num: Array | None = None,
    ) -> Any:
        """``function`` of each row of ``points``, side by side: of all, whatever their number."""
        return jax.vmap(function)(points)

    @cached_property
    def log_densities(self) -> Callable[[np.ndarray], Array]:
        """The log density at many points, ``(n, d) -> (n,)``, compiled once for a prior and a number of points."""
        return jax.jit(lambda points: jax.lax.map(self.log_density, points, batch_size=256))

    @cached_property
    def spread(self) -> tuple[np.ndarray, np.ndarray] | None:
        """Centre and scale of each unconstrained global, shape ``(d,)``; ``None`` where the prior is improper.

        Median and median absolute deviation of draws, the latter times 1.48: a prior's tails may have no moments. Of a
        Gaussian these are its mean and sd.
        """
        if self.gaussian is not None:
            if self.is_flat():
                return None
            covariance = np.linalg.inv(np.asarray(self.gaussian.precision))
            return covariance @ np.asarray(self.gaussian.shift), np.sqrt(np.diagonal(covariance))
        try:
            # one after the other: a batch of random generators takes XLA seconds to compile
            draws = evaluated(lambda seed: jax.lax.map(self.draw, jax.random.split(jax.random.key(seed), 256)), 0)
        except NotImplementedError:
            return None
        centre = np.median(draws, axis=0)
        return centre, 1.4826 * np.median(np.abs(draws - centre), axis=0)

    def is_flat(self) -> bool:
        """Whether some direction of the globals has no prior information at all."""
        return self.num_flat() > 0

    @property
    def is_proper(self) -> bool:
        """Whether the globals have a prior in every direction, as far as it can be drawn from."""
        return self.spread is not None

    def num_flat(self) -> int:
        """Number of directions of the globals without prior information; zero where the prior is not Gaussian."""
        if self.gaussian is None:
            return 0
        return int(np.sum(np.linalg.eigvalsh(np.asarray(self.gaussian.precision)) < 1e-12))

    def tangent(self, position: Array) -> Gaussian:
        """Second-order expansion at ``position``."""
        slope = jax.grad(self.log_density)(position)
        precision = symmetrised(-jax.hessian(self.log_density)(position))
        expansion = Gaussian(slope + precision @ position, precision, jnp.zeros(()))
        return Gaussian(expansion.shift, precision, self.log_density(position) - expansion.log_value(position))


def make_prior(
    log_density: Callable[[Array], Array],
    size: int,
    tolerance: float = 1e-9,
    draw: Callable[[Array], Array] = _no_draw,
    find_hierarchy: Callable[[], Hierarchy] = dict,
) -> Prior:
    """A prior, whose log density has been checked to be finite at random points.

    Parameters
    ----------
    log_density, size, tolerance, draw, find_hierarchy
        See :class:`Prior`.

    Raises
    ------
    ModelError
        It is not.
    """
    log_density = jax.jit(log_density)  # traced once, however many programs contain it
    _check_finite(np.array([log_density(probe) for probe in _probes(size)]))
    return Prior(log_density, size, tolerance, draw, find_hierarchy)


def _probes(size: int) -> np.ndarray:
    """A few random points of unconstrained space, shape ``(4, d)``."""
    return np.random.default_rng(0).normal(size=(4, size))


def _check_finite(levels: np.ndarray) -> None:
    if not np.all(np.isfinite(levels)):
        raise ModelError(
            f"The log prior of the globals, or its curvature, is {levels.min()} at a random point of unconstrained "
            "space. Check its scales, and the supports of the global sites."
        )
