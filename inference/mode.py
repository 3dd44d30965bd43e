"""The federated mode: Newton's method with summed gradients and Hessians of the clients' factors.

Each client expands its log factor to second order at the broadcast position, as a Gaussian site, and the server gets
the sum. Prior times sites is then the Newton model, its mean the Newton step, and at the mode it is the Laplace
approximation of the posterior: the best start for EP. A client keeps its own expansions, and learns with the next
broadcast which of them is in the model (:mod:`fedbayes.inference.own_site`).

Where nothing comes of the first round, as where sites over a network do not answer so far from their data, all clients
look for their own modes instead, once, and Newton's rounds begin at the mean of these.
"""

from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array

from fedbayes.contract.algorithm import OPENING, Algorithm, Info, Phase, Replies, Reply, Update, no_inputs
from fedbayes.contract.answer import ERROR_LIMIT, REPLICATE, Diagnostic
from fedbayes.contract.modes import Modes
from fedbayes.contract.work import COLUMN, GRADIENT, Work
from fedbayes.errors import ResultCode
from fedbayes.inference.local.after import own_mode
from fedbayes.inference.local.density.tilted import cold_start
from fedbayes.inference.local.marginal import integrate_locals, work_of_marginal
from fedbayes.inference.own_site import NEVER, Counted, OwnSite
from fedbayes.numerics.batches import in_batches
from fedbayes.numerics.gaussian import Gaussian, eigenvectors, packed, symmetrised, unpacked, where, whitener
from fedbayes.problem.client import Client
from fedbayes.problem.roster import Roster

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
        Expansions at ``best``: the product of the clients', and the prior's.
    convex
        Product of the convex parts of the clients' expansions, for EP to start from; ``()`` where nobody asks for it.
    clients
        The clients' single expansions, for methods that need them; ``()`` for the others.
    heard
        The clients whose expansions are in these, shape ``(K,)``.
    round, best_round
        Number of the present round, and of the one that brought the expansions.
    damping
        Levenberg-Marquardt damping of the next step.
    opening
        Of the clients' own modes: 0, not asked for; 1, asked for now; 2, they were.
    modes
        That searches from several starts have found (:mod:`fedbayes.inference.starts`), leading axis of
        searches; ``()`` without them.
    """

    position: Array
    best: Array
    value: Array
    sites: Gaussian
    prior: Gaussian
    convex: Gaussian | tuple[()]
    clients: Gaussian | tuple[()]
    heard: Array
    round: Array
    best_round: Array
    damping: Array
    opening: Array
    modes: Modes | tuple[()] = ()

    def global_(self) -> Gaussian:
        """The Laplace approximation at ``best``."""
        return (self.prior + self.sites).symmetrised()

    def counted(self) -> Counted:
        """Which of its expansions counts, for each client."""
        return Counted(jnp.where(self.heard, self.best_round, NEVER), self.heard.astype(float))


Ready = Callable[[ModeState], Array]
# Another method may take over when a step is shorter, in posterior sds, and less damped.
_NEAR, _HARDLY_DAMPED = 3.0, 0.2


_POWER = 0.2  # of the precision: a step of central differences, 7e-4 in float64 and 0.04 in float32
_AT_ONCE = 16  # points in one call: each holds all draws of the locals
USUAL_ROUNDS = 6
_NOT_YET, _NOW, DONE = 0.0, 1.0, 2.0


class ModeMessage(NamedTuple):
    """A client's log factor at the position, its expansion there, and the convex part of that where it is needed.

    Where the server sees the expansions one by one, they are not in the sum.
    """

    value: Array
    site: Gaussian | tuple[()]
    convex: Gaussian | tuple[()] = ()


class Own(NamedTuple):
    """What a client keeps: where its locals' mode is, and its expansions; ``()`` where nobody asks it for them."""

    z: Array
    site: OwnSite | tuple[()]


class Needs(NamedTuple):
    """What the method that goes on from the mode needs of single clients, beside the sum of their expansions.

    Attributes
    ----------
    own_sites
        Whether a client keeps its expansions, to know its own site afterwards.
    convex
        Whether these are their convex parts, with the product of these at the server.
    single
        Whether the server sees the expansions client by client. FedPA asks for that, and FA-LD where not all clients
        take part: what that does depends on each client's curvature.
    """

    own_sites: bool = False
    convex: bool = False
    single: bool = False


def mode_phase(roster: Roster, needs: Needs, *, tolerance: float, max_rounds: int, ready: Ready | None = None) -> Phase:
    """Newton rounds that prepare another method; one run serves all its replicates.

    Parameters
    ----------
    roster, needs, tolerance, ready
        See :func:`federated_mode`.
    max_rounds
        Its budget.
    """
    algorithm = federated_mode(roster, needs, num_samples=64, tolerance=tolerance, ready=ready)
    return Phase(
        algorithm=algorithm,
        max_rounds=max_rounds,
        full_participation=True,
        main=False,
        once=True,
        usual_rounds=USUAL_ROUNDS,
    )


def federated_mode(
    roster: Roster, needs: Needs, *, num_samples: int, tolerance: float, ready: Ready | None = None
) -> Algorithm:
    """Newton's method over the clients, with Levenberg-Marquardt damping at the server.

    A position whose expansions were not sent by all clients that had sent one at the best position is taken back, and
    the step damped: sums over different clients can't be compared.

    Parameters
    ----------
    roster
        Of the clients.
    needs
        What follows needs of single clients.
    num_samples
        Draws of the local latents at each position, where quadrature does not integrate them out.
    tolerance
        Stop once the undamped step is shorter, in posterior sds (root mean square).
    ready
        ``(state) -> bool``: whether what comes after can start from the expansions at ``best``; then stop as soon as
        the mode is within three posterior sds or so. From farther away EP may get stuck.
    """
    prior, size, num_clients = roster.prior, roster.size, roster.num_clients

    def init(key: Array, previous: None) -> ModeState:
        start, flat = cold_start(size), Gaussian.neutral(size)
        convex = flat if needs.convex else ()
        clients = Gaussian.neutral(size, (num_clients,)) if needs.single else ()
        nobody, zero, value = jnp.zeros(num_clients, bool), jnp.zeros(()), jnp.full((), -jnp.inf)
        return ModeState(
            start,
            start,
            value,
            flat,
            prior.tangent(start),
            convex,
            clients,
            nobody,
            zero,
            zero,
            damping=zero,
            opening=zero,
        )

    def accepted(state: ModeState, replies: Replies, value: Array) -> ModeState:
        total, single = replies.total, state.clients
        if isinstance(single, Gaussian):
            single = where(replies.used, unpacked(replies.each), Gaussian.neutral(size, (num_clients,)))
        return state._replace(
            best=state.position,
            value=value,
            sites=single.summed() if isinstance(single, Gaussian) else unpacked(total.site),
            prior=prior.tangent(state.position),
            convex=unpacked(total.convex) if needs.convex else (),
            clients=single,
            heard=replies.used,
            best_round=state.round,
        )

    def aggregate(state: ModeState, replies: Replies, key: Array) -> tuple[ModeState, Info]:
        used, value = replies.used, prior.log_density(state.position) + replies.total.value
        fewer = jnp.any(state.heard & ~used)
        more = jnp.any(used & ~state.heard)
        higher = more | (value >= state.value - 1e-9 * jnp.abs(value))
        # a first position that tells nothing: then all begin at their own modes, whose values can't be compared
        begins = ~jnp.isfinite(state.value) & ~jnp.any(used) & (state.opening == _NOT_YET)
        opened = (state.opening == _NOW) & jnp.any(used)
        improved = higher & ~fewer & jnp.any(used) & ~opened
        here = accepted(state, replies, value)
        state = jax.tree.map(lambda new, old: jnp.where(improved, new, old), here, state)
        damping = jnp.where(improved, 0.1 * state.damping, jnp.maximum(10.0 * state.damping, 1e-3))
        damping = jnp.where(damping < 1e-6, 0.0, damping)
        step, decrement, undamped, proper, damping = _newton_step(state, damping)
        new = state._replace(position=state.best + step, damping=damping, round=state.round + 1)
        # of an opening the position is all that is kept
        begun = jnp.where(opened, mean_of_modes(here.sites), state.position)
        new = new._replace(
            position=jnp.where(begins | opened, begun, new.position),
            damping=jnp.where(begins | opened, 0.0, damping),
            opening=jnp.where(begins, _NOW, jnp.where(new.opening == _NOW, DONE, new.opening)),
        )
        change = jnp.sqrt(jnp.maximum(decrement, 0.0) / size)
        converged = undamped & proper & (change < min(tolerance, ERROR_LIMIT))
        if ready is not None:
            converged = converged | ((damping <= _HARDLY_DAMPED) & (change < _NEAR) & ready(new))
        # a step to where no factor is finite is taken back and damped, as long as there is a best position
        known = jnp.isfinite(state.value) | begins | opened
        told = {"change": change, "step": 1.0 / (1.0 + damping), "proper": known, "opening": begins}
        return new, told | {"converged": converged & ~opened & ~begins}

    def broadcast(state: ModeState) -> tuple[tuple[Array, Array], Counted | tuple[()]]:
        return (state.position, state.round), state.counted() if needs.own_sites else ()

    def newton(shared: tuple[Array, Array], counted: Any, own: Own, client: Client, inputs: tuple[()]) -> Any:
        # the same draws of the locals in every round: Newton's method needs one function, not a noisy one
        position, round_ = shared
        reply, found = expanded(client, position, own.z, num_samples)
        z = jnp.where(reply.code == ResultCode.OK, found, own.z)  # else all later searches would begin where it failed
        site = reply.total.site
        if needs.convex:
            site = packed(convex_part(unpacked(site), position))
            reply = reply._replace(total=reply.total._replace(convex=site))
        if needs.single:
            reply = reply._replace(each=site, total=reply.total._replace(site=()))
        if not isinstance(own.site, OwnSite):
            return reply, Own(z, ())
        settled, _ = own.site.settled(counted)
        return reply, Own(z, settled.replied(counted, unpacked(site), round_))

    def opening(shared: tuple[Array, Array], counted: Any, own: Own, client: Client, inputs: tuple[()]) -> Any:
        # a search that has led nowhere is where it began, which the server knows: no term of a sum
        joint, found = own_mode(client, size)
        mode = joint[:size]
        site = packed(Gaussian(mode, jnp.eye(size), jnp.zeros(())))
        total = ModeMessage(jnp.zeros(()), () if needs.single else site, site if needs.convex else ())
        code = jnp.where(found, ResultCode.OK, ResultCode.NOT_FINITE)
        return Reply(total=total, each=site if needs.single else (), code=code), own

    def chosen(updates: Sequence[str], infos: Mapping[str, np.ndarray]) -> list[str]:
        return [OPENING if np.all(infos["opening"]) else "newton"] * len(updates)

    return Algorithm(
        name="mode",
        init=init,
        broadcast=broadcast,
        init_client=lambda client, shared, key: Own(
            cold_start(client.num_locals), OwnSite.neutral(size) if needs.own_sites else ()
        ),
        updates={
            "newton": Update(newton, no_inputs, work=lambda shared, client: work(client, num_samples)),
            OPENING: Update(opening, no_inputs),
        },
        aggregate=aggregate,
        choose=chosen,
        asked_at=lambda shared: shared[0],
    )


def mean_of_modes(sites: Gaussian) -> Array:
    """Where the rounds begin after an opening, whose sites are a Gaussian of unit precision at each client's mode."""
    return sites.shift / jnp.maximum(jnp.diagonal(sites.precision), 1.0)


def convex_part(site: Gaussian, position: Array) -> Gaussian:
    """The site with the same slope at ``position`` and without negative curvature."""
    values, vectors = eigenvectors(site.precision)
    precision = (vectors * jnp.maximum(values, 0.0)) @ vectors.T
    slope = site.shift - site.precision @ position
    return Gaussian(slope + precision @ position, precision, site.log_scale)


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
    assert isinstance(message.site, Gaussian)  # noqa: S101
    finite = jnp.all(jnp.isfinite(message.site.shift)) & jnp.all(jnp.isfinite(message.site.precision))
    code = jnp.where(finite & jnp.isfinite(message.value), ResultCode.OK, ResultCode.NOT_FINITE)
    return Reply(total=message._replace(site=packed(message.site)), code=code), z


def expansion(client: Client, theta: Array, z: Array, num_samples: int) -> tuple[ModeMessage, Array]:
    """Value, slope and curvature of ``log f(theta) = log int f(theta, z) dz``, and the locals' mode.

    :func:`~fedbayes.inference.local.marginal.integrate_locals` integrates the locals out: by quadrature, or by
    importance sampling of ``z`` given ``theta``. The slope follows by Fisher's identity,
    ``E[d log f / d theta]``, and the curvature by central differences of it. Louis' identity would need no differences,
    but ``Cov(d log f / d theta)`` holds fourth moments of the locals where they are centred: 64 draws, whose second
    moments are exact, were wrong by a factor of ten on eight schools.
    """
    if client.num_locals == 0:
        value, slope = jax.value_and_grad(client.log_factor)(theta)
        hessian = client.jacobian(jax.grad(client.log_factor))(theta)
    else:
        value, slope, hessian, z = _differences(client, theta, z, num_samples)
    precision = symmetrised(-hessian)
    shift = slope + precision @ theta
    site = Gaussian(shift, precision, value - Gaussian(shift, precision, jnp.zeros(())).log_value(theta))
    return ModeMessage(value, site), z


def work(client: Client, num_samples: int) -> Work:
    """Of :func:`expansion`."""
    size = client.program.globals.size
    if client.num_locals == 0:
        return Work(1.0 + GRADIENT + size * COLUMN)
    points = 2 * size + 1
    return work_of_marginal(client, num_samples).times(points, min(points, _AT_ONCE)).and_then(Work(size * COLUMN))


def _differences(client: Client, theta: Array, z: Array, num_samples: int) -> tuple[Array, Array, Array, Array]:
    """The marginal's value, slope, and Hessian by central differences of that, and the locals' mode.

    Steps are short beside one, the scale on which the log of a positive global matters, and beside each global's sd
    given the locals, which raw units may make far smaller.
    """
    own = client.jacobian(jax.grad(lambda at: client.given(at)(z)))(theta)
    steps = jnp.finfo(client.program.dtype).eps ** _POWER / jnp.sqrt(jnp.maximum(jnp.abs(jnp.diagonal(own)), 1.0))
    size, moves = len(theta), jnp.diag(steps)
    points = jnp.concatenate([theta[None], theta + moves, theta - moves])
    found = in_batches(lambda at: integrate_locals(client, at, z, num_samples), points, _AT_ONCE)
    slope = found.slope_for(found.k_hat[0])
    ahead, behind = slope[1 : size + 1], slope[size + 1 :]
    return found.value[0], slope[0], (ahead - behind) / (2.0 * steps[:, None]), found.z[0]
