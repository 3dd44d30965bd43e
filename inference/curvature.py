"""What the curvatures at the federated mode give: coordinates for all clients, and the largest curvature of any."""

import jax
import jax.numpy as jnp
from jax import Array

from fedbayes.inference.local.steps.coordinates import Coordinates
from fedbayes.inference.mode import ModeState
from fedbayes.numerics.gaussian import Gaussian, whitener

_ITERATIONS = 200  # of the power method


def shared_coordinates(mode: ModeState | None, size: int, preconditioner: str, start: str) -> Coordinates:
    """The coordinates at a federated mode; without one the identity, with the same shapes."""
    dense = preconditioner == "dense" and start == "mode"
    if mode is None:
        return Coordinates(jnp.zeros(size), jnp.eye(size) if dense else jnp.ones(size))
    precision = mode.global_().precision
    if dense:
        white = whitener(precision)
    elif preconditioner == "diagonal":
        white = 1.0 / jnp.sqrt(jnp.diagonal(precision))
    else:
        white = jnp.ones(size)
    return Coordinates(mode.best, white)


def largest_curvature(mode: ModeState, coordinates: Coordinates, p: Array) -> Array:
    """The largest curvature of any client's energy at the mode, in the shared coordinates."""
    hessians, _ = client_energies(mode, coordinates, p)
    return jnp.max(jax.vmap(largest_eigenvalue)(hessians))


def client_energies(mode: ModeState, coordinates: Coordinates, p: Array) -> tuple[Array, Array]:
    """Hessians ``(N, d, d)`` and gradients ``(N, d)`` of the client energies at the mode."""
    assert isinstance(mode.clients, Gaussian)  # noqa: S101  # asked for, see `Needs`
    one = jax.vmap(client_energy, in_axes=(0, None, None, None, 0))
    return one(mode.clients, mode.prior, mode.best, coordinates, p)


def client_energy(
    site: Gaussian, prior: Gaussian, at: Array, coordinates: Coordinates, p: Array
) -> tuple[Array, Array]:
    """Hessian ``(d, d)`` and gradient ``(d,)`` of one client's energy, from expansions of its factor and the prior."""

    def of(gaussian: Gaussian) -> tuple[Array, Array]:
        slope = gaussian.precision @ at - gaussian.shift
        return coordinates.curvature(gaussian.precision), coordinates.pulled_back(slope)

    return jax.tree.map(lambda own, common: own / p + common, of(site), of(prior))


def largest_eigenvalue(matrix: Array) -> Array:
    """Largest eigenvalue of a symmetric matrix by the power method, from below; matrix products alone."""
    size = matrix.shape[0]
    shift = jnp.max(jnp.sum(jnp.abs(matrix), axis=1))  # bounds all eigenvalues, so that the largest dominates
    start = jnp.cos(jnp.arange(size) ** 2 + 1.0)

    def multiply(_: int, x: Array) -> Array:
        y = matrix @ x + shift * x
        return y / jnp.sqrt(jnp.sum(y**2) + 1e-300)

    x = jax.lax.fori_loop(0, _ITERATIONS, multiply, start / jnp.sqrt(jnp.sum(start**2)))
    return x @ matrix @ x
