"""The federated Newton steps where the curvature is no precision."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from fedbayes.contract.algorithm import Replies
from fedbayes.errors import ResultCode
from fedbayes.inference.local import after
from fedbayes.inference.mode import (
    ModeMessage,
    ModeState,
    Needs,
    Own,
    _newton_step,
    convex_part,
    expansion,
    federated_mode,
)
from fedbayes.inference.own_site import Counted, OwnSite
from fedbayes.models import eight_schools
from fedbayes.numerics.gaussian import Gaussian, packed, unpacked
from fedbayes.problem.problem import make_problem


@pytest.fixture(autouse=True)
def _float64():
    with jax.enable_x64(True):
        yield


def state_of(precision: np.ndarray, slope: np.ndarray) -> ModeState:
    """At the origin, with everything in the prior's expansion."""
    size = len(slope)
    prior = Gaussian(jnp.asarray(slope), jnp.asarray(precision), jnp.zeros(()))
    origin = jnp.zeros(size)
    flat, first, heard = Gaussian.neutral(size), jnp.zeros(()), jnp.ones(1, bool)
    return ModeState(
        origin, origin, jnp.zeros(()), flat, prior, (), (), heard, first, first, jnp.zeros(()), jnp.zeros(())
    )


@pytest.mark.parametrize("size", [1, 3])
def test_damping_does_not_just_cancel_a_negative_curvature(size) -> None:
    """Damping of one would leave a curvature of 1e-8 and a step of 1e8; the next in the ladder, ten, leaves nine."""
    step, _, undamped, proper, damping = _newton_step(state_of(-np.eye(size), np.ones(size)), jnp.zeros(()))
    np.testing.assert_allclose(step, 1.0 / 9.0, rtol=1e-6)
    assert float(damping) == pytest.approx(10.0)
    assert not bool(proper)
    assert not bool(undamped)


def test_a_precision_needs_no_damping() -> None:
    """However badly conditioned: the bound is on damped curvatures alone."""
    precision = np.array([[1.0, 1.0 - 1e-9], [1.0 - 1e-9, 1.0]])
    step, _, undamped, proper, damping = _newton_step(state_of(precision, precision @ [2.0, -1.0]), jnp.zeros(()))
    np.testing.assert_allclose(step, [2.0, -1.0], rtol=1e-5)
    assert float(damping) == 0.0
    assert bool(proper)
    assert bool(undamped)


@jax.jit
def expanded(client, theta):
    """The second-order expansion of a client's log factor, its local integrated out from 64 draws."""
    return expansion(client, theta, jnp.zeros(1), 64)[0]


@pytest.mark.parametrize("model", [eight_schools.model, eight_schools.model_noncentered])
@pytest.mark.parametrize("theta", [(4.371, 0.711), (0.0, 0.0), (10.0, -3.0), (-20.0, 3.0)])
def test_curvature_of_integrated_locals_matches_the_closed_form(model, theta) -> None:
    """The schools' sum, to four digits with 64 draws, also where a covariance of the draws would be off tenfold."""
    theta = jnp.array(theta)
    problem = make_problem(model, eight_schools.clients())
    effects, errors = (jnp.asarray(each, float) for each in (eight_schools.EFFECTS, eight_schools.STANDARD_ERRORS))

    def log_factor(at: jax.Array) -> jax.Array:
        return jnp.sum(jax.scipy.stats.norm.logpdf(effects, at[0], jnp.hypot(jnp.exp(at[1]), errors)))

    schools = [problem.client(name) for name in problem.names]
    messages = [expanded(school, theta) for school in schools]
    precision = sum(message.site.precision for message in messages)
    slope = sum(message.site.shift - message.site.precision @ theta for message in messages)
    np.testing.assert_allclose(sum(message.value for message in messages), log_factor(theta), rtol=1e-9)
    np.testing.assert_allclose(slope, jax.grad(log_factor)(theta), rtol=1e-4, atol=1e-6)
    np.testing.assert_allclose(precision, -jax.hessian(log_factor)(theta), rtol=1e-4, atol=1e-5)


def test_the_convex_part_of_a_site_has_its_slope() -> None:
    """At the position, exactly; and where the site is convex, it is the site."""
    rng = np.random.default_rng(0)
    root, position = rng.normal(size=(2, 3, 3)), jnp.asarray(rng.normal(size=3))
    for precision, is_convex in ((root[0] + root[0].T, False), (root[1] @ root[1].T, True)):
        site = Gaussian(jnp.asarray(rng.normal(size=3)), jnp.asarray(precision), jnp.zeros(()))
        found = convex_part(site, position)
        slopes = [each.shift - each.precision @ position for each in (site, found)]
        np.testing.assert_allclose(*slopes, atol=1e-12)
        assert (np.linalg.eigvalsh(precision).min() < -0.1) != is_convex
        assert np.linalg.eigvalsh(found.precision).min() > -1e-12
        if is_convex:
            np.testing.assert_allclose(found.precision, precision, atol=1e-12)


@pytest.mark.parametrize("convex", [True, False])
def test_a_client_keeps_the_expansion_that_the_server_counts(convex) -> None:
    """Where EP starts from the convex parts, these are the clients' sites."""
    problem = make_problem(eight_schools.model, eight_schools.clients())
    needs = Needs(own_sites=True, convex=convex)
    update = jax.jit(federated_mode(problem.roster, needs, num_samples=64, tolerance=0.1).updates["newton"].run)
    own, nobody = Own(jnp.zeros(1), OwnSite.neutral(2)), Counted(jnp.asarray(-1.0), jnp.zeros(()))
    shared = jnp.array([-20.0, 0.0]), jnp.asarray(2.0)
    reply, kept = update(shared, nobody, own, problem.client(problem.names[0]), ())
    assert np.linalg.eigvalsh(unpacked(reply.total.site).precision).min() < -1e-3
    counted = reply.total.convex if convex else reply.total.site
    for ours, theirs in zip(jax.tree.leaves(kept.site.later), jax.tree.leaves(counted), strict=True):
        np.testing.assert_array_equal(ours, theirs)
    assert float(kept.site.later_round) == 2.0
    if convex:
        assert np.linalg.eigvalsh(unpacked(reply.total.convex).precision).min() > -1e-9


@pytest.mark.parametrize("most", [512, 2])
def test_where_a_mode_was_not_found_there_is_no_term_of_an_opening(most, monkeypatch) -> None:
    """A server knows where searches begin: two such terms taken from a sum of three would leave one client's mode."""
    monkeypatch.setattr(after, "_MOST_SEARCHED", most)
    problem = make_problem(eight_schools.model, eight_schools.clients())
    for needs in (Needs(), Needs(convex=True), Needs(single=True)):
        update = federated_mode(problem.roster, needs, num_samples=64, tolerance=0.1).updates["opening"].run
        own, shared = Own(jnp.zeros(1), ()), (jnp.full(2, jnp.nan), jnp.asarray(1.0))
        reply, kept = update(shared, (), own, problem.client(problem.names[0]), ())
        assert int(reply.code) == (ResultCode.OK if most == 512 else ResultCode.NOT_FINITE)
        assert kept is own
        site = unpacked(reply.each if needs.single else reply.total.site)
        assert np.all(np.isfinite(site.shift))  # the message hangs on nothing that is broadcast
        np.testing.assert_array_equal(site.precision, np.eye(2))


def test_an_opening_leaves_a_position_and_nothing_else() -> None:
    """Asked for once, after a round of which nothing came; values and sites of a model are of Newton's rounds alone."""
    problem = make_problem(eight_schools.model, eight_schools.clients())
    one = federated_mode(problem.roster, Needs(), num_samples=64, tolerance=0.1)
    num, key = problem.roster.num_clients, jax.random.key(0)
    state = one.init(key, None)
    none = Replies(ModeMessage(jnp.zeros(()), packed(Gaussian.neutral(2))), (), jnp.zeros(num, bool))
    void, info = one.aggregate(state, none, key)
    assert bool(info["opening"])
    assert one.choose(["newton"] * num, info) == ["opening"] * num
    np.testing.assert_array_equal(void.position, state.position)
    modes = np.arange(2.0 * num).reshape(num, 2)
    site = packed(Gaussian(jnp.asarray(modes.sum(axis=0)), num * jnp.eye(2), jnp.zeros(())))
    opened, info = one.aggregate(void, Replies(ModeMessage(jnp.zeros(()), site), (), jnp.ones(num, bool)), key)
    assert not bool(info["opening"])
    assert not bool(info["converged"])
    np.testing.assert_allclose(opened.position, modes.mean(axis=0))
    for name in ("value", "sites", "heard", "damping"):
        jax.tree.map(np.testing.assert_array_equal, getattr(opened, name), getattr(state, name))
    _, info = one.aggregate(opened, none, key)
    assert not bool(info["opening"])
    assert not bool(info["proper"])


def test_a_search_that_failed_is_no_start_of_the_next() -> None:
    """Where a step has led too far for a finite factor, a client looks for its locals from where they were before."""
    problem = make_problem(eight_schools.model, eight_schools.clients())
    needs = Needs(own_sites=True)
    update = jax.jit(federated_mode(problem.roster, needs, num_samples=64, tolerance=0.1).updates["newton"].run)
    nobody, client = Counted(jnp.asarray(-1.0), jnp.zeros(())), problem.client(problem.names[0])
    here, far = (jnp.array([4.0, 0.0]), jnp.asarray(1.0)), (jnp.array([1e200, 0.0]), jnp.asarray(2.0))
    before, kept = update(here, nobody, Own(jnp.zeros(1), OwnSite.neutral(2)), client, ())
    failed, after = update(far, nobody, kept, client, ())
    assert (int(before.code), int(failed.code)) == (ResultCode.OK, ResultCode.NOT_FINITE)
    np.testing.assert_array_equal(after.z, kept.z)
    again, _ = update(here, nobody, after, client, ())
    np.testing.assert_allclose(again.total.value, before.total.value, rtol=1e-9)
