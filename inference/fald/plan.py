"""Step size, local steps and rounds per draw of FA-LD from the clients' curvatures at the federated mode.

All in the shared coordinates, with ``H_c`` the Hessian and ``g_c`` the gradient of the client energy ``f_c`` at the
mode, ``H = sum p_c H_c`` and ``S = sum p_c H_c^2``. To first order in the step ``eta`` the stationary law of quadratic
clients has

    mean         theta* + eta (K - 1) / 2  H^-1 sum p_c H_c g_c         (zero with the control variate)
    covariance   tau H^-1/2 (I + eta / 2 [H + (K - 1) H^-1/2 (S - H^2) H^-1/2]) H^-1/2    where H and S commute

that is: discretisation, and the drift of clients with unequal curvatures. Partial participation with the share ``C_S /
S`` adds ``tau eta K share / 2 H^-1/2 (S - H^2 + sum p_c g_c g_c' / tau) H^-1/2`` for ``rho = 1``, and more for less.
Derived from the exact law of one round (:mod:`fedbayes.theory.langevin`); the paper has bounds only. The formulas
choose the step; what is then predicted of partial participation is exact for quadratic clients
(:mod:`fedbayes.inference.fald.participation`).
"""

from typing import NamedTuple

import jax.numpy as jnp
import numpy as np
from jax import Array

from fedbayes.inference.curvature import client_energies, largest_eigenvalue
from fedbayes.inference.fald.differences import Known
from fedbayes.inference.fald.options import Options
from fedbayes.inference.fald.participation import Quadratics, average_weights, share_of, stationary
from fedbayes.numerics.gaussian import whitener

_MOST_STEPS = 100  # local steps of the default


class Plan(NamedTuple):
    """What the sampler has chosen, and what theory says of it; NaN where nothing is known of the curvature.

    Attributes
    ----------
    step_size, local_steps, rounds_per_draw
        ``eta`` (of a schedule the first one), ``K``, and rounds from one draw to the next.
    smoothness, convexity
        Largest and smallest curvature L and m over the clients, see
        :class:`~fedbayes.inference.fald.differences.Differences`.
    mean_bias
        Predicted bias of the means, in posterior sds (root mean square).
    sd_bias
        Predicted relative bias of the sd in the worst direction, from discretisation and drift.
    participation_bias
        Predicted relative bias of the sd in the worst direction that partial participation adds; infinite where the
        spread of the clients grows without limit, zero where everybody takes part, and NaN where it can't be predicted:
        with nothing known of the curvature, or with locals, which move only when their client takes part.

    The biases are those at the step at which the first draw is kept.
    """

    step_size: Array
    local_steps: Array
    rounds_per_draw: Array
    smoothness: Array
    convexity: Array
    mean_bias: Array
    sd_bias: Array
    participation_bias: Array


def no_plan(config: Options) -> Plan:
    """The user's own numbers, with nothing known of the curvature."""
    unknown = jnp.full((), jnp.nan)
    eta = _first_step(config, unknown, unknown)
    steps = jnp.asarray(float(config.local_steps or 10))
    return Plan(
        step_size=eta,
        local_steps=steps,
        rounds_per_draw=jnp.ones(()),
        smoothness=unknown,
        convexity=unknown,
        mean_bias=unknown,
        sd_bias=unknown,
        participation_bias=jnp.asarray(0.0 if config.scheme == "full" else np.nan),
    )


def make_plan(config: Options, known: Known, weights: np.ndarray, *, has_locals: bool) -> Plan:
    """Choose what the user left open, with a predicted bias of at most ``config.max_bias``.

    With local latents a round is also kept short, ``eta K <= 5 bias``: a client's locals follow its own copy of the
    globals, which its data pull by ``1 / p_c``, and beyond quadratic energies that widens them by an amount linear in
    ``eta K`` (8 clients with a common scale: 9 percent in the sds at ``eta K = 0.4``, 3 percent at 0.1).
    """
    mode, coordinates, (square, pull, smooth, convex) = known
    mean = coordinates.curvature(mode.global_().precision)  # of the energies, by their weights
    best = jnp.where(convex > 0, jnp.ceil(jnp.sqrt(1.0 + smooth / convex)), _MOST_STEPS)
    steps = jnp.asarray(float(config.local_steps)) if config.local_steps else jnp.clip(best, 1.0, _MOST_STEPS)
    white = whitener(mean)
    drift = largest_eigenvalue(mean + (steps - 1.0) * white @ (square - mean @ mean) @ white.T)
    inverse = white.T @ white
    shift = 0.5 * (steps - 1.0) * inverse @ pull
    lean = jnp.sqrt(jnp.mean(shift**2 / jnp.diagonal(inverse)))
    lean = jnp.where(bool(config.control_variate), 0.0, lean / np.sqrt(config.temperature or 1.0))

    share, absence, clients = share_of(config, weights), jnp.zeros(()), None
    if share > 0.0:
        clients = _clients(config, known, weights)
        absence = share * steps * largest_eigenvalue(white @ _apart(config, clients, mean, square) @ white.T)

    eta = jnp.minimum(0.5 / smooth, config.max_bias / jnp.maximum(0.25 * jnp.maximum(drift, absence), lean))
    if has_locals:
        eta = jnp.minimum(eta, 5.0 * config.max_bias / steps)
    eta = _first_step(config, smooth, eta)
    rate = eta * steps / largest_eigenvalue(inverse)
    stride = jnp.maximum(1.0, jnp.ceil(jnp.log(2.0) / rate))
    kept = _kept_step(config, smooth, convex, eta, config.num_warmup * (config.thinning or stride) * steps)
    mean_bias, participation = kept * lean, jnp.zeros(())
    if clients is not None:
        mean_bias, participation = _by_participation(config, clients, kept, steps, inverse, share)
        participation = jnp.full((), jnp.nan) if has_locals else participation
    return Plan(
        step_size=eta,
        local_steps=steps,
        rounds_per_draw=stride,
        smoothness=smooth,
        convexity=convex,
        mean_bias=mean_bias,
        sd_bias=0.25 * kept * drift,
        participation_bias=participation,
    )


def _clients(config: Options, known: Known, weights: np.ndarray) -> Quadratics:
    """The clients one by one; with the control variate none is pulled at the mode."""
    p = jnp.asarray(weights)
    hessians, slopes = client_energies(known.mode, known.coordinates, p)
    pulls = jnp.zeros_like(slopes) if config.control_variate else slopes
    return Quadratics(hessians, pulls, p, jnp.asarray(average_weights(config, weights)))


def _apart(config: Options, clients: Quadratics, mean: Array, square: Array) -> Array:
    """How far the clients' curvatures and pulls are apart, shape ``(d, d)``."""
    pulls = jnp.einsum("c,ci,cj->ij", clients.weights, clients.slopes, clients.slopes)
    return square - mean @ mean + pulls / (config.temperature or 1.0)


def _by_participation(
    config: Options, clients: Quadratics, step: Array, steps: Array, inverse: Array, share: float
) -> tuple[Array, Array]:
    """Bias of the means, and the worst relative bias of the sds beyond that if all took part, for quadratic clients."""
    heat = config.temperature or 1.0
    law = stationary(clients, step, steps, heat=heat, rho=config.noise_correlation, share=share)
    white = whitener(law.everybody)
    worst = jnp.sqrt(largest_eigenvalue(white @ law.covariance @ white.T)) - 1.0
    lean = jnp.sqrt(jnp.mean(law.mean**2 / (heat * jnp.diagonal(inverse))))
    return lean, jnp.where(jnp.isfinite(worst), worst, jnp.inf)


def _kept_step(config: Options, smooth: Array, convex: Array, first: Array, iteration: Array) -> Array:
    """The step at the local iteration from which on draws are kept; theorem 5.8's where it decays."""
    if callable(config.step_size):
        return jnp.asarray(config.step_size(iteration), jnp.float64)
    return 1.0 / (2.0 * smooth + convex * iteration / 12.0) if isinstance(config.step_size, str) else first


def _first_step(config: Options, smooth: Array, default: Array) -> Array:
    """The step at iteration 0 if it is positive, else the default."""
    step = config.step_size
    if callable(step):
        first = jnp.asarray(step(jnp.zeros(())), jnp.float64)
        return jnp.where(first > 0.0, first, default)  # a warm-up starts at zero
    if isinstance(step, str):
        return 0.5 / smooth
    return default if step is None else jnp.asarray(step, jnp.float64)
