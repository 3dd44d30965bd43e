"""The server's half of Fed-ensemble: each mode's own federated averaging, and who trains which of them in a round."""

from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax import Array

from fedbayes.contract.algorithm import Algorithm, Info, Replies, Teams, everybody
from fedbayes.inference.fed_ensemble.client import keys_of_modes, start_every_mode, train_every_mode
from fedbayes.inference.fed_ensemble.options import Options
from fedbayes.inference.fed_ensemble.teams import Assignment, first_assignment, next_assignment
from fedbayes.inference.fedavg.server import FedAvgState, ProbeState, first_position
from fedbayes.problem.roster import Roster


class EnsembleState(NamedTuple):
    """The server's state.

    Attributes
    ----------
    modes
        Each mode's own state of federated averaging, leading axis K.
    spread
        Of the modes at the start, see :func:`spread_of`.
    assignment
        Who trains what, an :class:`Assignment`; ``()`` where all clients train all modes.
    """

    modes: FedAvgState
    spread: Array
    assignment: Any = ()


def spread_of(position: Array) -> Array:
    """Standard deviation over the modes, ``(K, d)``, root mean square over the globals."""
    return jnp.sqrt(jnp.mean(jnp.var(position, axis=0)))


def in_teams(config: Options, roster: Roster, averaging: Algorithm) -> Algorithm:
    """Every client trains one mode in a round: an ensemble for the messages and the work of one.

    Parameters
    ----------
    config, roster
        Of the fit.
    averaging
        The rounds of one mode.
    """
    num = config.num_modes

    def init(key: Array, previous: ProbeState | None) -> EnsembleState:
        modes = _first_modes(config, roster, averaging, key, previous)
        return EnsembleState(modes, spread_of(modes.position), first_assignment(config, roster.num_clients, key))

    def broadcast(state: EnsembleState) -> tuple[Teams, Any]:
        assignment: Assignment = state.assignment
        team = assignment.team
        shared, personal = jax.vmap(averaging.broadcast)(state.modes)
        return Teams(shared, team), jax.tree.map(lambda leaf: leaf[team, jnp.arange(len(team))], personal)

    def aggregate(state: EnsembleState, replies: Replies, key: Array) -> tuple[EnsembleState, Info]:
        assignment: Assignment = state.assignment
        used = replies.used & (assignment.team == jnp.arange(num)[:, None])
        modes, info = jax.vmap(lambda mode, total, heard: averaging.aggregate(mode, Replies(total, (), heard), key))(
            state.modes, replies.total, used
        )
        info = _judged(info, jnp.any(used, axis=1)) | {"team": assignment.team}
        return EnsembleState(modes, state.spread, next_assignment(config, assignment, key)), info

    def participants(state: EnsembleState) -> Array:
        assignment: Assignment = state.assignment
        return assignment.drawn

    return averaging._replace(
        name="ensemble",
        init=init,
        broadcast=broadcast,
        aggregate=aggregate,
        participants=everybody if config.clients_per_stratum is None else participants,
    )


def together(config: Options, roster: Roster, averaging: Algorithm, *, name: str = "ensemble") -> Algorithm:
    """Every client trains every mode in every round: K independent federated averagings in the same exchanges.

    Parameters
    ----------
    config, roster, averaging
        See :func:`in_teams`.
    name
        Of the phase.
    """
    num = config.num_modes

    def init(key: Array, previous: ProbeState | EnsembleState | None) -> EnsembleState:
        if isinstance(previous, EnsembleState):
            return _again(config, averaging, key, previous)
        modes = _first_modes(config, roster, averaging, key, previous)
        return EnsembleState(modes, spread_of(modes.position))

    def aggregate(state: EnsembleState, replies: Replies, key: Array) -> tuple[EnsembleState, Info]:
        modes, info = jax.vmap(lambda mode, total: averaging.aggregate(mode, Replies(total, (), replies.used), key))(
            state.modes, replies.total
        )
        return EnsembleState(modes, state.spread), _judged(info, jnp.ones(num, bool))

    return averaging._replace(
        name=name,
        init=init,
        broadcast=lambda state: jax.vmap(averaging.broadcast, out_axes=(0, 1))(state.modes),
        init_client=partial(start_every_mode, averaging, num),
        updates=train_every_mode(averaging, num),
        aggregate=aggregate,
    )


def _first_modes(
    config: Options, roster: Roster, averaging: Algorithm, key: Array, previous: ProbeState | None
) -> FedAvgState:
    """Each mode at a start of its own; the first where the clients' curvature was asked for."""

    def start(place: Array, own: Array) -> FedAvgState:
        if previous is None:
            return averaging.init(own, None)
        there = jnp.where(place == 0, previous.position, first_position(config, roster, own))
        return averaging.init(own, previous._replace(position=there))

    return jax.vmap(start)(jnp.arange(config.num_modes), keys_of_modes(key, config.num_modes))


def _again(config: Options, averaging: Algorithm, key: Array, previous: EnsembleState) -> EnsembleState:
    """New rounds from where the modes are, with their steps."""

    def start(own: Array, mode: FedAvgState) -> FedAvgState:
        fresh: FedAvgState = averaging.init(own, None)
        return fresh._replace(position=mode.position, step=mode.step)

    modes = jax.vmap(start)(keys_of_modes(key, config.num_modes), previous.modes)
    return previous._replace(modes=modes)


def _judged(info: Info, heard: Array) -> Info:
    """The modes' diagnostics: all must have converged, one that idles has not failed, and one that can go on does."""
    converged = jnp.all(info.pop("converged"))
    hopeless = jnp.all(info.pop("hopeless") | ~heard)
    moved = jnp.where(heard, info["moved"], 0.0)
    return info | {"moved": moved, "converged": converged, "hopeless": hopeless}
