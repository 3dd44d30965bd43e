"""The stationary law of partial participation for quadratic clients, exactly (derived in the folder's ``DESIGN.md``).

With the round maps ``u <- M_c u + b_c + noise_c`` of the clients, their average ``M, b, noise`` by the weights ``q``,
and the share ``s = C_S / S`` of a single client's law in the server's (lemma C.1), a round leaves the moments

    m = M m + b,    V = M V M' + (1 - s) Q + s sum q_c [(M_c - M) V (M_c - M)' + Q_c + gap_c gap_c'],

``gap_c = M_c m + b_c - m``. For rho = 1, too, the clients' unequal pull at the same place enters as noise: by their
gradients at the mode (``gap_c``; none with the control variate) and by their curvatures (``M_c - M``).
"""

from collections.abc import Callable
from typing import NamedTuple

import jax
import jax.numpy as jnp
from jax import Array

from fedbayes.numerics.gaussian import eigenvectors

_SWEEPS = 1000  # more are needed next to where no stationary covariance exists
_CLOSE = 1e-10


class Quadratics(NamedTuple):
    """Clients with the energies ``f_c = g_c' u + u' H_c u / 2``.

    Attributes
    ----------
    hessians, slopes
        ``H_c``, shape ``(N, d, d)``, and ``g_c``, shape ``(N, d)``.
    weights
        ``p_c``, by which the private noise is scaled, shape ``(N,)``.
    average
        ``q_c``, by which the clients' positions are averaged in expectation, shape ``(N,)``; sum one.
    """

    hessians: Array
    slopes: Array
    weights: Array
    average: Array


class Stationary(NamedTuple):
    """Mean ``(d,)`` and covariance ``(d, d)`` that a round leaves as they are, and the covariance if all took part.

    A covariance that does not exist is infinite.
    """

    mean: Array
    covariance: Array
    everybody: Array


def stationary(
    clients: Quadratics, step: Array, local_steps: Array, *, heat: float, rho: float, share: float
) -> Stationary:
    """The stationary moments of rounds of ``local_steps`` steps of size ``step``.

    Parameters
    ----------
    clients, step, local_steps
        ``f_c``, ``eta`` and K.
    heat, rho
        Temperature ``tau``, and the weight of the shared noise.
    share
        ``C_S / S``; zero where everybody takes part.
    """
    weights, average, size = clients.weights, clients.average, clients.slopes.shape[1]
    values, axes = jax.vmap(eigenvectors)(clients.hessians)

    def back(diagonal: Array) -> Array:
        return jnp.einsum("cia,ca,cja->cij", axes, diagonal, axes)

    def one(_: Array, carry: tuple[Array, Array, Array, Array]) -> tuple[Array, Array, Array, Array]:
        power, once, twice, shared = carry
        mixed = jnp.einsum("c,cij->ij", average, back(power))
        return power * (1.0 - step * values), once + power, twice + power**2, shared + mixed @ mixed

    begin = jnp.ones_like(values), jnp.zeros_like(values), jnp.zeros_like(values), jnp.zeros((size, size))
    power, once, twice, shared = jax.lax.fori_loop(0, local_steps.astype(int), one, begin)
    maps, passed = back(power), back(twice)
    offsets = -step * jnp.einsum("cij,cj->ci", back(once), clients.slopes)
    common, own = 2.0 * step * heat * rho**2, 2.0 * step * heat * (1.0 - rho**2) / weights
    noise = common * shared + jnp.einsum("c,cij->ij", average**2 * own, passed)
    single = (common + own)[:, None, None] * passed

    mean_map = jnp.einsum("c,cij->ij", average, maps)
    mean = jnp.linalg.solve(jnp.eye(size) - mean_map, average @ offsets)
    gaps, apart = maps @ mean + offsets - mean, maps - mean_map
    fresh = (1.0 - share) * noise + share * jnp.einsum("c,cij->ij", average, single + gaps[:, :, None] * gaps[:, None])

    def spread(covariance: Array) -> Array:
        return share * jnp.einsum("c,cij,jk,clk->il", average, apart, covariance, apart)

    return Stationary(mean, _fixed_point(mean_map, fresh, spread), _summed(mean_map, noise))


def _summed(mean_map: Array, noise: Array) -> Array:
    """The solution of ``V = M V M' + Q`` for a symmetric M: the discrete Lyapunov equation."""
    values, axes = eigenvectors(mean_map)
    turned = axes.T @ noise @ axes / (1.0 - values[:, None] * values)
    exists = jnp.max(jnp.abs(values)) < 1.0
    return jnp.where(exists, axes @ turned @ axes.T, jnp.inf)


def _fixed_point(mean_map: Array, fresh: Array, spread: Callable[[Array], Array]) -> Array:
    """The solution of ``V = M V M' + spread(V) + fresh``: sweeps grow to it from below, or without limit."""
    first = _summed(mean_map, fresh)

    def goes_on(carry: tuple[Array, Array, Array]) -> Array:
        covariance, change, sweeps = carry
        moving = change > _CLOSE * jnp.trace(covariance)
        return moving & (sweeps < _SWEEPS) & jnp.all(jnp.isfinite(covariance))

    def sweep(carry: tuple[Array, Array, Array]) -> tuple[Array, Array, Array]:
        old, _, sweeps = carry
        new = first + _summed(mean_map, spread(old))
        return new, jnp.trace(new - old), sweeps + 1

    found, _, sweeps = jax.lax.while_loop(goes_on, sweep, (first, jnp.asarray(jnp.inf), jnp.asarray(0)))
    return jnp.where((sweeps < _SWEEPS) & jnp.all(jnp.isfinite(found)), found, jnp.inf)
