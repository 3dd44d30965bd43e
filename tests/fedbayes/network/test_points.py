"""A site answers at values of the globals that the prior can mean, whatever the server asks."""

from pathlib import Path

import jax.numpy as jnp
import numpy as np
import numpyro
import numpyro.distributions as dist
import pytest
from permissive import PERMISSIVE
from scipy import optimize

import fedbayes as fb
from fedbayes.errors import ResultCode
from fedbayes.inference import METHODS
from fedbayes.inference.laplace import Laplace
from fedbayes.network.charter import Seat
from fedbayes.network.client.points import OwnView, Reach, blurred, reach_of
from fedbayes.network.client.reading import digest_of, own_problem
from fedbayes.network.client.secure import history_after
from fedbayes.network.messages import Message, pack, unpack
from fedbayes.network.rehearsal import Rehearsal
from fedbayes.network.site import Site
from fedbayes.network.study import Study
from fedbayes.problem import problem
from fedbayes.problem.data.reading import ClientArrays
from fedbayes.problem.problem import make_problem
from fedbayes.problem.program.prior import Prior
from fedbayes.rounds.wire import arrays_of, encode
from fedbayes.runtime.lru import Kept
from fedbayes.runtime.precision import computing

EP = fb.EP(solver="laplace", num_replicates=1, tolerance=1e-7)


def test_points_are_measured_in_the_prior_s_scales():
    reach = Reach(np.array([1.0, 0.0]), np.array([1.0, 10.0]), 3.0)
    points = np.array([[[4.0, 30.0], [4.1, 0.0]], [[1.0, -30.1], [np.nan, 0.0]]])
    np.testing.assert_array_equal(reach.beyond(points), [[False, True], [True, True]])


def test_a_prior_that_is_improper_sets_no_limit():
    flat = Prior(lambda theta: 0.0 * jnp.sum(theta), 2)
    assert reach_of(flat, 50.0) is None
    standard = Prior(lambda theta: -0.5 * jnp.sum(theta**2), 2)
    assert reach_of(standard, np.inf) is None
    found = reach_of(standard, 50.0)
    np.testing.assert_allclose(found.scale, 1.0)


@pytest.mark.parametrize("rows", [64, 5])
def test_a_prior_that_looks_at_shapes_is_that_of_the_site_s_own_data(rows, monkeypatch):
    """Whatever the server says of them. Clients of one number of rows may have such a prior; else a site refuses it."""

    def model(y):
        mu = numpyro.sample("mu", dist.Normal(0.0, float(len(y))))
        numpyro.sample("y", dist.Normal(mu, 1.0), obs=y)

    monkeypatch.setattr(problem, "_PRIORS", Kept(1))
    seat = Seat(0, {"y": "<f8"}, {"y": ((rows,), "<f8")})
    with computing():
        own = own_problem(Study(model, Laplace()), "ada", ClientArrays({"y": np.arange(5.0)}, {}), seat)
        np.testing.assert_allclose(own.prior.spread[1], 5.0)


BY_THE_PRIOR = "[points]\nnats_per_row = inf\n"  # the site's own data set no limit


def with_points(world, points: str) -> dict[str, str]:
    """What a site's configuration names as its owner's policy."""
    policy = world.folder / "policy.toml"
    everything_else, _, _ = Path(PERMISSIVE["policy"]).read_text().partition("[points]")
    policy.write_text(everything_else + points)
    return {"policy": str(policy)}


def test_data_are_the_same_however_a_server_seats_their_numbers():
    """Else what leaves about them would be counted anew, for each kind of numbers that it takes whole ones for."""

    def model(y, group):
        mu = numpyro.sample("mu", dist.Normal(0.0, 1.0).expand([2]))
        numpyro.sample("y", dist.Normal(mu[group.astype(int)], 1.0), obs=y)

    data, digests = ClientArrays({"y": np.arange(4.0), "group": np.array([0, 1, 1, 0], np.int16)}, {}), set()
    for kind in ("<i2", "<i8", "<f8"):
        seat = Seat(0, {"y": "<f8", "group": kind}, {"y": ((4,), "<f8"), "group": ((4,), kind)})
        with computing():
            digests.add(own_problem(Study(model, Laplace()), "ada", data, seat).digest)
    assert digests == {digest_of(data)}


class Asking:
    """What a site answers to requests of a fit that were changed."""

    def __init__(self, world, points=BY_THE_PRIOR, **options):
        self.world, self.network = world, world.network()
        world.fit(self.network, correct=True, **options)
        self.requests = [unpack(each) for each in self.network.sent]
        self.policy = with_points(world, points)

    def site(self) -> Site:
        config = {**self.world.site("ada")._config, **self.policy}
        return Site(self.world.study, lambda given: self.world.data["ada"], config)

    def first(self, kind: str, site: str = "ada") -> Message:
        """The first request of a kind that a site was sent."""
        own = list(self.world.data).index(site)
        return [each for each in self.requests if each.header["kind"] == kind][own]

    def answered(self, message: Message, **arrays) -> dict[str, np.ndarray]:
        """The arrays of the answer to a request with some of its arrays changed."""
        body = {name: array for name, array in arrays_of(message.body).items() if not name.startswith("recipes")}
        answer = unpack(self.site().answer(pack(message.header, encode({**body, **arrays}))))
        assert answer.header["kind"] == message.header["kind"], answer.header
        return arrays_of(answer.body)


def test_no_log_likelihood_leaves_from_where_the_prior_never_is(federation, caplog):
    asking = Asking(federation(EP))
    near = np.random.default_rng(0).normal(size=(1, 6, 2))
    told = asking.answered(asking.first("after"), shared=near)["total/0"]
    assert np.all(np.isfinite(told))
    far = near.copy()
    far[0, 1] = 1e9
    far[0, 4, 1] = -51.0 * 0.3  # log tau ~ N(0, 0.3)
    far[0, 5, 0] = 50.0 * 2.0  # mu ~ N(0, 2): just allowed
    found = asking.answered(asking.first("after"), shared=far)
    np.testing.assert_array_equal(np.isneginf(found["total/0"][0]), [False, True, False, False, True, False])
    np.testing.assert_allclose(found["total/0"][0, [0, 2, 3]], told[0, [0, 2, 3]])
    assert np.all(np.isfinite(found["total/1/noise"]))
    assert "more than 50 prior sds from the prior's centre" in caplog.text


def test_single_log_likelihoods_are_kept_back_as_well(federation):
    asking = Asking(federation(EP))
    message = asking.first("after")
    single = Message({**message.header, "update": "log_likelihood"}, message.body)
    found = asking.answered(single, shared=np.array([[[0.0, 0.0], [1e9, 0.0]]]))
    np.testing.assert_array_equal(np.isneginf(found["each"]), [[False, True]])


def test_an_order_from_far_away_counts_for_nothing(federation):
    asking = Asking(federation(Laplace()))
    message = asking.first("round")
    far = asking.answered(message, **{"shared/0": np.array([[1e9, 0.0]]), "first/0": np.zeros((1, 2))})
    assert far["code"] == ResultCode.NOT_FINITE
    assert not any(np.any(array) for name, array in far.items() if name.startswith("total"))
    near = asking.answered(message, **{"shared/0": np.array([[1.0, 0.0]])})
    assert near["code"] == ResultCode.OK
    assert np.any(near["total/value"])


def test_the_owner_sets_how_far(federation):
    asking = Asking(federation(EP), BY_THE_PRIOR + "farthest = inf\n")
    found = asking.answered(asking.first("after"), shared=np.array([[[0.0, 0.0], [1e9, 0.0]]]))
    assert np.all(np.isfinite(found["total/0"]))


def view_of(y: np.ndarray, mode: float | None = None) -> OwnView:
    """Of rows ``y ~ Normal(theta, 1)`` and a prior ``theta ~ Normal(0, 1)``, in two replicates."""
    mode = y.sum() / (len(y) + 1.0) if mode is None else mode

    def ask(update, points):
        theta = np.asarray(points)[..., 0]
        if update == "own_mode":
            return np.full((2, 1), mode)
        return -0.5 * np.sum((y - theta[..., None]) ** 2, axis=-1) - 0.5 * theta**2

    return OwnView(ask, 1, 2, len(y), "secret")


def test_values_are_implausible_that_cost_more_nats_than_the_rows_may():
    y = np.array([1.0, 3.0, 2.0, 4.0])
    precision = len(y) + 1.0
    mode = y.sum() / precision

    def points_at(nats, sides=(-1.0, 1.0)):
        return mode + np.array(sides)[:, None] * np.sqrt(2.0 * nats / precision)

    view = view_of(y)
    assert not np.any(view.implausible(points_at(2.0 * len(y) + 49.9), 2.0))  # the slack is 50 nats at least
    assert np.all(view.implausible(points_at(2.0 * len(y) + 150.1), 2.0))  # and 150 at most
    between = points_at(2.0 * len(y) + 100.0, np.linspace(1.0, 1.0001, 400))
    share = np.mean(view.implausible(between, 2.0))
    assert abs(share - 0.5) < 4.0 * np.sqrt(0.25 / 400)
    np.testing.assert_array_equal(view.implausible(np.array([[[np.nan], [mode]]]), 2.0), [[True, False]])
    assert not np.any(view.implausible(points_at(1e6), np.inf))


def test_a_better_value_than_the_mode_that_was_found_counts():
    """The joint mode of globals and locals may be far from where the globals alone are likeliest."""
    view, far = view_of(np.zeros(4), mode=9.0), np.array([[12.0]])  # 360 nats below the mode, 157 below what was found
    assert not view.implausible(np.array([[9.5]]), 2.0)[0]
    assert not view.implausible(np.zeros((1, 1)), 2.0)[0]
    assert view.implausible(far, 2.0)[0]
    assert view.implausible(np.array([[9.5]]), 2.0)[0]
    nowhere = view_of(np.zeros(4), mode=np.nan)
    assert not nowhere.implausible(np.zeros((1, 1)), 2.0)[0]
    assert nowhere.implausible(far, 2.0)[0]


def test_where_values_become_implausible_is_blurred_by_the_site_s_secret():
    points = np.random.default_rng(0).normal(size=(1000, 3))
    slack = blurred(points, "one")
    np.testing.assert_array_equal(slack, blurred(points, "one"))
    assert slack.min() > 50.0
    assert slack.max() < 150.0
    assert abs(np.corrcoef(slack, blurred(points, "two"))[0, 1]) < 4.0 / np.sqrt(1000)
    assert np.all(np.abs(blurred(points + 1e-12, "one") - slack) > 0.0)


def answers_at(asking: Asking, *points: float) -> list[int]:
    """The codes of a Newton round's answers, asked from these values of the first global."""
    message = asking.first("round")
    start = {"first/0": np.zeros((1, 2))}
    found = [asking.answered(message, **{"shared/0": np.array([[point, 0.0]])}, **start) for point in points]
    return [int(each["code"][0]) for each in found]


def test_few_answers_leave_at_values_that_the_site_s_data_find_implausible(federation):
    """`mu` of nine rows with sd 1.2: at 0 likely, at 40 it costs a thousand nats; the same answer again is free."""
    asking = Asking(federation(Laplace()), "[points]\nimplausible_answers = 2\n")
    ok, nothing = int(ResultCode.OK), int(ResultCode.NOT_FINITE)
    assert answers_at(asking, 0.0, 40.0, 41.0, 42.0, 40.0, 0.5) == [ok, ok, ok, nothing, ok, ok]
    failures = [each.failures for each in asking.site().journal.entries()][-6:]
    assert failures == [0, 0, 0, 1, 0, 0]  # where this begins hangs on the data


def test_an_answer_that_is_kept_back_makes_the_sum_void(federation):
    """By sums with this site's term and without it a server would know the term."""
    asking = Asking(federation(Laplace()), "[points]\nimplausible_answers = 0\n", secure_sums=True)
    message = asking.first("round")
    message.header["ticket"] = 32 * "a"
    answer = unpack(
        asking.site().answer(
            pack(
                message.header,
                encode({**arrays_of(message.body), "shared/0": np.array([[40.0, 0.0]]), "first/0": np.zeros((1, 2))}),
            )
        )
    )
    assert answer.header["told"]["open"]
    assert not np.any(arrays_of(answer.body)["masked"])


def counts(y):
    """A start at zero is hundreds of nats a row less likely than what the counts say."""
    numpyro.sample("y", dist.Poisson(jnp.exp(numpyro.sample("level", dist.Normal(0.0, 10.0)))), obs=y)


def limited(world) -> Rehearsal:
    """The sites with what an owner has by default about points."""
    world.folder.mkdir()
    given = with_points(world, "")
    sites = (
        Site(
            world.study,
            lambda config: world.data[config["site-id"]],
            {"site-id": name, "state-dir": str(world.folder / name), **PERMISSIVE, **given},
        )
        for name in world.data
    )
    return Rehearsal(*sites)


def about_counts(federation, method):
    """Three sites with counts of 150 or so."""
    world, rng = federation(method, program=counts), np.random.default_rng(2)
    world.data = {name: {"y": rng.poisson(150.0, size=9).astype(float)} for name in world.data}
    return world


STARTS = {  # whether the first round is void: then all sites begin at their own modes
    "mode": (fb.Laplace(tolerance=1e-9), True),
    "newton": (fb.EP(solver="laplace", num_replicates=1, tolerance=1e-7, init="newton"), True),
    "laplace": (EP, False),  # EP's opening is about each site's own mode anyway
}


@pytest.mark.parametrize("start", STARTS)
def test_a_fit_whose_prior_is_far_from_the_data_begins_at_the_sites_own_modes(federation, start):
    """By sums, under the limits that owners have by default; in one process it begins at zero and has its way."""
    method, void = STARTS[start]
    world = about_counts(federation, method)
    over, here = world.fit(limited(world), secure_sums=True), world.here()
    assert over.converged
    codes = over.rounds["code"].max("replicate").values
    assert np.all(codes[0] == (ResultCode.NOT_FINITE if void else ResultCode.OK))
    assert np.all(codes[1:] == ResultCode.OK)
    assert over.rounds["solver"].values[1].tolist() == ["opening" if void else "laplace"] * 3
    for name in ("shift", "precision"):
        np.testing.assert_allclose(getattr(over.posterior, name), getattr(here.posterior, name), rtol=1e-6)
    assert sum(each.failures for each in world.site("ada").journal.entries()) == int(void)


@pytest.mark.parametrize("num_rounds", [1, 2])
def test_modes_of_single_sites_are_no_posterior(federation, num_rounds):
    """The first round is void, and in the second there is a start, and no more."""
    world = about_counts(federation, fb.Laplace())
    with pytest.raises(fb.FederatedError, match="Raise `num_rounds`"):
        world.fit(limited(world), secure_sums=True, num_rounds=num_rounds)


def alone(message: Message) -> Message:
    """A request of a secure sum as one of a single message."""
    return Message({name: each for name, each in message.header.items() if name != "ticket"}, message.body)


def test_an_opening_is_the_same_wherever_it_is_asked(federation):
    """And is no answer about values that a server chooses: it is the mode of prior and own counts."""
    world = about_counts(federation, fb.Laplace())
    asking = Asking(world, "", secure_sums=True)
    message = alone(asking.first("round"))
    opening = Message({**message.header, "update": "opening"}, message.body)
    found = [
        asking.answered(opening, **{"shared/0": np.array([[at]]), "first/0": np.zeros((1, 1))})
        for at in (0.0, 5.0, 9.0)
    ]
    for name, array in found[0].items():
        np.testing.assert_array_equal(found[1][name], array)
        np.testing.assert_array_equal(found[2][name], array)
    y = world.data["ada"]["y"]
    mode = optimize.brentq(lambda level: y.sum() - len(y) * np.exp(level) - level / 100.0, 0.0, 10.0)
    np.testing.assert_allclose(found[0]["total/site/shift"], [[mode]], rtol=1e-6)
    np.testing.assert_array_equal(found[0]["total/site/precision"], [[1.0]])


def test_masks_depend_on_whether_a_round_is_an_opening(federation):
    """Asked of one site alone, an opening would change one term of the sum; which solver a site has may differ."""
    world = about_counts(federation, fb.Laplace())
    message = Asking(world, "", secure_sums=True).first("round")
    names = ("newton", "another", "opening")
    newton, another, opening = (
        history_after(Message({**message.header, "update": name}, message.body), "") for name in names
    )
    assert newton == another
    assert opening != newton


def test_where_one_site_finds_the_mean_of_the_modes_implausible_the_fit_ends_and_names_it(federation):
    """At 111 or so counts of 150 lose 55 nats, less than any limit, and counts of 45 lose 228, more than any."""
    world = federation(fb.Laplace(), program=counts, rows=(9, 9, 9, 9))
    world.data = {name: {"y": np.full(9, 45.0 if name == "ada" else 150.0)} for name in world.data}
    named = (
        "Round 3 of phase 'mode'.*'ada': 'message not finite.*'bo': 'another site had nothing to add.*the logs of those"
    )
    with pytest.raises(fb.FederatedError, match=named):
        world.fit(limited(world), secure_sums=True, num_clients=4)
    assert world.here().converged


def test_an_opening_of_ep_from_narrow_cavities_is_about_where_these_are(federation):
    """A server that asks for one has a site's own mode where the cavity is wide, and else the cavity's."""
    asking = Asking(about_counts(federation, EP), "")
    message, codes = asking.first("round"), []
    given = arrays_of(message.body)
    for precision in (0.01, 1e4, 1e-6):  # the prior's, narrow, and one that hardly bends
        names = {name: np.full_like(array, precision) for name, array in given.items() if name.endswith("precision")}
        codes.append(int(asking.answered(message, **names)["code"][0]))
    assert codes == [ResultCode.OK, ResultCode.NOT_FINITE, ResultCode.NOT_FINITE]


def test_log_likelihoods_of_implausible_draws_are_no_terms_of_a_sum(federation):
    """Of those that leave singly, which its owner has allowed, all are told: a client that is left out needs them."""
    asking = Asking(federation(EP), "")
    draws = np.zeros((1, 6, 2))
    draws[0, :, 0] = [0.5, 0.0, 1.0, 40.0, 60.0, 99.0]
    message = asking.first("after")
    found = asking.answered(message, shared=draws)["total/0"]
    np.testing.assert_array_equal(np.isneginf(found[0]), [False, False, False, True, True, True])
    assert [each.failures for each in asking.site().journal.entries()][-1] == 1  # up to a hundred draws
    single = Message({**message.header, "update": "log_likelihood"}, message.body)
    assert np.all(np.isfinite(asking.answered(single, shared=draws)["each"]))


@pytest.mark.parametrize("name", [name for name, method in METHODS.items() if not method.only_locals])
def test_methods_say_where_they_ask(name):
    """All but merges, whose clients look for their own posteriors."""

    def model(y):
        numpyro.sample("y", dist.Normal(numpyro.sample("mu", dist.Normal(0.0, 1.0)), 1.0), obs=y)

    with computing():
        roster = make_problem(model, {name: {"y": np.arange(6.0)} for name in "abcde"}, rows=True).roster
        phases = METHODS[name]().phases(roster)
    silent = [phase.algorithm.name for phase in phases if phase.algorithm.asked_at is None]
    assert silent == {"one_shot": ["consensus"], "fedpa": ["merge"]}.get(name, [])
