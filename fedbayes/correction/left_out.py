"""How well each client is predicted by all the others.

The expected log predictive density of client k given the others is ``log p(y_k | y_-k) = log Z - log Z_-k``: the log of
the mean of its factor under the posterior without it. That posterior's Gaussian is the client's cavity, so draws of all
cavities, evaluated by all clients in one exchange, are importance draws for every client left out. The weights are
those of the mixture of all proposals (Cornuet, Marin, Mira and Robert 2012), the correction's among them:

    w_k = p(theta) prod_(j != k) f_j(theta) / mixture(theta),    elpd_k = log(sum_s w_k f_k / sum_s w_k).
"""

from collections.abc import Callable
from functools import cache
from typing import NamedTuple

import jax
import numpy as np
from jax import Array
from scipy.special import logsumexp

from fedbayes.correction.correct import Ask, LogDensities, pool_of
from fedbayes.correction.pool import SHARE, Pool, largest_share, trusted
from fedbayes.correction.proposal import Law, Proposal
from fedbayes.correction.recipe import Drawn
from fedbayes.numerics.gaussian import Gaussian
from fedbayes.numerics.host import gaussian_moments, log_integrals
from fedbayes.numerics.importance import pareto_smooth
from fedbayes.runtime.compiling import jit_cheaply

_DRAWS = 400  # of each client's cavity, all chains together, at least
_WIDER, _TAILS = 1.1, 5.0  # scale and degrees of freedom of the cavities' draws
TURN = 50  # of the clients' random numbers, after those of the correction


class LeftOut(NamedTuple):
    """For each client, shape ``(client,)``.

    Attributes
    ----------
    elpd
        Expected log predictive density of the client given all others.
    mcse
        Its Monte Carlo error.
    k_hat
        Pareto tail shape of the weights.
    reliable
        Whether the weights can be trusted, see :attr:`~fedbayes.correction.pool.Pool.reliable`.
    """

    elpd: np.ndarray
    mcse: np.ndarray
    k_hat: np.ndarray
    reliable: np.ndarray


def cavity_pool(pool: Pool, cavities: Gaussian, num: int, prior: LogDensities, ask: Ask, key: Array) -> Pool:
    """The pool with draws of all clients' cavities, by one exchange.

    Parameters
    ----------
    pool
        Of the correction.
    cavities
        Leading axes chain and client; a client whose cavity is improper has no draws of its own.
    num
        Draws of a chain, all cavities together, at least.
    prior, ask, key
        As in :func:`~fedbayes.correction.correct.correct`.
    """
    rng = np.random.default_rng(np.asarray(jax.random.key_data(key)))
    num_chains, num_clients = cavities.shift.shape[:2]
    laws = [[law for k in range(num_clients) if (law := _wide(cavities, r, k)) is not None] for r in range(num_chains)]
    fewest = min(map(len, laws))
    if fewest == 0:
        return pool
    total = max(num, fewest * -(-_DRAWS // num_chains))
    counts = np.diff(np.arange(fewest + 1) * total // fewest).tolist()
    drawn = Drawn(np.stack([Proposal(own[:fewest], counts).draws(rng, total) for own in laws]))
    heard = ask(drawn, TURN)  # as they are: a recipe would tell each client the others' sites
    proposals = [tuple(Proposal([law], [1.0]) for law in own[:fewest]) for own in laws]
    more = pool_of(drawn, proposals, tuple(counts), heard, prior)
    return pool.extended(more)


def _wide(cavities: Gaussian, chain: int, client: int) -> Law | None:
    one = jax.tree.map(lambda leaf: leaf[chain, client][None], cavities)
    means, covariances = gaussian_moments(one)
    if not np.all(np.isfinite(covariances)):
        return None
    return Law.of_moments(means[0], _WIDER**2 * covariances[0], _TAILS)


def left_out(log_weights: np.ndarray, log_likelihood: np.ndarray) -> LeftOut:
    """Each client given all others, by draws of the posterior or of proposals.

    Parameters
    ----------
    log_weights
        Of the posterior at each draw, shape ``(n,)``; zero for its own draws.
    log_likelihood
        Of each client there, shape ``(n, client)``.
    """
    logs = log_weights[:, None] - log_likelihood
    logs = np.where(np.isfinite(logs), logs, -np.inf)
    smoothed, k_hat = map(np.asarray, _smoothing()(logs.T))
    plain = np.asarray([largest_share(one) <= SHARE for one in logs.T])
    weights = np.where(plain[:, None], np.exp(logs - logsumexp(logs, axis=0)).T, smoothed)
    factors = log_likelihood.T
    with np.errstate(divide="ignore", invalid="ignore"):
        terms = np.where(weights > 0.0, np.log(weights) + factors, -np.inf)
        elpd = logsumexp(terms, axis=1)
        gaps = np.exp(terms - elpd[:, None]) - weights  # w (f / mean - 1), where f alone may overflow
    reliable = [trusted(one, float(k)) for one, k in zip(logs.T, k_hat, strict=True)]
    return LeftOut(elpd, np.sqrt(np.sum(gaps**2, axis=1)), k_hat, np.asarray(reliable))


@cache
def _smoothing() -> Callable:
    return jit_cheaply(jax.vmap(pareto_smooth))


def by_normalisers(posterior: Gaussian, cavities: Gaussian) -> np.ndarray:
    """The same from the Gaussians alone, ``log int q - log int q_-k``, shape ``(chain, client)``; no exchange.

    Exact where all factors are Gaussian; NaN where the answer has no scales, or a cavity is improper.
    """
    whole = log_integrals(posterior)
    others = [
        log_integrals(jax.tree.map(lambda leaf, k=k: leaf[:, k], cavities)) for k in range(cavities.shift.shape[1])
    ]
    return whole[:, None] - np.stack(others, axis=1)
