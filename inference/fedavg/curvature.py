"""The last round: clients expand their factors where the rounds have ended, which makes a Laplace posterior there.

The server knows the product of the expansions, and each client keeps its own, as in the search for the mode. With
GIFAIR, whose optimum weighs each client by itself, the server sees them one by one.
"""

from typing import Any, NamedTuple

import jax.numpy as jnp
import numpy as np
from jax import Array

from fedbayes.contract.algorithm import Algorithm, Info, Replies, Reply, Update, no_inputs
from fedbayes.inference.fedavg.client import Own, is_personalised, start_own
from fedbayes.inference.fedavg.options import Options
from fedbayes.inference.fedavg.server import FedAvgState
from fedbayes.inference.mode import expanded
from fedbayes.inference.own_site import EVERYBODY, NEVER, Counted, Everybody, OwnSite, own_cavity, told_everybody
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
        Second-order expansions: the product of the clients', such that the mean with the prior is ``position``. With
        :class:`~fedbayes.inference.fedavg.fairness.GIFAIR` they are the clients' own, as they are.
    slope
        What was taken from the sites' shifts for that, over the weight of those that were heard, ``(d,)``; zero with
        GIFAIR.
    heard
        The clients whose expansions are in the product, shape ``(K,)``.
    """

    position: Array
    sites: Gaussian
    prior: Gaussian
    slope: Array
    heard: Array


class Expanded(NamedTuple):
    """What a client keeps at the end; with GIFAIR it keeps what it had.

    Attributes
    ----------
    z
        Where the search for its locals' mode begins.
    site
        Its expansion.
    weight
        The part of the slope that is its own.
    """

    z: Array
    site: OwnSite
    weight: Array


class Ended(NamedTuple):
    """What a client is told at the end: the Gaussian, and what was taken from the sites' shifts where it is centred."""

    everybody: Everybody
    slope: Array
    position: Array


ENDED = Ended(EVERYBODY, 0, 0)  # type: ignore[arg-type]  # its structure alone is meant
_ROUND = 0.0  # there is one


def expanding(config: Options, roster: Roster, weights: np.ndarray) -> Algorithm:
    """One round of second-order expansions.

    Their product is centred one Newton step away, which measures how far the position is from the mode. The slope that
    is left there is taken from the sites, by the clients' weights, so that the Gaussian is centred at the position.
    With fairness there is no Gaussian, and the expansions stay as they are
    (:mod:`fedbayes.inference.fedavg.optimum`).
    """
    prior, num, size, fair = roster.prior, roster.num_clients, roster.size, config.fairness is not None
    nothing = Gaussian.neutral(size, (num,) if fair else ())

    def init(key: Array, previous: FedAvgState | None) -> LaplaceState:
        position = jnp.zeros(size) if previous is None else previous.position
        return LaplaceState(position, nothing, Gaussian.neutral(size), jnp.zeros(size), jnp.zeros(num, bool))

    def begin(client: Client, position: Array, key: Array) -> Own | Expanded:
        own = start_own(client, position, key)
        return go_on(client, position, key, own._replace(position=position) if is_personalised(config) else own)

    def go_on(client: Client, position: Array, key: Array, before: Own) -> Own | Expanded:
        return before if fair else Expanded(before.z, OwnSite.neutral(size), jnp.asarray(weights)[client.index])

    def update(position: Array, personal: tuple[()], own: Any, client: Client, inputs: tuple[()]) -> tuple[Reply, Any]:
        reply, _ = expanded(client, position, own.z, config.num_samples)
        site = reply.total.site
        if fair:
            return Reply(each=site, code=reply.code), own
        kept = own.site.replied(Counted(jnp.asarray(NEVER), jnp.zeros(())), unpacked(site), jnp.asarray(_ROUND))
        return Reply(total=site, code=reply.code), own._replace(site=kept)

    def aggregate(state: LaplaceState, replies: Replies, key: Array) -> tuple[LaplaceState, Info]:
        own = prior.tangent(state.position)
        state = state._replace(prior=own, heard=replies.used)
        if fair:
            sites = where(replies.used, unpacked(replies.each), state.sites)
            return state._replace(sites=sites), {"converged": jnp.array(True)}
        sites = unpacked(replies.total)
        model = (own + sites).symmetrised()
        slope = model.shift - model.precision @ state.position
        white = whitener(model.precision)
        gap = jnp.sqrt(jnp.mean((white @ slope) ** 2))
        centred = Gaussian(sites.shift - slope, sites.precision, sites.log_scale + slope @ state.position)
        info = {"gap": gap, "converged": jnp.array(True), "proper": jnp.all(jnp.isfinite(white))}
        share = jnp.sum(jnp.where(replies.used, jnp.asarray(weights), 0.0))
        return state._replace(sites=centred, slope=slope / jnp.where(share > 0.0, share, 1.0)), info

    return Algorithm(
        name="curvature",
        init=init,
        broadcast=lambda state: (state.position, ()),
        init_client=begin,
        updates={"expansion": Update(update, no_inputs)},
        aggregate=aggregate,
        continue_client=go_on,
        asked_at=lambda shared: shared,
    )


def told_at_end(state: LaplaceState, posterior: Gaussian) -> Ended:
    """What each client is told, leading axes client and replicate."""
    rounds, num = np.where(state.heard, _ROUND, NEVER), state.heard.shape[1]
    slope, position = (np.broadcast_to(leaf, (num, *leaf.shape)) for leaf in (state.slope, state.position))
    return Ended(told_everybody(posterior, rounds, 1.0 * state.heard), slope, position)  # type: ignore[arg-type]


def cavity_of(told: Ended, private: Expanded) -> Gaussian:
    """Prior times all other clients' sites, each without its part of the slope; a client not heard has none."""
    part = jnp.where(told.everybody.counted.round == NEVER, 0.0, private.weight) * told.slope
    others = own_cavity(private.site, told.everybody)
    return Gaussian(others.shift + part, others.precision, others.log_scale - part @ told.position)
