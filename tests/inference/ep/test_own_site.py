"""Clients keep their own sites: whatever gets lost, the global is the prior times the sites that they hold.

The server's half is EP's own. The clients' half is played by a few lines that propose whatever they like, lose replies,
miss rounds and forget their sites.
"""

from dataclasses import dataclass, field
from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import fedbayes as fb
from fedbayes.contract.algorithm import Replies
from fedbayes.inference.ep import server
from fedbayes.inference.ep.client import Change, Family
from fedbayes.inference.ep.step import EPState
from fedbayes.inference.own_site import Counted, Everybody, OwnSite, own_cavity
from fedbayes.numerics.gaussian import Gaussian, packed, unpacked

NUM, SIZE = 3, 2


@pytest.fixture(autouse=True)
def _float64():
    with jax.enable_x64(True):
        yield


@dataclass(frozen=True)
class Prior:
    """Standard normal, as far as the server asks for it."""

    size: int = SIZE
    gaussian: Gaussian = field(default_factory=lambda: Gaussian(jnp.zeros(SIZE), jnp.eye(SIZE), jnp.zeros(())))


AGGREGATE = jax.jit(partial(server._aggregate, fb.EP(), Family(False), Prior(), None))


def reply_of(own: OwnSite, counted: Counted, proposal: Gaussian, recount, whole, at):
    """A client's round, as in `ep.client.local_update`: what it sends, and what it keeps."""
    kept, lost = own.settled(counted)
    site = kept.at(counted)
    idle = recount | lost
    proposed = jax.tree.map(lambda new, old: jnp.where(idle, old, new), proposal, site)
    sent = jax.tree.map(lambda now, new: jnp.where(whole, now, new - now), site, proposed)
    change = Change(packed(sent), jnp.zeros(()), lost * 1.0)
    return change, kept.replied(counted, proposed, at)


replied = jax.jit(reply_of)


class World:
    """A server and its clients."""

    def __init__(self, seed: int, client=replied) -> None:
        self.rng, self.client = np.random.default_rng(seed), client
        prior = Prior().gaussian
        self.state = EPState.start(prior, jnp.eye(SIZE), NUM, opening=False)
        self.own = [OwnSite.neutral(SIZE) for _ in range(NUM)]

    def proposal(self) -> Gaussian:
        root = self.rng.normal(size=(SIZE, SIZE + 1))
        return Gaussian(jnp.asarray(self.rng.normal(size=SIZE)), jnp.asarray(root @ root.T), jnp.zeros(()))

    def counted(self, k: int) -> Counted:
        return Counted(self.state.counted.round[k], self.state.counted.step[k])

    def round(self, active, arrives, forgets=(False,) * NUM) -> None:
        total, used = None, np.zeros(NUM, bool)
        for k in range(NUM):
            if forgets[k]:
                self.own[k] = OwnSite.neutral(SIZE)
            if not active[k]:
                continue
            recount = self.state.recount
            asked = recount.running, recount.running & ~recount.heard[k]
            given = self.own[k], self.counted(k), self.proposal(), *asked, self.state.round
            sent, self.own[k] = self.client(*given)
            if arrives[k]:
                used[k] = True
                total = sent if total is None else jax.tree.map(jnp.add, total, sent)
        if total is None:
            total = jax.tree.map(jnp.zeros_like, Change(packed(Prior().gaussian), *[jnp.zeros(())] * 2))
        self.state, self.info = AGGREGATE(self.state, Replies(total, (), jnp.asarray(used)), jax.random.key(0))

    def gap(self) -> float:
        """How far the global is from the prior times all sites."""
        together = Prior().gaussian
        for k in range(NUM):
            settled, _ = self.own[k].settled(self.counted(k))
            together = together + settled.at(self.counted(k))
        leaves = zip(jax.tree.leaves(together), jax.tree.leaves(self.state.global_()), strict=True)
        return float(max(jnp.max(jnp.abs(one - other)) for one, other in leaves))


ALL, NONE = (True,) * NUM, (False,) * NUM


def test_the_global_is_prior_times_sites_whatever_arrives() -> None:
    """Lost replies, absent clients: no client has forgotten anything, so it holds in every round."""
    world = World(0)
    for _ in range(60):
        draw = partial(world.rng.random, NUM)
        world.round(draw() < 0.8, draw() < 0.8)
        assert world.gap() < 1e-10


def test_a_client_that_forgot_its_site_is_counted_anew() -> None:
    """One more round in which all send whole sites, also where some of these come late; then all is as it should be."""
    world = World(2)
    for _ in range(3):
        world.round(ALL, ALL)
    world.round(ALL, ALL, forgets=(False, True, False))
    assert bool(world.state.recount.running)
    assert world.gap() > 1e-3  # the global still holds what nobody knows any more
    assert not world.info["converged"]
    world.round(ALL, (True, False, True))
    world.round(ALL, (True, True, False))
    assert not bool(world.state.recount.running)
    assert world.gap() < 1e-12
    world.round(ALL, ALL)
    assert not bool(world.state.recount.running)
    assert world.gap() < 1e-12


def test_a_count_changes_the_global_at_its_end_alone() -> None:
    world = World(5)
    for _ in range(2):
        world.round(ALL, ALL)
    world.round(ALL, ALL, forgets=(True, False, False))
    before, counted = world.state.global_(), world.state.counted
    world.round(ALL, (True, True, False))
    for ours, theirs in zip(jax.tree.leaves(world.state.global_()), jax.tree.leaves(before), strict=True):
        np.testing.assert_array_equal(ours, theirs)
    assert world.state.counted.round.tolist() == [3.0, 3.0, float(counted.round[2])]
    world.round(ALL, ALL)
    assert world.gap() < 1e-12


def test_no_fit_converges_while_a_site_is_lost() -> None:
    """Proposals that stay the same: an undamped round changes nothing any more."""
    world = World(6)
    site = Gaussian(jnp.ones(SIZE), jnp.eye(SIZE), jnp.zeros(()))
    world.proposal = lambda: site
    for _ in range(4):
        world.round(ALL, ALL)
    assert world.info["converged"]
    world.round(ALL, ALL, forgets=(False, True, False))
    assert not world.info["converged"]


@pytest.mark.parametrize("seed", range(3))
def test_random_histories_leave_the_sum_right(seed) -> None:
    """Everything at once; a few whole rounds later the global is prior times sites."""
    world = World(10 + seed)
    for _ in range(60):
        draw = partial(world.rng.random, NUM)
        world.round(draw() < 0.8, draw() < 0.8, forgets=draw() < 0.05)
    for _ in range(4):
        world.round(ALL, ALL)
    assert not bool(world.state.recount.running)
    assert world.gap() < 1e-10


def counts_what_was_lost(own, counted, *given):
    return reply_of(own, counted._replace(round=jnp.maximum(counted.round, own.later_round)), *given)


def says_nothing_of_its_loss(*given):
    sent, own = reply_of(*given)
    return sent._replace(lost=0.0 * sent.lost), own


@pytest.mark.parametrize("bug", [counts_what_was_lost, says_nothing_of_its_loss])
def test_planted_bugs_of_the_book_keeping_are_seen(bug) -> None:
    world = World(3, jax.jit(bug))
    for _ in range(30):
        draw = partial(world.rng.random, NUM)
        world.round(draw() < 0.8, draw() < 0.8, forgets=draw() < 0.05)
    for _ in range(4):
        world.round(ALL, ALL)
    assert world.gap() > 1e-3


def test_a_client_forms_its_cavity_from_the_global_and_what_it_has_kept() -> None:
    world = World(4)
    for _ in range(4):
        world.round(ALL, (True, True, False))
        global_ = world.state.global_()
        for k in range(NUM):
            told = Everybody(packed(global_), world.counted(k))
            cavity, (settled, _) = own_cavity(world.own[k], told), world.own[k].settled(world.counted(k))
            expected = global_ - settled.at(world.counted(k))
            for ours, theirs in zip(jax.tree.leaves(cavity), jax.tree.leaves(expected), strict=True):
                np.testing.assert_allclose(ours, theirs, atol=1e-12)
    lost = own_cavity(OwnSite.neutral(SIZE), Everybody(packed(global_), world.counted(0)))
    np.testing.assert_allclose(lost.precision, global_.precision)  # a place to look for locals


def test_what_is_kept_travels_as_triangles() -> None:
    own = OwnSite.neutral(SIZE)
    assert own.old.precision.shape == (SIZE * (SIZE + 1) // 2,)
    assert unpacked(own.old).precision.shape == (SIZE, SIZE)


def test_a_round_that_nobody_answers_moves_nothing() -> None:
    world = World(5)
    world.round(ALL, ALL)
    before = world.state
    world.round(ALL, NONE)
    assert float(world.state.step) == float(before.step)
    np.testing.assert_array_equal(world.state.base.precision, before.base.precision)
    assert world.gap() < 1e-12


def test_where_no_reply_counts_the_site_is_flat() -> None:
    """As after a search for the mode whose expansions the server could not use."""
    world = World(7)
    for _ in range(3):
        world.round(ALL, ALL)
    never = Counted(jnp.asarray(-1.0), jnp.zeros(()))
    for own in world.own:
        settled, lost = own.settled(never)
        assert not lost
        assert not np.any(settled.at(never).precision)
        again, _ = settled.replied(never, world.proposal(), jnp.asarray(9.0)).settled(Counted(jnp.asarray(9.0), 0.0))
        assert not np.any(again.at(Counted(jnp.asarray(9.0), jnp.zeros(()))).precision)
