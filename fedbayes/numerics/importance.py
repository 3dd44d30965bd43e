"""What importance sampling needs: quasi-random draws, and Pareto-smoothed weights."""

from functools import lru_cache

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array
from jax.scipy.special import ndtri
from jaxtyping import Float, Key
from scipy import special
from scipy.stats import qmc


@lru_cache(maxsize=32)
def _sobol(num: int, size: int) -> np.ndarray:
    """Sobol points, fixed: the randomness is a shift (Cranley and Patterson 1976) drawn from the key.

    Dimensions beyond those that the sequence has are a Latin hypercube's.
    """
    random, known = np.random.default_rng(0), min(size, qmc.Sobol.MAXDIM)
    points = qmc.Sobol(known, scramble=True, rng=random).random(num)
    if size == known:
        return points
    cells = random.permuted(np.tile(np.arange(num)[:, None], size - known), axis=0)
    return np.concatenate([points, (cells + random.random(cells.shape)) / num], axis=1)


def random_shift(key: Key[Array, ""], size: int) -> Float[Array, " {size}"]:
    """The random shift of a quasi-random sequence."""
    return jax.random.uniform(key, (size,), dtype=jnp.float64)


def quasi_normal(shift: Float[Array, " size"], num: int) -> Float[Array, "{num} size"]:
    """Standard normal quasi-random draws: a Sobol sequence shifted by ``shift``.

    ``num`` should be a power of two (the balance of the sequence).
    """
    shifted = jnp.mod(jnp.asarray(_sobol(num, shift.shape[0])) + shift, 1.0)
    return ndtri(jnp.clip(shifted, 1e-12, 1.0 - 1e-12))


@lru_cache(maxsize=32)
def fixed_normal(num: int, size: int) -> Float[np.ndarray, "{num} {size}"]:
    """Standard normal quasi-random draws that are the same every time."""
    shift = np.random.default_rng(1).random(size)
    return special.ndtri(np.clip(np.mod(_sobol(num, size) + shift, 1.0), 1e-12, 1.0 - 1e-12))


@lru_cache(maxsize=32)
def balanced_normal(num: int, size: int) -> Float[np.ndarray, "{num} {size}"]:
    """:func:`fixed_normal` with mean zero and covariance one exactly, where ``num > size``.

    Sums over such draws are exact for quadratic functions, as they are where a client is linear-Gaussian.
    """
    noise = fixed_normal(num, size)
    noise = noise - noise.mean(axis=0)
    return noise @ np.linalg.inv(np.linalg.cholesky(noise.T @ noise / num)).T


def pareto_smooth(log_weights: Float[Array, " n"]) -> tuple[Float[Array, " n"], Float[Array, ""]]:
    """Pareto-smoothed importance weights and the shape of their tail.

    Parameters
    ----------
    log_weights
        Unnormalised; ``-inf`` is allowed.

    Returns
    -------
    weights
        Normalised to sum to one.
    k_hat
        Shape of the generalised Pareto tail: below 0.7 the estimates can be trusted (``0`` where all weights are equal,
        infinite where a few hold everything).

    References
    ----------
    Vehtari, Simpson, Gelman, Yao and Gabry (2024), Pareto smoothed importance sampling, JMLR 25(72).
    """
    num = log_weights.shape[0]
    tail = int(min(np.ceil(0.2 * num), np.ceil(3.0 * np.sqrt(num))))
    centred = log_weights - jnp.max(log_weights)
    order = jnp.argsort(centred)
    ranked = centred[order]
    cut = ranked[num - tail - 1]
    excess = jnp.exp(ranked[num - tail :]) - jnp.exp(cut)
    equal = ranked[-1] - cut < 1e-10
    k_hat, scale = _fit_pareto(jnp.where(equal, jnp.arange(1.0, tail + 1), excess))
    overwhelmed = ~jnp.isfinite(k_hat)  # a few weights hold everything, and the rest of the tail underflows
    levels = (np.arange(tail) + 0.5) / tail
    safe_k = jnp.where(jnp.abs(k_hat) < 1e-12, 1e-12, k_hat)
    quantiles = scale * jnp.expm1(-safe_k * np.log1p(-levels)) / safe_k
    smoothed = jnp.minimum(jnp.log(quantiles + jnp.exp(cut)), 0.0)
    ranked = jnp.concatenate([ranked[: num - tail], jnp.where(equal | overwhelmed, ranked[num - tail :], smoothed)])
    k_hat = jnp.where(equal, 0.0, jnp.where(overwhelmed, jnp.inf, k_hat))
    return jax.nn.softmax(jnp.zeros(num, ranked.dtype).at[order].set(ranked)), k_hat


def _fit_pareto(excess: Array) -> tuple[Array, Array]:
    """Shape and scale of a generalised Pareto law for sorted excesses (Zhang and Stephens 2009, weak prior at 1/2)."""
    num = excess.shape[0]
    grid = 30 + int(np.sqrt(num))
    quartile = excess[int(num / 4 + 0.5) - 1]
    slope = (1.0 - np.sqrt(grid / (np.arange(1, grid + 1) - 0.5))) / (3.0 * quartile) + 1.0 / excess[-1]
    shape = jnp.mean(jnp.log1p(-slope[:, None] * excess), axis=1)
    profile = num * (jnp.log(-slope / shape) - shape - 1.0)
    best = jnp.sum(slope * jax.nn.softmax(profile))
    k_hat = jnp.mean(jnp.log1p(-best * excess))
    return (num * k_hat + 5.0) / (num + 10.0), -k_hat / best


def log_mean_exp(values: Float[Array, " n"]) -> Float[Array, ""]:
    """Log of the mean of exponentials, for the evidence of a tilted density."""
    return jax.scipy.special.logsumexp(values) - jnp.log(values.shape[0])
