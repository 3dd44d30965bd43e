"""The correction of a Gaussian posterior by importance weights, for many data sets at once.

    w_s = p(theta_s) prod_k f_k(theta_s) / q(theta_s),      theta_s ~ q,

with the clients' factors, their locals integrated out. The weights are Pareto-smoothed (Vehtari, Simpson, Gelman, Yao
and Gabry 2024, JMLR 25(72)); draws of equal weight follow by systematic resampling.
"""

from collections.abc import Callable

import jax
import numpy as np
from jax import Array

from fedbayes.answer import gaussian_draws, gaussian_log_density
from fedbayes.compiling import jit_quickly
from fedbayes.gaussian import Gaussian
from fedbayes.importance import pareto_smooth
from fedbayes.problem.prior import Prior

Ask = Callable[[np.ndarray], np.ndarray]  # draws (data set, n, d) to the clients' log factors (client, data set, n)

_MORE = 4  # weighted draws for each of those that are resampled


def corrected_draws(posterior: Gaussian, prior: Prior, ask: Ask, key: Array, num: int) -> tuple[np.ndarray, np.ndarray]:
    """Draws of the posterior, and the tail shape of the weights behind them.

    Parameters
    ----------
    posterior
        The Gaussian ``q``, leading axis of data sets.
    prior
        Of the globals.
    ask
        Gives the clients' log factors at draws of the globals.
    key
        For drawing and resampling.
    num
        Draws of equal weight.

    Returns
    -------
    draws
        Shape ``(data set, num, d)``; NaN where the Gaussian is improper.
    k_hat
        Shape ``(data set,)``; infinite where no weight is finite.
    """
    theta = gaussian_draws(posterior, jax.random.fold_in(key, 0), _MORE * num)
    log_prior = np.asarray(prior.log_densities(theta.reshape(-1, theta.shape[-1]))).reshape(theta.shape[:2])
    log_q = gaussian_log_density(posterior, theta)
    weights, k_hat = importance_weights(log_prior, ask(theta), log_q)
    rng = np.random.default_rng(np.asarray(jax.random.key_data(jax.random.fold_in(key, 1))))
    return np.stack([mine[resampled(w, num, rng)] for mine, w in zip(theta, weights, strict=True)]), k_hat


def importance_weights(
    log_prior: np.ndarray, log_factors: np.ndarray, log_q: np.ndarray
) -> tuple[np.ndarray, np.ndarray]:
    """Pareto-smoothed weights ``(data set, n)``, which sum to one, and their k-hats ``(data set,)``.

    Parameters
    ----------
    log_prior, log_q
        Log densities of the prior and of the Gaussian at its draws, shape ``(data set, n)``.
    log_factors
        Of each client, shape ``(client, data set, n)``.
    """
    log_weights = log_prior + np.sum(log_factors, axis=0) - log_q
    log_weights = np.where(np.isfinite(log_weights), log_weights, -np.inf)
    known = np.any(np.isfinite(log_weights), axis=1, keepdims=True)
    weights, k_hat = _smoothed(np.where(known, log_weights, 0.0))
    return np.asarray(weights), np.where(known[:, 0] & ~np.isnan(k_hat), k_hat, np.inf)


_smoothed = jit_quickly(jax.vmap(pareto_smooth))


def resampled(weights: np.ndarray, num: int, rng: np.random.Generator) -> np.ndarray:
    """Places of ``num`` draws by systematic resampling: one uniform, evenly spaced levels, shape ``(num,)``."""
    levels = (rng.uniform() + np.arange(num)) / num
    return np.minimum(np.searchsorted(np.cumsum(weights), levels), len(weights) - 1)
