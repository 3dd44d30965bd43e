"""Secure sums: exact, the same posterior, and of a single site nothing but uniform bits; and what is refused."""

import json
import secrets
import shutil
import sys
from dataclasses import replace
from fractions import Fraction
from functools import reduce
from types import SimpleNamespace

import jax
import jax.numpy as jnp
import numpy as np
import numpyro
import numpyro.distributions as dist
import pytest

import fedbayes as fb
from fedbayes.contract.algorithm import Reply
from fedbayes.errors import FederatedError, NotConvergedWarning, ResultCode, SiteLeftOutWarning, UnreliableWarning
from fedbayes.fit import warn_of_trouble
from fedbayes.inference.laplace import Laplace
from fedbayes.inference.mode import ModeMessage
from fedbayes.inference.starts import StartsMessage
from fedbayes.network.client.alone import Alone
from fedbayes.network.client.masks import Masks, fingerprint, public_key
from fedbayes.network.client.partners import check_partners, own_key
from fedbayes.network.client.policy import SumRules
from fedbayes.network.client.secure import Hiding, Sums, _failures, _searches_within
from fedbayes.network.client.vault import Vault
from fedbayes.network.fit import _fitted
from fedbayes.network.fixed_point import cancelled, fits, largest, negative, plus, to_integers, to_numbers, unknown
from fedbayes.network.messages import Message, Refusal, Refused, pack, unpack
from fedbayes.network.replies import plausible
from fedbayes.network.server.remote import Patience
from fedbayes.network.server.secure import NoSum
from fedbayes.network.site import Site
from fedbayes.network.study import Study
from fedbayes.network.transport import Failure
from fedbayes.numerics.gaussian import Gaussian
from fedbayes.results.fit import FederatedFit
from fedbayes.results.saved.folder import read_meta
from fedbayes.rounds.wire import arrays_of, encode

STRICT = (  # but for the points, of which test_points is
    "[points]\nimplausible_answers = 50\n[disclosure]\nsmallest_cell = 1\nglobals_per_row = 1e9\nseparation = false\n"
)
EP = fb.EP(solver="laplace", num_replicates=1, tolerance=1e-7)
LAPLACE = Laplace(tolerance=1e-7)  # so that there are five rounds
UNEQUAL = (4, 7, 9)  # numbers of rows: of sites that can be told apart by their cavities
ASKED = b"this"


def summed(terms) -> np.ndarray:
    return to_numbers(reduce(plus, map(to_integers, terms)))


def test_a_sum_of_integers_is_the_exact_sum_to_their_resolution():
    rng = np.random.default_rng(0)
    terms = rng.normal(size=(20, 200)) * 10.0 ** rng.uniform(-20.0, 10.0, size=(20, 200))
    found = summed(terms)
    for place in range(200):
        exact = sum(map(Fraction, terms[:, place].tolist()))
        rounding = 20 * Fraction(1, 2**69) + abs(exact) * Fraction(1, 2**52)
        assert abs(Fraction(float(found[place])) - exact) <= rounding


def test_a_sum_is_the_same_bits_in_any_order():
    rng = np.random.default_rng(1)
    terms = [to_integers(rng.normal(size=50)) for _ in range(7)]
    np.testing.assert_array_equal(reduce(plus, terms), reduce(plus, terms[::-1]))
    np.testing.assert_array_equal(plus(terms[0], negative(terms[0])), np.zeros((50, 2), np.uint64))


@pytest.mark.parametrize(
    ("terms", "total"),
    [
        ((np.nan, 1.0), np.nan),
        ((np.inf, 1.0), np.nan),
        ((-np.inf, -3.0), -np.inf),
        ((-np.inf, np.nan), np.nan),
        ((-np.inf,) * 255, -np.inf),
        ((np.nan,) * 255, np.nan),
        ((-0.25, 0.0), -0.25),
        ((2.0**41, 2.0**41), 2.0**42),
        ((-(2.0**41), -(2.0**41)), -(2.0**42)),
    ],
)
def test_what_is_not_finite_adds_up_as_in_floating_point(terms, total):
    np.testing.assert_array_equal(summed([np.array([term]) for term in terms]), [total])


def test_the_largest_terms_that_fit_do_not_run_over():
    for num in (3, 10, 255):
        term = np.nextafter(largest(num), 0.0)
        assert fits(np.array([term, -term, np.nan, -np.inf]), num).all()
        assert not fits(np.array([largest(num)]), num).any()
        for sign in (1.0, -1.0):
            np.testing.assert_allclose(summed([np.array([sign * term])] * num), [sign * term * num], rtol=1e-15)


PRIVATE = [f"{place:064x}" for place in range(1, 5)]
PUBLIC = [public_key(each) for each in PRIVATE]


def agreed(run="a") -> list[Masks]:
    return [Masks.agreed(private, place, PUBLIC, {"run": run}) for place, private in enumerate(PRIVATE)]


def test_the_masks_of_all_sites_cancel():
    rng = np.random.default_rng(2)
    terms = rng.normal(size=(4, 30))
    hidden = [masks.hide(to_integers(term), ASKED) for masks, term in zip(agreed(), terms, strict=True)]
    np.testing.assert_array_equal(reduce(plus, hidden), reduce(plus, map(to_integers, terms)))
    for left_out in range(4):  # with one missing nothing is left but masks
        rest = reduce(plus, [each for place, each in enumerate(hidden) if place != left_out])
        assert not np.any(rest == reduce(plus, map(to_integers, np.delete(terms, left_out, axis=0))))


def test_a_hidden_term_is_uniform_bits_whatever_it_is():
    """A tenth of a million bits: the number of ones, five standard deviations wide; and no two requests are alike."""
    masks = agreed()[1]
    zeros, ones = (to_integers(np.full(800, value)) for value in (0.0, 1.0))
    for term in (zeros, ones):
        bits = np.unpackbits(masks.hide(term, ASKED).view(np.uint8))
        assert abs(bits.sum() - len(bits) / 2.0) < 5.0 * np.sqrt(len(bits) / 4.0)
    other_request, other_run = masks.hide(zeros, b"another"), agreed("b")[1].hide(zeros, ASKED)
    for other in (other_request, other_run):
        assert not np.any(other == masks.hide(zeros, ASKED))


def test_a_key_that_leads_to_a_known_secret_is_refused():
    with pytest.raises(ValueError, match="shared key"):
        Masks.agreed(PRIVATE[0], 0, [PUBLIC[0], "0" * 64, PUBLIC[2]], {})


@pytest.fixture
def secure(federation):
    """A federation of three sites whose owners let only terms of sums leave."""

    def of(method=EP, policy=STRICT, **options):
        world = federation(method, **options)
        for name in world.data:
            folder = world.folder / name
            folder.mkdir(parents=True)
            (folder / "policy.toml").write_text(policy)
        world.config = {"policy": ""}
        load = lambda config: world.data[config["site-id"]]  # noqa: E731

        def site(name, folder=None):
            return Site(world.study, load, {"site-id": name, "state-dir": str(folder or world.folder / name)})

        world.site = site
        return world

    return of


@pytest.mark.parametrize("method", [EP, LAPLACE, fb.FedAvg(local_steps=2)], ids=["EP", "Laplace", "FedAvg"])
def test_the_posterior_is_that_without_masks(secure, method):
    """The check after the rounds is the same for all methods: with one of them it is made."""
    world = secure(method)
    network = world.network()
    fit, plain = world.fit(network, secure_sums=True, correct=method is EP), world.here()
    one, two = fit.fitted.answer.posterior, plain.fitted.answer.posterior
    sds = 1.0 / np.sqrt(np.diagonal(two.precision, axis1=-2, axis2=-1))
    means = [np.linalg.solve(each.precision, each.shift[..., None])[..., 0] for each in (one, two)]
    assert np.max(np.abs(means[0] - means[1]) / sds) < 1e-9
    np.testing.assert_allclose(one.precision, two.precision, rtol=1e-9, atol=1e-9 * np.abs(two.precision).max())
    masked = all_hidden(network, {"round", "after"})
    assert fit.communication.bytes_up > len(fit.rounds["round"]) * min(masked)


def with_a_hole(y):
    """Nothing is finite beyond 1.5, where some of the prior's draws are."""
    mu = numpyro.sample("mu", dist.Normal(0.0, 2.0))
    numpyro.factor("hole", jnp.where(mu + 0.0 * y[0] > 1.5, jnp.nan, 0.0))  # at each client: it reads the data
    numpyro.sample("y", dist.Normal(mu, 0.7), obs=y)


def test_a_search_that_begins_where_nothing_is_finite_costs_the_others_nothing(secure):
    """A reply with a number that is none would be of no use as a whole; of several searches only that one is."""
    world = secure(Laplace(num_starts=6, tolerance=1e-7), program=with_a_hole)
    network = world.network()
    fit, plain = world.fit(network, secure_sums=True), world.here()
    assert set(fit.rounds["code"].values.ravel()) == {ResultCode.OK}
    modes, others = fit.fitted.answer.modes, plain.fitted.answer.modes
    assert np.isfinite(others.log_integral).all()
    np.testing.assert_allclose(modes.mean, others.mean, rtol=1e-9)
    np.testing.assert_allclose(modes.log_integral, others.log_integral, rtol=1e-9)
    all_hidden(network, {"round", "after"})


def test_a_search_that_failed_counts_once_among_the_failures_of_a_site():
    """It says so by its value, and by all numbers of its expansion."""
    reply = of_searches([1.0, np.nan, np.nan])
    assert plausible(reply)
    assert _failures(reply) == 2
    assert not plausible(reply._replace(total=reply.total.each_search))
    assert not plausible(of_searches([1.0, np.nan, np.nan], value=3.0))  # NaN in part
    assert _failures(of_searches([1.0, np.nan, np.nan], value=3.0)) == 2


def test_a_search_that_is_too_large_for_a_sum_is_one_that_is_not_finite():
    kept = _searches_within(of_searches([1.0, 1e13, -1e11]), largest(3))
    for leaf in jax.tree.leaves(kept.total):
        assert np.isnan(leaf).reshape(3, -1).all(axis=1).tolist() == [False, True, False]
        assert not np.isnan(leaf[0, [0, 2]]).any()
    assert plausible(kept, largest(3))
    one = of_searches([1.0, 2.0, 3.0])
    assert _searches_within(one, largest(3)) is one


def of_searches(numbers, value=None) -> Reply:
    """One replicate's reply of three searches, whose numbers are these, and whose values are others where told."""
    each = jnp.asarray(numbers)[None]
    site = jnp.broadcast_to(each[..., None], (1, 3, 2))
    values = each if value is None else jnp.full((1, 3), value)
    return Reply(total=StartsMessage(ModeMessage(values, Gaussian(site, site, each))), code=jnp.zeros(1, int))


def all_hidden(network, kinds) -> set[int]:
    """That every answer of these kinds was a hidden term, and the sizes of those of rounds."""
    sent = [unpack(each) for each in network.answered if unpack(each).header["kind"] in ("round", "after")]
    assert {each.header["kind"] for each in sent} == kinds
    assert all(set(arrays_of(each.body)) == {"masked", "code"} for each in sent)
    return {arrays_of(each.body)["masked"].nbytes for each in sent if each.header["kind"] == "round"}


def test_the_chains_of_fald_and_what_their_step_is_chosen_by_are_sums(secure):
    """The search for the mode, and how the clients differ there, are as without masks; locals move by secret noise."""
    world = secure(fb.FALD(num_chains=2, num_warmup=2, thinning=1))
    network = world.network()
    with pytest.warns(NotConvergedWarning, match="not mixed"):
        fit, plain = world.fit(network, num_draws=4, secure_sums=True), world.here(num_draws=4)
    for name in ("step_size", "smoothness", "convexity", "sd_bias"):
        assert fit.rounds.attrs[name] == pytest.approx(plain.rounds.attrs[name], rel=1e-9)
    assert "curvature" in plain.rounds
    assert "curvature" not in fit.rounds  # of a single client: it stays there
    all_hidden(network, {"round", "after"})


def test_who_lets_only_sums_leave_refuses_all_else(secure, caplog):
    world = secure()
    network = world.network()
    with pytest.raises(FederatedError, match=r"Site 'ada' lets only terms of secure sums leave.*`single = true`"):
        world.fit(network, secure_sums=False)
    assert {unpack(each).header["kind"] for each in network.answered} == {"hello", "join", "refusal"}
    ask = unpack(network.sent[-1])
    assert ask.header["kind"] == "round"
    assert "ticket" not in ask.header


def test_two_sites_are_too_few_for_a_sum(secure, caplog):
    world = secure()
    with pytest.raises(
        FederatedError, match=r"lets only terms of secure sums.*Secure sums need 3 to 255 sites.* are 2"
    ):
        world.fit(world.network(), num_clients=2, secure_sums=True)


def test_a_method_that_needs_single_messages_says_so(secure):
    world = secure(fb.OneShot(combine="laplace", num_replicates=1))
    with pytest.raises(FederatedError, match=r"`single = true`.*OneShot needs such messages: "):
        world.fit(world.network(), secure_sums=True)


def lost_once(at, address):
    """Answers that get lost on their way, the first time."""
    lost = []

    def disturb(count, sender, answer):
        if unpack(answer).header["kind"] == at and sender == address and not lost:
            lost.append(sender)
            return []
        return answer

    return disturb


@pytest.mark.parametrize("at", ["round", "after"])
def test_a_lost_answer_costs_one_repeated_round_and_changes_nothing(secure, at):
    world = secure()
    undisturbed = world.fit(network := world.network(), secure_sums=True, correct=True)
    again = world.network(disturb=lost_once(at, 2))
    fit = world.fit(again, secure_sums=True, correct=True)
    np.testing.assert_array_equal(fit.fitted.answer.posterior.shift, undisturbed.fitted.answer.posterior.shift)
    assert len(again.sent) == len(network.sent) + 3
    tickets = [unpack(each).header.get("ticket") for each in again.sent]
    asked = [ticket for ticket in tickets if ticket]
    assert len(asked) == 3 * len(set(asked))  # one for the three sites, and another one when it is repeated


def test_a_site_that_stays_away_ends_the_fit_and_its_sum_is_never_done_without_it(secure):
    world = secure()
    network = world.network(
        disturb=lambda count, sender, answer: [] if b'"round"' in answer and sender == 3 else answer
    )
    with pytest.raises(FederatedError, match=r"2 clients have answered for a round, and 3 are needed.*\['cy'\]"):
        world.fit(network, secure_sums=True, patience=Patience(round_timeout=1.0, min_clients=1, give_up_after=0.3))
    for request in map(unpack, network.sent):
        if request.header["kind"] == "round":
            assert request.header["charter"]["names"] == ["ada", "bo", "cy"]


def test_nobody_is_asked_while_a_site_is_away(secure):
    """The others' terms would be of no use, and cost them their time."""
    world = secure()
    undisturbed = world.fit(usual := world.network(), secure_sums=True)
    network = world.network()
    away = {}

    def leave(count):
        if count == 6:
            away[3] = network.sites.pop(3)

    network.before = leave
    look, looks = network.addresses, []

    def addresses():
        looks.append(len(network.sent))
        if away and looks.count(len(network.sent)) > 4:  # it comes back after some looks
            network.sites |= away
            away.clear()
        return look()

    network.addresses = addresses
    fit = world.fit(network, secure_sums=True, patience=Patience(round_timeout=1.0, give_up_after=5.0))
    np.testing.assert_array_equal(fit.fitted.answer.posterior.shift, undisturbed.fitted.answer.posterior.shift)
    rounds = [[unpack(each).header["kind"] for each in sent].count("round") for sent in (usual.sent, network.sent)]
    assert rounds[1] <= rounds[0] + 3


def test_answers_that_can_not_be_used_end_the_fit_by_name(secure):
    world = secure()
    network = world.network(disturb=lambda count, sender, answer: b"?" if count > 3 and sender == 2 else answer)
    with pytest.raises(FederatedError, match=r"The sites \['bo'\] have answered 3 times what can't be used"):
        world.fit(network, secure_sums=True, patience=Patience(round_timeout=1.0, give_up_after=30.0))


def test_a_site_that_loses_its_states_ends_the_fit(secure):
    """Its past is another than the others', so no sum comes out any more; nobody is asked for more."""
    world = secure()
    network = world.network()

    def lose(count):
        if count == 6:
            for state in (world.folder / "ada" / "runs").glob("*/state-*"):
                state.unlink()
            network.sites[1] = world.site("ada")

    network.before = lose
    with pytest.raises(FederatedError, match=r"The sites \['ada'\] have lost what they kept of this run.*new run"):
        world.fit(network, secure_sums=True)
    assert len(network.sent) == 6 * 3  # the round that was under way is the last one
    assert all(unpack(each).header.get("reason") is None for each in network.answered)


@pytest.mark.parametrize(
    "changed",
    [
        {"personal/whole": np.array([True]), "shared/recount": np.array([True])},
        {"personal/counted/step": np.array([0.5])},
        {"personal/counted/round": np.array([-1.0])},
    ],
    ids=["whole sites", "steps", "rounds"],
)
def test_a_sum_in_which_one_site_was_told_something_else_does_not_come_out(secure, changed):
    """Its difference from the honest sum would be about that site alone."""
    world = secure()
    network = world.network()
    world.fit(network, secure_sums=True)
    rounds = [each for each in map(unpack, network.sent) if each.header["kind"] == "round"]
    last = rounds[-3:]
    honest = [words_of(world.site(name), each, "8" * 32) for name, each in zip(world.data, last, strict=True)]
    assert cancelled(reduce(plus, [words for words, _ in honest]), 3)
    recounts = {name: array for name, array in changed.items() if name.startswith("shared")}  # of all sites
    lied = [
        words_of(world.site(name), each, "9" * 32, **(changed if name == "ada" else recounts))
        for name, each in zip(world.data, last, strict=True)
    ]
    hidden = [words for words, is_open in lied if not is_open]
    assert len(hidden) < 3 or not cancelled(reduce(plus, hidden), 3)


def test_masks_of_sites_with_another_past_do_not_cancel(secure):
    """A site that was asked before may have a known term: with Gaussian outcomes it has nothing more to propose."""
    world = secure()
    network = world.network()
    world.fit(network, secure_sums=True)
    last = [each for each in map(unpack, network.sent) if each.header["kind"] == "round"][-3:]

    def cancel(ticket, order, sites) -> bool:
        found = [
            words_of(world.site(name), Message({**each.header, "order": order, "oldest": 0}, each.body), ticket)[0]
            for name, each in zip(world.data, last, strict=True)
            if name in sites
        ]
        return cancelled(reduce(plus, found), len(found))

    order = last[0].header["order"]
    assert cancel("1" * 32, order, world.data)
    assert cancel("2" * 32, order + 1, world.data)
    assert not cancel("3" * 32, order + 2, ("bo", "cy"))
    assert not cancel("4" * 32, order + 3, world.data)


def a_round_that_fails(request):
    """It is asked elsewhere, computed, and can't be kept."""
    arrays = {name: array + 0.5 if "shift" in name else array for name, array in arrays_of(request.body).items()}
    return {**request.header, "ticket": "5" * 32, "oldest": "nought"}, encode(arrays)


def an_end_that_goes_back(request):
    """The end of a run, as the server tells it, before its first round."""
    arrays = arrays_of(request.body)
    told = {name.removeprefix("shared"): array for name, array in arrays.items() if name.split("/")[0] == "shared"}
    body = {f"{of}{name}": array for of in ("broadcast", "recorded/0") for name, array in told.items()}
    header = {**request.header, "kind": "conclude", "order": 0, "records": [0], "begun": True}
    return header, encode({**body, "phase_key": arrays["key"]})


@pytest.mark.parametrize("change", [a_round_that_fails, an_end_that_goes_back])
def test_a_site_answers_from_the_state_that_its_masks_are_about(secure, change):
    """Else one site alone could be sent back or ahead, and of two sums the difference would be its own."""
    world = secure()
    network = world.network()
    world.fit(network, secure_sums=True)
    last = [each for each in map(unpack, network.sent) if each.header["kind"] == "round"][-3:]
    order = last[0].header["order"]

    def total(sites, ticket, order):
        asked = [Message({**each.header, "order": order, "oldest": 0}, each.body) for each in last]
        terms = [words_of(site, each, ticket)[0] for site, each in zip(sites, asked, strict=True)]
        found = reduce(plus, terms)
        assert cancelled(found, len(terms))
        return to_numbers(found)

    sites = [world.site(name) for name in world.data]
    total(sites, "1" * 32, order + 1)
    at = Message({**last[0].header, "order": order + 2, "oldest": 0}, last[0].body)
    assert unpack(sites[0].answer(pack(*change(at)))).header["kind"] == "refusal"
    found = total(sites, "2" * 32, order + 2)
    again = total([world.site(name) for name in world.data], "3" * 32, order + 2)
    np.testing.assert_array_equal(found, again)


def test_masks_of_sites_that_were_asked_for_other_log_likelihoods_do_not_cancel(secure):
    """Else of two sums, one with a finer log-likelihood of one site, the difference would be of that site alone."""
    world = secure()
    network = world.network()
    world.fit(network, secure_sums=True, correct=True)
    asked = [each for each in map(unpack, network.sent) if each.header["kind"] == "after"][:3]

    def cancel(ticket, first) -> bool:
        found = []
        for name, each, update in zip(world.data, asked, [first, *["log_likelihood_sum"] * 2], strict=True):
            header = {**each.header, "ticket": ticket, "update": update}
            answer = unpack(world.site(name).answer(pack(header, each.body)))
            found.append(arrays_of(answer.body)["masked"])
        return cancelled(reduce(plus, found), 3)

    assert cancel("1" * 32, "log_likelihood_sum")
    assert not cancel("2" * 32, "log_likelihood_finer_sum")


def test_recipes_in_another_order_are_no_other_order_of_draws(secure):
    """Of two sums, in one of which a site has made its draws in another order, the difference is that site's alone.

    Masks know the arrays of a message by their names, and not their order; two spellings of a number have one place.
    """
    world = secure()
    network = world.network()
    world.fit(network, secure_sums=True, correct=True)
    asked = next(each for each in map(unpack, network.sent) if each.header["kind"] == "after")
    arrays = arrays_of(asked.body)
    twice = {name.replace("recipes/0/", "recipes/00/"): array for name, array in arrays.items()}
    message = pack({**asked.header, "ticket": "1" * 32}, encode({**arrays, **twice}))
    assert unpack(world.site("ada").answer(message)).header["kind"] == "refusal"
    message = pack({**asked.header, "ticket": "2" * 32}, encode(twice))
    assert unpack(world.site("ada").answer(message)).header["kind"] == "refusal"
    assert unpack(world.site("ada").answer(pack({**asked.header, "ticket": "3" * 32}, asked.body))).header["told"]


def replies(codes, lost):
    """A reply of two replicates."""
    change = {"site": jnp.array([[1.5], [2.5]]), "lost": jnp.array(lost)}
    change["site"] = jnp.where(jnp.array(codes)[:, None] == ResultCode.LOST, 0.0, change["site"])
    return Reply(total=change, code=jnp.array(codes))


@pytest.mark.parametrize(
    ("codes", "lost", "leave", "numbers"),
    [
        ([0, 0], [0.0, 0.0], [0, 0], None),
        ([0, 10], [0.0, 1.0], [12, 10], [0.0, 1.0, 0.0, 0.0]),
        ([10, 10], [1.0, 1.0], [10, 10], [1.0, 1.0, 0.0, 0.0]),
        ([0, 2], [0.0, 0.0], [12, 2], [0.0] * 4),
        ([2, 3], [0.0, 0.0], [2, 3], [0.0] * 4),
        ([10, 0], [7.0, 0.0], [12, 12], [0.0] * 4),
        ([0, 13], [0.0, 0.0], [12, 2], [0.0] * 4),
        ([13, 13], [0.0, 0.0], [2, 2], [0.0] * 4),
    ],
    ids=["sound", "one lost", "lost", "one not finite", "useless", "no count", "one in part", "in part"],
)
def test_a_term_is_hidden_in_all_replicates_or_open_in_all(tmp_path, codes, lost, leave, numbers):
    """In some of them alone the sum would be one over fewer sites; and what is open holds nothing of the data."""
    sums = Sums(Vault(tmp_path / "site"), ("ada", "bo", "cy"), 0, {})
    masks = Masks.agreed(PRIVATE[0], 0, PUBLIC[:3], {})
    told, body, _ = sums.sent(replies(codes, lost), Hiding(masks, ASKED))
    arrays = arrays_of(body)
    np.testing.assert_array_equal(arrays["code"], leave)
    assert told["open"] == (numbers is not None)
    if numbers is not None:
        np.testing.assert_array_equal(to_numbers(arrays["masked"]), numbers)


class Server:
    """A server that changes what it sends."""

    def __init__(self, world):
        self.network = world.network()
        world.fit(self.network, secure_sums=True)
        self.request = next(each for each in map(unpack, self.network.sent) if each.header["kind"] == "round")

    def answered(self, site, **changed) -> dict:
        """The header of what a site answers to the first round's request with something changed."""
        header = {**self.request.header, **changed}
        return unpack(site.answer(pack(header, self.request.body))).header

    def charter(self, **keys):
        """The charter with other keys for some places."""
        charter = dict(self.request.header["charter"])
        known = list(charter["mask_keys"])
        for place, key in keys.items():
            known[int(place[1:])] = key
        return {**charter, "mask_keys": known}


def test_what_a_dishonest_server_tries_is_refused(secure, caplog):
    world = secure()
    server, site = Server(world), world.site("ada")
    fresh, stranger = "2" * 32, public_key("5" * 64)
    assert server.answered(site, ticket=fresh)["kind"] == "round"
    assert server.answered(site, ticket=fresh)["reason"] == "TICKET"  # twice the same masks: their difference is bare
    assert server.answered(world.site("ada"), ticket=fresh)["reason"] == "TICKET"  # nor after a restart,
    shutil.rmtree(world.folder / "ada" / "runs")
    assert server.answered(world.site("ada"), ticket=fresh)["reason"] == "TICKET"  # nor when the run is forgotten
    assert server.answered(site, ticket="x")["reason"] == "FORMAT"
    assert server.answered(site, ticket=None)["reason"] == "SINGLE"
    mine, theirs = server.request.header["charter"]["mask_keys"][:2]
    twin = f"{int(theirs, 16) | 0x80:064x}"  # the last byte's first bit, which X25519 does not look at
    for number, charter in enumerate(
        (
            server.charter(p1=stranger),  # the server sits between two sites
            server.charter(p1=stranger, p2=public_key("6" * 64)),
            server.charter(p0=stranger),
            server.charter(p1=mine),
            server.charter(p1=theirs, p2=theirs),
            server.charter(p1=theirs, p2=twin),  # the masks of the two would cancel
            server.charter(p1=""),
        )
    ):
        run = f"{number:016x}"  # in its own it would be another charter than before
        assert server.answered(world.site("ada"), run=run, ticket="3" * 32, charter=charter)["reason"] == "PARTNERS"
        assert server.answered(world.site("ada"), ticket="3" * 32, charter=charter)["reason"] == "CHARTER"
    assert fingerprint(stranger) in caplog.text
    short = {**server.charter(), "mask_keys": server.charter()["mask_keys"][:2]}
    assert server.answered(site, run="f" * 16, ticket="4" * 32, charter=short)["reason"] == "FORMAT"


def test_a_sum_with_one_site_less_is_refused_in_the_run(secure):
    """Its difference from the sum over all is that site's term."""
    world = secure(LAPLACE)
    world.data["dan"] = {"y": np.array([0.3, -0.2, 1.1])}
    folder = world.folder / "dan"
    folder.mkdir()
    (folder / "policy.toml").write_text(STRICT)
    network = world.network()
    world.fit(network, num_clients=4, secure_sums=True)
    request = next(each for each in map(unpack, network.sent) if each.header["kind"] == "round")
    charter = dict(request.header["charter"])
    fewer = {
        name: values[:3] if isinstance(values, list) and len(values) == 4 else values
        for name, values in charter.items()
    }
    header = {**request.header, "charter": fewer, "ticket": "7" * 32}
    answer = unpack(world.site("ada").answer(pack(header, request.body)))
    assert answer.header["reason"] == "CHARTER"


def test_a_site_that_was_told_of_other_rows_at_first_does_not_answer_as_one_that_was_not(secure):
    """Under masks that cancel the others' weights would be next to nothing, and the sum one site's term."""
    world = secure(fb.FedAvg(local_steps=2))
    network = world.network()
    world.fit(network, secure_sums=True)
    request = next(each for each in map(unpack, network.sent) if each.header.get("update") == "steps")
    header, site = {**request.header, "run": "b" * 32, "ticket": "8" * 32}, world.site("bo")
    (seat,) = [each.header["seat"] for each in map(unpack, network.sent) if each.header.get("update") == "steps"][1:2]
    header["seat"] = seat
    alone = {**header["charter"], "rows": [1e300, 1.0, 1.0]}
    site.answer(pack({**header, "charter": alone, "kind": "conclude"}))  # a site that goes on remembers this
    assert unpack(site.answer(pack(header, request.body))).header["reason"] == "CHARTER"
    assert unpack(site.answer(pack({**header, "run": "c" * 32}, request.body))).header["kind"] == "round"


def test_a_site_knows_what_it_is_told_of_itself(secure):
    """With next to no rows, by what all sites are told alike, one site's term would be all of a sum: FA-LD divides by
    weights, and masks cancel."""
    world = secure()
    server = Server(world)
    charter = server.charter()
    assert charter["rows"] == [9.0, 9.0, 9.0]
    lies = {"rows": [1e-9, 9.0, 9.0]}, {"rows": [9.5, 9.0, 9.0]}, {"num_locals": [2, *charter["num_locals"][1:]]}
    for number, lie in enumerate(lies):
        run = f"{number:016x}"
        answer = server.answered(world.site("ada"), run=run, ticket="5" * 32, charter={**charter, **lie})
        assert answer.get("reason") == "FORMAT"
    answer = server.answered(world.site("ada"), run="f" * 16, ticket="5" * 32)
    assert answer["kind"] == "round"


def test_a_private_state_is_of_one_study(secure):
    """The history on which masks depend names no study: one site alone could go on from another study's state."""
    world = secure()
    server = Server(world)
    other = Study(world.model, fb.EP(solver="laplace", num_replicates=1, tolerance=1e-6))
    config = {"site-id": "ada", "state-dir": str(world.folder / "ada")}
    site = Site(other, lambda config: world.data["ada"], config)
    assert server.answered(site, study=other.digest, ticket="5" * 32)["reason"] == "CHARTER"
    assert server.answered(site, study=other.digest, ticket="5" * 32, run="f" * 16)["kind"] == "round"


def test_masks_of_sites_whose_data_are_of_other_kinds_do_not_cancel(secure):
    """Of two runs, in one of which a site reads its data in another way, the difference would be that site's alone."""
    world = secure()
    network = world.network()
    world.fit(network, secure_sums=True)
    first = [each for each in map(unpack, network.sent) if each.header["kind"] == "round"][:3]

    def cancel(run, template) -> bool:
        found = []
        for name, each in zip(world.data, first, strict=True):
            seat = {**each.header["seat"], "template": template if name == "ada" else each.header["seat"]["template"]}
            told = Message({**each.header, "run": run, "seat": seat}, each.body)
            found.append(words_of(world.site(name), told, "5" * 32)[0])
        return cancelled(reduce(plus, found), 3)

    assert cancel("a" * 16, first[0].header["seat"]["template"])
    assert not cancel("b" * 16, {"y": [[11], "<f8"]})


def test_a_site_without_draws_has_nothing_to_keep(secure):
    """Asked for draws that it has never made, a site would add what the server knows: the sum would be over the others.

    In a round sites may be asked for different updates, of which masks do not know.
    """
    options = {"estimator": "shrinkage", "init": "zero", "preconditioner": "none", "num_replicates": 1}
    world = secure(fb.FedPA(**options))
    network = world.network(disturb=lambda count, sender, answer: b"?" if b'"round"' in answer else answer)
    with pytest.raises(FederatedError):
        world.fit(network, secure_sums=True, patience=Patience(round_timeout=1.0, min_clients=1, give_up_after=0.3))
    request = next(each for each in map(unpack, network.sent) if each.header["kind"] == "round")
    assert request.header["update"] == "importance"
    kept = Message({**request.header, "update": "kept", "run": "a" * 16}, request.body)
    _, is_open = words_of(world.site("ada"), kept, "5" * 32)
    assert is_open


def test_names_that_were_not_there_at_first_are_no_partners(secure):
    """Two sites of the server's own beside one would leave that one's term."""
    world = secure()
    server = Server(world)
    names = [*server.charter()["names"][:1], "x", "y"]
    invented = {**server.charter(p1=public_key("5" * 64), p2=public_key("6" * 64)), "names": names}
    answer = server.answered(world.site("ada"), run="a" * 16, ticket="5" * 32, charter=invented)
    assert answer["reason"] == "PARTNERS"
    assert set(answer["found"]) == {"x", "y"}


@pytest.mark.parametrize("impl", ["unsafe_rbg", "none"])
def test_keys_that_do_not_mix_what_they_are_made_of_are_refused(secure, impl):
    """By `unsafe_rbg` the numbers that hide curvatures would be the same at two points."""
    world = secure()
    server = Server(world)
    answer = server.answered(
        world.site("ada"), run="a" * 16, ticket="5" * 32, charter={**server.charter(), "impl": impl}
    )
    assert answer["reason"] == "FORMAT"


def words_of(site, request, ticket, **arrays):
    """A site's hidden term for a request with other arrays, and whether it is open."""
    body = encode({**arrays_of(request.body), **arrays})
    answer = unpack(site.answer(pack({**request.header, "ticket": ticket}, body)))
    assert answer.header["kind"] == "round", answer.header
    return arrays_of(answer.body)["masked"], answer.header["told"]["open"]


def test_masks_of_sites_that_were_asked_different_things_do_not_cancel(secure):
    """With the others asked where they have nothing to add the sum would be one site's term."""
    world = secure(LAPLACE)
    network = world.network()
    world.fit(network, secure_sums=True)
    asked = [each for each in map(unpack, network.sent) if each.header["kind"] == "round"][:3]
    same = [words_of(world.site(name), each, "8" * 32) for name, each in zip(world.data, asked, strict=True)]
    assert cancelled(reduce(plus, [words for words, _ in same]), 3)
    elsewhere = {
        name: np.full_like(array, 0.1) for name, array in arrays_of(asked[0].body).items() if name == "shared/0"
    }
    first = words_of(world.site("ada"), asked[0], "9" * 32)
    others = [
        words_of(world.site(name), each, "9" * 32, **elsewhere)
        for name, each in zip(("bo", "cy"), asked[1:], strict=True)
    ]
    assert not cancelled(reduce(plus, [words for words, _ in (first, *others)]), 3)
    nowhere = {name: np.full_like(array, np.nan) for name, array in elsewhere.items()}
    first = words_of(world.site("ada"), asked[0], "a" * 32)
    others = [
        words_of(world.site(name), each, "a" * 32, **nowhere)
        for name, each in zip(("bo", "cy"), asked[1:], strict=True)
    ]
    assert [is_open for _, is_open in (first, *others)] == [False, True, True]
    assert not cancelled(reduce(plus, [words for words, _ in (first, *others)]), 3)


def test_masks_depend_on_whatever_a_message_tells(secure):
    """On what nobody has thought of, too: a later version may read it. An array that is not expected is refused."""
    world = secure(LAPLACE)
    network = world.network()
    world.fit(network, secure_sums=True)
    asked = [each for each in map(unpack, network.sent) if each.header["kind"] == "round"][:3]
    told = Message({**asked[0].header, "more": 1}, asked[0].body)
    others = [words_of(world.site(name), each, "b" * 32)[0] for name, each in zip(("bo", "cy"), asked[1:], strict=True)]
    assert not cancelled(reduce(plus, [words_of(world.site("ada"), told, "b" * 32)[0], *others]), 3)
    body = encode({**arrays_of(asked[0].body), "more": np.ones(1)})
    answer = unpack(world.site("ada").answer(pack({**asked[0].header, "ticket": "c" * 32}, body)))
    assert answer.header["kind"] == "refusal"


def test_where_a_site_has_nothing_to_add_there_is_no_sum(secure, caplog):
    """The others' masks stay on, honest server or not: the sum would be one over fewer sites."""
    world = secure(LAPLACE)
    world.data["cy"] = {"y": np.full(9, 1e8)}  # a log-density of -1e17, which is no number of the sum
    with pytest.raises(FederatedError, match=r"'ada': 'another site had nothing to add.*'cy': 'message not finite"):
        world.fit(world.network(), secure_sums=True)
    assert "give the model's arguments units in which its globals are near 1" in caplog.text
    assert "The sites ['cy'] have nothing to add to the sum" in caplog.text


def test_what_is_not_finite_hides_what_is_beside_it():
    """Of a sum that is minus infinity, as one site says so, the integers still hold the others' sum."""
    values = np.full(2000, -np.inf)
    hidden = [unknown(to_integers(values), values, 3) for _ in range(2)]
    total = reduce(plus, [*hidden, to_integers(np.full(2000, 5.0))])
    assert np.all(np.isneginf(to_numbers(total)))
    assert cancelled(total, 3)
    bare = total.copy()
    bare[:, 1] -= np.uint64(2 << 56)  # without the counts of the two
    assert np.min(np.abs(to_numbers(bare) - 5.0)) > 1.0
    spread = np.quantile(to_numbers(bare), [0.1, 0.9])
    assert spread[0] < -largest(3) / 10 < largest(3) / 10 < spread[1]


def test_partners_are_those_that_the_owner_has_written_down(secure):
    world = secure()
    server = Server(world)
    keys = dict(zip(("ada", "bo", "cy"), map(fingerprint, server.charter()["mask_keys"]), strict=True))
    policy = world.folder / "ada" / "policy.toml"

    def with_partners(**partners):
        lines = [f'{name} = "{key}"' for name, key in partners.items()]
        policy.write_text("\n".join([STRICT, "[sums.partners]", *lines]))
        return server.answered(world.site("ada"), ticket=secrets.token_hex(16))

    assert with_partners(bo=keys["bo"], cy=keys["cy"])["kind"] == "round"
    assert with_partners(bo=keys["bo"])["reason"] == "PARTNERS"
    assert with_partners(bo=keys["cy"], cy=keys["cy"])["reason"] == "PARTNERS"


def test_a_site_may_want_more_sites_in_a_sum(secure):
    world = secure(policy=f"{STRICT}[sums]\nfewest = 4\n")
    with pytest.raises(FederatedError, match=r"Site 'ada' wants more sites in a secure sum than this one has.* 4 .* 3"):
        world.fit(world.network(), secure_sums=True)


def test_a_sum_is_over_all_sites_that_a_site_knows(tmp_path):
    """Of two runs, of which one has a site less, the difference of the first sums is that site's term."""
    vault, names = Vault(tmp_path), ["ada", "bo", "cy", "di"]
    keys = [own_key(vault), *(public_key(f"{place}" * 64) for place in (5, 6, 7))]
    check_partners(vault, SumRules(), names, 0, keys)
    with pytest.raises(Refused) as refused:
        check_partners(vault, SumRules(), names[:3], 0, keys[:3])
    assert refused.value.reason is Refusal.FEWEST
    assert refused.value.counts == {"fewest": 4, "sites": 3}
    check_partners(vault, SumRules(fewest=3), names[:3], 0, keys[:3])
    vault.keep_keys({name: key for name, key in vault.known_keys().items() if name != "di"})  # as its owner strikes it
    check_partners(vault, SumRules(), names[:3], 0, keys[:3])


def test_keys_are_known_again_and_private(secure):
    world = secure()
    world.fit(world.network(), secure_sums=True)
    folder = world.folder / "ada"
    assert set(json.loads((folder / "known-keys.json").read_text())) == {"bo", "cy"}
    for name in ("mask-key", "known-keys.json", "tickets"):
        assert (folder / name).stat().st_mode & 0o777 == 0o600
    world.fit(world.network(), secure_sums=True)  # another run, the same keys
    (world.folder / "bo" / "mask-key").unlink()
    with pytest.raises(FederatedError, match=r"Site 'ada' was given keys.* does not know the keys of \['bo'\]"):
        world.fit(world.network(), secure_sums=True)


def test_a_key_that_is_no_key_never_joins(secure):
    from fedbayes.network.charter import Hello

    with pytest.raises(ValueError, match="key for secure sums"):
        Hello.read({"site": "a", "arrays": {"y": [[3], "<f8", None]}, "static": {}, "mask_key": "g" * 64})


def test_keys_are_asked_for_in_the_order_of_the_run():
    """Planted: two sites that disagree on who adds and who subtracts."""
    terms = [to_integers(np.ones(4))] * 3
    hidden = [masks.hide(term, ASKED) for masks, term in zip(agreed()[:3], terms, strict=True)]
    assert not np.any(to_numbers(reduce(plus, hidden)) == 3.0)  # the fourth site's masks are missing
    mine, yours = agreed()[0].hide(terms[0], ASKED), agreed()[1].hide(terms[1], ASKED)
    assert not np.any(to_numbers(plus(mine, yours)) == 2.0)


class Attack:
    """A server that asks sites anew, once a fit by secure sums is over; it tells all of them the same.

    Attributes
    ----------
    asked
        The last round's request to each site.
    sites, order
        The sites, and the number of the last order.
    """

    def __init__(self, world):
        network = world.network()
        world.fit(network, secure_sums=True)
        self.asked = [each for each in map(unpack, network.sent) if each.header["kind"] == "round"][-3:]
        self.sites, self.order = [world.site(name) for name in world.data], self.asked[0].header["order"]
        self.told = arrays_of(self.asked[0].body)

    def ask(self, void=(), begins=False, **arrays):
        """Each site's words, and whether they are open."""
        self.order += 1
        words = {"order": self.order, "oldest": 0, "void": list(void), "begins": begins}
        messages, ticket = [Message({**each.header, **words}, each.body) for each in self.asked], secrets.token_hex(16)
        return [words_of(site, each, ticket, **arrays) for site, each in zip(self.sites, messages, strict=True)]

    def wide(self, *shares):
        """The global with these shares of its precision in its replicates; no site has gone towards its last reply."""
        name = "shared/global_/precision"
        told = {name: np.asarray(shares)[:, None] * self.told[name]}
        return told | {"personal/counted/step": np.zeros(len(shares))}

    def for_one_alone(self):
        """Orders that are void, and a share of the precision, below nought, by which one of three can answer alone.

        What the server tells is then no density, and neither is the product with two of the three factors.
        """
        first, replicates = self.order + 1, len(self.told["shared/global_/precision"])
        for share in np.linspace(0.0, -2.0, 60):
            found = self.ask(range(first, self.order + 1), **self.wide(*[share] * replicates))
            if sum(is_open for _, is_open in found) == 2:
                return list(range(first, self.order + 1)), share
        raise AssertionError("no site could answer alone")


def total_of(answers):
    """The sum of hidden terms; ``None`` where none comes out."""
    words = [words for words, is_open in answers if not is_open]
    found = reduce(plus, words) if len(words) == len(answers) else None
    return None if found is None or not cancelled(found, len(words)) else to_numbers(found)


def test_a_round_that_one_site_alone_can_answer_moves_nobody(secure):
    """Else the next sum would have this site's new message beside the others' old ones."""
    server = Attack(secure(rows=UNEQUAL))
    honest = total_of(server.ask())
    before = [server.order]
    void, _ = server.for_one_alone()
    assert total_of(server.ask([*before, *void[:-1]])) is None
    np.testing.assert_array_equal(total_of(server.ask([*before, *void, server.order])), honest)


@pytest.mark.parametrize("how", ["far away", "in one replicate"])
def test_where_all_answer_openly_one_site_alone_has_not_moved(secure, how):
    """Of sums that count the sites anew, one before and one after it, the difference would be that site's message.

    All answers are open where each site is asked for something far away beside what one alone can answer, or in
    another replicate for what none can.
    """
    in_one = how == "in one replicate"
    server = Attack(secure(replace(EP, num_replicates=2) if in_one else EP, rows=UNEQUAL))
    whole = {"shared/recount": np.ones_like(server.told["shared/recount"]), "personal/whole": np.ones(1 + in_one, bool)}
    assert total_of(server.ask(**whole)) is not None
    recounted = [server.order]
    void, share = server.for_one_alone()
    void = [*recounted, *void]
    number = np.full_like(server.told["shared/round"], 1000.0)
    first = {
        name.replace("shared/", "first/"): each for name, each in server.told.items() if name.startswith("shared/")
    }
    first["first/mean"] = np.full_like(first["first/mean"], 1e6)
    made_up = server.wide(1e-3, share) if in_one else {**server.wide(share), **first}
    found = server.ask(void, begins=not in_one, **made_up, **{"shared/round": number})
    assert all(is_open for _, is_open in found)
    counted = {"personal/counted/round": number, "personal/counted/step": np.ones_like(number)}
    assert total_of(server.ask(void, **whole, **counted)) is None


@pytest.mark.parametrize("method", [EP, LAPLACE])
def test_a_site_that_has_nothing_to_add_once_costs_a_round_and_not_the_fit(secure, monkeypatch, method):
    """Site and server go back alike: a server that counts the round of a site that does not would find it lost."""
    world, reply, asked = secure(method), Alone.reply, []

    def once_nothing(alone, order, secret=None):
        found = reply(alone, order, secret)
        asked.append(alone)
        if len(asked) != 12:  # the last site in the fourth round
            return found
        total = jax.tree.map(np.zeros_like, found.total)
        return found._replace(total=total, code=np.full_like(found.code, int(ResultCode.NOT_FINITE)))

    undisturbed = world.fit(secure_sums=True)
    monkeypatch.setattr(Alone, "reply", once_nothing)
    network = world.network()
    for name in world.data:
        shutil.rmtree(world.folder / name / "runs")
    fit = world.fit(network, secure_sums=True)
    void = [unpack(each).header["void"] for each in network.sent if unpack(each).header["kind"] == "round"]
    assert [len(each) for each in void[::3]] == [0, 0, 0, 0, 1, *[0] * (len(void) // 3 - 5)]
    one, two = fit.fitted.answer.posterior, undisturbed.fitted.answer.posterior
    np.testing.assert_allclose(one.precision, two.precision, rtol=1e-5)
    assert fit.converged


def test_a_site_that_never_has_anything_to_add_ends_the_fit_by_name(secure, monkeypatch):
    world, reply = secure(), Alone.reply

    def nothing_of_cy(alone, order, secret=None):
        found = reply(alone, order, secret)
        if int(alone.client.index) != 2:
            return found
        total = jax.tree.map(np.zeros_like, found.total)
        return found._replace(total=total, code=np.full_like(found.code, int(ResultCode.NOT_FINITE)))

    monkeypatch.setattr("fedbayes.network.server.remote._MOST_IDLE", 2)
    network = world.network()
    network.before = lambda count: count == 5 and monkeypatch.setattr(Alone, "reply", nothing_of_cy)
    with pytest.raises(FederatedError, match=r"no secure sum for 2 rounds, as the sites \['cy'\] have nothing to add"):
        world.fit(network, secure_sums=True)


FOUR = {"rows": (9, 9, 9, 9), "policy": f"{STRICT}[sums]\nfewest = 3\n"}


def rubbish_of_bo(count, sender, answer):
    return b"?" if count > 5 and sender == 2 else answer


PATIENT = {"secure_sums": True, "num_clients": 4, "patience": Patience(round_timeout=1.0, give_up_after=4.0)}


def without(world, name):
    """The fit of the others in one process."""
    world.data = {each: rows for each, rows in world.data.items() if each != name}
    return world.here().fitted.answer.posterior


def test_a_site_whose_answers_are_of_no_use_is_put_out_and_the_others_go_on(secure, caplog):
    world = secure(**FOUR)
    network = world.network(disturb=rubbish_of_bo)
    with pytest.warns(SiteLeftOutWarning, match="without the data of bo, which has answered 3 times"):
        fit = world.fit(network, correct=True, **PATIENT)
    assert fit.converged
    assert fit.fitted.roster.names == ("ada", "cy", "di")
    np.testing.assert_allclose(fit.posterior.precision, without(world, "bo").precision, rtol=1e-9)
    assert "\n  without   bo, which has answered 3 times what can't be used\n" in repr(fit)
    assert "A secure sum needs all sites" in caplog.text
    assert "The server has begun one, over ['ada', 'cy', 'di']." in caplog.text
    runs = {}
    for each in map(unpack, network.sent):
        if each.header["kind"] in ("round", "after", "conclude"):
            runs.setdefault(each.header["run"], set()).add(tuple(each.header["charter"]["names"]))
    assert list(runs.values()) == [{("ada", "bo", "cy", "di")}, {("ada", "cy", "di")}]
    all_hidden(network, {"round", "after"})


def nothing_from(*rows):
    """A site's reply, where sites with these rows have nothing to add."""
    reply = Alone.reply

    def of(alone, order, secret=None):
        found = reply(alone, order, secret)
        if not any(np.array_equal(alone.client.data["y"], each) for each in rows):
            return found
        total = jax.tree.map(np.zeros_like, found.total)
        return found._replace(total=total, code=np.full_like(found.code, int(ResultCode.NOT_FINITE)))

    return of


def test_a_site_that_adds_nothing_for_many_rounds_is_put_out(secure, monkeypatch):
    world = secure(**FOUR)
    nothing = nothing_from(world.data["bo"]["y"])
    monkeypatch.setattr("fedbayes.network.server.remote._MOST_IDLE", 2)
    network = world.network()
    network.before = lambda count: count == 6 and monkeypatch.setattr(Alone, "reply", nothing)
    said = "without the data of bo, which had nothing to add to the last 2 sums: .* or its owner's limits keep them"
    with pytest.warns(SiteLeftOutWarning, match=said):
        fit = world.fit(network, **PATIENT)
    np.testing.assert_allclose(fit.posterior.precision, without(world, "bo").precision, rtol=1e-9)


@pytest.mark.parametrize("names", [["bo"], ["ada", "bo", "cy", "di"]], ids=["one", "all"])
def test_a_first_round_without_a_sum_ends_the_fit_and_puts_nobody_out(secure, monkeypatch, names, tmp_path):
    """One round tells nothing of a site; where all have nothing to add, the advice is about the priors."""
    world = secure(**FOUR)
    monkeypatch.setattr(Alone, "reply", nothing_from(*(world.data[name]["y"] for name in names)))
    with pytest.raises(FederatedError, match=r"no client's message could be used.*proper priors") as ended:
        world.fit(**PATIENT, checkpoint=tmp_path / "fit")
    assert "The server has begun one" not in str(ended.value)
    assert list(tmp_path.glob("*put-out*")) == []


def test_sites_whose_owners_have_set_no_fewest_do_not_add_up_without_one_and_all_are_named(secure):
    """The difference of the two runs' first sums would be the term of the site that was put out."""
    world = secure(**FOUR | {"policy": STRICT})
    (world.folder / "cy" / "policy.toml").write_text(FOUR["policy"])
    said = (
        r"The sites \['bo'\] have answered 3 times what can't be used.*begun one, over \['ada', 'cy', 'di'\].*"
        r"'ada' wants more sites.*at least 4 sites, and there are 3. So do the sites \['di'\].*policy says `fewest = 3`"
        r".*the difference of two runs tells about the site that left"
    )
    with pytest.raises(FederatedError, match=said):
        world.fit(world.network(disturb=rubbish_of_bo), **PATIENT)


def test_sites_that_take_turns_at_having_nothing_to_add_are_not_put_out(secure, monkeypatch):
    world, reply = secure(**FOUR), Alone.reply

    def nothing_of_one(alone, order, secret=None):
        found = reply(alone, order, secret)
        if int(alone.client.index) != network.count % 2:
            return found
        total = jax.tree.map(np.zeros_like, found.total)
        return found._replace(total=total, code=np.full_like(found.code, int(ResultCode.NOT_FINITE)))

    monkeypatch.setattr("fedbayes.network.server.remote._MOST_IDLE", 2)
    network = world.network()
    network.before = lambda count: count == 5 and monkeypatch.setattr(Alone, "reply", nothing_of_one)
    with pytest.raises(FederatedError, match="no secure sum for 2 rounds") as ended:
        world.fit(network, **PATIENT)
    assert "The server has begun one" not in str(ended.value)


def rounds_to(network):
    """How many messages of rounds each run has sent, by its sites."""
    found = {}
    for each in map(unpack, network.sent):
        if each.header["kind"] == "round":
            names = tuple(each.header["charter"]["names"])
            found[names] = found.get(names, 0) + 1
    return found


ALL, OTHERS = ("ada", "bo", "cy", "di"), ("ada", "cy", "di")
GONE = {"bo": "has answered 3 times what can't be used"}


@pytest.mark.filterwarnings("ignore::fedbayes.errors.SiteLeftOutWarning")
@pytest.mark.parametrize("begins", [2, 5], ids=["in the first round", "later"])
def test_a_fit_that_is_started_again_goes_on_with_the_newest_run(secure, tmp_path, begins):
    """With the site that was put out away, and with or without a checkpoint of the run that it has ended."""
    world, options = secure(**FOUR), PATIENT | {"checkpoint": tmp_path / "fit"}
    bad = lambda count, sender, answer: b"?" if count > begins and sender == 2 else answer  # noqa: E731
    first = world.fit(world.network(disturb=bad), **options)
    assert (tmp_path / "fit").exists() == (begins > 2)
    again = world.network()
    del again.sites[2]
    second = world.fit(again, **options)
    assert rounds_to(again) == {}  # it is over
    np.testing.assert_array_equal(first.posterior.shift, second.posterior.shift)
    assert second.fitted.put_out == GONE
    (tmp_path / "fit.put-out.json").unlink()
    mended = world.fit(**options)
    assert mended.fitted.put_out == {}
    assert mended.fitted.roster.names == ALL


@pytest.mark.filterwarnings("ignore::fedbayes.errors.SiteLeftOutWarning")
def test_a_new_run_that_had_no_round_is_begun_again_without_the_site(secure, tmp_path):
    world, options = secure(**FOUR | {"policy": STRICT}), PATIENT | {"checkpoint": tmp_path / "fit"}
    with pytest.raises(FederatedError, match=r"wants more sites") as ended:
        world.fit(world.network(disturb=rubbish_of_bo), **options)
    file = tmp_path / "fit.put-out.json"
    assert f"remove '{file}'" in str(ended.value)
    for name in OTHERS:
        (world.folder / name / "policy.toml").write_text(FOUR["policy"])
    again = world.network()
    del again.sites[2]
    assert world.fit(again, **options).fitted.put_out == GONE
    assert set(rounds_to(again)) == {OTHERS}
    with pytest.raises(FederatedError, match=r"\['ada', 'cy', 'di', 'bo'\], and 3 sites are asked for"):
        world.fit(**options | {"num_clients": 3})
    file.write_text(file.read_text().replace(world.study.digest, "0"))
    with pytest.raises(FederatedError, match="is of another study"):
        world.fit(**options)


MANY = ("a", "b", "c", "d", "e", "f")


@pytest.mark.parametrize(
    ("others", "is_private", "num"),
    [(MANY, True, 0), (("ada", "bo"), False, 0), (MANY, False, 2)],
    ids=["noise", "two sites", "two sites out"],
)
def test_when_no_run_is_begun_without_a_site(monkeypatch, others, is_private, num):
    """Noise would be charged once more, two sites would have to send single messages, and who is next?"""
    runs = []

    def without_end(register, asked, num, sites, left):
        runs.append(num)
        assert sys.exc_info()[0] is None  # what the run before had in memory is free
        raise NoSum("Nothing.", {f"bad {len(runs)}": "was away"}, others[: len(others) - len(runs) + 1], "run")

    monkeypatch.setattr("fedbayes.network.fit._one_run", without_end)
    study = SimpleNamespace(configured=SimpleNamespace(is_private=is_private), digest="")
    register = SimpleNamespace(study=study, forget=lambda sites: None)
    with pytest.raises(FederatedError, match="Nothing") as ended:
        _fitted(register, SimpleNamespace(checkpoint=None), 7, ())
    assert runs == [7, 6, 5][: 1 + num]
    assert str(ended.value).count("It has ended as well.") == num


@pytest.mark.parametrize(
    "reason", [Refusal.APPROVAL, Refusal.POLICY, Refusal.DISCLOSURE, Refusal.MODEL, Refusal.FAILED]
)
def test_a_site_that_refuses_ends_the_fit_by_its_own_words_and_is_not_put_out(secure, reason):
    world = secure(**FOUR)
    no = pack({"kind": "refusal", "site": "bo", "reason": reason.name})
    network = world.network(disturb=lambda count, sender, answer: no if count > 5 and sender == 2 else answer)
    with pytest.raises(FederatedError) as ended:
        world.fit(network, **PATIENT)
    assert str(ended.value).startswith(f"Site 'bo' {reason.value}. A secure sum needs all sites.")
    assert set(rounds_to(network)) == {ALL}


def test_a_program_that_fails_at_the_transport_is_waited_for_as_one_that_is_away(secure):
    """A worker that is started again, or has too little memory, is back before the patience ends."""
    world = secure(**FOUR)
    gone = lambda count, sender, answer: Failure.FAILED if 5 < count < 10 and sender == 2 else answer  # noqa: E731
    network = world.network(disturb=gone)
    fit = world.fit(network, **PATIENT)
    assert fit.fitted.put_out == {}
    assert set(rounds_to(network)) == {ALL}


@pytest.mark.parametrize("bad", ["damage", "refusals"])
def test_answers_that_are_of_no_use_are_counted_anew_after_one_that_is(secure, bad):
    """Bo's are bad twice, good while cy is away, and bad twice again: not three times in a row."""
    world = secure(**FOUR)
    what = b"?" if bad == "damage" else pack({"kind": "refusal", "site": "bo", "reason": "MODEL"})

    def disturb(count, sender, answer):
        if sender == 3 and count == 8:
            return Failure.LATE
        return what if sender == 2 and count in (6, 7, 9, 10) else answer

    fit = world.fit(world.network(disturb=disturb), **PATIENT)
    assert fit.fitted.put_out == {}
    assert fit.fitted.roster.names == ALL


def test_a_refusal_for_lack_of_sites_ends_the_fit_after_the_rounds_as_well(secure):
    world = secure(**FOUR)
    fewest = pack({"kind": "refusal", "site": "bo", "reason": "FEWEST", "found": {"fewest": 9, "sites": 4}})

    def disturb(count, sender, answer):
        return fewest if sender == 2 and b'"kind": "conclude"' in answer else answer

    with pytest.raises(FederatedError, match="at least 9 sites, and there are 4"):
        world.fit(world.network(disturb=disturb), **PATIENT)


def test_a_fit_without_a_site_warns_of_its_answer_too_and_is_saved_as_what_it_is(federation, tmp_path):
    fit = federation(LAPLACE).here()
    fitted = replace(fit.fitted, put_out=GONE, unchecked="The check has failed.")
    with pytest.warns(SiteLeftOutWarning, match="without the data of bo"), pytest.warns(UnreliableWarning):
        warn_of_trouble(FederatedFit(fitted), 2)
    FederatedFit(fitted).save(tmp_path / "fit")
    assert read_meta(tmp_path / "fit").put_out == GONE
    assert "without the data of bo" in fb.load_fit(tmp_path / "fit").trouble()
    FederatedFit(fitted).report(tmp_path / "report.md")
    assert "Put out: bo, which has answered" in (tmp_path / "report.md").read_text()


def test_an_end_without_a_site_is_a_fit_without_its_check(secure, caplog):
    """Two of three have answered after the rounds, and their masks stay on."""
    world = secure()
    network = world.network(
        disturb=lambda count, sender, answer: [] if b'"after"' in answer and sender == 3 else answer
    )
    fit = world.fit(network, secure_sums=True, correct=True)
    assert "The posterior is not checked" in caplog.text
    assert np.isfinite(np.asarray(fit.theta)).all()
