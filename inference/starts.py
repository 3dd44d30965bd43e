"""Newton searches that begin apart: separate modes of the posterior, where no symmetry leads from one to the other.

The first search begins near zero, as a fit without them does, and each other one at a draw of the prior. All go on side
by side: in a round every client expands its log factor at the positions of all searches
(:mod:`fedbayes.inference.mode`). What they end with are Laplace approximations, and the largest of these by its
integral is where the method that follows begins. Its check has draws of the others, too
(:mod:`fedbayes.correction.images`).

With ``S`` starts a mode to which damped Newton steps lead from the share ``b`` of the prior's draws is found with
probability ``1 - (1 - b)^(S - 1)``, if every search converges within the rounds that there are. Of a mode that was not
found nothing is known.
"""

from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array

from fedbayes.contract.algorithm import Algorithm, Info, Phase, Replies, Reply, Update, no_inputs
from fedbayes.contract.modes import Modes
from fedbayes.errors import ModelError, ResultCode
from fedbayes.inference.local.density.tilted import cold_start
from fedbayes.inference.mode import DONE, ModeMessage, ModeState, Needs, expanded, federated_mode
from fedbayes.numerics.gaussian import LOG_2PI, log_det, whitener
from fedbayes.problem.client import Client
from fedbayes.problem.program.prior import Prior
from fedbayes.problem.roster import Roster

_ROUNDS = 100
_TOLERANCE = 0.01  # posterior sds of a mode: Newton's last step is the square of the one before
_STUCK = 1e6  # damping from which a search goes nowhere
_FAILURES = 3  # rounds in which a search may be where nothing is finite: an owner counts them
_PATIENCE = 10  # rounds to wait for a client that has answered before
_SAMPLES = 64  # draws of the locals at each position
_REACH = 40.0  # prior sds from its centre, up to which searches go; an owner lets a site answer up to 50 by default


class StartsMessage(NamedTuple):
    """A client's expansions at the positions of all searches.

    Attributes
    ----------
    each_search
        Leading axis of searches; all NaN where an expansion is not finite. The constant of its site is not told.
    """

    each_search: ModeMessage


class StartsState(NamedTuple):
    """The server's state.

    Attributes
    ----------
    each
        Of every search, along the leading axis.
    arrived, ended
        Which of them have come to a mode, with every client's expansion, and which go no further.
    failed
        In how many rounds each of them was where some expansion is not finite.
    idle
        Number of the last rounds in which not all clients answered that had answered before.
    """

    each: ModeState
    arrived: Array
    ended: Array
    failed: Array
    idle: Array

    def modes(self) -> Modes:
        """Where the searches have ended."""
        mean, precision, log_integral = jax.vmap(_laplace)(self.each)
        return Modes(mean, precision, jnp.where(self.arrived, log_integral, jnp.nan))


def _laplace(state: ModeState) -> tuple[Array, Array, Array]:
    """Mean, precision and log integral, which is taken at the position: far from zero ``log_scale`` is a difference."""
    found = state.global_()
    white, size = whitener(found.precision), found.size
    slope = white @ (found.shift - found.precision @ state.best)
    log_integral = state.value + 0.5 * (slope @ slope - log_det(white) + size * LOG_2PI)
    return state.best + white.T @ slope, found.precision, log_integral


def heaviest(modes: Modes) -> Array:
    """The mean ``(d,)`` of the mode with the largest integral, near zero where no search has come to one."""
    known = jnp.isfinite(modes.log_integral)
    best = modes.mean[jnp.argmax(jnp.where(known, modes.log_integral, -jnp.inf))]
    return jnp.where(jnp.any(known), best, cold_start(modes.mean.shape[1]))


def with_starts(roster: Roster, num_starts: int, following: Phase) -> list[Phase]:
    """The searches, of which one run serves all replicates of the method, and Newton rounds from where they lead.

    Parameters
    ----------
    roster
        Of the clients.
    num_starts
        Number of searches; with one there is no phase of its own.
    following
        The Newton rounds, which would begin near zero.

    Raises
    ------
    ModelError
        The prior can't be drawn from.
    """
    if num_starts == 1:
        return [following]
    _check_drawable(roster, num_starts)
    searches = _algorithm(roster, num_starts)
    starts = Phase(algorithm=searches, max_rounds=_ROUNDS, full_participation=True, main=False, once=True)
    return [starts, replace(following, algorithm=_from_heaviest(following.algorithm, roster, num_starts))]


def _check_drawable(roster: Roster, num_starts: int) -> None:
    try:
        jax.eval_shape(roster.prior.draw, jax.random.key(0))
    except NotImplementedError:
        raise ModelError(
            f"`num_starts` is {num_starts}, but no start can be drawn from the prior of the globals: it is improper, "
            "or known by its density alone. Give all globals proper priors, or leave `num_starts` out."
        ) from None


def _from_heaviest(mode: Algorithm, roster: Roster, num_starts: int) -> Algorithm:
    """Newton rounds that begin at the heaviest mode, and keep all of them in their state."""

    def init(key: Array, previous: StartsState | None) -> ModeState:
        found = no_modes(num_starts, roster.size) if previous is None else previous.modes()
        return _begun(mode, roster, heaviest(found))._replace(modes=found)

    return mode._replace(init=init)


def no_modes(num_starts: int, size: int) -> Modes:
    """What there is where no search has come to a mode."""
    nowhere = jnp.full((num_starts, size), jnp.nan)
    return Modes(nowhere, jnp.full((num_starts, size, size), jnp.nan), nowhere[:, 0])


def _begun(mode: Algorithm, roster: Roster, at: Array) -> ModeState:
    """The first state of Newton rounds that begin there; no random number is in it."""
    state: ModeState = mode.init(jax.random.key(0), None)
    return state._replace(position=at, best=at, prior=roster.prior.tangent(at))


def _algorithm(roster: Roster, num_starts: int) -> Algorithm:
    """All searches as one algorithm."""
    one = federated_mode(roster, Needs(), num_samples=_SAMPLES, tolerance=_TOLERANCE)
    within = _reach(roster.prior)

    def init(key: Array, previous: None) -> StartsState:
        # one after the other: a batch of random generators takes XLA seconds to compile
        drawn = jax.lax.map(roster.prior.draw, jax.random.split(key, num_starts - 1))
        positions = within(jnp.concatenate([cold_start(roster.size)[None], drawn]))
        none, zero = jnp.zeros(num_starts, bool), jnp.zeros(())
        each = jax.vmap(partial(_begun, one, roster))(positions)
        each = each._replace(opening=jnp.full(num_starts, DONE))  # other starts are what these searches are for
        return StartsState(each, arrived=none, ended=none, failed=jnp.zeros(num_starts), idle=zero)

    return Algorithm(
        name="starts",
        init=init,
        broadcast=lambda state: (state.each.position, ()),
        init_client=lambda client, shared, key: jnp.tile(cold_start(client.num_locals), (num_starts, 1)),
        updates={"newton": Update(_newton, no_inputs)},
        aggregate=partial(_aggregate, one, roster.prior, within),
        asked_at=lambda shared: shared,
    )


def _reach(prior: Prior) -> Callable[[Array], Array]:
    """The nearest positions within reach: one search too far away would cost the others a site's whole answer."""
    if prior.spread is None:
        return lambda positions: positions
    centre, scale = prior.spread
    away = np.where(np.isfinite(scale), _REACH * scale, np.inf)
    return lambda positions: jnp.clip(positions, centre - away, centre + away)


def _newton(shared: Array, personal: tuple[()], z: Array, client: Client, inputs: tuple[()]) -> Any:
    """A client's expansions at all positions, one after the other: each holds a matrix of its rows."""
    replies, found = jax.lax.map(lambda at: expanded(client, at[0], at[1], _SAMPLES), (shared, z))
    fine = replies.code == ResultCode.OK
    constant = jnp.zeros_like(replies.total.value)
    told = replies.total._replace(site=replace(replies.total.site, log_scale=constant))
    # noughts would leave the sum of the other clients, which may be few
    total = jax.tree.map(lambda leaf: _chosen(fine, leaf, jnp.full_like(leaf, jnp.nan)), told)
    code = jnp.where(jnp.any(fine), ResultCode.OK, ResultCode.NOT_FINITE)
    return Reply(total=StartsMessage(total), code=code), _chosen(fine, found, z)  # it begins anew from where it was


def _aggregate(
    one: Algorithm,
    prior: Prior,
    within: Callable[[Array], Array],
    state: StartsState,
    replies: Replies,
    key: Array,
) -> tuple[StartsState, Info]:
    """A step of each search that has not ended; none where a client is away that has answered before."""

    def searched(each: ModeState, total: ModeMessage) -> tuple[ModeState, Info, Array]:
        known = (total, prior.tangent(each.position))
        fine = jnp.all(jnp.stack([jnp.all(jnp.isfinite(leaf)) for leaf in jax.tree.leaves(known)]))
        moved, info = one.aggregate(each, Replies(total, (), replies.used & fine), key)
        return moved, info, ~fine

    moved, info, failed = jax.vmap(searched)(state.each, replies.total.each_search)
    # one that lacks a client's expansion can't be compared with the others
    arrived = info["converged"] & jnp.all(moved.heard, axis=1)
    new = StartsState(moved, arrived, arrived, state.failed + failed, jnp.zeros(()))
    new = _ended(new, within)
    complete = jnp.any(replies.used) & ~jnp.any(state.each.heard & ~replies.used)
    new = jax.tree.map(partial(_chosen, state.ended | ~complete), state, new._replace(idle=state.idle))
    new = new._replace(idle=jnp.where(complete, 0.0, state.idle + 1.0))
    told = {
        "change": jnp.max(jnp.where(~new.ended & jnp.isfinite(info["change"]), info["change"], 0.0)),
        "step": jnp.min(jnp.where(new.ended, 1.0, info["step"])),
        "converged": jnp.all(new.ended) | (new.idle >= _PATIENCE),
    }
    return new, told


def _ended(state: StartsState, within: Callable[[Array], Array]) -> StartsState:
    """With the searches that have ended, and the positions of the next round.

    The clients still answer for a search that has ended: at a position where the posterior's value is known.
    """
    each = state.each
    position, known = within(each.position), jnp.isfinite(each.value)
    at_bound = jnp.any((position != each.position) & (position == each.best), axis=1)  # and wants to go on
    lost = ~jnp.all(jnp.isfinite(position), axis=1) | (state.failed >= _FAILURES)
    ended = state.ended | at_bound | lost | (each.damping > _STUCK)
    somewhere = jnp.where(jnp.any(known), each.best[jnp.argmax(known)], within(cold_start(each.best.shape[1])))
    safe = _chosen(known, each.best, jnp.broadcast_to(somewhere, each.best.shape))
    return state._replace(each=each._replace(position=_chosen(ended, safe, position)), ended=ended)


def _chosen(condition: Array, one: Array, other: Array) -> Array:
    """Arrays of all searches, of each from the one or the other; what is not of a search is the other."""
    if one.ndim == 0:
        return other
    return jnp.where(condition.reshape(condition.shape + (1,) * (one.ndim - 1)), one, other)
