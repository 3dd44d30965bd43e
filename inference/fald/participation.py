"""What partial participation does to FA-LD's posterior: the clients' spread enters the server's average.

With ``p_c`` the clients' weights, N clients of which S take part in a round, and ``rho`` the weight of the noise that
they share, the stationary covariance is ``r`` times that of full participation, however small the step is, if clients
are alike. If they are not, it is larger: for quadratic clients its law is known exactly (derived in the folder's
``DESIGN.md``). With the round maps ``u <- M_c u + b_c + noise_c`` of the clients, their average ``M, b, noise`` by the
weights ``q``, and the share ``s = C_S / S`` of a single client's law in the server's (lemma C.1), a round leaves

    m = M m + b,    V = M V M' + (1 - s) Q + s sum q_c [(M_c - M) V (M_c - M)' + Q_c + gap_c gap_c'],

``gap_c = M_c m + b_c - m``. For rho = 1, too, the clients' unequal pull at the same place enters as noise: by their
gradients at the mode (``gap_c``; none with the control variate) and by their curvatures (``M_c - M``).
"""

from collections.abc import Callable
from typing import Literal, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array

from fedbayes.inference.fald.options import Options
from fedbayes.numerics.gaussian import eigenvectors

_SWEEPS = 1000  # more are needed next to where no stationary covariance exists
_CLOSE = 1e-10


def participation_share(
    weights: np.ndarray, num_active: int, scheme: Literal["with_replacement", "without_replacement"]
) -> float:
    """``C_S / S``, the part of the spread among clients that enters the server's average (lemma C.1).

    Clients drawn by their weights (scheme I): ``1 / S``. A uniform subset of clients of equal weights (scheme II):
    ``(N - S) / (S (N - 1))``, zero where everybody takes part.
    """
    num = len(weights)
    if scheme == "with_replacement":
        return 1.0 / num_active
    if not np.allclose(weights, 1.0 / num):
        raise ValueError(f"scheme 'without_replacement' needs equal weights, not {weights}: write 'with_replacement'")
    return (num - num_active) / (num_active * max(num - 1, 1))


def covariance_inflation(num_clients: int, share: float, rho: float = 0.0) -> float:
    """``r = 1 + (1 - rho^2) share (N - 1)``: of clients that are alike, however small the step (derived)."""
    return 1.0 + (1.0 - rho**2) * share * (num_clients - 1)


def share_of(config: Options, weights: np.ndarray) -> float:
    """``C_S / S`` of the configured scheme; zero where everybody takes part."""
    if config.scheme == "full" or config.num_active is None:
        return 0.0
    averaged = average_weights(config, weights)
    return participation_share(averaged, config.num_active, config.scheme)


def average_weights(config: Options, weights: np.ndarray) -> np.ndarray:
    """By which positions are averaged in expectation, shape ``(N,)``: scheme II takes the drawn clients alike."""
    return np.full(len(weights), 1.0 / len(weights)) if config.scheme == "without_replacement" else weights


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
