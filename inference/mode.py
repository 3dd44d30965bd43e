"""The federated mode: Newton's method with summed gradients and Hessians of the clients' factors.

Each client sends the second-order expansion of its log factor at the broadcast position, as a Gaussian site. Prior
times sites is then the Newton model, its mean the Newton step, and at the mode it is the Laplace approximation of the
posterior: the best start for EP.
"""

from dataclasses import dataclass
from typing import NamedTuple

import jax
import jax.numpy as jnp
from jax import Array

from fedbayes.algorithm import FederatedAlgorithm, Info, Phase, same_variants
from fedbayes.errors import ResultCode
from fedbayes.gaussian import LOG_2PI, Gaussian, log_det, symmetrised, where, whitener
from fedbayes.inference.local.importance import log_mean_exp, pareto_smooth, quasi_normal
from fedbayes.inference.local.laplace import find_mode
from fedbayes.inference.local.tilted import cold_start
from fedbayes.problem.clients import Client
from fedbayes.problem.problem import Problem


class ModeState(NamedTuple):
    """The server's state.

    Attributes
    ----------
    position
        Where the clients expand next, shape ``(d,)``.
    best
        Best position so far.
    value
        Log posterior there, unnormalised.
    sites, prior
        Expansions at ``best``.
    damping
        Levenberg-Marquardt damping of the next step.
    """

    position: Array
    best: Array
    value: Array
    sites: Gaussian
    prior: Gaussian
    damping: Array

    def global_(self) -> Gaussian:
        """The Laplace approximation at ``best``."""
        return (self.prior + self.sites.summed()).symmetrised()


class ModeMessage(NamedTuple):
    """A client's log factor at the position, and its expansion there."""

    value: Array
    site: Gaussian


@dataclass(frozen=True, kw_only=True)
class Laplace:
    """The Laplace approximation by federated Newton steps: EP's start, and a quick look of its own.

    Parameters
    ----------
    tolerance
        Stop once the Newton step is shorter, in posterior sds (root mean square).
    num_draws
        Draws that integrate out local latents at each position; not used without them.
    """

    tolerance: float = 1e-3
    num_draws: int = 256
    needs_rows = False

    def __post_init__(self) -> None:
        if not self.tolerance > 0.0:
            raise ValueError(
                f"`tolerance` is {self.tolerance}; it is the length of a step in posterior sds, such as 1e-3."
            )
        if self.num_draws < 16 or self.num_draws & (self.num_draws - 1):
            raise ValueError(
                f"`num_draws` is {self.num_draws}; quasi-random draws need a power of two from 16 on, such as 256."
            )

    @property
    def num_replicates(self) -> int:
        """One: nothing is random without local latents."""
        return 1

    def phases(self, problem: Problem) -> list[Phase]:
        """Newton rounds alone."""
        return [Phase(federated_mode(problem, num_draws=self.num_draws, tolerance=self.tolerance), 50, True)]


def federated_mode(problem: Problem, *, num_draws: int, tolerance: float = 0.1) -> FederatedAlgorithm:
    """Newton's method over the clients, with Levenberg-Marquardt damping at the server.

    Parameters
    ----------
    problem
        The split program and its clients.
    num_draws
        Draws of the local latents at each position.
    tolerance
        Stop once the undamped step is shorter, in posterior sds (root mean square).
    """
    prior, num_clients = problem.prior, len(problem.names)

    def init(key: Array, previous: None) -> ModeState:
        start = cold_start(prior.size)
        sites = Gaussian.neutral(prior.size, (num_clients,))
        return ModeState(start, start, jnp.full((), -jnp.inf), sites, prior.tangent(start), jnp.zeros(()))

    def aggregate(state: ModeState, messages: ModeMessage, used: Array, key: Array) -> tuple[ModeState, Info]:
        value = prior.log_density(state.position) + jnp.sum(jnp.where(used, messages.value, 0.0))
        improved = (value >= state.value - 1e-9 * jnp.abs(value)) & jnp.any(used)
        sites = where(used, messages.site, state.sites)
        here = state._replace(best=state.position, value=value, sites=sites, prior=prior.tangent(state.position))
        state = jax.tree.map(lambda new, old: jnp.where(improved, new, old), here, state)
        damping = jnp.where(improved, 0.1 * state.damping, jnp.maximum(10.0 * state.damping, 1e-3))
        damping = jnp.where(damping < 1e-6, 0.0, damping)
        step, decrement, proper, damping = _newton_step(state, damping)
        new = state._replace(position=state.best + step, damping=damping)
        change = jnp.sqrt(jnp.maximum(decrement, 0.0) / prior.size)
        info = {
            "kl": jnp.asarray(jnp.nan),
            "change": change,
            "monte_carlo_noise": jnp.zeros(()),
            "step": 1.0 / (1.0 + damping),
            "smallest_cavity_eigenvalue": jnp.full(num_clients, jnp.nan),
            "converged": proper & (change < tolerance),
        }
        return new, info

    def local_update(
        position: Array, personal: Array, z: Array, client: Client, key: Array
    ) -> tuple[ModeMessage, Array, Info]:
        message, z = _expansion(client, position, z, jax.random.key(0), num_draws)
        finite = jnp.all(jnp.isfinite(message.site.shift)) & jnp.all(jnp.isfinite(message.site.precision))
        code = jnp.where(finite & jnp.isfinite(message.value), ResultCode.OK, ResultCode.NOT_FINITE)
        nothing = jnp.asarray(jnp.nan)
        return (
            message,
            z,
            {"code": code, "k_hat": nothing, "effective_draws": nothing, "influence": nothing, "noise": nothing},
        )

    return FederatedAlgorithm(
        name="mode",
        init=init,
        init_client=lambda client, shared, key: cold_start(client.num_locals),
        broadcast=lambda state: (state.position, jnp.zeros((num_clients, 0))),
        local_updates={"newton": local_update},
        choose=same_variants,
        aggregate=aggregate,
        posterior=ModeState.global_,
        reduction="stack",
    )


def _newton_step(state: ModeState, damping: Array) -> tuple[Array, Array, Array, Array]:
    """Step from ``best`` with the least damping, from ``damping`` on, that makes the curvature a precision."""
    model = state.global_()
    slope = model.shift - model.precision @ state.best
    ladder = jnp.concatenate([damping[None], jnp.maximum(damping, 1e-3) * 10.0 ** jnp.arange(8)])
    diagonal = jnp.diag(jnp.abs(jnp.diagonal(model.precision)) + 1e-8)
    whites = jax.vmap(whitener)(model.precision + ladder[:, None, None] * diagonal)
    proper = jnp.all(jnp.isfinite(whites), axis=(1, 2))
    first = jnp.argmax(proper)
    white = jnp.where(jnp.any(proper), whites[first], jnp.zeros_like(model.precision))
    step = white.T @ (white @ slope)
    return step, slope @ step, (first == 0) & (damping <= 0.01), ladder[first]


def _expansion(client: Client, theta: Array, z: Array, key: Array, num_draws: int) -> tuple[ModeMessage, Array]:
    """Value, slope and curvature of ``log f(theta) = log int f(theta, z) dz``.

    With locals by importance sampling of ``z`` given ``theta`` and Louis' identity: the slope is ``E[g]``, the Hessian
    ``E[d g / d theta] + Cov(g)``, with ``B s`` (:mod:`fedbayes.inference.local.moments`) as a control variate of ``g``.
    """
    size = theta.shape[0]
    if client.num_locals == 0:
        value, slope = jax.value_and_grad(client.log_factor)(theta)
        hessian = jax.hessian(client.log_factor)(theta)
    else:
        at = lambda local: client.log_factor(jnp.concatenate([theta, local]))  # noqa: E731
        mode = find_mode(at, z, tolerance=1e-6)
        z = mode.position
        noise = quasi_normal(key, num_draws, z.shape[0])
        joint = jax.vmap(lambda local: jnp.concatenate([theta, local]))(z + noise @ mode.white)
        logs, scores = jax.vmap(jax.value_and_grad(client.log_factor))(joint)
        log_weight = logs + 0.5 * jnp.sum(noise**2, axis=1)
        weight, _ = pareto_smooth(log_weight)
        value = log_mean_exp(log_weight) + 0.5 * (z.shape[0] * LOG_2PI - log_det(mode.white))
        hessians = jax.vmap(
            lambda x: jax.jacfwd(lambda t: jax.grad(client.log_factor)(jnp.concatenate([t, x[size:]]))[:size])(x[:size])
        )(joint)
        slope = weight @ scores[:, :size]
        gap = scores[:, :size] - slope
        hessian = jnp.einsum("n,nij->ij", weight, hessians) + gap.T @ (weight[:, None] * gap)
    precision = symmetrised(-hessian)
    shift = slope + precision @ theta
    site = Gaussian(shift, precision, value - Gaussian(shift, precision, jnp.zeros(())).log_value(theta))
    return ModeMessage(value, site), z
