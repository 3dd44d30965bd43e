"""One more round that measures what a merge has got wrong.

The server broadcasts draws ``theta_s`` of the merged Gaussian ``q``, and each client answers with its log factor there,
one number per draw with its locals integrated out. Their sum with the log prior is the log posterior, so that ``w_s =
posterior(theta_s) / q(theta_s)`` are importance weights: where their tail allows it (k-hat below 0.7, Vehtari et al.
2024) the weighted mean is the posterior's, and its distance from the merged mean the error of the merge.
"""

from typing import Any

import jax
import jax.numpy as jnp
from jax import Array

from fedbayes.contract.algorithm import Algorithm, Info, Phase, Replies, Reply, Update
from fedbayes.errors import ResultCode
from fedbayes.inference.local.log_factors import log_factors
from fedbayes.inference.merging.server import MergeState
from fedbayes.numerics.gaussian import Gaussian, whitener
from fedbayes.numerics.importance import fixed_normal, pareto_smooth, random_shift
from fedbayes.problem.client import Client
from fedbayes.problem.roster import Roster

_NUM_DRAWS = 512


def check_phase(roster: Roster, merge: Algorithm) -> Phase:
    """The round after a merge; its state is the merge's, with ``error`` and ``k_hat`` filled in.

    Parameters
    ----------
    roster
        Of the clients.
    merge
        The algorithm of the phase before.
    """
    prior = roster.prior

    def draws_of(merged: Gaussian) -> Array:
        white = whitener(merged.precision)
        return white.T @ (white @ merged.shift) + jnp.asarray(fixed_normal(_NUM_DRAWS, prior.size)) @ white

    def broadcast(state: MergeState) -> tuple[Array, tuple[()]]:
        return draws_of(state.merged), ()

    def log_factor(
        theta: Array, nothing: tuple[()], private: tuple[()], client: Client, shift: Array
    ) -> tuple[Reply, tuple[()]]:
        values = log_factors(client, theta, shift).values
        code = jnp.where(jnp.any(jnp.isfinite(values)), ResultCode.OK, ResultCode.NOT_FINITE)
        return Reply(each=values, code=code), private

    def aggregate(state: MergeState, replies: Replies, key: Array) -> tuple[MergeState, Info]:
        theta, values = draws_of(state.merged), replies.each
        log_prior = jax.vmap(prior.log_density)(theta)
        log_weight = jnp.sum(jnp.where(replies.used[:, None], values, 0.0), axis=0) + log_prior
        log_weight = log_weight - jax.vmap(state.merged.normalised().log_value)(theta)
        weight, k_hat = pareto_smooth(jnp.where(jnp.isfinite(log_weight), log_weight, -jnp.inf))
        mean = weight @ theta
        sd = jnp.sqrt(weight @ (theta - mean) ** 2)
        error = jnp.sqrt(jnp.mean(((mean - jnp.mean(theta, axis=0)) / sd) ** 2))
        mine = values + state.shares[:, None] * log_prior
        gaussians = jax.vmap(lambda q: jax.vmap(q.normalised().log_value)(theta))(state.clients)
        info = {
            "merge_error": error,
            "merge_k_hat": k_hat,
            "misfit": jnp.where(state.heard > 0, jnp.std(mine - gaussians, axis=1), jnp.nan),
            "converged": jnp.all(state.heard > 0),
            "proper": jnp.all(jnp.isfinite(theta)),
        }
        return state._replace(error=error, k_hat=k_hat), info

    def init(key: Array, previous: Any) -> MergeState:
        # a checkpoint only needs the structure, without a merge before it
        return merge.init(key, None) if previous is None else previous

    algorithm = Algorithm(
        name="check",
        init=init,
        broadcast=broadcast,
        init_client=lambda client, shared, key: (),
        updates={"log_factor": Update(log_factor, lambda key, shared, num_locals: random_shift(key, num_locals))},
        aggregate=aggregate,
        asked_at=lambda shared: shared,
    )
    return Phase(algorithm=algorithm, max_rounds=1, full_participation=True, main=False)
