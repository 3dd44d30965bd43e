"""What the curvatures at the federated mode give: coordinates for all clients, and the largest curvature of any."""

import jax
import jax.numpy as jnp
from jax import Array

from fedbayes.inference.local.steps.coordinates import Coordinates
from fedbayes.inference.mode import ModeState
from fedbayes.numerics.gaussian import whitener

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
    prior, at = mode.prior, mode.best
    prior_slope = coordinates.pulled_back(prior.precision @ at - prior.shift)
    prior_curvature = coordinates.curvature(prior.precision)
    slopes = jax.vmap(lambda site: coordinates.pulled_back(site.precision @ at - site.shift))(mode.clients)
    hessians = jax.vmap(lambda site: coordinates.curvature(site.precision))(mode.clients)
    return hessians / p[:, None, None] + prior_curvature, slopes / p[:, None] + prior_slope


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
