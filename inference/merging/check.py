"""One more round that measures what a merge has got wrong.

The server broadcasts draws ``theta_s`` of the merged Gaussian ``q``, and each client answers with its log factor there,
one number per draw with its locals integrated out. Their sum with the log prior is the log posterior, so that ``w_s =
posterior(theta_s) / q(theta_s)`` are importance weights: where their tail allows it (k-hat below 0.7, Vehtari et al.
2024) the weighted mean is the posterior's, and its distance from the merged mean the error of the merge.
"""

import jax
import jax.numpy as jnp
from jax import Array

from fedbayes.algorithm import FederatedAlgorithm, Info, Phase, same_variants
from fedbayes.errors import ResultCode
from fedbayes.gaussian import Gaussian, whitener
from fedbayes.inference.local.importance import pareto_smooth, quasi_normal
from fedbayes.inference.local.sampling import log_likelihoods
from fedbayes.inference.merging.merge import MergeState, sample_merged
from fedbayes.problem.clients import Client
from fedbayes.problem.problem import Problem

_NUM_DRAWS = 512


def checked(problem: Problem, merging: FederatedAlgorithm, wanted: bool) -> list[Phase]:
    """The phase that checks a merge, if it is wanted."""
    if not wanted:
        return []
    empty = jax.tree.map(jnp.asarray, merging.init(jax.random.key(0), None))
    return [Phase(checking(problem, empty), 1, True, main=False)]


def checking(problem: Problem, empty: MergeState) -> FederatedAlgorithm:
    """The round after a merge; its state is the merge's, with ``error`` and ``k_hat`` filled in.

    Parameters
    ----------
    problem
        The split program and its clients.
    empty
        A state of the same shapes.
    """
    prior = problem.prior

    def draws_of(merged: Gaussian) -> Array:
        white = whitener(merged.precision)
        noise = quasi_normal(jax.random.key(0), _NUM_DRAWS, prior.size)
        return white.T @ (white @ merged.shift) + noise @ white

    def broadcast(state: MergeState) -> tuple[Array, Gaussian]:
        # a client looks for its locals where the others' knowledge, and the whole prior, leave them
        cavities = jax.vmap(lambda site: (state.product - site).symmetrised())(state.sites)
        return draws_of(state.merged), cavities

    def local_update(
        theta: Array, cavity: Gaussian, private: Array, client: Client, key: Array
    ) -> tuple[Array, Array, Info]:
        values = log_likelihoods(client, cavity, theta, key)
        code = jnp.where(jnp.any(jnp.isfinite(values)), ResultCode.OK, ResultCode.NOT_FINITE)
        return values, private, {"code": code}

    def aggregate(state: MergeState, values: Array, used: Array, key: Array) -> tuple[MergeState, Info]:
        theta = draws_of(state.merged)
        log_prior = jax.vmap(prior.log_density)(theta)
        log_weight = jnp.sum(jnp.where(used[:, None], values, 0.0), axis=0) + log_prior
        log_weight = log_weight - jax.vmap(state.merged.normalised().log_value)(theta)
        weight, k_hat = pareto_smooth(jnp.where(jnp.isfinite(log_weight), log_weight, -jnp.inf))
        mean = weight @ theta
        sd = jnp.sqrt(weight @ (theta - mean) ** 2)
        error = jnp.sqrt(jnp.mean(((mean - jnp.mean(theta, axis=0)) / sd) ** 2))
        mine = values + state.shares[:, None] * log_prior
        gaussians = jax.vmap(lambda q: jax.vmap(q.normalised().log_value)(theta))(state.clients)
        new = state._replace(error=error, k_hat=k_hat)
        info = {
            "merge_error": error,
            "merge_k_hat": k_hat,
            "misfit": jnp.where(state.heard > 0, jnp.std(mine - gaussians, axis=1), jnp.nan),
            "converged": jnp.all(state.heard > 0),
        }
        return new, info

    return FederatedAlgorithm(
        name="check",
        init=lambda key, previous: empty if previous is None else previous,
        init_client=lambda client, shared, key: jnp.zeros(0),
        broadcast=broadcast,
        local_updates={"log_factor": local_update},
        choose=same_variants,
        aggregate=aggregate,
        posterior=lambda state: state.merged,
        reduction="stack",
        sample=sample_merged,
    )
