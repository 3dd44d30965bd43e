"""Which client trains which mode: strata of clients, and a permutation of the modes for each."""

from typing import NamedTuple

import jax
import jax.numpy as jnp
from jax import Array

from fedbayes.inference.fed_ensemble.options import Options
from fedbayes.runtime.keys import Purpose, key_for


class Assignment(NamedTuple):
    """Who trains what.

    Attributes
    ----------
    strata
        Each client's stratum, drawn once, shape ``(N,)``.
    plan
        The mode of each stratum in each round of this age, shape ``(Q, K)``.
    round
        Rounds done; an age has K of them.
    drawn
        The clients that take part in the next round, shape ``(N,)``.
    """

    strata: Array
    plan: Array
    round: Array
    drawn: Array

    @property
    def team(self) -> Array:
        """Each client's mode in the next round, shape ``(N,)``."""
        return self.plan[self.strata, self.round % jnp.uint32(self.plan.shape[1])]


def first_assignment(config: Options, num_clients: int, key: Array) -> Assignment:
    """Strata of equal sizes, up to one client, and the first age's plan."""
    num_strata = num_clients if config.num_strata is None else config.num_strata
    order = jax.random.permutation(key_for(key, Purpose.STRATA), num_clients)
    places = (jnp.arange(num_clients) % num_strata).astype(jnp.uint32)
    strata = jnp.zeros(num_clients, jnp.uint32).at[order].set(places)
    plan = draw_plan(config, num_strata, key)
    return Assignment(strata, plan, jnp.zeros((), jnp.uint32), _drawn(config, strata, key))


def next_assignment(config: Options, assignment: Assignment, key: Array) -> Assignment:
    """After a round: new plans at the end of an age, and the clients of the next round."""
    num_strata, num_modes = assignment.plan.shape
    after = assignment.round + jnp.uint32(1)
    ended = after % jnp.uint32(num_modes) == 0
    plan = jnp.where(ended, draw_plan(config, num_strata, key), assignment.plan)
    return Assignment(assignment.strata, plan, after, _drawn(config, assignment.strata, key))


def draw_plan(config: Options, num_strata: int, key: Array) -> Array:
    """A permutation of the modes for each stratum, shape ``(Q, K)``: each mode visits each stratum once in an age.

    ``"random"``: a fresh one for each. ``"latin"``: ``plan[q, r] = p((q + r) mod K)`` with one permutation p, so that
    modes have equally many strata in every round where Q is a multiple of K.
    """
    key, modes = key_for(key, Purpose.PLAN), config.num_modes
    numbers = jnp.arange(modes, dtype=jnp.uint32)
    if config.assignment == "latin":
        places = (jnp.arange(num_strata)[:, None] + jnp.arange(modes)) % modes
        return jax.random.permutation(key, numbers)[places]
    return jax.vmap(lambda own: jax.random.permutation(own, numbers))(jax.random.split(key, num_strata))


def _drawn(config: Options, strata: Array, key: Array) -> Array:
    """Random ``clients_per_stratum`` clients of each stratum."""
    num = len(strata)
    if config.clients_per_stratum is None:
        return jnp.ones(num, bool)
    order = jnp.lexsort((jax.random.uniform(key_for(key, Purpose.TAKEN), (num,)), strata))
    in_order = strata[order]
    rank = jnp.arange(num) - jnp.searchsorted(in_order, in_order)
    return jnp.zeros(num, bool).at[order].set(rank < config.clients_per_stratum)
