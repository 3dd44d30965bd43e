"""A client's own site, which nobody else sees: the server holds the product of all sites, and sums of their changes.

A client can't know whether its reply has counted: a message may be lost or come too late. So the server tells it with
each broadcast which of its replies was the last that counted, and how far all sites have moved towards those of that
round. The client keeps its last two replies; one of them is the one that the server means, or its site is lost, which
it says.
"""

from typing import NamedTuple, Self

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array
from jax.typing import ArrayLike

from fedbayes.numerics.gaussian import STRUCTURE, Gaussian, packed, unpacked, where

# Rounds are numbered by decimals, as everything else in a state.
NEVER = -1.0  # no reply has counted yet
_UNKNOWN = -2.0  # of a client that has kept nothing: no server means this round


class Counted(NamedTuple):
    """What the server tells a client of its replies.

    Attributes
    ----------
    round
        Number of the round of its last reply that counted; -1 if none has.
    step
        How far the server has gone towards that reply, from 0 to 1. A client takes what is beyond as the nearer end.
    """

    round: Array
    step: Array

    @classmethod
    def none(cls, num_clients: int) -> Self:
        """Before the first round, leading axis of clients."""
        return cls(jnp.full(num_clients, NEVER), jnp.zeros(num_clients))


class Everybody(NamedTuple):
    """What a client is told once the rounds are over, from which it forms its cavity.

    Attributes
    ----------
    global_
        Prior times all sites, its precision as a triangle.
    counted
        Which of the client's replies is in it, and how far.
    """

    global_: Gaussian
    counted: Counted


EVERYBODY = Everybody(STRUCTURE, Counted(0, 0))  # type: ignore[arg-type]  # its structure alone is meant


class OwnSite(NamedTuple):
    """What a client keeps of its site; all precisions are triangles.

    Attributes
    ----------
    old, new
        The site is ``old + step (new - old)``, with the step that the server tells.
    round
        The round in which the client has proposed ``new``.
    step
        The server's step towards it, as it was when the client made its later reply.
    later, later_round
        The later reply: the site proposed in it, and its round.
    """

    old: Gaussian
    new: Gaussian
    round: Array
    step: Array
    later: Gaussian
    later_round: Array

    @classmethod
    def neutral(cls, size: int) -> Self:
        """The site 1 of a client that has kept nothing."""
        one, unknown = packed(Gaussian.neutral(size)), jnp.full((), _UNKNOWN)
        return cls(one, one, unknown, jnp.zeros(()), one, unknown)

    def settled(self, counted: Counted) -> tuple[Self, Array]:
        """With that reply of the two as ``new`` which has counted; and whether it is neither, so the site is lost.

        Where no reply counts the site is flat, whatever was proposed.
        """
        is_later = counted.round == self.later_round
        moved = self._replace(old=_between(self.old, self.new, self.step), new=self.later, round=self.later_round)
        found = jax.tree.map(lambda one, other: jnp.where(is_later, one, other), moved, self)
        none, flat = counted.round == NEVER, OwnSite.neutral(self.old.size)
        lost = (counted.round != found.round) & ~none
        return jax.tree.map(lambda one, other: jnp.where(lost | none, one, other), flat, found), lost

    def at(self, counted: Counted) -> Gaussian:
        """The site, of one that is settled."""
        return unpacked(_between(self.old, self.new, counted.step))

    def replied(self, counted: Counted, site: Gaussian, round_: Array) -> Self:
        """With a new reply, which proposes a site in a round."""
        return self._replace(step=counted.step, later=packed(site), later_round=round_)


def own_cavity(own: OwnSite, told: Everybody) -> Gaussian:
    """Prior times all other clients' sites, its precision a matrix.

    The global itself where the client has lost its site: as wide or narrower, and so a place to look for its locals.
    """
    settled, lost = own.settled(told.counted)
    everybody = unpacked(told.global_)
    return where(lost, everybody, everybody - settled.at(told.counted))


def told_everybody(posterior: Gaussian, rounds: ArrayLike, steps: ArrayLike) -> Everybody:
    """What each client is told at the end, leading axes client and replicate.

    Parameters
    ----------
    posterior
        Leading axis of replicates.
    rounds, steps
        Of the replies that count, shape ``(replicate, client)``.
    """
    num = np.shape(rounds)[1]
    global_ = jax.tree.map(lambda leaf: np.broadcast_to(leaf, (num, *np.shape(leaf))), packed(posterior))
    return Everybody(global_, Counted(np.asarray(rounds).T, np.asarray(steps, float).T))  # type: ignore[arg-type]


def _between(old: Gaussian, new: Gaussian, step: Array) -> Gaussian:
    """The Gaussian at a step, from 0 to 1, whatever a server tells: it could else choose the site, and so a cavity."""
    step = jnp.clip(step, 0.0, 1.0)
    return jax.tree.map(lambda one, other: one + step * (other - one), old, new)
