"""The correction of a Gaussian posterior by importance weights, for many data sets at once.

Each data set is checked and corrected by itself, as a fit is (:mod:`fedbayes.correction.correct`); only the exchanges
are those of all data sets together.
"""

from collections.abc import Callable

import jax
import numpy as np
from jax import Array

from fedbayes.correction.correct import Correction, LogDensities, correctable_precision, first_draws, pool_of, refitted
from fedbayes.correction.recipe import Drawn
from fedbayes.errors import K_HAT_LIMIT
from fedbayes.numerics.gaussian import Gaussian
from fedbayes.problem.program.prior import Prior
from fedbayes.rounds.exchange import Heard

Ask = Callable[[np.ndarray, int], Heard]  # draws (data set, n, d) to all clients, which answer with log-likelihoods

_LEAST = 1000  # draws of each Gaussian


def corrected_draws(posterior: Gaussian, prior: Prior, ask: Ask, key: Array, num: int) -> tuple[np.ndarray, np.ndarray]:
    """Draws of the posterior of each data set, and the tail shape of the weights behind them.

    Parameters
    ----------
    posterior
        The Gaussian, leading axis of data sets.
    prior
        Of the globals.
    ask
        One exchange.
    key
        For drawing and resampling.
    num
        Draws of equal weight.

    Returns
    -------
    draws
        Shape ``(data set, num, d)``; NaN where the Gaussian is improper.
    k_hat
        Shape ``(data set,)``; at most 0.7 where the weights can be trusted, infinite where there are none.
    """
    proper = correctable_precision(posterior)
    filled = jax.tree.map(
        lambda leaf: np.asarray(leaf)[np.where(proper, np.arange(len(proper)), np.argmax(proper))], posterior
    )
    if not proper.any():
        return np.full((len(proper), num, posterior.size), np.nan), np.full(len(proper), np.inf)
    rng = np.random.default_rng(np.asarray(jax.random.key_data(jax.random.fold_in(key, 1))))
    drawn, proposals, counts = first_draws(filled, num, prior, jax.random.fold_in(key, 0), rng, _LEAST)
    heard = ask(drawn.theta, 0)
    found = []
    for place in range(len(drawn.theta)):
        mine, heard_of = Drawn(drawn.theta[[place]]), _of_one(heard, place)
        pool = pool_of(mine, [proposals[place]], counts, heard_of, prior.log_densities)
        one = jax.tree.map(lambda leaf, place=place: leaf[[place]], filled)
        found.append(Correction(one, num, pool, jax.random.fold_in(key, 2 + place)))
    turn = 1
    while any(each.wants_more for each in found):
        found = _one_more(found, sum(counts), prior.log_densities, ask, turn, rng)
        turn += 1
    draws = np.stack([each.theta[0] for each in found])
    k_hat = np.asarray([min(each.pool.k_hat, K_HAT_LIMIT) if each.reliable else each.pool.k_hat for each in found])
    return np.where(proper[:, None, None], draws, np.nan), np.where(proper, k_hat, np.inf)


def _one_more(
    found: list[Correction], num: int, prior: LogDensities, ask: Ask, turn: int, rng: np.random.Generator
) -> list[Correction]:
    """One more exchange for the data sets that want it; the others are asked, too, and not listened to."""
    asked, proposals = [], []
    for each in found:
        drawn, proposal = refitted(each.pool, num, rng) if each.wants_more else (Drawn(each.pool.theta[:, :num]), [()])
        asked.append(drawn.theta[0])
        proposals.append(proposal[0])
    theta = np.stack(asked)
    heard = ask(theta, turn)
    return [
        each.extended(pool_of(Drawn(theta[[place]]), [proposals[place]], (num,), _of_one(heard, place), prior))
        if each.wants_more
        else each
        for place, each in enumerate(found)
    ]


def _of_one(heard: Heard, place: int) -> Heard:
    """What was heard of one data set."""
    infos = {name: np.asarray(heard.infos[name])[:, [place]] for name in ("noise", "halved")}
    each = np.asarray(heard.replies.each)[:, [place]]
    return heard._replace(replies=heard.replies._replace(each=each), infos=infos)
