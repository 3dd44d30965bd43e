"""Newton searches that begin apart: separate modes of the posterior, where no symmetry leads from one to the other.

The first search begins near zero, as a fit without them does, and each other one at a draw of the prior. All go on side
by side: in a round every client expands its log factor at the positions of all searches
(:mod:`fedbayes.inference.mode`). What they end with are Laplace approximations, and the largest of these by its
integral is where the method that follows begins. Its check has draws of the others, too
(:mod:`fedbayes.correction.images`).

A search of ``S`` starts finds a mode whose basin holds the share ``b`` of the prior with probability
``1 - (1 - b)^(S - 1)``, and nothing else is known of what it has not found.
"""

from dataclasses import replace
from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax import Array

from fedbayes.contract.algorithm import Algorithm, Info, Phase, Replies, Reply, Update, no_inputs
from fedbayes.errors import ModelError, ResultCode
from fedbayes.inference.local.density.tilted import cold_start
from fedbayes.inference.mode import ModeMessage, ModeState, Needs, expanded, federated_mode
from fedbayes.numerics.gaussian import Gaussian, where
from fedbayes.problem.client import Client
from fedbayes.problem.roster import Roster

_ROUNDS = 100
_TOLERANCE = 0.01  # posterior sds of a mode: Newton's last step is the square of the one before
_STUCK = 1e6  # damping from which a search goes nowhere


class StartsState(NamedTuple):
    """The server's state.

    Attributes
    ----------
    each
        Of every search, along the leading axis.
    arrived
        Which of them are at a mode.
    """

    each: ModeState
    arrived: Array

    def modes(self) -> Gaussian:
        """Laplace approximations, unnormalised, leading axis of searches; NaN of a search that has not arrived."""
        found = jax.vmap(ModeState.global_)(self.each)
        return where(self.arrived, found, jax.tree.map(lambda leaf: jnp.full_like(leaf, jnp.nan), found))


def heaviest(modes: Gaussian) -> Array:
    """The mean ``(d,)`` of the mode with the largest integral, near zero where no search has arrived."""
    mean, _ = jax.vmap(Gaussian.moments)(modes)
    integral = jax.vmap(Gaussian.log_integral)(modes)
    fine = jnp.isfinite(integral) & jnp.all(jnp.isfinite(mean), axis=1)
    best = mean[jnp.argmax(jnp.where(fine, integral, -jnp.inf))]
    return jnp.where(jnp.any(fine), best, cold_start(modes.size))


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
    if not roster.prior.is_proper:
        raise ModelError(
            f"`num_starts` is {num_starts}, but no start can be drawn from the prior of the globals: it is improper, "
            "or known by its density alone. Give all globals proper priors, or leave `num_starts` out."
        )
    algorithm = _algorithm(roster, num_starts)
    starts = Phase(algorithm=algorithm, max_rounds=_ROUNDS, full_participation=True, main=False, once=True)
    return [starts, replace(following, algorithm=_from_heaviest(following.algorithm, roster, num_starts))]


def _from_heaviest(mode: Algorithm, roster: Roster, num_starts: int) -> Algorithm:
    """Newton rounds that begin at the heaviest mode, and keep all of them in their state."""

    def init(key: Array, previous: StartsState | None) -> ModeState:
        found = Gaussian.neutral(roster.size, (num_starts,)) if previous is None else previous.modes()
        return _begun(mode, roster, heaviest(found))._replace(elsewhere=found)

    return mode._replace(init=init)


def _begun(mode: Algorithm, roster: Roster, at: Array) -> ModeState:
    """The first state of Newton rounds that begin there; no random number is in it."""
    state: ModeState = mode.init(jax.random.key(0), None)
    return state._replace(position=at, best=at, prior=roster.prior.tangent(at))


def _algorithm(roster: Roster, num_starts: int) -> Algorithm:
    one = federated_mode(roster, Needs(), num_samples=64, tolerance=_TOLERANCE)

    def init(key: Array, previous: None) -> StartsState:
        # one after the other: a batch of random generators takes XLA seconds to compile
        drawn = jax.lax.map(roster.prior.draw, jax.random.split(key, num_starts - 1))
        positions = jnp.concatenate([cold_start(roster.size)[None], drawn])
        each = jax.vmap(lambda at: _begun(one, roster, at))(positions)
        return StartsState(each, jnp.zeros(num_starts, bool))

    def aggregate(state: StartsState, replies: Replies, key: Array) -> tuple[StartsState, Info]:
        def searched(each: ModeState, total: ModeMessage) -> tuple[ModeState, Info]:
            finite = [jnp.all(jnp.isfinite(leaf)) for leaf in jax.tree.leaves(total)]
            return one.aggregate(each, Replies(total, (), replies.used & jnp.all(jnp.stack(finite))), key)

        moved, info = jax.vmap(searched)(state.each, replies.total)
        moved = jax.tree.map(partial(_chosen, state.arrived), state.each, moved)
        arrived = state.arrived | info["converged"]
        open_ = ~arrived & (moved.damping <= _STUCK)
        told = {
            "change": jnp.max(jnp.where(open_ & jnp.isfinite(info["change"]), info["change"], 0.0)),
            "step": jnp.min(jnp.where(open_, info["step"], 1.0)),
            "converged": ~jnp.any(open_),
        }
        return StartsState(moved, arrived), told

    def newton(shared: Array, personal: tuple[()], z: Array, client: Client, inputs: tuple[()]) -> Any:
        replies, found = client.at_many(lambda at: expanded(client, at[0], at[1], 64), (shared, z))
        fine = replies.code == ResultCode.OK
        # one number says that a search has gone where nothing is finite: an owner counts how many of these leave
        nothing = jax.tree.map(jnp.zeros_like, replies.total)._replace(value=jnp.full(num_starts, jnp.nan))
        total = jax.tree.map(partial(_chosen, fine), replies.total, nothing)
        code = jnp.where(jnp.any(fine), ResultCode.OK, ResultCode.NOT_FINITE)
        return Reply(total=total, code=code), jnp.where(fine[:, None], found, z)

    return Algorithm(
        name="starts",
        init=init,
        broadcast=lambda state: (state.each.position, ()),
        init_client=lambda client, shared, key: jnp.tile(cold_start(client.num_locals), (num_starts, 1)),
        updates={"newton": Update(newton, no_inputs)},
        aggregate=aggregate,
        asked_at=lambda shared: shared,
    )


def _chosen(condition: Array, one: Array, other: Array) -> Array:
    """Arrays of all searches, of each from the one or the other."""
    return jnp.where(condition.reshape(condition.shape + (1,) * (one.ndim - 1)), one, other)
