"""Affine coordinates in which Langevin steps are well scaled: shared ones for the globals, private ones for the locals.

``theta = center + white' u`` with ``white`` the whitener of the curvature at the federated mode: one matrix for the
whole federation, so that averaging ``u`` is averaging ``theta``. A client's locals are

    z = center_z + slope u + white_z' v

with ``slope`` the change of their conditional mode with the globals, and ``white_z`` the whitener of their conditional
curvature: both depend on this client alone and never leave it. The map has a constant Jacobian, so the target is the
same, and in ``(u, v)`` a Gaussian client has no cross terms: its locals follow when the average moves the globals.
"""

from typing import NamedTuple

import jax
import jax.numpy as jnp
from jax import Array
from jaxtyping import Float

from fedbayes.inference.local.density.laplace import find_mode
from fedbayes.inference.local.density.tilted import cold_start
from fedbayes.numerics.gaussian import Gaussian, symmetrised, whitener
from fedbayes.problem.client import Client


class Coordinates(NamedTuple):
    """The federation's coordinates of the globals.

    Attributes
    ----------
    center
        Where ``u`` is zero.
    white
        A vector for a diagonal map.
    """

    center: Float[Array, " d"]
    white: Float[Array, "d d"] | Float[Array, " d"]

    def globals_at(self, u: Float[Array, " d"]) -> Float[Array, " d"]:
        """``theta`` at ``u``."""
        return self.center + (self.white * u if self.white.ndim == 1 else self.white.T @ u)

    def inverse(self) -> Float[Array, "d d"] | Float[Array, " d"]:
        """What ``theta - center`` is multiplied by to give ``u``, a vector for a diagonal map."""
        if self.white.ndim == 1:
            return 1.0 / self.white
        other = whitener(self.white.T @ self.white)
        return self.white @ other.T @ other

    def whitened(self, theta: Float[Array, "draw d"]) -> Float[Array, "draw d"]:
        """``u`` of many ``theta``."""
        inverse, gap = self.inverse(), theta - self.center
        return inverse * gap if inverse.ndim == 1 else gap @ inverse.T

    def of_whitened(self, mean: Float[Array, " d"], precision: Float[Array, "d d"]) -> Gaussian:
        """The Gaussian over ``theta`` of one over ``u``; its scale is not known."""
        inverse = self.inverse()
        inverse = jnp.diag(inverse) if inverse.ndim == 1 else inverse
        spread = symmetrised(inverse.T @ precision @ inverse)
        return Gaussian(spread @ self.globals_at(mean), spread, jnp.full((), jnp.nan))

    def pulled_back(self, slope: Float[Array, " d"]) -> Float[Array, " d"]:
        """The gradient in ``u`` of a function whose gradient in ``theta`` is ``slope``."""
        return self.white * slope if self.white.ndim == 1 else self.white @ slope

    def curvature(self, precision: Float[Array, "d d"]) -> Float[Array, "d d"]:
        """The Hessian in ``u`` of a function whose Hessian in ``theta`` is ``precision``."""
        if self.white.ndim == 1:
            return self.white[:, None] * precision * self.white
        return self.white @ precision @ self.white.T

    def from_whitened(self, noise: Float[Array, " d"], precision: Float[Array, "d d"]) -> Float[Array, " d"]:
        """The ``u`` of a draw of ``N(center, precision^-1)`` made of standard normal ``noise``."""
        if self.white.ndim == 2:
            return noise
        return (whitener(precision).T @ noise) / self.white


class LocalCoordinates(NamedTuple):
    """One client's coordinates of its locals, see the module."""

    center: Float[Array, " m"]
    slope: Float[Array, "m d"]
    white: Float[Array, "m m"]

    def locals_at(self, u: Float[Array, " d"], v: Float[Array, " m"]) -> Float[Array, " m"]:
        """``z`` at ``(u, v)``."""
        return self.center + self.slope @ u + self.white.T @ v


def local_coordinates(client: Client, shared: Coordinates) -> LocalCoordinates:
    """A client's coordinates, from the mode and curvature of its locals at the center of the shared ones."""
    size, num = shared.center.shape[0], client.num_locals
    if num == 0:
        return LocalCoordinates(jnp.zeros(0), jnp.zeros((0, size)), jnp.zeros((0, 0)))

    def log_factor(u: Array, z: Array) -> Array:
        return client.given(shared.globals_at(u))(z)

    origin = jnp.zeros(size)
    mode = find_mode(lambda z: log_factor(origin, z), cold_start(num), tolerance=1e-6, jacobian=client.jacobian)
    cross = client.jacobian(jax.grad(log_factor, argnums=1))(origin, mode.position)
    return LocalCoordinates(mode.position, mode.white.T @ (mode.white @ cross), mode.white)
