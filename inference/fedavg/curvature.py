"""The last round: clients expand their factors where the rounds have ended, which makes a Laplace posterior there."""

from typing import NamedTuple

import jax.numpy as jnp
import numpy as np
from jax import Array

from fedbayes.contract.algorithm import Algorithm, Info, Replies, Reply, Update, no_inputs
from fedbayes.inference.fedavg.client import Own, is_personalised, start_own
from fedbayes.inference.fedavg.options import Options
from fedbayes.inference.fedavg.server import FedAvgState
from fedbayes.inference.mode import expanded
from fedbayes.numerics.gaussian import Gaussian, unpacked, where, whitener
from fedbayes.problem.client import Client
from fedbayes.problem.roster import Roster


class LaplaceState(NamedTuple):
    """Where the rounds have ended, ``(d,)``, and the Gaussian there.

    Attributes
    ----------
    position
        Unconstrained globals.
    sites, prior
        Second-order expansions; with :class:`~fedbayes.inference.fedavg.fairness.GIFAIR` as they are, otherwise such
        that their product has its mean at ``position``.
    """

    position: Array
    sites: Gaussian
    prior: Gaussian


def _with_point(client: Client, position: Array, key: Array) -> Own:
    """The state of a client with a point of its own."""
    return start_own(client, position, key)._replace(position=position)


def _as_before(client: Client, shared: Array, key: Array, before: Own) -> Own:
    """A client with a point of its own keeps it."""
    return before


def expanding(config: Options, roster: Roster, weights: np.ndarray) -> Algorithm:
    """One round of second-order expansions.

    Their product is centred one Newton step away, which measures how far the position is from the mode. The slope that
    is left there is taken from the sites, by the clients' weights, so that the Gaussian is centred at the position.
    With fairness there is no Gaussian, and the expansions stay as they are
    (:mod:`fedbayes.inference.fedavg.optimum`).
    """
    prior, num, fair = roster.prior, roster.num_clients, config.fairness is not None

    def init(key: Array, previous: FedAvgState | None) -> LaplaceState:
        position = jnp.zeros(roster.size) if previous is None else previous.position
        return LaplaceState(position, Gaussian.neutral(roster.size, (num,)), Gaussian.neutral(roster.size))

    def update(position: Array, personal: tuple[()], own: Own, client: Client, inputs: tuple[()]) -> tuple[Reply, Own]:
        reply, _ = expanded(client, position, own.z, config.num_samples)
        return Reply(each=reply.total.site, code=reply.code), own

    def aggregate(state: LaplaceState, replies: Replies, key: Array) -> tuple[LaplaceState, Info]:
        sites = where(replies.used, unpacked(replies.each), state.sites)
        own = prior.tangent(state.position)
        if fair:
            return LaplaceState(state.position, sites, own), {"converged": jnp.array(True)}
        model = (own + sites.summed()).symmetrised()
        slope = model.shift - model.precision @ state.position
        white = whitener(model.precision)
        gap = jnp.sqrt(jnp.mean((white @ slope) ** 2))
        left = jnp.asarray(weights)[:, None] * slope
        level = sites.log_scale + left @ state.position
        centred = Gaussian(sites.shift - left, sites.precision, level)
        info = {"gap": gap, "converged": jnp.array(True), "proper": jnp.all(jnp.isfinite(white))}
        return LaplaceState(state.position, centred, own), info

    return Algorithm(
        name="curvature",
        init=init,
        broadcast=lambda state: (state.position, ()),
        init_client=_with_point if is_personalised(config) else start_own,
        updates={"expansion": Update(update, no_inputs)},
        aggregate=aggregate,
        continue_client=_as_before if fair else None,
        asked_at=lambda shared: shared,
    )
