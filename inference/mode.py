"""The federated mode: Newton's method with summed gradients and Hessians of the clients' factors.

Each client sends the second-order expansion of its log factor at the broadcast position, as a Gaussian site. Prior
times sites is then the Newton model, its mean the Newton step, and at the mode it is the Laplace approximation of the
posterior: the best start for EP.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import ClassVar, NamedTuple

import jax
import jax.numpy as jnp
from jax import Array

from fedbayes.algorithm import Algorithm, Info, Method, Phase, Replies, Reply, Update, no_inputs
from fedbayes.answer import REPLICATE, Diagnostic, GaussianAnswer
from fedbayes.errors import ResultCode
from fedbayes.inference.local.marginal import integrate_locals
from fedbayes.inference.local.tilted import cold_start
from fedbayes.numerics.gaussian import Gaussian, packed, symmetrised, unpacked, where, whitener
from fedbayes.numerics.host import cavities_of, product_of
from fedbayes.problem.clients import Client
from fedbayes.problem.roster import Roster
from fedbayes.rounds.state import RunState

DIAGNOSTICS: Mapping[str, Diagnostic] = {
    "change": Diagnostic((REPLICATE,), "length of the Newton step, root mean square over the globals", "posterior sds"),
    "step": Diagnostic((REPLICATE,), "Newton step taken, 1 / (1 + damping)"),
}


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


Ready = Callable[[ModeState], Array]
_NEAR = 3.0  # length of a step, damped by half at most, in posterior sds, from which another method may take over


_POWER = 0.2  # of the precision: a step of central differences, 7e-4 in float64 and 0.04 in float32
_AT_ONCE = 8  # differences in one call: each holds all draws of the locals


class ModeMessage(NamedTuple):
    """A client's log factor at the position, and its expansion there."""

    value: Array
    site: Gaussian


@dataclass(frozen=True, kw_only=True)
class Laplace(Method):
    """The Laplace approximation by federated Newton steps: a start for EP, and a quick approximation by itself.

    Parameters
    ----------
    tolerance
        Stop once the Newton step is shorter, in posterior sds (root mean square).
    num_samples
        Draws that integrate out local latents at each position; not used without them.
    """

    tolerance: float = 1e-3
    num_samples: int = 256
    needs_rows: ClassVar[bool] = False
    diagnostics: ClassVar[Mapping[str, Diagnostic]] = DIAGNOSTICS

    def __post_init__(self) -> None:
        if not self.tolerance > 0.0:
            raise ValueError(
                f"`tolerance` is {self.tolerance}; it is the length of a step in posterior sds, such as 1e-3."
            )
        if self.num_samples < 16 or self.num_samples & (self.num_samples - 1):
            raise ValueError(
                f"`num_samples` is {self.num_samples}; quasi-random draws need a power of two from 16 on, such as 256."
            )

    @property
    def num_replicates(self) -> int:
        """One: nothing is random, as the draws of the local latents are fixed."""
        return 1

    def phases(self, roster: Roster) -> list[Phase]:
        """Newton rounds alone."""
        algorithm = federated_mode(roster, num_samples=self.num_samples, tolerance=self.tolerance)
        return [Phase(algorithm=algorithm, max_rounds=50, full_participation=True)]

    def answer(self, roster: Roster, run: RunState) -> GaussianAnswer:
        """The Laplace approximation at the best position."""
        state: ModeState = run.state
        return GaussianAnswer(product_of(state.prior, state.sites), cavities_of(state.prior, state.sites), run)


def mode_phase(roster: Roster, *, tolerance: float, max_rounds: int, ready: Ready | None = None) -> Phase:
    """Newton rounds that prepare another method; one run serves all its replicates.

    Parameters
    ----------
    roster, tolerance, ready
        See :func:`federated_mode`.
    max_rounds
        Its budget.
    """
    algorithm = federated_mode(roster, num_samples=64, tolerance=tolerance, ready=ready)
    return Phase(algorithm=algorithm, max_rounds=max_rounds, full_participation=True, main=False, once=True)


def federated_mode(roster: Roster, *, num_samples: int, tolerance: float, ready: Ready | None = None) -> Algorithm:
    """Newton's method over the clients, with Levenberg-Marquardt damping at the server.

    Parameters
    ----------
    roster
        Of the clients.
    num_samples
        Draws of the local latents at each position.
    tolerance
        Stop once the undamped step is shorter, in posterior sds (root mean square).
    ready
        ``(state) -> bool``: whether what comes after can start from the expansions at ``best``; then stop as soon as
        the mode is within three posterior sds or so. From farther away EP may get stuck.
    """
    prior, num_clients = roster.prior, roster.num_clients

    def init(key: Array, previous: None) -> ModeState:
        start = cold_start(prior.size)
        sites = Gaussian.neutral(prior.size, (num_clients,))
        return ModeState(start, start, jnp.full((), -jnp.inf), sites, prior.tangent(start), jnp.zeros(()))

    def aggregate(state: ModeState, replies: Replies, key: Array) -> tuple[ModeState, Info]:
        used, messages = replies.used, ModeMessage(replies.each.value, unpacked(replies.each.site))
        value = prior.log_density(state.position) + jnp.sum(jnp.where(used, messages.value, 0.0))
        improved = (value >= state.value - 1e-9 * jnp.abs(value)) & jnp.any(used)
        sites = where(used, messages.site, state.sites)
        here = state._replace(best=state.position, value=value, sites=sites, prior=prior.tangent(state.position))
        state = jax.tree.map(lambda new, old: jnp.where(improved, new, old), here, state)
        damping = jnp.where(improved, 0.1 * state.damping, jnp.maximum(10.0 * state.damping, 1e-3))
        damping = jnp.where(damping < 1e-6, 0.0, damping)
        step, decrement, undamped, proper, damping = _newton_step(state, damping)
        new = state._replace(position=state.best + step, damping=damping)
        change = jnp.sqrt(jnp.maximum(decrement, 0.0) / prior.size)
        converged = undamped & proper & (change < tolerance)
        if ready is not None:
            converged = converged | ((damping <= 1.0) & (change < _NEAR) & ready(new))
        # a step to where no factor is finite is taken back and damped, as long as there is a best position
        known = jnp.isfinite(state.value)
        return new, {"change": change, "step": 1.0 / (1.0 + damping), "converged": converged, "proper": known}

    def newton(
        position: Array, personal: tuple[()], z: Array, client: Client, inputs: tuple[()]
    ) -> tuple[Reply, Array]:
        # the same draws of the locals in every round: Newton's method needs one function, not a noisy one
        return expanded(client, position, z, num_samples)

    return Algorithm(
        name="mode",
        init=init,
        broadcast=lambda state: (state.position, ()),
        init_client=lambda client, shared, key: cold_start(client.num_locals),
        updates={"newton": Update(newton, no_inputs)},
        aggregate=aggregate,
    )


def _newton_step(state: ModeState, damping: Array) -> tuple[Array, Array, Array, Array, Array]:
    """Step from ``best`` with the least damping, from ``damping`` on, that makes the curvature a precision.

    With its decrement, whether it is a Newton step, all but undamped, whether the curvature is a precision as it is,
    and the damping.
    """
    model = state.global_()
    slope = model.shift - model.precision @ state.best
    ladder = jnp.concatenate([jnp.zeros(1), damping[None], jnp.maximum(damping, 1e-3) * 10.0 ** jnp.arange(8)])
    diagonal = jnp.abs(jnp.diagonal(model.precision)) + 1e-8
    whites = jax.vmap(whitener)(model.precision + ladder[:, None, None] * jnp.diag(diagonal))
    # damping that just cancels a negative curvature leaves next to nothing of it, and a step without bounds
    left = ladder * jnp.sum(whites**2 * diagonal, axis=(1, 2))
    proper = jnp.all(jnp.isfinite(whites), axis=(1, 2)) & (left <= 2.0 * len(diagonal))
    first = 1 + jnp.argmax(proper[1:])
    white = jnp.where(jnp.any(proper[1:]), whites[first], jnp.zeros_like(model.precision))
    step = white.T @ (white @ slope)
    return step, slope @ step, (first == 1) & (damping <= 0.01), proper[0], ladder[first]


def expanded(client: Client, position: Array, z: Array, num_samples: int) -> tuple[Reply, Array]:
    """A client's reply that holds its :func:`expansion`, the site packed, and where its locals' mode is."""
    message, z = expansion(client, position, z, num_samples)
    finite = jnp.all(jnp.isfinite(message.site.shift)) & jnp.all(jnp.isfinite(message.site.precision))
    code = jnp.where(finite & jnp.isfinite(message.value), ResultCode.OK, ResultCode.NOT_FINITE)
    return Reply(each=message._replace(site=packed(message.site)), code=code), z


def expansion(client: Client, theta: Array, z: Array, num_samples: int) -> tuple[ModeMessage, Array]:
    """Value, slope and curvature of ``log f(theta) = log int f(theta, z) dz``, and the locals' mode.

    Locals are integrated out by importance sampling of ``z`` given ``theta``
    (:func:`~fedbayes.inference.local.marginal.integrate_locals`). The slope follows by Fisher's identity,
    ``E[d log f / d theta]``, and the curvature by central differences of it. Louis' identity would need no differences,
    but ``Cov(d log f / d theta)`` holds fourth moments of the locals where they are centred: 64 draws, whose second
    moments are exact, were wrong by a factor of ten on eight schools.
    """
    if client.num_locals == 0:
        value, slope = jax.value_and_grad(client.log_factor)(theta)
        hessian = client.jacobian(jax.grad(client.log_factor))(theta)
    else:
        value, slope, z = integrate_locals(client, theta, z, num_samples)
        hessian = _differences(client, theta, z, lambda at: integrate_locals(client, at, z, num_samples).slope)
    precision = symmetrised(-hessian)
    shift = slope + precision @ theta
    site = Gaussian(shift, precision, value - Gaussian(shift, precision, jnp.zeros(())).log_value(theta))
    return ModeMessage(value, site), z


def _differences(client: Client, theta: Array, z: Array, slope: Callable[[Array], Array]) -> Array:
    """Jacobian of ``slope`` by central differences, shape ``(d, d)``.

    Steps are short beside one, the scale on which the log of a positive global matters, and beside each global's sd
    given the locals, which raw units may make far smaller.
    """
    own = client.jacobian(jax.grad(lambda at: client.log_factor(jnp.concatenate([at, z]))))(theta)
    steps = jnp.finfo(client.program.dtype).eps ** _POWER / jnp.sqrt(jnp.maximum(jnp.abs(jnp.diagonal(own)), 1.0))

    def row(step: Array) -> Array:
        return (slope(theta + step) - slope(theta - step)) / (2.0 * jnp.sum(step))

    return jax.lax.map(row, jnp.diag(steps), batch_size=_AT_ONCE)
