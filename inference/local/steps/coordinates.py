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

from fedbayes.inference.local.density.laplace import find_mode
from fedbayes.inference.local.density.tilted import cold_start
from fedbayes.numerics.gaussian import Gaussian, symmetrised, whitener
from fedbayes.problem.client import Client


class Coordinates(NamedTuple):
    """The federation's coordinates of the globals.

    Attributes
    ----------
    center
        Where ``u`` is zero, shape ``(d,)``.
    white
        Shape ``(d, d)``, or ``(d,)`` for a diagonal map.
    """

    center: Array
    white: Array

    def globals_at(self, u: Array) -> Array:
        """``theta`` at ``u``."""
        return self.center + (self.white * u if self.white.ndim == 1 else self.white.T @ u)

    def inverse(self) -> Array:
        """What ``theta - center`` is multiplied by to give ``u``: ``(d, d)``, or ``(d,)`` for a diagonal map."""
        if self.white.ndim == 1:
            return 1.0 / self.white
        other = whitener(self.white.T @ self.white)
        return self.white @ other.T @ other

    def whitened(self, theta: Array) -> Array:
        """``u`` of many ``theta``, shapes ``(n, d)``."""
        inverse, gap = self.inverse(), theta - self.center
        return inverse * gap if inverse.ndim == 1 else gap @ inverse.T

    def of_whitened(self, mean: Array, precision: Array) -> Gaussian:
        """The Gaussian over ``theta`` of one over ``u``; its scale is not known."""
        inverse = self.inverse()
        inverse = jnp.diag(inverse) if inverse.ndim == 1 else inverse
        spread = symmetrised(inverse.T @ precision @ inverse)
        return Gaussian(spread @ self.globals_at(mean), spread, jnp.full((), jnp.nan))

    def pulled_back(self, slope: Array) -> Array:
        """The gradient in ``u`` of a function whose gradient in ``theta`` is ``slope``."""
        return self.white * slope if self.white.ndim == 1 else self.white @ slope

    def curvature(self, precision: Array) -> Array:
        """The Hessian in ``u`` of a function whose Hessian in ``theta`` is ``precision``, shape ``(d, d)``."""
        if self.white.ndim == 1:
            return self.white[:, None] * precision * self.white
        return self.white @ precision @ self.white.T

    def from_whitened(self, noise: Array, precision: Array) -> Array:
        """The ``u`` of a draw of ``N(center, precision^-1)`` made of standard normal ``noise``, shape ``(d,)``."""
        if self.white.ndim == 2:
            return noise
        return (whitener(precision).T @ noise) / self.white


class LocalCoordinates(NamedTuple):
    """One client's coordinates of its locals, see the module; shapes ``(m,)``, ``(m, d)`` and ``(m, m)``."""

    center: Array
    slope: Array
    white: Array

    def locals_at(self, u: Array, v: Array) -> Array:
        """``z`` at ``(u, v)``."""
        return self.center + self.slope @ u + self.white.T @ v


def local_coordinates(client: Client, shared: Coordinates) -> LocalCoordinates:
    """A client's coordinates, from the mode and curvature of its locals at the center of the shared ones."""
    size, num = shared.center.shape[0], client.num_locals
    if num == 0:
        return LocalCoordinates(jnp.zeros(0), jnp.zeros((0, size)), jnp.zeros((0, 0)))

    def log_factor(u: Array, z: Array) -> Array:
        return client.log_factor(jnp.concatenate([shared.globals_at(u), z]))

    origin = jnp.zeros(size)
    mode = find_mode(lambda z: log_factor(origin, z), cold_start(num), tolerance=1e-6, jacobian=client.jacobian)
    cross = client.jacobian(jax.grad(log_factor, argnums=1))(origin, mode.position)
    return LocalCoordinates(mode.position, mode.white.T @ (mode.white @ cross), mode.white)
