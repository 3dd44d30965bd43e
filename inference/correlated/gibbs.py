"""The server's Markov chain: globals, factors, loadings and variances given the clients' Gaussian sites.

The model of the coupled coefficients, ``theta_k`` of client k with m numbers, is

    theta_k = Z a_k + e_k,      Z_jr ~ N(0, 1),     e_k ~ N(0, psi_k I),        Omega = A A' + diag(psi),
    A_kr ~ N(0, lambda_r^2),    lambda_r ~ HalfCauchy(s),       psi_k ~ InverseGamma(2, 2 t^2),
    log s, log t ~ N(log c, 2^2),

where ``c`` is a rough scale of the coefficients. Client k says ``s_k(phi, theta_k)``, a Gaussian site. In every step
all ``theta_k`` are integrated out; with the eigenvalues of their sites' precisions, found once, that costs no more than
products of small matrices (``DESIGN.md`` derives each step).
"""

from typing import NamedTuple

import jax
import jax.numpy as jnp
from jax import Array

from fedbayes.inference.correlated.slices import slice_step
from fedbayes.numerics.gaussian import Gaussian, eigenvectors, symmetrised, whitener

SCALE_SD = 2.0  # of log s and log t around the rough scale
PSI_SHAPE = 2.0  # of the inverse gamma law: e_k has Student's law with 4 degrees of freedom
_NO_INFORMATION = 1e-9  # share of the largest eigenvalue below which a site says nothing


class Sites(NamedTuple):
    """The clients' sites, turned so that each one's precision of ``theta_k`` is diagonal; without constants.

    Attributes
    ----------
    basis
        Eigenvectors ``U_k`` of the precision of ``theta_k``, in columns, shape ``(K, m, m)``.
    values
        Its eigenvalues, not negative, shape ``(K, m)``.
    shift
        Of ``U_k' theta_k``, shape ``(K, m)``.
    coupling
        Between ``U_k' theta_k`` and the globals, shape ``(K, m, d)``.
    precision, slope
        Of the globals: prior and all sites together, shapes ``(d, d)`` and ``(d,)``.
    """

    basis: Array
    values: Array
    shift: Array
    coupling: Array
    precision: Array
    slope: Array


class Chain(NamedTuple):
    """A position of the chain.

    Attributes
    ----------
    phi
        Globals ``(d,)``.
    factors
        ``Z``, shape ``(m, R)``.
    loadings
        ``A``, shape ``(K, R)``.
    log_psi
        Shape ``(K,)``.
    log_lambda
        Shape ``(R,)``.
    log_scales
        ``log s`` and ``log t``, shape ``(2,)``.
    """

    phi: Array
    factors: Array
    loadings: Array
    log_psi: Array
    log_lambda: Array
    log_scales: Array


def turned(prior: Gaussian, sites: Gaussian) -> Sites:
    """The prior of the globals and the clients' sites over ``(phi, theta_k)``, leading axis K, as :class:`Sites`."""
    size = prior.size
    values, basis = jax.vmap(eigenvectors)(symmetrised(sites.precision[:, size:, size:]))
    known = values > _NO_INFORMATION * jnp.max(values, axis=1, keepdims=True)
    across = jnp.swapaxes(basis, 1, 2)
    shift = jnp.einsum("kij,kj->ki", across, sites.shift[:, size:])
    coupling = across @ sites.precision[:, size:, :size]
    return Sites(
        basis,
        jnp.where(known, values, 0.0),
        jnp.where(known, shift, 0.0),
        jnp.where(known[..., None], coupling, 0.0),
        symmetrised(prior.precision + jnp.sum(sites.precision[:, :size, :size], axis=0)),
        prior.shift + jnp.sum(sites.shift[:, :size], axis=0),
    )


def rough_estimates(sites: Sites, phi: Array) -> tuple[Array, Array]:
    """Each client's own estimate of ``theta_k`` given the globals, zero where it knows nothing, and their scale c.

    Shapes ``(K, m)`` and ``()``. Both move with the unit of the coefficients.
    """
    known = sites.values > 0.0
    own = jnp.where(known, (sites.shift - sites.coupling @ phi) / jnp.where(known, sites.values, 1.0), 0.0)
    typical = jnp.sum(sites.values) / jnp.maximum(jnp.sum(known), 1)
    weight = sites.values / (sites.values + typical + (typical == 0.0))
    square = jnp.sum(weight * own**2) / jnp.maximum(jnp.sum(weight), 1e-300)
    scale = jnp.sqrt(jnp.where(jnp.isfinite(square) & (square > 0.0), square, 1.0))
    return jnp.einsum("kij,kj->ki", sites.basis, own), scale


def first_position(sites: Sites, phi: Array, rank: int, key: Array) -> Chain:
    """Principal components of the clients' own estimates, disturbed."""
    own, scale = rough_estimates(sites, phi)
    num_clients, size = own.shape
    values, vectors = eigenvectors(own.T @ own)
    leading = vectors[:, jnp.argsort(-values)[:rank]]
    loadings_key, factors_key, psi_key = jax.random.split(key, 3)
    missing = rank - leading.shape[1]  # a rank above m has factors to begin at random
    factors = jnp.pad(jnp.sqrt(size) * leading, ((0, 0), (0, missing)))
    loadings = jnp.pad(own @ leading / jnp.sqrt(size), ((0, 0), (0, missing)))
    factors = factors + 0.3 * jax.random.normal(factors_key, factors.shape)
    loadings = loadings + 0.1 * scale * jax.random.normal(loadings_key, loadings.shape)
    log_psi = 2.0 * jnp.log(scale) - 3.0 + jax.random.normal(psi_key, (num_clients,))
    log_lambda = 0.5 * jnp.log(jnp.mean(loadings**2, axis=0))
    log_scales = jnp.log(scale) + jnp.array([0.0, -1.5])
    return Chain(phi, factors, loadings, log_psi, log_lambda, log_scales)


def core(sites: Sites, loadings: Array, psi: Array) -> Gaussian:
    """The Gaussian of ``(phi, vec Z)`` given loadings and variances, every ``theta_k`` integrated out.

    ``vec Z`` has the factors one after the other, shape ``(R m,)``. With ``F = (I + psi_k L_k)^-1``, ``L_k`` the
    eigenvalues of client k's site, it adds to the precision

        phi, phi:   - C_k' psi_k F C_k          phi, Z_r:   a_kr C_k' F U_k'        Z_r, Z_q:   a_kr a_kq U_k L_k F U_k'

    and to the shift ``- C_k' psi_k F h_k`` and ``a_kr U_k F h_k``.
    """
    num_clients, size = sites.values.shape
    rank = loadings.shape[1]
    shrink = 1.0 / (1.0 + psi[:, None] * sites.values)
    apart = (psi[:, None] * shrink)[..., None] * sites.coupling
    globals_ = sites.precision - jnp.einsum("kid,kie->de", sites.coupling, apart)
    slope = sites.slope - jnp.einsum("kid,ki->d", apart, sites.shift)
    weight = (sites.basis * (sites.values * shrink)[:, None, :]) @ jnp.swapaxes(sites.basis, 1, 2)
    pairs = (loadings[:, :, None] * loadings[:, None, :]).reshape(num_clients, -1)
    block = (pairs.T @ weight.reshape(num_clients, -1)).reshape(rank, rank, size, size)
    block = jnp.swapaxes(block, 1, 2).reshape(rank * size, rank * size)
    across = jnp.einsum("kid,ki,kji->kdj", sites.coupling, shrink, sites.basis)
    beside = jnp.einsum("kr,kdj->drj", loadings, across).reshape(-1, rank * size)
    told = jnp.einsum("kji,ki,ki->kj", sites.basis, shrink, sites.shift)
    shift = jnp.concatenate([slope, (loadings.T @ told).reshape(-1)])
    precision = jnp.block([[globals_, beside], [beside.T, block + jnp.eye(rank * size)]])
    return Gaussian(shift, symmetrised(precision), jnp.zeros(()))


def residual_shift(sites: Sites, phi: Array) -> Array:
    """``g_k = h_k - C_k phi``, the sites' shifts given the globals, shape ``(K, m)``."""
    return sites.shift - sites.coupling @ phi


def coefficients(sites: Sites, chain: Chain) -> tuple[Array, Array]:
    """``theta_k`` given the rest: mean ``(K, m)``, and variances ``(K, m)`` along the columns of ``basis``."""
    psi = jnp.exp(chain.log_psi)[:, None]
    predicted = jnp.einsum("kji,kj->ki", sites.basis, chain.loadings @ chain.factors.T)
    shrink = 1.0 / (1.0 + psi * sites.values)
    mean = shrink * (predicted + psi * residual_shift(sites, chain.phi))
    return jnp.einsum("kij,kj->ki", sites.basis, mean), psi * shrink


def step(sites: Sites, log_scale: Array, chain: Chain, key: Array) -> Chain:
    """One sweep: (phi, Z), A, psi, the ways to write the same ``Z A'``, lambda, s and t, each given the rest."""
    keys = jax.random.split(key, 7)
    chain = _globals_and_factors(sites, chain, keys[0])
    chain = _loadings(sites, chain, keys[1])
    chain = _variances(sites, log_scale, chain, keys[2])
    chain = _sheared(chain, keys[3])
    chain = _rescaled(chain, keys[4])
    chain = _column_scales(chain, keys[5])
    return _scales(log_scale, chain, keys[6])


def _globals_and_factors(sites: Sites, chain: Chain, key: Array) -> Chain:
    found = core(sites, chain.loadings, jnp.exp(chain.log_psi))
    # one factorisation and two solves that wait for each other: no two of LAPACK's calls run at once
    lower = jnp.linalg.cholesky(found.precision)
    half = jax.scipy.linalg.solve_triangular(lower, found.shift, lower=True)
    noise = jax.random.normal(key, half.shape)
    drawn = jax.scipy.linalg.solve_triangular(lower, half + noise, lower=True, trans=1)
    size, rank = chain.phi.shape[0], chain.factors.shape[1]
    return chain._replace(phi=drawn[:size], factors=drawn[size:].reshape(rank, -1).T)


def _loadings(sites: Sites, chain: Chain, key: Array) -> Chain:
    psi = jnp.exp(chain.log_psi)[:, None]
    shrink = 1.0 / (1.0 + psi * sites.values)
    seen = jnp.swapaxes(sites.basis, 1, 2) @ chain.factors  # (K, m, R)
    ridge = jnp.diag(jnp.exp(-2.0 * chain.log_lambda))
    precision = jnp.einsum("kir,ki,kiq->krq", seen, sites.values * shrink, seen) + ridge
    shift = jnp.einsum("kir,ki->kr", seen, shrink * residual_shift(sites, chain.phi))
    white = jax.vmap(whitener)(precision)
    noise = jax.random.normal(key, shift.shape)
    half = jnp.einsum("krq,kq->kr", white, shift) + noise
    return chain._replace(loadings=jnp.einsum("krq,kr->kq", white, half))


def _variances(sites: Sites, log_scale: Array, chain: Chain, key: Array) -> Chain:
    told = residual_shift(sites, chain.phi)
    predicted = jnp.einsum("kji,kj->ki", sites.basis, chain.loadings @ chain.factors.T)
    fixed = 2.0 * told * predicted - sites.values * predicted**2
    log_s, log_t = chain.log_scales
    each_key, all_key = jax.random.split(key)

    def likelihood(log_psi: Array) -> Array:
        psi = jnp.exp(log_psi)[:, None]
        grown = 1.0 + psi * sites.values
        return 0.5 * jnp.sum((psi * told**2 + fixed) / grown - jnp.log(grown), axis=1)

    def together(log_c: Array) -> Array:  # all psi_k and t^2, whose ratios stay: one by one they would follow slowly
        prior = -0.5 * ((log_t + 0.5 * log_c[0] - log_scale) / SCALE_SD) ** 2
        return jnp.sum(likelihood(chain.log_psi + log_c[0]))[None] + prior

    log_c = slice_step(together, jnp.zeros(1), all_key, 2.0)[0]
    log_t = log_t + 0.5 * log_c
    log_psi = slice_step(
        lambda log_psi: likelihood(log_psi) + _log_inverse_gamma(log_psi, log_t), chain.log_psi + log_c, each_key, 4.0
    )
    return chain._replace(log_psi=log_psi, log_scales=jnp.stack([log_s, log_t]))


def _sheared(chain: Chain, key: Array) -> Chain:
    """``Z_r + Z c`` and ``A_q - c_q A_r`` for q other than r: the same ``Z A'``, along which sweeps hardly move."""
    rank = chain.factors.shape[1]
    if rank == 1:
        return chain
    noise = jax.random.normal(key, (rank, rank))
    inverse = jnp.exp(-2.0 * chain.log_lambda)

    def one(r: Array, carry: tuple[Array, Array]) -> tuple[Array, Array]:
        factors, loadings = carry
        others = (jnp.arange(rank) != r).astype(factors.dtype)
        rest, mine, own = factors * others, factors[:, r], loadings[:, r]
        precision = rest.T @ rest + jnp.diag(others * inverse * (own @ own) + (1.0 - others))
        shift = others * (inverse * (loadings.T @ own) - rest.T @ mine)
        white = whitener(precision)
        move = others * (white.T @ (white @ shift + noise[r]))
        return factors.at[:, r].add(rest @ move), loadings - own[:, None] * move

    factors, loadings = jax.lax.fori_loop(0, rank, one, (chain.factors, chain.loadings))
    return chain._replace(factors=factors, loadings=loadings)


def _rescaled(chain: Chain, key: Array) -> Chain:
    """``c Z_r``, ``A_r / c`` and ``lambda_r / c``: the same ``Z A'``."""
    size = chain.factors.shape[0]
    squares = jnp.sum(chain.factors**2, axis=0)

    def log_density(log_c: Array) -> Array:
        prior = _log_half_cauchy(chain.log_lambda - log_c, chain.log_scales[0])
        return size * log_c - 0.5 * jnp.exp(2.0 * log_c) * squares + prior

    log_c = slice_step(log_density, jnp.zeros_like(squares), key, 2.0)
    grown = jnp.exp(log_c)
    return chain._replace(
        factors=chain.factors * grown, loadings=chain.loadings / grown, log_lambda=chain.log_lambda - log_c
    )


def _column_scales(chain: Chain, key: Array) -> Chain:
    squares, num_clients = jnp.sum(chain.loadings**2, axis=0), chain.loadings.shape[0]

    def log_density(log_lambda: Array) -> Array:
        normal = -num_clients * log_lambda - 0.5 * squares * jnp.exp(-2.0 * log_lambda)
        return normal + _log_half_cauchy(log_lambda, chain.log_scales[0])

    return chain._replace(log_lambda=slice_step(log_density, chain.log_lambda, key, 2.0))


def _scales(log_scale: Array, chain: Chain, key: Array) -> Chain:
    def log_density(log_scales: Array) -> Array:
        columns = jnp.sum(_log_half_cauchy(chain.log_lambda, log_scales[0]))
        own = jnp.sum(_log_inverse_gamma(chain.log_psi, log_scales[1]))
        return jnp.stack([columns, own]) - 0.5 * ((log_scales - log_scale) / SCALE_SD) ** 2

    return chain._replace(log_scales=slice_step(log_density, chain.log_scales, key, 3.0))


def _log_half_cauchy(log_x: Array, log_scale: Array) -> Array:
    """Log density of ``log x`` where ``x`` is half-Cauchy, up to a constant."""
    gap = log_x - log_scale
    return gap - jnp.logaddexp(0.0, 2.0 * gap)


def _log_inverse_gamma(log_psi: Array, log_t: Array) -> Array:
    """Log density of ``log psi`` where ``psi ~ InverseGamma(2, 2 t^2)``, up to a constant."""
    gap = 2.0 * (log_t - log_psi / 2.0)
    return PSI_SHAPE * (gap - jnp.exp(gap))


class Moments(NamedTuple):
    """Moments of each client's ``(phi, theta_k)``: means ``(K, d + m)``, covariances ``(K, d + m, d + m)``."""

    mean: Array
    covariance: Array


def short_chain(sites: Sites, start: Chain, key: Array, *, num_warmup: int, num_samples: int) -> Moments:
    """Moments of each client's ``(phi, theta_k)`` over a chain, ``theta_k`` by its mean and variance in each step."""
    log_scale = jnp.log(rough_estimates(sites, start.phi)[1])
    size, coefficients_size = start.phi.shape[0], start.factors.shape[0]

    def sweep(carry: tuple[Chain, Array, Array, Array], at: Array) -> tuple[tuple, None]:
        chain, total, squares, spread = carry
        chain = step(sites, log_scale, chain, jax.random.fold_in(key, at))
        mean, variance = coefficients(sites, chain)
        joint = jnp.concatenate([jnp.broadcast_to(chain.phi, (len(mean), size)), mean], axis=1) - origin
        kept = jnp.where(at >= num_warmup, 1.0, 0.0)
        outer = joint[:, :, None] * joint[:, None, :]
        return (chain, total + kept * joint, squares + kept * outer, spread + kept * variance), None

    own, _ = rough_estimates(sites, start.phi)
    origin = jnp.concatenate([jnp.broadcast_to(start.phi, (len(own), size)), own], axis=1)  # against cancellation
    width = size + coefficients_size
    begin = start, jnp.zeros_like(origin), jnp.zeros((len(own), width, width)), jnp.zeros_like(sites.values)
    (_, total, squares, spread), _ = jax.lax.scan(sweep, begin, jnp.arange(num_warmup + num_samples))
    mean = total / num_samples
    covariance = squares / num_samples - mean[:, :, None] * mean[:, None, :]
    inside = (sites.basis * (spread / num_samples)[:, None, :]) @ jnp.swapaxes(sites.basis, 1, 2)
    covariance = covariance.at[:, size:, size:].add(inside)
    return Moments(mean + origin, symmetrised(covariance))


class Draws(NamedTuple):
    """What a long chain keeps of each draw.

    Attributes
    ----------
    phi
        Shape ``(draw, d)``.
    theta
        Shape ``(draw, K, m)``.
    loadings, psi
        Shapes ``(draw, K, R)`` and ``(draw, K)``: ``Omega = A A' + diag(psi)``.
    """

    phi: Array
    theta: Array
    loadings: Array
    psi: Array


def long_chain(sites: Sites, start: Chain, key: Array, *, num_warmup: int, num_draws: int, thinning: int) -> Draws:
    """Draws of the posterior given the sites, ``thinning`` sweeps apart."""
    log_scale = jnp.log(rough_estimates(sites, start.phi)[1])

    def sweeps(chain: Chain, begin: Array, num: int) -> Chain:
        def one(i: Array, chain: Chain) -> Chain:
            return step(sites, log_scale, chain, jax.random.fold_in(key, begin + i))

        return jax.lax.fori_loop(0, num, one, chain)

    def draw(chain: Chain, at: Array) -> tuple[Chain, Draws]:
        chain = sweeps(chain, num_warmup + at * thinning, thinning)
        mean, variance = coefficients(sites, chain)
        noise = jax.random.normal(jax.random.fold_in(jax.random.fold_in(key, at), 1), mean.shape)
        theta = mean + jnp.einsum("kij,kj->ki", sites.basis, jnp.sqrt(variance) * noise)
        return chain, Draws(chain.phi, theta, chain.loadings, jnp.exp(chain.log_psi))

    chain = sweeps(start, jnp.zeros((), int), num_warmup)
    return jax.lax.scan(draw, chain, jnp.arange(num_draws))[1]
