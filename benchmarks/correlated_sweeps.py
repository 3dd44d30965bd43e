"""The Markov chain of correlated clients by NumPy: the same sweep as in `fedbayes.inference.correlated.gibbs`.

All clients at once by `einsum`, LAPACK for the matrices, nothing compiled: what one writes from the equations for
speed's sake. Given the same sites both chains have the same law, and the page shows how far apart their means are.
`python benchmarks/correlated_clients.py --part sweeps` runs it.
"""

import time
from collections.abc import Callable
from dataclasses import dataclass

import jax
import jax.numpy as jnp
import numpy as np

from fedbayes.inference.correlated import gibbs
from fedbayes.numerics.gaussian import Gaussian

Array = np.ndarray


@dataclass
class Chain:
    """A position: globals, factors ``Z``, loadings ``A``, and logs of psi, lambda and (s, t)."""

    phi: Array
    factors: Array
    loadings: Array
    log_psi: Array
    log_lambda: Array
    log_scales: Array


def slice_step(rng: np.random.Generator, log_density: Callable[[Array], Array], at: Array, width: float) -> Array:
    """A step of many scalars side by side, as in `fedbayes.inference.correlated.slices`."""
    level = log_density(at) + np.log1p(-rng.random(at.shape))
    low = at - width * rng.random(at.shape)
    high, now, done = low + width, at.copy(), np.zeros(at.shape, bool)
    while not done.all():
        proposed = low + (high - low) * rng.random(at.shape)
        accepted = log_density(proposed) >= level
        now = np.where(~done & accepted, proposed, now)
        low, high = np.where(proposed < at, proposed, low), np.where(proposed < at, high, proposed)
        done |= accepted
    return now


def sweep(rng: np.random.Generator, sites: gibbs.Sites, log_scale: float, chain: Chain) -> None:
    """(phi, Z), A, psi, the ways to write the same ``Z A'``, lambda, s and t, each given the rest, in place."""
    _globals_and_factors(rng, sites, chain)
    _loadings(rng, sites, chain)
    _variances(rng, sites, log_scale, chain)
    _rewritten(rng, chain)
    _scales(rng, log_scale, chain)


def coefficients(sites: gibbs.Sites, chain: Chain) -> Array:
    """The mean of every ``theta_k`` given the rest."""
    psi = np.exp(chain.log_psi)[:, None]
    predicted = _turned(sites, chain)
    mean = (predicted + psi * (sites.shift - sites.coupling @ chain.phi)) / (1.0 + psi * sites.values)
    return np.einsum("kij,kj->ki", sites.basis, mean)


def _turned(sites: gibbs.Sites, chain: Chain) -> Array:
    return np.einsum("kji,kj->ki", sites.basis, chain.loadings @ chain.factors.T)


def _globals_and_factors(rng: np.random.Generator, sites: gibbs.Sites, chain: Chain) -> None:
    psi, loadings = np.exp(chain.log_psi)[:, None], chain.loadings
    clients, size = sites.values.shape
    rank, d = loadings.shape[1], len(chain.phi)
    shrink = 1.0 / (1.0 + psi * sites.values)
    across = np.swapaxes(sites.basis, 1, 2)
    weight = (sites.basis * (sites.values * shrink)[:, None, :]) @ across
    pairs = (loadings[:, :, None] * loadings[:, None, :]).reshape(clients, -1)
    block = (pairs.T @ weight.reshape(clients, -1)).reshape(rank, rank, size, size).swapaxes(1, 2)
    precision = np.empty((d + rank * size, d + rank * size))
    precision[d:, d:] = block.reshape(rank * size, -1) + np.eye(rank * size)
    told = np.einsum("kji,ki,ki->kj", sites.basis, shrink, sites.shift)
    slope = sites.slope
    if d:
        apart = (psi * shrink)[..., None] * sites.coupling
        precision[:d, :d] = sites.precision - np.einsum("kid,kie->de", sites.coupling, apart)
        beside = np.einsum("kid,ki,kji->kdj", sites.coupling, shrink, sites.basis)
        precision[d:, :d] = np.einsum("kr,kdj->rjd", loadings, beside).reshape(-1, d)
        precision[:d, d:] = precision[d:, :d].T
        slope = slope - np.einsum("kid,ki->d", apart, sites.shift)
    shift = np.concatenate([slope, (loadings.T @ told).reshape(-1)])
    lower = np.linalg.cholesky(precision)
    drawn = np.linalg.solve(lower.T, np.linalg.solve(lower, shift) + rng.normal(size=len(shift)))
    chain.phi, chain.factors = drawn[:d], drawn[d:].reshape(rank, -1).T


def _loadings(rng: np.random.Generator, sites: gibbs.Sites, chain: Chain) -> None:
    shrink = 1.0 / (1.0 + np.exp(chain.log_psi)[:, None] * sites.values)
    seen = np.swapaxes(sites.basis, 1, 2) @ chain.factors
    weighted = np.swapaxes(seen * (sites.values * shrink)[..., None], 1, 2)
    precision = weighted @ seen + np.diag(np.exp(-2.0 * chain.log_lambda))
    told = shrink * (sites.shift - sites.coupling @ chain.phi)
    shift = np.einsum("kir,ki->kr", seen, told)[..., None]
    lower = np.linalg.cholesky(precision)
    half = np.linalg.solve(lower, shift) + rng.normal(size=shift.shape)
    chain.loadings = np.linalg.solve(np.swapaxes(lower, 1, 2), half)[..., 0]


def _variances(rng: np.random.Generator, sites: gibbs.Sites, log_scale: float, chain: Chain) -> None:
    told = sites.shift - sites.coupling @ chain.phi
    predicted = _turned(sites, chain)
    fixed, squares = 2.0 * told * predicted - sites.values * predicted**2, told**2
    log_s, log_t = chain.log_scales

    def likelihood(log_psi: Array) -> Array:
        psi = np.exp(log_psi)[:, None]
        grown = 1.0 + psi * sites.values
        found: Array = 0.5 * np.sum((psi * squares + fixed) / grown - np.log(grown), axis=1)
        return found

    def together(log_c: Array) -> Array:
        prior = -0.5 * ((log_t + 0.5 * log_c - log_scale) / gibbs.SCALE_SD) ** 2
        return np.sum(likelihood(chain.log_psi + log_c)) + prior

    log_c = slice_step(rng, together, np.zeros(1), 2.0)
    log_t = log_t + 0.5 * log_c[0]
    own = lambda log_psi: likelihood(log_psi) + _log_inverse_gamma(log_psi, log_t)  # noqa: E731
    chain.log_psi = slice_step(rng, own, chain.log_psi + log_c, 4.0)
    chain.log_scales = np.array([log_s, log_t])


def _rewritten(rng: np.random.Generator, chain: Chain) -> None:
    """``Z_r + Z c`` and ``A_q - c_q A_r``; ``c Z_r``, ``A_r / c`` and ``lambda_r / c``: the same ``Z A'``."""
    factors, loadings, rank = chain.factors, chain.loadings, chain.factors.shape[1]
    inverse = np.exp(-2.0 * chain.log_lambda)
    for r in range(rank if rank > 1 else 0):
        others = np.arange(rank) != r
        rest, own = factors[:, others], loadings[:, r]
        precision = rest.T @ rest + np.diag(inverse[others] * (own @ own))
        shift = inverse[others] * (loadings[:, others].T @ own) - rest.T @ factors[:, r]
        lower = np.linalg.cholesky(precision)
        move = np.linalg.solve(lower.T, np.linalg.solve(lower, shift) + rng.normal(size=rank - 1))
        factors[:, r] += rest @ move
        loadings[:, others] -= own[:, None] * move
    size, squares = len(factors), np.sum(factors**2, axis=0)

    def log_density(log_c: Array) -> Array:
        prior = _log_half_cauchy(chain.log_lambda - log_c, chain.log_scales[0])
        return size * log_c - 0.5 * np.exp(2.0 * log_c) * squares + prior

    log_c = slice_step(rng, log_density, np.zeros(rank), 2.0)
    chain.factors, chain.loadings = factors * np.exp(log_c), loadings / np.exp(log_c)
    chain.log_lambda = chain.log_lambda - log_c


def _scales(rng: np.random.Generator, log_scale: float, chain: Chain) -> None:
    squares, clients = np.sum(chain.loadings**2, axis=0), len(chain.loadings)

    def of_lambda(log_lambda: Array) -> Array:
        normal = -clients * log_lambda - 0.5 * squares * np.exp(-2.0 * log_lambda)
        return normal + _log_half_cauchy(log_lambda, chain.log_scales[0])

    chain.log_lambda = slice_step(rng, of_lambda, chain.log_lambda, 2.0)

    def of_scales(log_scales: Array) -> Array:
        columns = np.sum(_log_half_cauchy(chain.log_lambda, log_scales[0]))
        own = np.sum(_log_inverse_gamma(chain.log_psi, log_scales[1]))
        return np.array([columns, own]) - 0.5 * ((log_scales - log_scale) / gibbs.SCALE_SD) ** 2

    chain.log_scales = slice_step(rng, of_scales, chain.log_scales, 3.0)


def _log_half_cauchy(log_x: Array, log_scale: float) -> Array:
    gap = log_x - log_scale
    return gap - np.logaddexp(0.0, 2.0 * gap)


def _log_inverse_gamma(log_psi: Array, log_t: float) -> Array:
    gap = 2.0 * (log_t - log_psi / 2.0)
    return gibbs.PSI_SHAPE * (gap - np.exp(gap))


@dataclass
class Compared:
    """Seconds of as many sweeps by each, and how far their means are apart, in posterior sds.

    Those of the clients' coefficients, with the common mean where there is one: the data tell their sum alone.
    """

    by_numpy: float
    ours: float
    apart: float


def simulated_sites(num: int, size: int, rows: int, *, common: bool = False) -> gibbs.Sites:
    """Exact sites of linear regressions with noise sd 0.5, whose coefficients have three factors.

    Parameters
    ----------
    num, size, rows
        Clients, coefficients, and rows of each client.
    common
        Whether there is a common mean of the coefficients as well, the globals, with the prior N(0, 9).
    """
    rng = np.random.default_rng([num, size])
    theta = rng.normal(size=(num, 3)) @ rng.normal(size=(3, size)) + 0.3 * rng.normal(size=(num, size))
    x = rng.normal(size=(num, rows, size))
    y = np.einsum("kni,ki->kn", x, theta) + 0.5 * rng.normal(size=(num, rows))
    if common:
        x = np.concatenate([x, x], axis=2)
    precision, shift = 4.0 * np.swapaxes(x, 1, 2) @ x, 4.0 * np.einsum("kni,kn->ki", x, y)
    d = size if common else 0
    prior = Gaussian(jnp.zeros(d), jnp.eye(d) / 9.0, jnp.zeros(()))
    return jax.jit(gibbs.turned)(prior, Gaussian(jnp.asarray(shift), jnp.asarray(precision), jnp.zeros(num)))


def compared(sites: gibbs.Sites, rank: int, num_warmup: int, num_sweeps: int, runs: int = 3) -> Compared:
    """A chain of both from the same start.

    Parameters
    ----------
    sites
        The clients'.
    rank
        Of the factors.
    num_warmup, num_sweeps
        Of which the latter count for the means.
    runs
        Of each, of which the quickest counts.
    """
    phi = np.zeros(sites.precision.shape[0])
    start = jax.jit(gibbs.first_position, static_argnums=2)(sites, phi, rank, jax.random.key(0))
    short = jax.jit(gibbs.short_chain, static_argnames=("num_warmup", "num_samples"))

    def compiled() -> gibbs.Moments:
        found = short(sites, start, jax.random.key(1), num_warmup=num_warmup, num_samples=num_sweeps)
        return jax.block_until_ready(found)

    told = gibbs.Sites(*(np.asarray(leaf) for leaf in sites))
    log_scale = float(np.log(gibbs.rough_estimates(sites, phi)[1]))

    def by_numpy() -> Array:
        rng, at, total = np.random.default_rng(0), Chain(*(np.array(leaf) for leaf in start)), 0.0
        for count in range(num_warmup + num_sweeps):
            sweep(rng, told, log_scale, at)
            if count >= num_warmup:
                total = total + coefficients(told, at) + (at.phi if len(phi) else 0.0)
        return np.asarray(total) / num_sweeps

    moments, means = compiled(), by_numpy()
    added = np.tile(np.eye(sites.values.shape[1]), 2 if len(phi) else 1)
    sd = np.sqrt(np.einsum("ij,kjl,il->ki", added, moments.covariance, added))
    gap = (means - np.asarray(moments.mean) @ added.T) / sd
    return Compared(_quickest(by_numpy, runs), _quickest(compiled, runs), float(np.sqrt(np.mean(gap**2))))


def _quickest(function: Callable[[], object], runs: int) -> float:
    seconds = []
    for _ in range(runs):
        begin = time.perf_counter()
        function()
        seconds.append(time.perf_counter() - begin)
    return min(seconds)
