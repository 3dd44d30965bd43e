"""Newton searches from several starts: a posterior with two modes in closed form, to which no symmetry leads."""

from dataclasses import replace

import jax
import jax.numpy as jnp
import numpy as np
import numpyro
import numpyro.distributions as dist
import pytest

import fedbayes as fb
from fedbayes.contract.algorithm import Replies
from fedbayes.errors import ModelError, ResultCode
from fedbayes.inference.local.density.tilted import cold_start
from fedbayes.inference.mode import ModeMessage, Needs, mode_phase
from fedbayes.inference.starts import StartsMessage, StartsState, heaviest, no_modes, with_starts
from fedbayes.numerics.gaussian import Gaussian, packed
from fedbayes.problem.problem import make_problem

SIZE, SD, PRIOR_SD, STARTS = 4, 0.1, 2.0, 8
HILLS = np.array([[1.5, -0.7, 0.4, 2.1], [-1.1, 0.9, -2.0, 0.3]])
HEIGHTS = np.log([0.7, 0.3])  # near zero the way is to the second
KEY = jax.random.key(0)


def hills(y, share, hole=0.0):
    """All rows at two hills, of which the client with ``share`` one knows; beyond the hole nothing is finite."""
    theta = numpyro.sample("theta", dist.Normal(0.0, PRIOR_SD).expand([SIZE]).to_event(1))
    squares = jnp.sum((theta - HILLS) ** 2, axis=1) / SD**2
    numpyro.factor("hills", share * jax.nn.logsumexp(HEIGHTS - 0.5 * squares))
    numpyro.factor("hole", jnp.where(theta[0] * hole > 1.0, jnp.nan, 0.0))
    numpyro.sample("y", dist.Normal(theta[1], 5.0), obs=y)
    return theta


def with_an_edge(y, share):
    """The hole is in what the program says of the globals, and so at the server."""
    theta = hills(y, share)
    numpyro.factor("edge", jnp.where(theta[0] > 1.0, jnp.nan, 0.0))


def clients_of(**more) -> dict:
    y = np.random.default_rng(1).normal(size=3)
    return {"a": {"y": y, "share": 1.0, **more}, "b": {"y": y + 1.0, "share": 0.0, **more}}


def exact(clients: dict) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Log integrals ``(2,)``, means ``(2, d)`` and sds ``(d,)`` of the two hills."""
    y = np.concatenate([each["y"] for each in clients.values()])
    precision = np.full(SIZE, PRIOR_SD**-2 + SD**-2)
    precision[1] += len(y) / 25.0
    shift = HILLS / SD**2
    shift[:, 1] += y.sum() / 25.0
    constant = HEIGHTS - 0.5 * np.sum(HILLS**2, axis=1) / SD**2
    constant += np.sum(dist.Normal(0.0, 5.0).log_prob(y)) + SIZE * dist.Normal(0.0, PRIOR_SD).log_prob(0.0)
    integral = constant + 0.5 * np.sum(shift**2 / precision + np.log(2.0 * np.pi / precision), axis=1)
    return integral, shift / precision, precision**-0.5


@pytest.fixture(autouse=True)
def _float64():
    with jax.enable_x64(True):
        yield


@pytest.fixture(scope="module")
def fit() -> fb.FederatedFit:
    with jax.enable_x64(True):
        method = fb.Laplace(num_starts=STARTS)
        return fb.fit_federated(hills, clients_of(), method=method, key=KEY, progress=False, correct=True)


def test_the_searches_end_at_the_two_modes_with_their_integrals(fit) -> None:
    integral, means, _ = exact(clients_of())
    found = fit.fitted.answer.modes
    assert len(found.mean) == STARTS
    which = np.argmin(np.linalg.norm(found.mean[:, None] - means, axis=2), axis=1)
    assert set(which) == {0, 1}
    # apart by more than thirty sds, each hill is Gaussian; Newton stops at a hundredth of an sd, and squares that
    np.testing.assert_allclose(found.mean, means[which], atol=1e-4 * SD)
    np.testing.assert_allclose(found.log_integral, integral[which], atol=1e-6)


def test_the_fit_is_around_the_heavier_mode_and_its_draws_are_of_both(fit) -> None:
    integral, means, sds = exact(clients_of())
    shares = np.exp(integral - np.logaddexp(*integral))
    np.testing.assert_allclose(fit.moments()[0][0], means[np.argmax(integral)], atol=1e-4 * SD)
    assert fit.error.attrs["modes"] == 2
    assert fit.usable
    draws = fit.theta.reshape(-1, SIZE)
    mean = shares @ means
    sd = np.sqrt(sds**2 + shares @ (means - mean) ** 2)
    error = 6.0 * sd / np.sqrt(fit.error.attrs["effective_draws"])
    np.testing.assert_array_less(np.abs(draws.mean(axis=0) - mean), error)
    np.testing.assert_allclose(draws.std(axis=0), sd, rtol=0.1)


def test_without_searches_one_mode_is_missed_and_the_fit_says_where_it_has_not_looked(fit) -> None:
    alone = fb.fit_federated(hills, clients_of(), method="laplace", key=KEY, progress=False, correct=True)
    integral, means, _ = exact(clients_of())
    np.testing.assert_allclose(alone.moments()[0][0], means[np.argmin(integral)], atol=1e-4 * SD)
    assert alone.error.attrs["modes"] == 1
    assert "label swaps, from one starting point\n" in repr(alone)
    assert "  modes     2 found, looked for at " in repr(fit)
    assert f"label swaps, from {STARTS} starting points\n" in repr(fit)


@pytest.fixture(scope="module")
def by_ep() -> fb.FederatedFit:
    with jax.enable_x64(True):
        method = fb.EP(num_starts=STARTS, num_replicates=2, solver="laplace")
        return fb.fit_federated(hills, clients_of(), method=method, key=KEY, progress=False, correct=True)


def test_ep_begins_at_the_heavier_mode(by_ep) -> None:
    integral, means, _ = exact(clients_of())
    np.testing.assert_allclose(by_ep.moments()[0], means[[np.argmax(integral)] * 2], atol=1e-3 * SD)
    assert by_ep.error.attrs["modes"] == 2


@pytest.mark.parametrize("name", ["fit", "by_ep"])
def test_a_saved_fit_has_the_modes(name, request, tmp_path) -> None:
    fit = request.getfixturevalue(name)
    fit.save(tmp_path / "fit")
    again = fb.load_fit(tmp_path / "fit", hills, clients_of())
    assert repr(again) == repr(fit)
    jax.tree.map(np.testing.assert_array_equal, again.fitted.answer.modes, fit.fitted.answer.modes)


@pytest.mark.parametrize(("model", "clients"), [(hills, clients_of(hole=1.0)), (with_an_edge, clients_of())])
def test_a_search_that_begins_where_nothing_is_finite_does_not_spoil_the_others(model, clients) -> None:
    """Every start whose first global is above one is in the hole, and so is one of the two modes."""
    method = fb.Laplace(num_starts=STARTS)
    fit = fb.fit_federated(model, clients, method=method, key=KEY, progress=False, correct=True)
    assert fit.converged
    found = fit.fitted.answer.modes
    arrived = np.isfinite(found.log_integral)
    assert 0 < arrived.sum() < STARTS  # from the hole a search goes to the prior's mode first, and may come back to it
    assert f"({arrived.sum()} searches converged)" in repr(fit)
    np.testing.assert_allclose(found.mean[arrived], np.tile(exact(clients)[1][1], (arrived.sum(), 1)), atol=1e-4 * SD)
    assert set(fit.rounds["code"].values.ravel()) == {ResultCode.OK}


def test_the_heaviest_is_the_one_with_the_largest_integral() -> None:
    """Not the highest: a wide mode may hold more."""
    roster = make_problem(hills, clients_of()).roster
    means, precision = jnp.array([[1.0], [3.0], [5.0]]) * jnp.ones(SIZE), jnp.array([4.0, 0.25, 1.0])
    matrices = precision[:, None, None] * jnp.eye(SIZE)
    shift, away = jnp.einsum("nij,nj->ni", matrices, means), 0.1  # expanded beside the mode
    flat = mode_phase(roster, Needs(), tolerance=0.1, max_rounds=1).algorithm.init(KEY, None)
    tops = jnp.array([1.0, 0.0, 9.0])  # log density at the modes
    each = jax.vmap(
        lambda at, top, scale, site: flat._replace(
            best=at + away, value=top - 0.5 * scale * SIZE * away**2, sites=site, prior=Gaussian.neutral(SIZE)
        )
    )(means, tops, precision, Gaussian(shift, matrices, jnp.zeros(3)))
    arrived = jnp.array([True, True, False])
    state = StartsState(each, arrived, ended=jnp.ones(3, bool), failed=jnp.zeros(3), idle=jnp.zeros(()))
    found = state.modes()
    np.testing.assert_allclose(found.mean, means, rtol=1e-9)
    volume = 0.5 * SIZE * np.log(2.0 * np.pi / precision)
    np.testing.assert_allclose(found.log_integral, [*(tops + volume)[:2], np.nan], rtol=1e-9)
    np.testing.assert_allclose(heaviest(found), means[1], rtol=1e-9)
    np.testing.assert_array_equal(heaviest(no_modes(3, SIZE)), cold_start(SIZE))


def test_a_number_that_a_sum_has_lost_is_no_expansion() -> None:
    """Where one client's expansion is not finite, so is their sum; that search goes on from where it was."""
    roster = make_problem(hills, clients_of()).roster
    starts, _ = with_starts(roster, 3, mode_phase(roster, Needs(), tolerance=0.1, max_rounds=5))
    state = starts.algorithm.init(KEY, None)
    site = packed(Gaussian(jnp.ones((3, SIZE)), jnp.broadcast_to(jnp.eye(SIZE), (3, SIZE, SIZE)), jnp.zeros(3)))
    site = replace(site, precision=site.precision.at[1, 2].set(jnp.nan))
    total = StartsMessage(ModeMessage(jnp.zeros(3), site))
    moved, info = starts.algorithm.aggregate(state, Replies(total, (), jnp.ones(2, bool)), KEY)
    np.testing.assert_array_equal(moved.each.heard.all(axis=1), [True, False, True])
    assert np.all(np.isfinite(moved.each.position))
    assert not bool(info["converged"])


def test_no_search_goes_farther_than_a_site_would_answer() -> None:
    """Of 150 draws of Cauchy priors some are thousands of quartiles away; so is a step where the curvature is small."""

    def tails(y):
        mu = numpyro.sample("mu", dist.Cauchy(1.0, 3.0).expand([2]).to_event(1))
        numpyro.sample("y", dist.Normal(mu.sum(), 1.0), obs=y)

    problem = make_problem(tails, {name: {"y": np.ones(3)} for name in "ab"})
    starts, _ = with_starts(problem.roster, 150, mode_phase(problem.roster, Needs(), tolerance=0.1, max_rounds=5))
    state = starts.algorithm.init(KEY, None)
    centre, scale = problem.roster.prior.spread
    farthest = np.abs((np.asarray(state.each.position) - centre) / scale).max()
    assert farthest == pytest.approx(40.0)
    steep = Gaussian(jnp.full((150, 2), 1e6), jnp.broadcast_to(jnp.eye(2), (150, 2, 2)), jnp.zeros(150))
    total = StartsMessage(ModeMessage(jnp.zeros(150), packed(steep)))
    moved, _ = jax.jit(starts.algorithm.aggregate)(state, Replies(total, (), jnp.ones(2, bool)), KEY)
    assert np.abs((np.asarray(moved.each.position) - centre) / scale).max() == pytest.approx(40.0)


def test_of_a_position_where_nothing_is_finite_a_client_tells_no_number() -> None:
    """Noughts would leave the sum of the others, who may be few; the search goes on from its old locals."""
    problem = make_problem(hills, clients_of(hole=1.0))
    starts, _ = with_starts(problem.roster, 2, mode_phase(problem.roster, Needs(), tolerance=0.1, max_rounds=5))
    positions = jnp.array([0.5, 1.5])[:, None] * jnp.ones(SIZE)
    update, client = jax.jit(starts.algorithm.updates["newton"].run), problem.client("a")
    reply, _ = update(positions, (), jnp.zeros((2, 0)), client, ())
    assert int(reply.code) == ResultCode.OK
    for leaf in jax.tree.leaves(reply.total.each_search):
        assert np.isfinite(leaf[0]).all()
        assert np.isnan(leaf[1]).all()
    reply, _ = update(positions[1:].repeat(2, axis=0), (), jnp.zeros((2, 0)), client, ())
    assert int(reply.code) == ResultCode.NOT_FINITE


def flat_total(num: int) -> StartsMessage:
    """Of clients that know nothing, so that the prior's mode is the posterior's."""
    return StartsMessage(ModeMessage(jnp.zeros(num), packed(Gaussian.neutral(SIZE, (num,)))))


def test_rounds_in_which_nobody_answers_change_nothing_and_ten_of_them_are_the_end() -> None:
    roster = make_problem(hills, clients_of()).roster
    starts, _ = with_starts(roster, 2, mode_phase(roster, Needs(), tolerance=0.1, max_rounds=5))
    first, aggregate = starts.algorithm.init(KEY, None), jax.jit(starts.algorithm.aggregate)
    state = first
    for idle in range(1, 11):
        state, info = aggregate(state, Replies(flat_total(2), (), jnp.zeros(2, bool)), KEY)
        assert bool(info["converged"]) == (idle == 10)
    jax.tree.map(np.testing.assert_array_equal, state.each, first.each)
    assert not state.arrived.any()


def test_a_search_that_fails_three_times_or_leaves_its_bounds_is_asked_about_where_something_is_known() -> None:
    """The first knows something, the second is never finite, and the third wants to go on from a bound."""
    roster = make_problem(hills, clients_of()).roster
    starts, _ = with_starts(roster, 3, mode_phase(roster, Needs(), tolerance=0.1, max_rounds=5))
    state, aggregate = starts.algorithm.init(KEY, None), jax.jit(starts.algorithm.aggregate)
    bound = 40.0 * PRIOR_SD
    push = jnp.zeros((3, SIZE)).at[2].set(1e6)
    site = packed(Gaussian(push, jnp.broadcast_to(jnp.eye(SIZE), (3, SIZE, SIZE)), jnp.zeros(3)))
    for value in range(3):  # ever higher, so that each step is taken
        total = StartsMessage(ModeMessage(jnp.array([value, jnp.nan, value]) * 1e6, site))
        state, _ = aggregate(state, Replies(total, (), jnp.ones(2, bool)), KEY)
    assert state.ended.tolist()[1:] == [True, True]
    np.testing.assert_array_equal(state.each.position[1], state.each.best[0])
    np.testing.assert_allclose(state.each.position[2], bound)
    assert not state.arrived[1:].any()


def test_a_prior_whose_slope_is_no_number_ends_a_search() -> None:
    def slope(y):
        mu = numpyro.sample("mu", dist.Normal(0.0, 10.0))
        numpyro.factor("end", jnp.sqrt(jnp.maximum(6.0 - mu, 0.0)))
        numpyro.sample("y", dist.Normal(mu, 1.0), obs=y)

    clients = {name: {"y": np.zeros(3)} for name in "ab"}
    fit = fb.fit_federated(slope, clients, method=fb.Laplace(num_starts=8), key=KEY, progress=False)
    assert fit.converged
    found = fit.fitted.answer.modes.log_integral
    assert 0 < np.isfinite(found).sum() < 8  # of eight draws some are beyond six, where the slope is 0 / 0
    assert len(fit.rounds["round"]) < 30


def test_a_search_has_not_arrived_while_a_client_is_away() -> None:
    """Its integral lacks that client's likelihood, and can't be compared with the others'."""
    roster = make_problem(hills, clients_of()).roster
    starts, _ = with_starts(roster, 2, mode_phase(roster, Needs(), tolerance=0.1, max_rounds=5))
    state, aggregate = starts.algorithm.init(KEY, None), jax.jit(starts.algorithm.aggregate)
    for used, arrived in (([True, False], False), ([True, False], False), ([True, True], True)):
        state, info = aggregate(state, Replies(flat_total(2), (), jnp.array(used)), KEY)
        assert np.all(state.arrived) == bool(info["converged"]) == arrived


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"num_starts": 0}, "`num_starts` is 0; it is a whole number"),
        ({"num_starts": 2.0}, r"`num_starts` is 2\.0"),
        ({"num_starts": 4, "init": "prior"}, "with `init='prior'` EP does not begin at a mode"),
    ],
)
def test_options_that_make_no_sense_are_refused(options, message) -> None:
    with pytest.raises(ValueError, match=message):
        fb.EP(**options)


def test_a_prior_that_cannot_be_drawn_from_is_refused_before_the_first_round() -> None:
    def flat(y):
        mu = numpyro.sample("mu", dist.ImproperUniform(dist.constraints.real, (), ()))
        numpyro.sample("y", dist.Normal(mu, 1.0), obs=y)

    clients = {name: {"y": np.ones(3)} for name in "ab"}
    with pytest.raises(ModelError, match="no start can be drawn from the prior"):
        fb.fit_federated(flat, clients, method=fb.Laplace(num_starts=4), key=KEY, progress=False)
