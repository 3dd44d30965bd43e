"""One-shot merging of subposteriors: what a single exchange of draws or moments can say of the posterior.

A client's subposterior is ``f_k(theta) p(theta)^{w_k}`` with ``sum_k w_k = 1``, in unconstrained space; the product of
all is the posterior. Three ways to merge them: average the draws (:func:`consensus`), average the Gaussians in
transport distance (:func:`wasserstein_barycentre`), or multiply density estimates (:func:`density_product`). All are
pure functions for float64 arrays, and can be jitted and vmapped.
"""

from collections.abc import Callable, Mapping
from typing import NamedTuple

import jax
import jax.numpy as jnp
from jax import Array

from fedbayes.numerics.gaussian import Gaussian, gaussian_from_moments, symmetrised, whitener


def consensus(draws: Array, precisions: Array) -> Array:
    """Consensus Monte Carlo: the s-th merged draw is ``(sum_k W_k)^-1 sum_k W_k theta_{k,s}``.

    Exact, with ``W_k`` the inverse covariances, for Gaussian subposteriors and draws that are independent between
    clients. Otherwise the merged draws have roughly the covariance of the Gaussian product, but not the posterior's
    shape nor, with skewed subposteriors, its mean.

    Parameters
    ----------
    draws
        Of each subposterior, shape ``(K, n, d)``.
    precisions
        Weights ``W_k``, shape ``(K, d, d)``. One may be singular (a client that knows nothing of a direction), their
        sum may not.

    Returns
    -------
    Array
        Merged draws, shape ``(n, d)``.

    References
    ----------
    Scott, Blocker, Bonassi, Chipman, George and McCulloch (2016), Bayes and big data: the consensus Monte Carlo
    algorithm, International Journal of Management Science and Engineering Management 11(2).
    """
    white = whitener(symmetrised(jnp.sum(precisions, axis=0)))
    return jnp.einsum("knj,kij->ni", draws, precisions) @ white.T @ white


def wasserstein_barycentre(
    means: Array, covariances: Array, weights: Array, *, max_iterations: int = 200, tolerance: float = 1e-10
) -> tuple[Array, Array]:
    """The Gaussian with the least weighted sum of squared Wasserstein-2 distances to the given ones.

    An average and not a product: its spread is a client's, not the posterior's, unless the clients' are made the
    posterior's beforehand (by raising each likelihood to the power K, as WASP does).

    The covariance is the fixed point of ``S <- T S T``, where ``T`` is the weighted mean of the optimal maps
    ``T_k`` from ``N(0, S)`` to ``N(0, S_k)``; this is the iteration
    ``S^-1/2 (sum_k w_k (S^1/2 S_k S^1/2)^1/2)^2 S^-1/2`` of the reference. At the fixed point ``T`` is the
    identity. Commuting covariances need one step.

    Parameters
    ----------
    means, covariances
        Shapes ``(K, d)`` and ``(K, d, d)``; the covariances positive definite.
    weights
        Sum to one, shape ``(K,)``.
    max_iterations
        Of the fixed point.
    tolerance
        Largest entry of ``T - I``. Rounding leaves about ``1e-16`` times the condition number of the covariances.

    Returns
    -------
    mean
        Shape ``(d,)``.
    covariance
        Shape ``(d, d)``; not finite where a covariance is not positive definite.

    Notes
    -----
    With ``S = L L'`` and ``S_k = L_k L_k'``, ``T_k = L^-T H_k L^-1``, where ``H_k`` is the symmetric polar factor
    of ``L' L_k``. Taken literally, the root of ``S^1/2 S_k S^1/2`` has the product of two condition numbers to cope
    with; the polar factor has its square root. No coordinates are changed but by a scalar: the barycentre is not
    equivariant under affine maps.

    References
    ----------
    Agueh and Carlier (2011), Barycenters in the Wasserstein space, SIAM Journal on Mathematical Analysis 43(2).
    Alvarez-Esteban, del Barrio, Cuesta-Albertos and Matran (2016), A fixed-point approach to barycenters in Wasserstein
    space, Journal of Mathematical Analysis and Applications 441(2).
    """
    size = covariances.shape[-1]
    average = jnp.einsum("k,kij->ij", weights, covariances)
    scale = jnp.trace(average) / size
    factors = jax.vmap(_cholesky)(covariances / scale)

    def unfinished(carry: tuple[Array, Array, Array]) -> Array:
        _, gap, count = carry
        return (gap > tolerance) & (count < max_iterations)  # NaN ends the loop

    def step(carry: tuple[Array, Array, Array]) -> tuple[Array, Array, Array]:
        covariance, _, count = carry
        white = whitener(covariance)
        roots = jax.vmap(_polar)((covariance @ white.T).T @ factors)
        mean_map = white.T @ jnp.einsum("k,kij->ij", weights, roots) @ white
        gap = jnp.max(jnp.abs(mean_map - jnp.eye(size)))
        return symmetrised(mean_map @ covariance @ mean_map), gap, count + 1

    start = (average / scale, jnp.full((), jnp.inf, average.dtype), jnp.zeros((), int))
    return weights @ means, scale * jax.lax.while_loop(unfinished, step, start)[0]


def _cholesky(matrix: Array) -> Array:
    """``L`` with ``L L' = matrix``."""
    return matrix @ whitener(matrix).T


def _polar(matrix: Array) -> Array:
    """The symmetric ``H`` of ``matrix = H U`` with orthogonal ``U``: the square root of ``matrix @ matrix.T``.

    The Newton-Schulz iteration, matrix products alone: a small singular value grows by 3/2 in each step, and at
    last the error is squared. Condition numbers up to ``1e12`` fit in the 90 steps (Higham 2008, Functions of
    matrices, chapter 8).
    """
    identity = jnp.eye(matrix.shape[-1])

    def unfinished(carry: tuple[Array, Array, Array]) -> Array:
        _, gap, count = carry
        return (gap > 1e-8) & (count < 90)  # the step that finds this gap has squared it

    def step(carry: tuple[Array, Array, Array]) -> tuple[Array, Array, Array]:
        rotation, _, count = carry
        residual = identity - rotation.T @ rotation
        return rotation + 0.5 * rotation @ residual, jnp.max(jnp.abs(residual)), count + 1

    start = matrix / jnp.sqrt(jnp.sum(matrix**2))  # all singular values in (0, 1]
    rotation, _, _ = jax.lax.while_loop(
        unfinished, step, (start, jnp.full((), jnp.inf, matrix.dtype), jnp.zeros((), int))
    )
    return symmetrised(matrix @ rotation.T)


def density_product(draws: Array, key: Array, num: int, *, semiparametric: bool = True, num_sweeps: int = 500) -> Array:
    """Draws of the product of density estimates of the subposteriors.

    Each subposterior is estimated by a Gaussian kernel density estimate of its draws or, if ``semiparametric``, by
    its Gaussian times such an estimate of the ratio to it. The product of the K estimates is a mixture of ``n^K``
    Gaussians, one for each choice ``t = (t_1, ..., t_K)`` of a draw per client. Each of ``num`` independent chains
    walks over ``t`` by Metropolis within Gibbs, which proposes any draw of one client with equal probability, and
    ends with one draw of its component.

    Parameters
    ----------
    draws
        Of each subposterior, more than d, shape ``(K, n, d)``.
    key
        Random key.
    num
        Number of merged draws, which are independent given ``draws``.
    semiparametric
        Whether the density estimates start from a Gaussian.
    num_sweeps
        Over all clients, per chain, at least two. The bandwidth falls over the first half and stays for the second.

    Returns
    -------
    Array
        Merged draws, shape ``(num, d)``.

    Notes
    -----
    Bandwidth. The kernel of client k has covariance ``h^2 Sigma_k``, with ``Sigma_k`` that of its draws: the
    estimate follows linear maps of ``theta``, and one client may know far more of a direction than another. ``h``
    is ``i^(-1 / (4 + d))`` as in the paper, where i runs geometrically from 1 to n. The mean of component t is then
    the consensus of its draws, so that chains start as :func:`consensus` and leave it for the shape of the product.

    What is exact. As ``n`` and ``num_sweeps`` grow, merged draws are draws of the posterior, whatever the
    subposteriors; the mean squared error of the density falls like ``n^(-4 / (4 + d))``. At finite n and for
    Gaussian subposteriors the nonparametric product is too wide, by ``1 + h^2`` in covariance; the semiparametric
    one is not, and for others its smoothing error is that of a ratio to a Gaussian. Subposteriors with heavy tails
    make this ratio, and its error, large.

    What goes wrong. The error grows with d, as that of any density estimate, and with K, because each factor brings
    its own; most where subposteriors hardly overlap, since the product then lies in tails without draws. With n =
    1,000 draws of skewed clients, whose centres scatter by one of their sds, the mean was off by up to 0.2
    posterior sds for d <= 2 and K <= 8, by 0.3 for d = 5 and K = 8, and by 0.3 to 0.9 as a rule for larger d or K,
    where the Gaussian product does as well or better. There, more sweeps don't help: chains that have not mixed
    stay near the consensus.

    References
    ----------
    Neiswanger, Wang and Xing (2014), Asymptotically exact, embarrassingly parallel MCMC, UAI: algorithm 1, section 3.3.
    """
    num_clients, num_draws, size = draws.shape
    means = jnp.mean(draws, axis=1)
    own = draws - means[:, None]
    covariances = jnp.einsum("kni,knj->kij", own, own) / (num_draws - 1)
    halves = jax.vmap(whitener)(covariances)
    precisions = jnp.swapaxes(halves, 1, 2) @ halves
    white = whitener(jnp.sum(precisions, axis=0))
    centre = white.T @ (white @ jnp.einsum("kij,kj->i", precisions, means))

    # In the coordinates u, theta = centre + white' u, the Gaussian product is standard normal, and component t has mean
    # sum_k pull[k, t_k]. The spread sum_k |theta_k - mean|^2 of its draws, each in its client's metric, is the sum of
    # reach[k, t_k] minus |mean|^2. So a proposal costs O(d), not O(K d^2).
    gap = draws - centre
    pull = jnp.einsum("knj,kij->kni", gap, white @ precisions)
    reach = jnp.sum(jnp.einsum("knj,kij->kni", gap, halves) ** 2, axis=2)
    surprise = jnp.sum(jnp.einsum("knj,kij->kni", own, halves) ** 2, axis=2)  # -2 log of the client's Gaussian

    # Wide kernels with the semiparametric weights would chase draws in the tails of the clients' Gaussians, where the
    # narrow ones leave them stuck. So the bandwidth falls with the nonparametric weights.
    progress = jnp.arange(1, num_sweeps + 1) / max(num_sweeps // 2, 1)
    bandwidths = num_draws ** (-jnp.minimum(progress, 1.0) / (4 + size))
    corrected = jnp.where((progress > 1.0) & semiparametric, 1.0, 0.0)
    shrink = 1.0 / (1.0 + corrected[-1] * bandwidths[-1] ** 2)  # of a component's mean towards the Gaussian product's
    clients = jnp.arange(num_clients)

    def sweep(
        carry: tuple[Array, Array, Array], step: tuple[Array, Array, Array]
    ) -> tuple[tuple[Array, Array, Array], None]:
        chosen, mean, key = carry
        bandwidth, correction, count = step

        def log_weight(client: Array, chosen: Array, mean: Array) -> Array:
            """What depends on one client's choice."""
            length = jnp.sum(mean**2)
            kernels = (length - reach[client, chosen]) / bandwidth**2
            return 0.5 * (kernels + correction * (surprise[client, chosen] - shrink * length))

        def visit(mean: Array, place: tuple[Array, Array, Array, Array]) -> tuple[Array, Array]:
            client, old, new, log_uniform = place
            moved = mean - pull[client, old] + pull[client, new]
            accept = log_uniform < log_weight(client, new, moved) - log_weight(client, old, mean)
            return jnp.where(accept, moved, mean), jnp.where(accept, new, old)

        where, whether = jax.random.uniform(jax.random.fold_in(key, count), (2, num_clients))
        proposals = (num_draws * where).astype(int)
        mean, chosen = jax.lax.scan(visit, mean, (clients, chosen, proposals, jnp.log(whether)))
        return (chosen, mean, key), None

    def chain(key: Array) -> Array:
        start_key, noise_key, sweep_key = jax.random.split(key, 3)
        chosen = (num_draws * jax.random.uniform(start_key, (num_clients,))).astype(int)
        start = chosen, jnp.sum(pull[clients, chosen], axis=0), sweep_key
        (_, mean, _), _ = jax.lax.scan(sweep, start, (bandwidths, corrected, jnp.arange(num_sweeps)))
        return shrink * mean + bandwidths[-1] * jnp.sqrt(shrink) * jax.random.normal(noise_key, (size,))

    return centre + jax.vmap(chain)(jax.random.split(key, num)) @ white


class Combination(NamedTuple):
    """A way to merge subposteriors, and what it needs.

    Attributes
    ----------
    merge
        ``(product, clients, draws, heard, shares, key) -> (merged, draws)``: the product of the clients' Gaussians with
        the prior counted once, the clients' Gaussians, their draws ``(K, n, d)``, one for each client heard ``(K,)``,
        the powers of the prior in their subposteriors ``(K,)``. Draws come back where the merged posterior is no
        Gaussian, else none.
    needs_draws
        Whether the clients send draws.
    divides_prior
        Whether every client may have the whole prior, whose copies are divided out.
    shares
        ``"equal"`` or ``"rows"``: by what clients share the prior, unless each has all of it.
    """

    merge: Callable[[Gaussian, Gaussian, Array, Array, Array, Array], tuple[Gaussian, Array]]
    needs_draws: bool = False
    divides_prior: bool = False
    shares: str = "equal"


def merged_by_product(
    product: Gaussian, clients: Gaussian, draws: Array, heard: Array, shares: Array, key: Array
) -> tuple[Gaussian, Array]:
    """The product of the Gaussians, ``Q = sum Q_k``, ``Q mean = sum Q_k mean_k``; exact for Gaussian clients."""
    return product, jnp.zeros((0, product.size))


def merged_by_barycentre(
    product: Gaussian, clients: Gaussian, draws: Array, heard: Array, shares: Array, key: Array
) -> tuple[Gaussian, Array]:
    """The Wasserstein barycentre of the clients' Gaussians ``N(mean_k, share_k Sigma_k)``.

    Shrinking the covariance by the client's share stands for its likelihood raised to the power ``1 / share``
    (Srivastava, Li and Dunson 2018); exact for Gaussian clients of equal ``share_k Sigma_k`` and no others.
    """
    weights = jnp.where(heard > 0, shares, 0.0)
    weights = weights / jnp.sum(weights)
    means, covariances = jax.vmap(Gaussian.moments)(clients)
    there = heard[:, None] > 0
    means = jnp.where(there, means, 0.0)
    covariances = jnp.where(there[..., None], weights[:, None, None] * covariances, jnp.eye(product.size))
    mean, covariance = wasserstein_barycentre(means, covariances, weights)
    return _with_evidence(mean, covariance, product), jnp.zeros((0, product.size))


def merged_by_consensus(
    product: Gaussian, clients: Gaussian, draws: Array, heard: Array, shares: Array, key: Array
) -> tuple[Gaussian, Array]:
    """Consensus Monte Carlo: averages of the clients' draws, weighted by their precisions; exact for Gaussian ones.

    Where a client is missing, its draws and so its share of the prior are too: then draws of the Gaussian product.
    """
    merged = consensus(draws, clients.precision)
    return _of_draws(_if_complete(merged, product, draws, heard, key), product)


def merged_by_density_product(
    product: Gaussian, clients: Gaussian, draws: Array, heard: Array, shares: Array, key: Array
) -> tuple[Gaussian, Array]:
    """Draws of the product of density estimates; the Gaussian product's own where a client is missing."""
    merged = density_product(draws, key, draws.shape[1])
    return _of_draws(_if_complete(merged, product, draws, heard, key), product)


def _if_complete(merged: Array, product: Gaussian, draws: Array, heard: Array, key: Array) -> Array:
    """The merged draws where every client has sent some, else the Gaussian product's."""
    complete = jnp.all(heard > 0) & jnp.all(jnp.isfinite(draws))
    return jnp.where(complete, merged, product.sample(key, draws.shape[1]))


def _of_draws(draws: Array, product: Gaussian) -> tuple[Gaussian, Array]:
    mean = jnp.mean(draws, axis=0)
    gap = draws - mean
    return _with_evidence(mean, gap.T @ gap / (len(draws) - 1), product), draws


def _with_evidence(mean: Array, covariance: Array, product: Gaussian) -> Gaussian:
    """The Gaussian with these moments, and the product's integral: the evidence is estimated by the Gaussians."""
    merged = gaussian_from_moments(mean, covariance)
    return Gaussian(merged.shift, merged.precision, merged.log_scale + product.log_integral())


COMBINATIONS: Mapping[str, Combination] = {
    "consensus": Combination(merged_by_consensus, needs_draws=True),
    "gaussian_product": Combination(merged_by_product, divides_prior=True),
    "laplace": Combination(merged_by_product, divides_prior=True),
    "wasserstein": Combination(merged_by_barycentre, shares="rows"),
    "density_product": Combination(merged_by_density_product, needs_draws=True),
}
