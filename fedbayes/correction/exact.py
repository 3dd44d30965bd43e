"""Exact Markov chains of the globals from a few exchanges of many draws each.

Independence Metropolis (Tierney 1994): proposals are independent draws of a fixed law ``g``, so that the clients can
answer for thousands of them in one exchange, and the server decides afterwards, one after the other, with probability

    min(1, p(theta') f(theta') g(theta) / (p(theta) f(theta) g(theta'))).

The chains have the posterior as their stationary law, whatever the approximation was; how fast they reach it depends on
``g``, and R-hat and the effective sample size tell. Where clients have locals, ``f`` is an unbiased estimate that is
kept for as long as the chain stays, which leaves the stationary law as it is (Andrieu and Roberts 2009).
"""

from typing import NamedTuple

import jax
import numpy as np
from jax import Array

from fedbayes.correction.correct import Ask, Correction, LogDensities, pool_of, refitted
from fedbayes.correction.pool import Pool
from fedbayes.correction.proposal import Proposal, systematic
from fedbayes.correction.recipe import Counts, draw
from fedbayes.numerics.chains import worst_mixing
from fedbayes.rounds.progress import Progress

_NUM_CHAINS = 4
_R_HAT, _ENOUGH = 1.01, 100.0  # R-hat, and effective draws of a chain, at which the chains stop
_WIDE = 0.1  # share of the wide laws among the proposals
_FIRST_TURN = 100  # of the clients' random numbers, after those of the correction


class ExactChains(NamedTuple):
    """Markov chains with the posterior as their stationary law.

    Attributes
    ----------
    theta
        Unconstrained globals, shape ``(chain, draw, d)``.
    log_likelihood
        Of each client, shape ``(chain, draw, client)``.
    log_joint
        Shape ``(chain, draw)``.
    acceptance
        Share of the proposals that were accepted.
    r_hat, effective
        The worst of the globals: R-hat, and the bulk effective sample size of all chains together.
    exchanges
        That the chains took, beyond those of the correction.
    """

    theta: np.ndarray
    log_likelihood: np.ndarray
    log_joint: np.ndarray
    acceptance: float
    r_hat: float
    effective: float
    exchanges: int

    @property
    def mixed(self) -> bool:
        """Whether R-hat is below 1.01 with 100 effective draws a chain."""
        return self.r_hat < _R_HAT and self.effective >= _ENOUGH * len(self.theta)

    def attrs(self) -> dict[str, float | str]:
        """What the draws are, for ArviZ."""
        return {
            "inference": "independence-metropolis",
            "draws": "Markov chains with the posterior as stationary law; repeated where a proposal was rejected",
            "chains": "Markov chains: R-hat and effective sample sizes speak about their mixing",
            "correction": "exact",
            "acceptance_rate": self.acceptance,
            "r_hat": self.r_hat,
            "effective_draws": self.effective,
            "exchanges": self.exchanges,
        }


def exact_chains(
    found: Correction,
    prior: LogDensities,
    ask: Ask,
    key: Array,
    *,
    num_draws: int,
    num_proposals: int,
    max_exchanges: int,
    progress: Progress,
) -> ExactChains:
    """Run the chains, exchange after exchange, until they have mixed or the exchanges are spent.

    Parameters
    ----------
    found
        Draws with their weights, to which the proposal is fitted, and at some of which the chains start.
    prior
        Its log densities at many points.
    ask
        One exchange, as in :func:`~fedbayes.correction.correct.correct`.
    key
        Of the proposals and of the decisions.
    num_draws
        Steps of each of the four chains, at least.
    num_proposals
        In each exchange and chain of the fit.
    max_exchanges
        At most so many.
    progress
        Told of each exchange.
    """
    rng = np.random.default_rng(np.asarray(jax.random.key_data(key)))
    pool, proposal = found.pool, _proposal(found.pool, rng)
    here = _start(pool, proposal, rng)
    visited: list[_Visited] = []
    accepted = 0
    r_hat, effective = float("nan"), 0.0
    for turn in range(max_exchanges):
        proposals = [proposal] * len(pool.theta)
        drawn = draw(Counts(shuffled=num_proposals), rng, mixtures=proposals)
        heard = ask(drawn, _FIRST_TURN + turn)
        batch = pool_of(drawn, [(each,) for each in proposals], (num_proposals,), heard, prior)
        here, path, moves = _walked(here, _Visited.of(batch), rng)
        visited.append(path)
        accepted += moves
        r_hat, effective = worst_mixing(np.concatenate([each.theta for each in visited], axis=1))
        progress.after_round({"rounds": np.asarray(1)})
        enough = sum(each.theta.shape[1] for each in visited) >= num_draws
        if enough and r_hat < _R_HAT and effective >= _ENOUGH * _NUM_CHAINS:
            break
    whole = _Visited(*(np.concatenate(parts, axis=1) for parts in zip(*visited, strict=True)))
    rate = accepted / whole.log_weight.size
    return ExactChains(whole.theta, whole.log_likelihood, whole.log_joint, rate, r_hat, effective, len(visited))


class _Visited(NamedTuple):
    """Draws of four chains, leading axes chain and draw; ``log_weight`` is that of posterior over proposal."""

    theta: np.ndarray
    log_likelihood: np.ndarray
    log_joint: np.ndarray
    log_weight: np.ndarray

    @classmethod
    def of(cls, pool: Pool) -> "_Visited":
        """The draws of a pool, dealt out to four chains: they are independent, whatever replicate asked for them."""

        def dealt(values: np.ndarray) -> np.ndarray:
            flat = values.reshape(-1, *values.shape[2:])
            flat = flat[: len(flat) - len(flat) % _NUM_CHAINS]
            return flat.reshape(_NUM_CHAINS, -1, *flat.shape[1:])

        return cls(*map(dealt, (pool.theta, pool.log_likelihood, pool.log_joint, pool.log_weights)))


def _proposal(pool: Pool, rng: np.random.Generator) -> Proposal:
    """What fits the weighted draws, with a share of the wide laws from which the first draws came."""
    _, ((fitted,), *_) = refitted(pool, 1, rng)
    wide = [law for proposals in pool.proposals for law in proposals[1].laws]
    shares = [(1.0 - _WIDE) * share for share in fitted.shares]
    return Proposal([*fitted.laws, *wide], [*shares, *[_WIDE / len(wide)] * len(wide)])


def _start(pool: Pool, proposal: Proposal, rng: np.random.Generator) -> _Visited:
    """One draw for each chain, taken by the weights of the pool."""
    flat = [values.reshape(-1, *values.shape[2:]) for values in (pool.theta, pool.log_likelihood, pool.log_joint)]
    places = systematic(pool.weights.reshape(-1), _NUM_CHAINS, rng)
    theta, log_likelihood, joint = (values[places][:, None] for values in flat)
    return _Visited(theta, log_likelihood, joint, joint - proposal.log_density(theta[:, 0])[:, None])


def _walked(here: _Visited, proposed: _Visited, rng: np.random.Generator) -> tuple[_Visited, _Visited, int]:
    """The chains' last draws, their paths through the proposals, and how many of these they have accepted."""
    num_chains, num = proposed.log_weight.shape
    places = np.empty((num_chains, num), int)  # zero: where the chain was before; i: the i-th proposal
    log_uniform, moves = np.log(rng.random((num_chains, num))), 0
    for chain in range(num_chains):
        at, now = 0, here.log_weight[chain, 0]
        for i in range(num):
            if log_uniform[chain, i] < proposed.log_weight[chain, i] - now:
                at, now, moves = i + 1, proposed.log_weight[chain, i], moves + 1
            places[chain, i] = at

    def path(before: np.ndarray, values: np.ndarray) -> np.ndarray:
        both = np.concatenate([before, values], axis=1)
        return np.stack([mine[places[chain]] for chain, mine in enumerate(both)])

    walked = _Visited(*map(path, here, proposed))
    return _Visited(*(values[:, -1:] for values in walked)), walked, moves
