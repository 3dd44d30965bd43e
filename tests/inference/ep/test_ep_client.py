"""The client's half of EP: what it sends, and what it keeps, whatever its solver has found."""

from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import fedbayes as fb
from fedbayes.errors import ResultCode
from fedbayes.inference.ep.client import Family, Own, Shared, Told, cavity_of, local_update
from fedbayes.inference.ep.server import _in_family
from fedbayes.inference.local.density.tilted import LaplaceSite, LocalSite, cold_chains
from fedbayes.inference.local.solvers import Solver
from fedbayes.inference.mode import Own as OfMode
from fedbayes.inference.own_site import NEVER, Counted, OwnSite
from fedbayes.models import linear
from fedbayes.numerics.gaussian import Gaussian, packed, unpacked

SIZE, NOISE = 2, 0.5
EXACT = fb.EP(num_samples=64, num_replicates=1, init="prior", damping=1.0)


@pytest.fixture(autouse=True)
def _float64():
    with jax.enable_x64(True):
        yield


def gaussian(shift, precision) -> Gaussian:
    return Gaussian(jnp.asarray(shift, float), jnp.asarray(precision, float), jnp.zeros(()))


HELD = gaussian([0.5, -0.25], [[1.0, 0.25], [0.25, 0.75]])  # the client's own site
FOUND = gaussian([1.0, 0.75], [[2.0, -0.5], [-0.5, 1.25]])  # its next one
EVERYBODY = gaussian([1.5, -1.0], [[5.0, 1.0], [1.0, 4.0]])
TOO_WIDE = gaussian([1.5, -1.0], [[0.5, 0.0], [0.0, 4.0]])  # without the client's site no precision is left
ROUND, NOW = 4.0, 6.0  # of the reply that counts, and the present one
FLAT = Gaussian.neutral(SIZE)


class Noise(NamedTuple):
    """An error of a site, with the noise that it causes."""

    value: float

    def noise(self, covariance):
        return jnp.asarray(self.value)


class Sent(NamedTuple):
    """A round of the client: its reply, what it keeps, and the cavity that its solver was given."""

    reply: object
    own: Own
    cavity: Gaussian


def kept() -> OwnSite:
    """Half of the way from nothing to its last reply is the site that it holds."""
    twice = jax.tree.map(lambda leaf: 2.0 * leaf, packed(HELD))
    return OwnSite.neutral(SIZE)._replace(later=twice, later_round=jnp.asarray(ROUND))


def sent(
    everybody=EVERYBODY, found=FOUND, counted=ROUND, recount=False, whole=False, most_noise=1.0, was_improper=False
) -> Sent:
    """What the client does where the server means its reply of this round, half of the way."""
    given = []

    def run(tilted, warm, inputs) -> LocalSite:
        given.append(tilted.cavity)
        zero = jnp.zeros(())
        laplace = LaplaceSite(found, zero, zero, jnp.asarray(True))
        moved = cold_chains(jnp.ones(SIZE))
        return LocalSite(found, zero, Noise(NOISE), zero, jnp.asarray(1e30), moved, laplace)

    shared = Shared(jnp.zeros(SIZE), packed(everybody), jnp.asarray(False), jnp.asarray(NOW), jnp.asarray(recount))
    told = Told(Counted(jnp.asarray(counted), jnp.asarray(0.5)), jnp.asarray(whole))
    own = Own(kept(), cold_chains(jnp.zeros(SIZE)), jnp.asarray(was_improper))
    solver = Solver(run, lambda key, size: ())
    reply, own = local_update(solver, Family(False), False, most_noise, shared, told, own, None, ())
    return Sent(reply, own, given[0])


def assert_same(one: Gaussian, other: Gaussian) -> None:
    """But for their scales."""
    np.testing.assert_allclose(one.shift, other.shift, atol=1e-12)
    np.testing.assert_allclose(one.precision, other.precision, atol=1e-12)


def assert_sent(found: Sent, site: Gaussian, *, noise=0.0, lost=0.0, code=ResultCode.OK) -> None:
    change = found.reply.total
    assert_same(unpacked(change.site), site)
    assert [float(each) for each in (change.noise, change.lost)] == [noise, lost]
    assert int(found.reply.code) == code


def test_a_client_sends_the_change_of_its_site() -> None:
    """And keeps what it has proposed, which becomes its site as far as the server goes towards it."""
    found = sent()
    assert_sent(found, FOUND - HELD, noise=NOISE)
    assert_same(found.cavity, EVERYBODY - HELD)
    assert float(found.own.site.later_round) == NOW
    for step, at in ((0.0, HELD), (1.0, FOUND)):
        counted = Counted(jnp.asarray(NOW), jnp.asarray(step))
        assert_same(found.own.site.settled(counted)[0].at(counted), at)
    assert np.all(found.own.warm.position == 1.0)


def test_a_reply_above_its_share_of_the_noise_is_called_noisy() -> None:
    assert_sent(sent(most_noise=0.4), FOUND - HELD, noise=NOISE, code=ResultCode.NOISY)


def share(everybody: Gaussian, site: Gaussian) -> np.float64:
    """The largest part of the global's precision that a site holds in a direction."""
    return np.linalg.eigvals(np.linalg.solve(everybody.precision, site.precision)).real.max()


@pytest.mark.parametrize("was_improper", [False, True])
def test_a_proper_cavity_is_the_global_without_the_site(was_improper) -> None:
    """Also once it was improper, as long as the site holds less than nine tenths of the global in each direction."""
    found = sent(was_improper=was_improper)
    assert_same(found.cavity, EVERYBODY - HELD)
    assert bool(found.own.was_improper) is was_improper
    assert float(found.reply.info["smallest_cavity_eigenvalue"]) == pytest.approx(1.0 - share(EVERYBODY, HELD))


def test_of_an_improper_cavity_a_power_of_the_site_is_left_out() -> None:
    """The largest that leaves a tenth of the global's precision; the client goes on, and remembers it."""
    found = sent(TOO_WIDE)
    power = 0.9 / share(TOO_WIDE, HELD)
    assert power < 0.5
    assert_same(found.cavity, TOO_WIDE - HELD.scaled(power))
    assert np.linalg.eigvals(np.linalg.solve(TOO_WIDE.precision, found.cavity.precision)).min() == pytest.approx(0.1)
    assert_sent(found, FOUND - HELD, noise=NOISE)
    assert bool(found.own.was_improper)
    assert float(found.reply.info["smallest_cavity_eigenvalue"]) == pytest.approx(1.0 - share(TOO_WIDE, HELD))
    assert np.isnan(found.reply.info["influence"])  # on the others, as whose product the cavity is no Gaussian


def test_a_narrow_margin_is_kept_once_the_cavity_was_improper() -> None:
    """Else noise about a singular cavity would change between two ways to match moments. Exact before that."""
    near = gaussian([1.5, -1.0], HELD.precision / 0.95)
    assert_same(sent(near).cavity, near - HELD)
    kept = sent(near, was_improper=True)
    assert_same(kept.cavity, near - HELD.scaled(0.9 / share(near, HELD)))
    assert bool(kept.own.was_improper)


def test_a_cavity_that_is_singular_where_its_client_alone_knows_a_direction_stays() -> None:
    """As under a flat prior: in the second coordinate everybody's precision is the client's own."""
    own = gaussian([0.5, 0.75], np.diag([1.0, 0.75]))
    alone = gaussian([1.5, 0.75], np.diag([4.0, 0.75]))
    cavity, power, smallest, was_improper = cavity_of(alone, own, jnp.asarray(False))
    assert float(power) == 1.0
    assert_same(cavity, alone - own)
    assert abs(float(smallest)) < 1e-9
    assert not was_improper


def test_where_the_global_is_improper_so_is_every_cavity() -> None:
    """As under a flat prior before the first round."""
    everybody = gaussian([0.0, 0.0], np.diag([-1.0, 4.0]))
    found = sent(everybody)
    assert_sent(found, FOUND - HELD, noise=NOISE)
    assert_same(found.cavity, everybody - HELD)
    assert not found.own.was_improper


def test_a_site_that_is_not_finite_changes_nothing() -> None:
    found = sent(found=gaussian([np.nan, 0.0], np.eye(SIZE)))
    np.testing.assert_array_equal(found.reply.total.site.shift, 0.0)
    assert int(found.reply.code) == ResultCode.IMPROPER
    assert np.all(found.own.warm.position == 0.0)


@pytest.mark.parametrize("everybody", [EVERYBODY, TOO_WIDE])
def test_a_lost_site_is_reported_and_nothing_proposed(everybody) -> None:
    found = sent(everybody, counted=ROUND + 1.0)
    assert_sent(found, FLAT, lost=1.0, code=ResultCode.LOST)
    assert_same(unpacked(found.own.site.later), FLAT)


@pytest.mark.parametrize("everybody", [EVERYBODY, TOO_WIDE])
@pytest.mark.parametrize("whole", [True, False])
def test_in_a_count_a_client_sends_its_whole_site_once(everybody, whole) -> None:
    found = sent(everybody, recount=True, whole=whole)
    assert not found.own.was_improper  # nothing was computed
    assert_sent(found, HELD if whole else FLAT)
    assert_same(unpacked(found.own.site.later), HELD)


@pytest.mark.parametrize(
    ("round_", "step", "expected", "lost"),
    [
        (4.0, 0.25, 3.25, False),  # the later reply: a quarter of the way from 2 to 7
        (3.0, 0.5, 2.0, False),  # the one before
        (3.0, 1.0, 3.0, False),  # and the server has gone farther towards it
        (5.0, 1.0, 0.0, True),  # neither: nobody knows what the global holds
    ],
)
def test_a_client_finds_the_reply_that_counts(round_, step, expected, lost) -> None:
    """From 1 half of the way to 3 it held 2, when it proposed 7."""
    old, new, later = (packed(gaussian([value], [[value]])) for value in (1.0, 3.0, 7.0))
    own = OwnSite(old, new, jnp.asarray(3.0), jnp.asarray(0.5), later, jnp.asarray(4.0))
    counted = Counted(jnp.asarray(round_), jnp.asarray(step))
    found, is_lost = own.settled(counted)
    assert_same(found.at(counted), gaussian([expected], [[expected]]))
    assert bool(is_lost) == lost


@pytest.mark.parametrize(("told", "taken"), [(3.0, 1.0), (-2.0, 0.0), (np.inf, 1.0)])
def test_a_step_that_no_server_takes_leads_no_farther_than_one_that_it_may(told, taken) -> None:
    """Now, and where the client goes on from it: a site beyond its own proposals would be of the server's choice."""
    old, new, later = (packed(gaussian([value], [[value]])) for value in (1.0, 3.0, 7.0))
    own = OwnSite(old, new, jnp.asarray(3.0), jnp.asarray(0.5), later, jnp.asarray(4.0))

    def answers(step) -> tuple[Gaussian, Gaussian]:
        counted = Counted(jnp.asarray(3.0), jnp.asarray(step))
        here = own.at(counted)
        kept = own.replied(counted, gaussian([9.0], [[9.0]]), jnp.asarray(5.0))
        end = Counted(jnp.asarray(5.0), jnp.asarray(0.0))
        return here, kept.settled(end)[0].at(end)

    for lie, honest in zip(answers(told), answers(taken), strict=True):
        assert_same(lie, honest)


def test_before_any_reply_counts_a_client_has_lost_nothing() -> None:
    """Its first reply did not arrive."""
    own = OwnSite.neutral(SIZE)
    counted = Counted(jnp.asarray(NEVER), jnp.zeros(()))
    own = own.replied(counted, FOUND, jnp.asarray(0.0))
    found, lost = own.settled(counted)
    assert not lost
    assert_same(found.at(counted), FLAT)


def test_expansions_become_sites_of_the_family() -> None:
    """Of all that a client has kept from the mode, diagonal sites have the diagonal alone."""
    three = [packed(each) for each in (FOUND, HELD, EVERYBODY)]
    own = OwnSite(three[0], three[1], jnp.zeros(()), jnp.zeros(()), three[2], jnp.ones(()))
    found = _in_family(OfMode(jnp.zeros(0), own), Family(True))
    for site, before in zip((found.old, found.new, found.later), (FOUND, HELD, EVERYBODY), strict=True):
        assert_same(unpacked(site), gaussian(before.shift, np.diag(np.diagonal(before.precision))))


def test_a_fit_recovers_the_exact_answer_from_a_lost_site(rounds) -> None:
    """Linear clients: the count, in which one comes late, ends with the posterior of the others; the next with all."""
    clients, _ = linear.simulate(jax.random.key(5), rows=(20, 30, 40))
    run = rounds(linear.model, clients, EXACT).run(1)
    names = list(clients)
    everybody = linear.exact_posterior(clients)
    others = linear.exact_posterior({name: clients[name] for name in (names[0], names[2])})

    def assert_exact(expected) -> None:
        for ours, theirs in zip(run.moments(), expected, strict=True):
            np.testing.assert_allclose(ours, theirs, rtol=1e-8, atol=1e-11)

    assert_exact(everybody)
    run.forget(1)
    for active in ([0, 1, 2], [0, 1]):  # the loss is said; then the count begins
        run.run(1, active)
        assert_exact(everybody)
    run.run(1)
    assert_exact(others)
    run.run(1)
    assert_exact(everybody)
    assert not np.any(run.current.state.recount.running)


@pytest.mark.parametrize("init", ["mode", "newton"])
def test_no_client_loses_its_site_between_the_phases(init) -> None:
    """The server means the expansions at the best position, which clients have kept."""
    clients, _ = linear.simulate(jax.random.key(5), rows=(20, 30, 40))
    method = fb.EP(num_samples=64, num_replicates=1, init=init)
    fit = fb.fit_federated(linear.model, clients, method=method, key=jax.random.key(0), progress=False)
    assert not np.any(fit.rounds["code"].values == ResultCode.LOST)
    assert int((fit.rounds["phase"] == "EP").sum()) == 1  # the expansions are exact
