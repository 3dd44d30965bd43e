"""What goes wrong on a network: the answer stays right, or the fit stops and says why."""

import logging
from collections import Counter
from dataclasses import replace
from functools import partial

import jax
import numpy as np
import numpyro
import numpyro.distributions as dist
import pytest

import fedbayes as fb
from fedbayes.errors import FederatedError, NotConvergedWarning, ResultCode
from fedbayes.network.conclusion import client_posterior
from fedbayes.network.messages import pack, unpack
from fedbayes.network.server.remote import Patience
from fedbayes.network.transport import Failure, NodeKey
from fedbayes.rounds.programs import client_secrets
from fedbayes.rounds.wire import arrays_of, encode

KEY = jax.random.key(3)  # of all fits here
ROUND = 3  # the third exchange is the first round: before it sites say hello, and read the model
ADA, CY = 1, 3  # addresses
UNEQUAL = (4, 7, 9)  # numbers of rows
ANOTHER_WAY = {
    "rtol": 2e-5,
    "atol": 2e-5,
}  # to the fixed point: a search for a mode stops at its own tolerance, wherever it starts


def theta(fit):
    return np.asarray(fit.posterior.shift), np.asarray(fit.posterior.precision)


def assert_same(ours, theirs, **tolerance):
    for one, two in zip(theta(ours), theta(theirs), strict=True):
        np.testing.assert_allclose(one, two, **tolerance)


@pytest.fixture
def undisturbed(federation):
    return federation().here()


def edited(answer, change):
    """The answer with other arrays."""
    message = unpack(answer)
    header = {name: value for name, value in message.header.items() if name != "format"}
    return pack(header, encode(change(arrays_of(message.body))))


@pytest.mark.parametrize(("kind", "rows"), [("threefry2x32", UNEQUAL), ("rbg", (9, 9, 9))])
def test_a_network_gives_the_answer_of_one_process(federation, kind, rows):
    world = federation(rows=rows)
    fit = world.fit(key=jax.random.key(3, impl=kind), correct=True)
    assert_same(fit, world.here(), rtol=1e-10)
    assert fit.converged
    assert set(fit.idata.posterior.data_vars) == {"mu", "tau"}


def test_a_client_that_is_slow_is_left_out_of_its_round_and_its_last_message_stays(federation, undisturbed):
    """Rounds 2 and 3 go on without it; EP's sites lead to the same fixed point."""
    fit = federation().fit(
        federation().network(disturb=lambda n, at, answer: Failure.LATE if at == CY and n in (4, 5) else answer)
    )
    rounds = fit.rounds.sel(client="cy")
    assert rounds["code"][:4, 0].values.tolist() == [0, ResultCode.NO_REPLY, ResultCode.NO_REPLY, 0]
    assert rounds["staleness"].values.tolist()[:4] == [0, 1, 2, 0]
    assert fit.rounds.sel(client="ada")["staleness"].values.max() == 0
    assert_same(fit, undisturbed, **ANOTHER_WAY)


def test_a_client_that_dies_for_good_keeps_its_last_message(federation):
    """EP: the posterior still holds what it has said; the fit says that it has not converged with everybody."""
    network = federation().network(disturb=lambda n, at, answer: Failure.GONE if at == CY and n in (5, 6) else answer)
    with pytest.warns(NotConvergedWarning, match=r"client 'cy' did not answer .* 2 rounds ago"):
        fit = federation().fit(network, num_rounds=3)
    assert fit.rounds.sel(client="cy")["staleness"].values.tolist() == [0, 0, 1, 2]


def test_a_client_that_is_away_after_the_rounds_costs_the_check_and_not_the_posterior(federation, undisturbed, caplog):
    """Its message counts; the check needs it in person, and the log says so."""
    after = undisturbed.rounds.sizes["round"] + ROUND
    network = federation().network(disturb=lambda n, at, answer: Failure.GONE if at == CY and n >= after else answer)
    fit = federation().fit(network, correct=True)
    assert_same(fit, undisturbed, rtol=1e-10)
    assert fit.correction is None
    assert "The posterior is not checked" in caplog.text
    with pytest.raises(ValueError, match="or a client was away when the rounds were over"):
        _ = fit.error
    assert not hasattr(fit.idata, "log_likelihood")
    assert np.isfinite(fit.idata.posterior["mu"]).all()


def test_a_restarted_client_goes_on_from_its_disk(federation, tmp_path, monkeypatch):
    """Each request may meet a new process, as it does with Flower: the answer is the same bit for bit."""
    world = federation(fb.EP(solver="importance", num_samples=64, num_replicates=2))
    monkeypatch.setattr("fedbayes.network.server.remote.secrets.token_hex", lambda size: "ab" * size)
    expected = world.fit(num_rounds=4, correct=False)
    world.folder = tmp_path / "again"
    world.same_secrets(tmp_path / "sites")
    network = world.network()

    def restarted(count):
        network.sites = {at: world.site(site.name) for at, site in network.sites.items()}

    network.before = restarted
    fit = world.fit(network, num_rounds=4, correct=False)
    np.testing.assert_array_equal(fit.theta, expected.theta)


@pytest.mark.parametrize("losses", [(ROUND + 1,), (ROUND + 1, ROUND + 2), (ROUND, ROUND + 4)])
def test_a_client_that_has_lost_its_disk_costs_time_and_not_correctness(federation, undisturbed, tmp_path, losses):
    """Its site is gone: it says so, all sites are counted anew, and EP goes on to the same fixed point."""
    world = federation()
    network = world.network()

    def replaced(count):
        if count in losses:
            network.sites[CY] = world.site("cy", folder=tmp_path / f"new{count}")

    network.before = replaced
    fit = world.fit(network)
    assert np.any(fit.rounds.sel(client="cy")["code"] == ResultCode.LOST)
    assert_same(fit, undisturbed, **ANOTHER_WAY)


def test_a_client_that_keeps_nothing_is_named(federation, tmp_path):
    """Each of its messages meets an empty folder: no round can use it, and the fit says why."""
    world = federation()
    network = world.network()

    def replaced(count):
        network.sites[CY] = world.site("cy", folder=tmp_path / f"new{count}")

    network.before = replaced
    with pytest.warns(NotConvergedWarning, match=r"Client 'cy': it has lost what it kept.*folder that stays"):
        world.fit(network, num_rounds=4)


def test_an_answer_that_comes_twice_counts_once(federation, undisturbed):
    fit = federation().fit(federation().network(disturb=lambda n, at, answer: [answer, answer]))
    assert_same(fit, undisturbed, rtol=1e-10)


def test_an_answer_to_an_old_round_is_refused(federation, undisturbed, caplog):
    old = {}

    def replay(n, at, answer):
        if at != CY or n < ROUND:
            return answer
        old.setdefault("answer", answer)
        return old["answer"] if n == ROUND + 1 else answer

    fit = federation().fit(federation().network(disturb=replay))
    assert fit.rounds.sel(client="cy")["code"][1, 0] == ResultCode.REFUSED
    assert "another round" in caplog.text
    assert_same(fit, undisturbed, **ANOTHER_WAY)


def with_numbers(arrays, number):
    return {name: np.full_like(a, number) if name.startswith("total") else a for name, a in arrays.items()}


SPOILED = {
    "NaN": lambda arrays: with_numbers(arrays, np.nan),
    "absurd precision": lambda arrays: with_numbers(arrays, 1e40),
    "wrong shape": lambda arrays: {name: array[..., None] for name, array in arrays.items()},
    "wrong dtype": lambda arrays: {name: array.astype(np.float32) for name, array in arrays.items()},
    "wrong names": lambda arrays: {f"{name}s": array for name, array in arrays.items()},
    "empty": lambda arrays: {},
}
GARBAGE = (b"", b"no archive", b"\x80\x04K\x01.", b"PK\x03\x04 half of one")


def test_messages_that_can_not_be_meant_are_refused(federation, undisturbed):
    """One after the other, from the second round on."""
    changes = [lambda answer, change=change: edited(answer, change) for change in SPOILED.values()]
    changes += [lambda answer, garbage=garbage: garbage for garbage in GARBAGE]

    def spoil(n, at, answer):
        place = n - ROUND - 1
        return changes[place](answer) if at == CY and 0 <= place < len(changes) else answer

    slow = federation(fb.EP(solver="laplace", num_replicates=1, tolerance=1e-9, damping=0.3))
    fit = slow.fit(slow.network(disturb=spoil), num_rounds=80)
    codes = fit.rounds.sel(client="cy")["code"].values[:, 0].tolist()
    assert codes[: len(changes) + 2] == [ResultCode.OK, *[ResultCode.REFUSED] * len(changes), ResultCode.OK]
    assert_same(fit, undisturbed, **ANOTHER_WAY)


def test_the_network_notices_a_planted_change(federation, undisturbed):
    """Negative control: a number that could be meant is used, and moves the answer."""

    def larger(arrays):
        return {name: array * 1.5 if name.startswith("total") else array for name, array in arrays.items()}

    def move(n, at, answer):
        return edited(answer, larger) if (n, at) == (ROUND + 1, CY) else answer

    with pytest.warns(NotConvergedWarning):
        fit = federation().fit(federation().network(disturb=move), num_rounds=2)
    assert not np.allclose(theta(fit)[0], theta(undisturbed)[0], rtol=1e-3)


def test_below_the_fewest_clients_the_server_waits_and_stops_with_its_state_saved(
    federation, undisturbed, tmp_path, caplog
):
    world, checkpoint = federation(), tmp_path / "fit.npz"
    network = world.network(disturb=lambda n, at, answer: Failure.LATE if at != 1 and n > ROUND else answer)
    # the first request may compile: the server must not have given up by then
    patience = Patience(round_timeout=1.0, min_clients=2, give_up_after=3.0)
    with pytest.raises(FederatedError, match=r"1 clients have answered .* 2 are needed.*\['bo', 'cy'\]"):
        world.fit(network, patience=patience, checkpoint=checkpoint)
    assert "Waiting for ['bo', 'cy']" in caplog.text
    assert checkpoint.exists()
    assert_same(federation().fit(checkpoint=checkpoint), undisturbed, **ANOTHER_WAY)


def shared_mean(y):
    numpyro.sample("y", dist.Normal(numpyro.sample("mu", dist.Normal(0.0, 2.0)), 0.7), obs=y)


class Killed(BaseException):
    """Stands for SIGKILL."""


def kill_at(moment, count):
    if count == moment:
        raise Killed


# chains alone: EP has two phases, the first one a search for the mode
CHAINS = fb.FALD(
    init="zero", preconditioner="none", num_chains=2, local_steps=2, thinning=1, num_warmup=0, step_size=0.01
)
METHODS = {"ep": fb.EP(solver="importance", num_samples=64, num_replicates=2), "fald": CHAINS}


@pytest.mark.parametrize("name", METHODS)
@pytest.mark.filterwarnings("ignore::fedbayes.errors.NotConvergedWarning", "ignore::fedbayes.errors.UnreliableWarning")
def test_a_server_killed_at_any_moment_goes_on_to_the_same_answer(federation, name, tmp_path):
    """Bit for bit, clients restarted too: an order that comes again finds the private state before it."""
    world = federation(METHODS[name])
    options = {"num_draws": 6, "num_rounds": 4 if name == "ep" else 12, "correct": False}
    network = world.network()
    expected = world.fit(network, checkpoint=tmp_path / "whole.npz", **options)
    locals_ = [np.asarray(client_posterior(site).posterior["own"]) for site in network.sites.values()]
    total = network.count
    assert total > 6
    for moment in {*range(ROUND, total, 2 if name == "ep" else 5), total}:  # the last one ends the run
        folder = tmp_path / f"killed{moment}"
        world.folder = folder
        world.same_secrets(tmp_path / "sites")  # and so the same draws

        interrupted = world.network(before=partial(kill_at, moment))
        run = {"checkpoint": folder / "fit.npz", **options}
        with pytest.MonkeyPatch.context() as patch:  # the same run's name, of which secrets are made
            patch.setattr(
                "fedbayes.network.server.remote.secrets.token_hex", lambda size: expected.fitted.executor.run_name
            )
            with pytest.raises(Killed):
                world.fit(interrupted, **run)
            resumed = world.network()
            fit = world.fit(resumed, **run)
        np.testing.assert_array_equal(np.asarray(fit.theta), np.asarray(expected.theta), err_msg=f"killed at {moment}")
        again = [np.asarray(client_posterior(site).posterior["own"]) for site in resumed.sites.values()]
        for one, two in zip(again, locals_, strict=True):
            np.testing.assert_array_equal(one, two, err_msg=f"killed at {moment}")


def test_a_run_is_resumed_without_a_client_that_is_away(federation, undisturbed, tmp_path):
    world, checkpoint = federation(), tmp_path / "fit.npz"
    with pytest.raises(Killed):
        world.fit(world.network(before=partial(kill_at, ROUND + 1)), checkpoint=checkpoint)
    network = world.network()
    away = network.sites.pop(CY)

    def back(count):
        if count == 4:
            network.sites[CY] = away

    network.before = back
    fit = world.fit(network, checkpoint=checkpoint)
    assert fit.rounds.sel(client="cy")["staleness"].values.max() > 0
    assert_same(fit, undisturbed, **ANOTHER_WAY)


def test_a_site_that_comes_late_is_named_and_takes_no_part(federation, undisturbed, caplog):
    world = federation()
    world.data["dee"] = {"y": np.ones(3)}
    network = world.network()
    late = network.sites.pop(4)

    def come(count):
        if count == ROUND + 1:
            network.sites[4] = late

    network.before = come
    assert_same(world.fit(network), undisturbed, rtol=1e-10)
    assert "Site dee came after the first round" in caplog.text


def test_a_site_that_comes_back_under_another_address_counts_once(federation, undisturbed, caplog):
    """A node that is killed and restarted without keys has another address; its data must not count twice."""
    world = federation()
    network = world.network()

    def move(count):
        if count == ROUND + 1:
            network.sites[9] = network.sites[CY]
            network.sites[CY] = None  # dead, but still listed

    network.before = move
    fit = world.fit(network)
    assert_same(fit, undisturbed, **ANOTHER_WAY)
    assert "Site cy is back as another node" in caplog.text
    assert fit.client_names == ("ada", "bo", "cy")


def test_two_live_nodes_that_claim_one_site_are_refused(federation):
    world = federation()
    network = world.network()

    def double(count):
        if count == ROUND + 1:
            network.sites[9] = world.site("cy")

    network.before = double
    with pytest.raises(FederatedError, match=r"both there .* site 'cy'.* count twice"):
        world.fit(network)


def test_two_nodes_that_claim_one_site_are_refused_before_the_first_round(federation):
    world = federation()
    network = world.network()
    network.sites[9] = world.site("cy")
    with pytest.raises(FederatedError, match="site 'cy'"):
        world.fit(network, num_clients=4)


def test_a_site_is_bound_to_its_key(federation):
    world = federation()
    network = world.network()
    network.keys = {1: NodeKey("a"), 2: NodeKey("b"), CY: NodeKey("c"), 9: NodeKey("stranger")}

    def impostor(count):
        if count == ROUND + 1:
            network.sites[9], network.sites[CY] = network.sites[CY], None

    network.before = impostor
    with pytest.raises(FederatedError, match=r"different keys .* site 'cy'"):
        world.fit(network)


def test_a_site_is_bound_to_its_key_when_a_run_is_resumed(federation, tmp_path):
    world, checkpoint = federation(), tmp_path / "fit.npz"
    network = world.network(before=partial(kill_at, ROUND + 1))
    network.keys = {1: NodeKey("a"), 2: NodeKey("b"), CY: NodeKey("c")}
    with pytest.raises(Killed):
        world.fit(network, checkpoint=checkpoint)
    again = world.network()
    again.keys = network.keys | {CY: NodeKey("stranger")}
    with pytest.raises(FederatedError, match=r"different keys .* site 'cy'"):
        world.fit(again, checkpoint=checkpoint)


def test_a_node_that_was_registered_under_another_name_takes_no_part(federation, caplog):
    world = federation()
    network = world.network()
    network.keys = {1: NodeKey("a", "ada"), 2: NodeKey("b", "bo"), CY: NodeKey("c", "dee")}
    with pytest.raises(FederatedError, match="and 3 in all are needed"):
        world.fit(network, join_timeout=0.2)
    assert "registered as 'dee' says that it holds the data of site 'cy'" in caplog.text


def test_an_error_in_a_client_travels_as_a_code(federation, caplog):
    """The text of an exception may hold data; it stays in the client's log."""
    world = federation()

    def load(config):
        raise RuntimeError(f"cannot read row {make_secret()}")

    def make_secret():
        return "7.389056"

    network = world.network()
    network.sites[CY] = world.site("cy", load=load)
    with caplog.at_level(logging.ERROR), pytest.raises(FederatedError, match=r"\['ada', 'bo'\] have joined, and 3"):
        world.fit(network, join_timeout=0.2)
    assert not any(b"7.389056" in answer for answer in network.answered)
    assert "7.389056" in caplog.text  # at the client
    assert "Site cy takes no part: it has data that can't be used" in caplog.text


def test_a_client_that_raises_in_a_round_is_named(federation, undisturbed, monkeypatch):
    world = federation()
    network = world.network()
    calls = Counter()

    def fail(count):
        site = network.sites[CY]
        calls[count] += 1
        if count == ROUND + 1:
            monkeypatch.setattr(site, "session", lambda header: 1 / 0)
        elif count == ROUND + 2:
            monkeypatch.undo()

    network.before = fail
    fit = world.fit(network)
    assert fit.rounds.sel(client="cy")["code"][1, 0] == ResultCode.FAILED
    assert_same(fit, undisturbed, **ANOTHER_WAY)


def test_a_client_built_for_another_study_is_refused_with_the_difference(federation, caplog):
    world, other = federation(), federation(fb.EP(solver="laplace", damping=0.25, num_replicates=1))
    network = world.network()
    network.sites[CY] = other.site("cy")
    with pytest.raises(FederatedError, match="and 3 in all are needed"):
        world.fit(network, join_timeout=0.2)
    assert "The method differs" in caplog.text
    assert "damping=0.25" in caplog.text


def test_changed_data_are_refused_when_a_run_is_resumed(federation, tmp_path):
    world, checkpoint = federation(), tmp_path / "fit.npz"
    with pytest.raises(Killed):
        world.fit(world.network(before=partial(kill_at, ROUND + 1)), checkpoint=checkpoint)
    world.data["cy"] = {"y": world.data["cy"]["y"] + 1.0}
    with pytest.raises(FederatedError, match="Site 'cy' has other data than when this run began"):
        world.fit(checkpoint=checkpoint)


def test_other_shapes_are_refused_when_a_site_comes_back(federation, tmp_path):
    world = federation()
    network = world.network()

    def grown(count):
        if count == ROUND + 1:
            world.data["cy"] = {"y": np.ones(12)}
            network.sites[9], network.sites[CY] = world.site("cy"), None

    network.before = grown
    with pytest.raises(FederatedError, match="'cy' has come back with other data"):
        world.fit(network)


def test_what_is_a_clients_own_never_leaves_it(federation):
    """Neither the server asks for it, nor would a client answer."""
    fit = federation().fit()
    for ask in (
        lambda: fit.client_posterior("ada"),
        lambda: fit.check(),
        lambda: fit.predict("ada", y=np.zeros(2)),
        lambda: fit.predictive_check(),
        lambda: fit.loo_rows(),
    ):
        with pytest.raises(fb.ClientDataError, match="stay with the client"):
            ask()
    remote = fit.fitted.executor
    header = {"kind": "after", **remote._about(0), "update": "given"}
    arrays = {"shared": fit.theta, "key": jax.random.key_data(KEY)}
    site = next(iter(remote._register.transport.sites.values()))
    told = unpack(site.answer(pack(header, encode(arrays)))).header
    assert told["kind"] == "refusal"
    assert told["reason"] == "PRIVATE"


def with_secrets_of_one_process(network, monkeypatch):
    """Sites draw what they would in one process, whose clients' secrets come from the fit's key."""
    secrets = np.asarray(jax.random.key_data(client_secrets(KEY, 3)))
    for site, secret in zip(network.sites.values(), secrets, strict=True):
        monkeypatch.setattr(site.vault, "secret", lambda run, data, secret=secret: secret.tobytes().hex())
    return network


def test_what_the_server_may_ask_after_the_rounds_works_over_the_network(federation, monkeypatch):
    """What needs each client's log-likelihoods at the server's draws: they are asked for, and counted."""
    world = federation()
    fit = world.fit(with_secrets_of_one_process(world.network(), monkeypatch), correct=True)
    ours, theirs = (each.leave_one_out() for each in (fit, federation().here(correct=True)))
    np.testing.assert_allclose(ours["elpd"], theirs["elpd"], rtol=1e-9)
    assert fit.exact(num_draws=20, max_exchanges=20, progress=False).posterior["mu"].shape[1] == 20


def persons(y):
    """A latent for each row, so that each client has another number of them."""
    mu = numpyro.sample("mu", dist.Normal(0.0, 2.0))
    with fb.local(), numpyro.plate("persons", len(y)):
        own = numpyro.sample("own", dist.Normal(mu, 1.0))
    numpyro.sample("y", dist.Normal(own, 0.7), obs=y)


def test_sites_pad_a_latent_of_each_row_as_they_would_be_padded_in_one_process(federation, monkeypatch):
    world = federation(fb.Laplace(), program=persons, rows=UNEQUAL)
    network = with_secrets_of_one_process(world.network(), monkeypatch)
    fit, here = world.fit(network, correct=True), world.here(correct=True)
    np.testing.assert_allclose(fit.theta, here.theta, rtol=1e-9)
    assert fit.fitted.roster.num_locals.tolist() == here.fitted.roster.num_locals.tolist() == [4, 7, 9]
    assert client_posterior(network.sites[CY]).posterior["own"].shape[2:] == (9,)
    assert client_posterior(network.sites[ADA]).posterior["own"].shape[2:] == (4,)


def test_a_fit_over_a_network_is_saved_and_says_what_it_is(federation, tmp_path):
    world = federation()
    network = world.network()
    days = np.arange("2026-01-01", "2026-01-03", dtype="M8[D]")
    fit = world.fit(network, coords={"day": days}, dims={"y": ["day"]})
    assert set(client_posterior(network.sites[CY]).posterior) == {"mu", "tau", "own"}
    other = federation(fb.EP(num_samples=128)).site(network.sites[CY].name)
    other.vault = network.sites[CY].vault
    with pytest.raises(FederatedError, match=r"was of study \w{8}, by EP\(.*; the study here is \w{8}, by EP\("):
        client_posterior(other)
    fit.save(tmp_path / "fit")
    assert (tmp_path / "fit" / "posterior.nc").exists()
    with pytest.raises(ValueError, match=r"made over a network, .* What was saved can be read: `fedbayes.load_fit\("):
        fb.load_fit(tmp_path / "fit", federation().model, federation().data)
    read = fb.load_fit(tmp_path / "fit")
    assert read.client_names == fit.client_names
    assert read.trouble() == fit.trouble()
    with pytest.raises(
        AttributeError, match=r"no `predict`.* made over a network, and its clients can't be asked again"
    ):
        read.predict(y=np.zeros(2))


def test_names_for_the_posterior_are_checked_before_the_first_round(federation, monkeypatch):
    monkeypatch.setattr("fedbayes.network.fit.Run", None)
    with pytest.raises(ValueError, match=r"`dims` names 'own_', which is none of .*\. Did you mean 'own'\?"):
        federation().fit(dims={"own_": ["ward"]})


def test_private_states_are_readable_by_their_owner_only(federation):
    world = federation()
    world.fit()
    files = [file for file in world.folder.rglob("*") if file.is_file()]
    assert files
    assert all(file.stat().st_mode & 0o077 == 0 for file in files)
    assert all(folder.stat().st_mode & 0o077 == 0 for folder in (world.folder / "cy", world.folder / "cy" / "runs"))


def some_have_their_own(y, has):
    mu = numpyro.sample("mu", dist.Normal(0.0, 2.0))
    own = 0.0
    if has:
        with fb.local():
            own = numpyro.sample("own", dist.Normal(0.0, 0.5))
    numpyro.sample("y", dist.Normal(mu + own, 0.7), obs=y)


@pytest.mark.parametrize(
    "method", [fb.EP(solver="laplace", init="prior", num_replicates=2), CHAINS], ids=["ep", "fald"]
)
@pytest.mark.filterwarnings("ignore::fedbayes.errors.NotConvergedWarning", "ignore::fedbayes.errors.UnreliableWarning")
def test_a_client_without_latents_of_its_own_has_the_globals_as_its_posterior(federation, method):
    """Where the others have some."""
    world = federation(method, program=some_have_their_own)
    world.data = {site: {**data, "has": site != "bo"} for site, data in world.data.items()}
    network = world.network()
    fit = world.fit(network, num_draws=6, correct=False, num_rounds=3 if method is not CHAINS else 12)
    found = {site.name: client_posterior(site).posterior for site in network.sites.values()}
    assert [set(each.data_vars) for each in found.values()] == [{"mu", "own"}, {"mu"}, {"mu", "own"}]
    np.testing.assert_array_equal(found["bo"]["mu"], fit.idata.posterior["mu"])


WRONG = {
    "no clients": {"num_clients": 0},
    "less than none": {"num_clients": -1},
    "a text": {"num_clients": None, "sites": "ada"},
    "twice": {"num_clients": None, "sites": ["ada", "ada", "bo"]},
    "both": {"num_clients": 2, "sites": ["ada", "bo"]},
    "neither": {"num_clients": None},
}


@pytest.mark.parametrize("which", WRONG)
def test_who_takes_part_must_be_clear(federation, which):
    with pytest.raises(ValueError, match=r"num_clients|sites"):
        federation().fit(**WRONG[which])


def test_a_site_that_is_there_and_not_wanted_is_named(small_federation, caplog):
    """Whose data are in the answer is never a matter of who was first in the alphabet, unsaid."""
    assert small_federation().fit(num_clients=2, num_rounds=40).client_names == ("ada", "bo")
    assert "The sites ['cy'] are there and take no part" in caplog.text


@pytest.mark.parametrize("asked", [{"num_clients": 2}, {"num_clients": None, "sites": ["ada", "bo", "dee"]}])
def test_a_run_that_is_resumed_with_other_sites_is_refused(federation, tmp_path, asked):
    """Its checkpoint would answer for the old ones."""
    world, checkpoint = federation(), tmp_path / "fit.npz"
    with pytest.raises(Killed):
        world.fit(world.network(before=partial(kill_at, ROUND + 1)), checkpoint=checkpoint)
    with pytest.raises(FederatedError, match=r"has the sites \['ada', 'bo', 'cy'\]"):
        world.fit(checkpoint=checkpoint, **asked)


def test_a_site_reads_its_data_anew_for_each_run(federation):
    """Its process may live on between two runs, and its file be corrected meanwhile."""
    world, reads = federation(), Counter()
    network = world.network()

    def load(config):
        reads[config["site-id"]] += 1
        return world.data[config["site-id"]]

    network.sites[CY] = world.site("cy", load=load)
    before = world.fit(network)
    assert reads["cy"] == 1
    world.data["cy"]["y"] += 1.0  # in place
    after = world.fit(network)
    assert reads["cy"] == 2
    assert_same(after, world.here(), rtol=1e-10)
    assert not np.allclose(theta(after)[0], theta(before)[0], rtol=1e-3)


@pytest.mark.filterwarnings("ignore::fedbayes.errors.NotConvergedWarning")
def test_a_point_of_its_own_that_is_lost_is_not_made_up(federation, tmp_path):
    """A personalised client's own point is in its private state; the first one of the run would look like an answer."""
    world = federation(fb.FedAvg(local_steps=2, fairness=fb.GIFAIR(personalised=True)), program=shared_mean)
    network = world.network()

    def replaced(count):
        if count == told_last:
            network.sites[CY] = world.site("cy", folder=tmp_path / "new")

    told_last = 0
    world.fit(network, num_rounds=3)
    told_last, network.count, network.before = network.count, 0, replaced
    world.fit(network, num_rounds=3)
    assert "mu" in client_posterior(network.sites[1]).posterior
    with pytest.raises(FederatedError, match="own point of this run is lost"):
        client_posterior(network.sites[CY])


@pytest.mark.filterwarnings("ignore::fedbayes.errors.NotConvergedWarning")
def test_clients_that_sit_rounds_out_keep_their_part_of_every_draw(federation, monkeypatch):
    """A client hears with its next order of the draws that were made without it: it has the draws of one process."""
    world = federation(replace(CHAINS, scheme="with_replacement", num_active=1))
    options = {"num_draws": 12, "num_rounds": 12}
    expected = world.here(**options)
    network = with_secrets_of_one_process(world.network(), monkeypatch)
    fit = world.fit(network, **options)
    np.testing.assert_allclose(fit.theta, expected.theta, rtol=1e-10)
    for site in network.sites.values():
        ours, theirs = (
            np.asarray(each.posterior["own"]) for each in (client_posterior(site), expected.client_posterior(site.name))
        )
        np.testing.assert_allclose(ours, theirs, rtol=1e-10)


def test_a_folder_belongs_to_one_site(federation, tmp_path):
    world = federation()
    world.site("ada", folder=tmp_path / "one")
    world.site("ada", folder=tmp_path / "one")
    with pytest.raises(fb.ClientDataError, match="keeps the private states of site 'ada', and this is site 'bo'"):
        world.site("bo", folder=tmp_path / "one")


def test_a_model_that_does_not_take_the_data_is_named_as_the_cause(federation):
    world = federation()
    world.data = {name: {"z": np.ones(3)} for name in world.data}
    with pytest.raises(FederatedError, match="can't run the model on its data; its own log says why"):
        world.fit()
