"""The largest curvature of any client at the start: what steps can be taken there."""

import warnings
from collections.abc import Callable

import jax.numpy as jnp
import numpy as np
from jax import Array

from fedbayes.contract.algorithm import Algorithm, Info, Phase, Replies, Reply, Update
from fedbayes.contract.state import RunState
from fedbayes.errors import ResultCode
from fedbayes.inference.fedavg.client import largest_curvature, make_energy, start_locals
from fedbayes.inference.fedavg.options import Options
from fedbayes.inference.fedavg.server import ProbeState, first_position
from fedbayes.inference.largest import hiding, largest_curvature_of, largest_of, terms_of
from fedbayes.problem.client import Client
from fedbayes.problem.roster import Roster

_LEAST = 0.01  # part of the way to the minimum that all rounds together must be able to go


def probed(config: Options, rounds: Algorithm, roster: Roster, weights: np.ndarray) -> list[Phase]:
    """The rounds, after one that asks for the clients' curvature where plain steps need to know it."""
    if not config.probes:
        return [Phase(algorithm=rounds, max_rounds=config.max_rounds)]
    probe = probing(config, roster, weights)
    return [
        Phase(algorithm=probe, max_rounds=1, full_participation=True, main=False),
        Phase(algorithm=rounds, max_rounds=config.max_rounds, check=check_step(config, roster)),
    ]


def probing(config: Options, roster: Roster, weights: np.ndarray) -> Algorithm:
    """One round that asks for the largest curvature of any client at the start."""

    def probe(position: Array, personal: tuple[()], z: Array, client: Client, random: Array) -> tuple[Reply, Array]:
        energy = make_energy(config, roster, weights, client)
        found = largest_curvature(energy, position, z, float(roster.rows.sum()))
        code = jnp.where(jnp.isfinite(found), ResultCode.OK, ResultCode.NOT_FINITE)
        return Reply(total=terms_of(found, random), code=code, info={"curvature": found}), z

    def aggregate(state: ProbeState, replies: Replies, key: Array) -> tuple[ProbeState, Info]:
        return state._replace(curvature=largest_of(replies.total)), {"converged": jnp.array(True)}

    return Algorithm(
        name="probe",
        init=lambda key, previous: ProbeState(first_position(config, roster, key), jnp.zeros(())),
        broadcast=lambda state: (state.position, ()),
        init_client=start_locals,
        updates={"power": Update(probe, hiding)},
        aggregate=aggregate,
        asked_at=lambda shared: shared,
    )


def check_step(config: Options, roster: Roster) -> Callable[[RunState], None]:
    """A check of plain gradient steps against the clients' largest curvatures at the start.

    A quadratic loss of curvature H diverges under steps of ``2 / H`` and more. From ``1 / H`` on the results on
    FedAvg's fixed point do not hold (Su, Xu and Yang 2023, who assume less). K steps in each of R rounds go at most the
    part ``eta H K R`` of the way to the minimum, and with mini-batches nothing later tells such rounds from ended ones.
    """
    step_size = config.step_size
    most = config.max_rounds * _steps_in_a_round(config, roster)

    def check(probed: RunState) -> None:
        whose, curvature = largest_curvature_of(probed, roster, float(np.max(np.asarray(probed.state.curvature))))
        if step_size is None or not curvature > 0.0:
            return
        limit = 1.0 / curvature
        instead = f"Write `step_size={limit / 2.0:.2g}`, or leave it out."
        known = f"`step_size` is {step_size:g}, {{}} the loss of {whose} has the curvature {curvature:.3g} at the start"
        if step_size * most < _LEAST * limit:
            raise ValueError(
                f"{known.format('but')}: all {config.max_rounds} rounds together would go less than a hundredth of the "
                f"way to the optimum. {instead}"
            )
        if step_size >= 2.0 * limit:
            raise ValueError(f"{known.format('but')}: steps of {2.0 * limit:.3g} or more diverge there. {instead}")
        if step_size >= limit:
            warnings.warn(
                f"{known.format('and')}: steps of {limit:.3g} or more overshoot there, and what is known of FedAvg's "
                f"fixed point does not hold. {instead}",
                stacklevel=2,
            )

    return check


def _steps_in_a_round(config: Options, roster: Roster) -> float:
    batches = np.ceil(roster.rows.max() / config.batch_size) if config.batch_size else 1.0
    return float(config.steps if config.epochs is None else config.epochs * batches)
