"""Noisy answers over a network: each site's own account and budget, noise that never repeats, nothing exact beside it.

The server is taken to send any message it likes. What a reply tells of a record is bounded exactly: with the key of the
noise held fixed, data that differ in one wild row move the reply by no more than the account says.
"""

import json
import shutil
import stat
import sys
import warnings
from dataclasses import replace
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import numpyro
import numpyro.distributions as dist
import pytest
from permissive import PERMISSIVE
from typer.testing import CliRunner

import fedbayes as fb
from fedbayes.cli.main import app
from fedbayes.errors import ClientDataError, FederatedError, NotConvergedWarning
from fedbayes.network.client import private
from fedbayes.network.client.journal import as_text as log_text
from fedbayes.network.client.ledger import Account, Ledger, as_text
from fedbayes.network.client.policy import Budget, read_policy
from fedbayes.network.client.reading import _looked_at
from fedbayes.network.fit import fit_over
from fedbayes.network.messages import Refused, pack, unpack
from fedbayes.network.rehearsal import Rehearsal
from fedbayes.network.server.remote import Patience
from fedbayes.network.site import Site
from fedbayes.network.study import Study
from fedbayes.numerics.accounting import ORDERS, Release, divergences, epsilon_of
from fedbayes.rounds.wire import arrays_of, encode
from fedbayes.runtime.lru import Kept
from fedbayes.runtime.precision import computing

PLENTY = Budget(1e9, 1e-5)
METHOD = fb.FALD(
    init="zero", preconditioner="none", step_size=1e-4, local_steps=2, clip=1.5, noise_correlation=0.0, num_chains=2,
    num_warmup=2, thinning=1,
)  # fmt: skip


def model(y):
    mu = numpyro.sample("mu", dist.Normal(0.0, 2.0))
    numpyro.sample("y", dist.Normal(mu, 1.0), obs=y)


def make_data() -> dict:
    rng = np.random.default_rng(0)
    return {name: {"y": rng.normal(0.5, 1.0, size=n)} for name, n in (("ada", 40), ("bo", 55), ("cy", 55))}


ENDS = {
    "schedule": {"step_size": lambda k: 1e-4 * jnp.clip(1.0 - k / 100.0, 0.0, 1.0)},
    "batches": {"batch_size": 10},
}


class Sites:
    """Three sites with budgets, and the requests that they got in a short fit."""

    def __init__(self, folder, budget=PLENTY, method=METHOD, data=None):
        self.folder, self.study, self.data = folder, Study(model, method), data or make_data()
        self.policy = folder / "policy.toml"
        folder.mkdir(exist_ok=True)
        self.budget(budget)

    def budget(self, budget) -> None:
        table = "" if budget is None else f"[privacy]\nepsilon = {budget.epsilon}\ndelta = {budget.delta}\n"
        self.policy.write_text(Path(PERMISSIVE["policy"]).read_text() + table)

    def site(self, name="ada") -> Site:
        """As a new process would make it."""
        config = {"site-id": name, "state-dir": str(self.folder / name), "policy": str(self.policy)}
        return Site(self.study, lambda config: self.data[config["site-id"]], config)

    def fit(self, network=None, **options):
        self.network = network or Rehearsal(*map(self.site, self.data))
        given = {"key": jax.random.key(3), "num_clients": 3, "num_draws": 4, "progress": False, "join_timeout": 5.0}
        with warnings.catch_warnings():  # noise is fresh each time, and so is whether a few draws have mixed
            warnings.simplefilter("ignore", NotConvergedWarning)
            return fit_over(self.network, self.study, **({"secure_sums": False} | given | options))

    def requests(self, kind: str) -> list[bytes]:
        return [each for each in self.network.sent if unpack(each).header["kind"] == kind]

    def account(self, name="ada") -> Account:
        return Ledger(self.folder / name).read()


@pytest.fixture
def sites(tmp_path):
    return lambda *given, **options: Sites(tmp_path / "sites", *given, **options)


@pytest.fixture(scope="module")
def fitted(tmp_path_factory):
    """Sites that have been through a fit."""
    found = Sites(tmp_path_factory.mktemp("fitted") / "sites")
    found.ended = found.fit()
    return found


@pytest.fixture
def asked(fitted, sites):
    """The same in folders of the test's own, and the first round that one of them was asked."""
    shutil.copytree(fitted.folder, sites().folder, dirs_exist_ok=True)
    found = sites()
    found.ended, found.network = fitted.ended, fitted.network
    found.round = found.requests("round")[0]
    return found


def changed(request: bytes, header=(), **arrays) -> bytes:
    """A message with some of its words and arrays replaced."""
    message = unpack(request)
    told = arrays_of(message.body)
    assert set(arrays) <= {name.replace("/", "_") for name in told}
    body = {name: np.asarray(arrays.get(name.replace("/", "_"), array)) for name, array in told.items()}
    return pack({**message.header, **dict(header)}, encode(body))


def reason(answer: bytes) -> str:
    header = unpack(answer).header
    return header["reason"] if header["kind"] == "refusal" else ""


def position(answer: bytes) -> np.ndarray:
    """Where the steps ended, by chain and coordinate."""
    told = arrays_of(unpack(answer).body)
    return told["total/position"] / told["total/weight"][:, None]


def test_the_account_is_that_of_the_fit_s_own_mechanism(asked):
    """Golden numbers: the ledger's divergences are those of `mechanism_of`, twice for two chains."""
    found = fb.privacy.mechanism_of(asked.ended)
    assert (found.num_rounds, found.local_steps, found.num_chains, found.sensitivity) == (6, 2, 2, 3.0)
    for name, ratio in zip(asked.data, found.ratios, strict=True):
        account = asked.account(name)
        assert (account.answers, account.steps) == (6, 24)
        np.testing.assert_allclose(account.spent, 24 * 0.5 * ORDERS * ratio**2, rtol=1e-12)
    worst = max(asked.account(name).epsilon(1e-5) for name in asked.data)
    assert worst == pytest.approx(fb.privacy.renyi(found, delta=1e-5).epsilon, abs=1e-9)
    assert all(asked.account(name).bound(1e-5) >= asked.account(name).epsilon(1e-5) for name in asked.data)


def test_the_fit_says_what_it_is(asked):
    text = repr(asked.ended)
    assert "measured not with clipping, whose own bias is not known" in text
    assert "takes one more" not in text
    assert asked.requests("after") == []
    assert not hasattr(asked.ended.idata, "log_likelihood")
    with pytest.raises(FederatedError, match="answer in the rounds, with noise, and no questions"):
        asked.ended.leave_one_out()


def test_a_repeated_request_gets_other_noise_and_is_charged_again(asked, monkeypatch):
    site = asked.site()
    before = asked.account().answers
    found = [position(site.answer(asked.round)) for _ in range(5)]
    assert len({each.tobytes() for each in found}) == 5
    assert asked.account().answers == before + 5
    # planted: a secret without fresh bits and a counter, as sites had before
    monkeypatch.setattr("fedbayes.network.client.session.charged", lambda ledger, releases, budget, secret: secret)
    site = asked.site()
    assert position(site.answer(asked.round)).tobytes() == position(site.answer(asked.round)).tobytes()


def test_noise_comes_from_all_bits_of_its_secret(asked, monkeypatch):
    """A server that has many answers to one request tries a key of 64 bits against all of them at once."""
    plain = "5a" * 32
    secrets = [
        plain,
        *(plain[: 2 * place] + "5b" + plain[2 * place + 2 :] for place in range(32)),
    ]  # one bit of each byte
    site, found = asked.site(), set()
    for secret in secrets:
        monkeypatch.setattr("fedbayes.network.client.session.charged", lambda *_, secret=secret: secret)
        found.add(position(site.answer(asked.round)).tobytes())
    assert len(found) == len(set(secrets)) == 33


def test_an_old_copy_of_the_vault_does_not_repeat_noise(asked, tmp_path):
    shutil.copytree(asked.folder / "ada", tmp_path / "copy")
    first = position(asked.site().answer(asked.round))
    shutil.rmtree(asked.folder / "ada")
    shutil.copytree(tmp_path / "copy", asked.folder / "ada")
    assert np.all(position(asked.site().answer(asked.round)) != first)


def test_what_the_server_chooses_is_charged_as_it_is(asked):
    """Step sizes, numbers of steps and a weight by invented rows; positions and coordinates are free."""

    def cost(request) -> float:
        before = asked.account().spent[0]
        assert reason(asked.site().answer(request)) == ""
        return asked.account().spent[0] - before

    plain = cost(asked.round)
    assert cost(changed(asked.round, shared_step_size=np.array([4e-4, 1e-4]))) == pytest.approx(2.5 * plain)
    assert cost(changed(asked.round, shared_local_steps=np.array([2.0, 6.0]))) == pytest.approx(2.0 * plain)
    assert cost(changed(asked.round, personal=np.array([1e9, 0.0]))) == pytest.approx(plain)
    assert cost(changed(asked.round, shared_position=np.full((2, 1), 1e300))) == pytest.approx(plain)
    wild = {"shared_coordinates_white": np.array([[np.nan], [1e300]]), "shared_coordinates_center": np.ones((2, 1))}
    assert cost(changed(asked.round, **wild)) == pytest.approx(plain)


def test_a_weight_is_charged_as_the_server_s_roster_makes_it(asked):
    header = json.loads(json.dumps(unpack(asked.round).header))
    header["run"], header["charter"]["rows"][1] = "abcd", 1e9  # one who claims many rows makes the noise larger, too
    before = asked.account().spent[0]
    asked.site().answer(changed(asked.round, header))
    rows = np.array([40.0, 1e9, 55.0])
    ratio = 3.0 * np.sqrt(1e-4 / (2.0 * rows[0] / rows.sum()))
    assert asked.account().spent[0] - before == pytest.approx(4 * 0.5 * ORDERS[0] * ratio**2)


@pytest.mark.parametrize(
    "wrong",
    [
        {"shared_step_size": np.array([1e-4, np.nan])},
        {"shared_step_size": np.array([1e-4, -1e-4])},
        {"shared_step_size": np.array([np.inf, 1e-4])},
        {"shared_local_steps": np.array([2.0, 2.5])},
        {"shared_local_steps": np.array([2.0, np.nan])},
        {"shared_local_steps": np.array([-2.0, 2.0])},
        {"shared_local_steps": np.array([2.0, 1e12])},
    ],
)
def test_numbers_that_no_server_means_are_refused_and_cost_nothing(asked, wrong):
    before = asked.account()
    assert reason(asked.site().answer(changed(asked.round, **wrong))) == "FORMAT"
    assert asked.account().answers == before.answers


def test_the_kind_of_random_numbers_is_not_the_server_s_to_choose(asked):
    header = json.loads(json.dumps(unpack(asked.round).header))
    header["run"], header["charter"]["impl"] = "abcd", "rbg"
    assert reason(asked.site().answer(changed(asked.round, header))) == "FORMAT"
    header["charter"]["impl"] = "threefry2x32"
    assert reason(asked.site().answer(changed(asked.round, header | {"run": "ef01"}))) == ""


def test_a_spent_budget_ends_the_answers_and_no_row_is_touched(asked, monkeypatch):
    spent = asked.account()
    asked.budget(Budget(spent.bound(1e-5) + 1e-9, 1e-5))
    monkeypatch.setattr("fedbayes.network.client.alone.Alone.reply", lambda *_: pytest.fail("rows were touched"))
    site = asked.site()
    assert reason(site.answer(asked.round)) == "SPENT"
    assert asked.account().answers == spent.answers
    assert list(site.journal.entries())[-1].result == "SPENT"


def test_a_fit_ends_at_once_where_a_budget_is_spent_and_its_draws_can_be_had(sites, tmp_path):
    some = sites()
    ratio = 3.0 * np.sqrt(1e-4 / (2.0 * 40.0 / 150.0))
    step = divergences(Release(ratio, 40, 40, 4))
    enough = Account().after([Release(ratio, 40, 40, 4)], PLENTY)
    assert enough.spent == pytest.approx(step)
    some.budget(Budget(epsilon_of(4.5 * step, 1e-5), 1e-5))  # four answers of 'ada'; the others' cost less
    with pytest.raises(FederatedError, match=r"Site 'ada' has spent its owner's privacy budget.*smaller `num_draws`"):
        some.fit(checkpoint=tmp_path / "state")
    assert some.account().answers == 4
    fit = some.fit(checkpoint=tmp_path / "state", num_draws=2)
    assert fit.idata.posterior.sizes["draw"] == 2
    assert some.account().answers == 4


def test_without_a_budget_noisy_answers_are_refused_and_the_log_says_what_to_write(sites, caplog):
    some = sites(None)
    with pytest.raises(FederatedError, match="its owner has set no privacy budget"):
        some.fit()
    assert f"Write a table [privacy] into '{some.policy}' with two lines, such as `epsilon = 3.0`" in caplog.text


EXACT = {
    "the mode": fb.FALD(clip=1.5, noise_correlation=0.0, num_warmup=2),
    "steps without clipping": replace(METHOD, clip=None),
    "steps whose noise is shared": replace(METHOD, noise_correlation=1.0),
    "steps without noise": replace(METHOD, temperature=0.0),
    "another method": fb.EP(solver="laplace", num_replicates=1),
}


@pytest.mark.parametrize("method", EXACT.values(), ids=EXACT)
def test_with_a_budget_nothing_exact_is_answered(sites, method):
    some = sites(method=method)
    with pytest.raises(FederatedError, match="answers with noise alone, within its owner's privacy budget"):
        some.fit()
    assert {unpack(each).header["kind"] for each in some.network.answered} == {"hello", "refusal"}
    assert some.account().answers == 0


@pytest.mark.parametrize("update", ["log_likelihood", "log_likelihood_sum", "cavity"])
@pytest.mark.parametrize("ticket", [{}, {"ticket": "0" * 32}])
def test_questions_after_the_rounds_are_closed(asked, update, ticket):
    header = {name: value for name, value in unpack(asked.round).header.items() if name not in ("phase", "records")}
    words = {**header, "kind": "after", "update": update, **ticket}
    body = encode({"shared": np.zeros((2, 3, 1)), "key": np.zeros(2, np.uint32)})
    assert reason(asked.site().answer(pack(words, body))) == "EXACT"


def test_where_rules_find_something_their_counts_stay(sites):
    """How often is an exact number."""
    some = sites()
    some.policy.write_text("[privacy]\nepsilon = 1.0\ndelta = 1e-5\n[disclosure]\nsmallest_cell = 1000\n")
    header = unpack(some.site().answer(pack({"kind": "hello", "study": some.study.digest}))).header
    assert (header["reason"], header["found"]) == ("DISCLOSURE", {})


def test_the_ledger_survives_a_restart_and_is_its_owner_s_alone(asked):
    before = asked.account()
    asked.site().answer(asked.round)
    after = asked.account()
    assert after.answers == before.answers + 1
    assert after.order == before.order
    assert stat.S_IMODE((asked.folder / "ada" / "privacy.json").stat().st_mode) == 0o600
    (asked.folder / "ada" / "privacy.json").write_text("{")
    assert reason(asked.site().answer(asked.round)) == "FAILED"  # and not as if nothing had been spent


def test_what_is_entered_is_on_the_disk_before_anything_is_computed(asked, monkeypatch):
    before = asked.account().answers
    monkeypatch.setattr("fedbayes.network.client.alone.Alone.reply", lambda *_: 1 / 0)
    assert reason(asked.site().answer(asked.round)) == "FAILED"
    assert asked.account().answers == before + 1


def test_mini_batches_need_the_accountant(sites, monkeypatch, caplog):
    some = sites(method=replace(METHOD, batch_size=10))
    monkeypatch.setitem(sys.modules, "dp_accounting", None)
    with pytest.raises(FederatedError):
        some.fit(patience=Patience(round_timeout=1.0, min_clients=3, give_up_after=0.1))
    assert "Renyi accounting of mini-batches needs dp-accounting" in caplog.text


def fixed_noise(monkeypatch) -> None:
    monkeypatch.setattr(private.secrets, "token_hex", lambda size: "0" * 2 * size)
    monkeypatch.setattr(Ledger, "charge", lambda *_: 1)


@pytest.mark.parametrize("wild", [1e9, -1e300, np.float64(1e308)])
@pytest.mark.parametrize("place", [0.3, 1e17])
def test_one_row_moves_an_answer_by_no_more_than_is_charged(sites, monkeypatch, wild, place):
    """With one step, and the same noise; where the numbers are huge rounding would show the row without noise."""
    some = sites(method=replace(METHOD, local_steps=1))
    some.fit()
    fixed_noise(monkeypatch)
    request = changed(some.requests("round")[0], shared_position=np.full((2, 1), place))
    header = json.loads(json.dumps(unpack(request).header)) | {"run": "abcd"}
    some.policy.write_text(some.policy.read_text().replace("implausible_answers = 50", "farthest = inf"))
    monkeypatch.setattr("fedbayes.network.client.vault.Vault.secret", lambda *_: "0" * 64)
    answers = []
    for run, last in (("aa", 0.5), ("bb", wild)):
        y = some.data["ada"]["y"].copy()
        y[3] = last
        some.data["ada"] = {"y": y}
        answers.append(some.site().answer(changed(request, {**header, "run": run})))
    assert [reason(each) for each in answers] == ["", ""]
    codes = [arrays_of(unpack(each).body)["code"] for each in answers]
    np.testing.assert_array_equal(*codes)
    weight = 40.0 / 150.0
    bound, noise = 1e-4 * 3.0 / weight, np.sqrt(2.0 * 1e-4 / weight)
    moved = np.abs(position(answers[0]) - position(answers[1]))
    assert np.all(moved <= bound * (1.0 + 1e-9) + 2e-6 * noise)
    if place < 1.0:
        assert np.all(moved > 0.3 * bound)


@pytest.mark.parametrize("secure_sums", [False, True])
def test_the_draws_are_those_of_the_posterior(sites, secure_sums):
    """Clipping hardly bites at 6 sds; 30 chains of 20 draws, at 5 standard errors with their autocorrelation."""
    method = replace(METHOD, clip=6.0, step_size=2e-3, local_steps=1, num_chains=30, num_warmup=20, thinning=1)
    some = sites(method=method)
    fit = some.fit(num_draws=20, secure_sums=secure_sums)
    y = np.concatenate([each["y"] for each in some.data.values()])
    precision = len(y) + 0.25
    draws = fit.idata.posterior["mu"].values
    sd = precision**-0.5
    rate = 2e-3 * precision  # of one round: autocorrelation 1 - rate
    effective = draws.size * rate / (2.0 - rate)
    assert abs(draws.mean() - y.sum() / precision) < 5.0 * sd / np.sqrt(effective)
    assert abs(draws.std() / sd - 1.0) < 5.0 / np.sqrt(2.0 * effective) + 0.1  # a step of rate 0.3 widens by 8 percent
    hidden = {entry.result for entry in some.site().journal.entries() if entry.kind == "round"}
    assert hidden == {"noisy and hidden" if secure_sums else "noisy"}


def test_the_log_and_the_account_in_words(asked):
    journal = list(asked.site().journal.entries())
    assert "with noise" in log_text(journal, 5)
    lines = as_text(Ledger(asked.folder / "ada"), Budget(5.0, 1e-5), 7)
    spent = asked.account()
    assert lines[0].startswith("6 noisy answers, of 24 steps, are charged. They amount to epsilon ")
    assert f"epsilon {spent.bound(1e-5):.3g} at delta 1e-05; the budget is epsilon 5" in lines[0]
    assert lines[1].startswith("7 numbers have left this site without noise: none of this holds")
    assert as_text(Ledger(asked.folder / "nowhere"), None, 0) == []


def test_the_commands_of_a_site_s_owner(asked):
    pytest.importorskip("flwr")
    config = f'site-id="ada" state-dir="{asked.folder / "ada"}" policy="{asked.policy}"'

    def said(command: str) -> str:
        return CliRunner().invoke(app, [command, "--config", config]).output

    for command in ("privacy", "log"):
        assert "6 noisy answers, of 24 steps, are charged. They amount to epsilon" in said(command)
    assert "This rests on:\n  - neighbours differ in one row of this site's data" in said("privacy")
    config = config.replace("ada", "dora")
    assert said("privacy").startswith("0 noisy answers, of 0 steps, are charged.")
    asked.budget(None)
    assert "has no table [privacy], and no noisy answer has left it" in said("privacy")


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("[privacy]\n", r"\[privacy\] lacks `epsilon`. Write both"),
        ("[privacy]\nepsilon = 1.0\n", r"\[privacy\] lacks `delta`"),
        ("[privacy]\nepsilon = 0\ndelta = 1e-5\n", r"`epsilon` of \[privacy\] is 0; write a positive number"),
        ("[privacy]\nepsilon = inf\ndelta = 1e-5\n", r"`epsilon` of \[privacy\] is inf; write a positive number"),
        ("[privacy]\nepsilon = 1\ndelta = 1.0\n", r"`delta` of \[privacy\] is 1.0; write a number between 0 and 1"),
        ("[privacy]\nepsilon = 1\ndelta = true\n", r"`delta` of \[privacy\] is True"),
        ("[privacy]\nepsilon = 1\ndetla = 1.0\n", r"'detla', which is none of the settings of \[privacy\].*'delta'"),
    ],
)
def test_a_budget_that_can_not_be_meant(tmp_path, text, told):
    (tmp_path / "policy.toml").write_text(text)
    with pytest.raises(ClientDataError, match=told):
        read_policy({"site-id": "a", "state-dir": str(tmp_path)})


def test_an_order_that_was_chosen_stays(tmp_path):
    """A server that changes its steps by what it has seen can't choose the best order afterwards."""
    ledger, small, large = Ledger(tmp_path), Release(0.001, 10, 10, 1), Release(1.0, 10, 10, 1)
    ledger.charge([small], Budget(3.0, 1e-5))
    order = ledger.read().order
    ledger.charge([large], Budget(30.0, 1e-5))
    assert ledger.read().order == order
    ledger.path.unlink()
    ledger.charge([large], Budget(30.0, 1e-5))
    assert ledger.read().order < order
    with pytest.raises(Refused):
        ledger.charge([Release(float("inf"), 10, 10, 1)], Budget(30.0, 1e-5))


def test_a_step_of_size_zero_does_not_choose_the_order(tmp_path):
    """It tells nothing, and the order that suits it would leave the budget for no other answer."""
    ledger, nothing, honest = Ledger(tmp_path), Release(0.0, 10, 10, 1), Release(0.05, 10, 10, 5)
    ledger.charge([nothing], Budget(3.0, 1e-5))
    assert (ledger.read().order, ledger.read().answers, ledger.read().bound(1e-5)) == (None, 1, 0.0)
    ledger.charge([honest], Budget(3.0, 1e-5))
    found = ledger.read()
    other = Ledger(tmp_path / "other")
    other.path.parent.mkdir()
    other.charge([honest], Budget(3.0, 1e-5))
    assert found.order == other.read().order
    assert found.bound(1e-5) == other.read().bound(1e-5)
    ledger.path.unlink()
    with pytest.raises(Refused):
        ledger.charge([Release(float("inf"), 10, 10, 1)], Budget(30.0, 1e-5))


def test_steps_are_rounded_by_their_noise(sites):
    """Also where a schedule begins and ends at zero: the last bits tell how the noise was computed."""
    some = sites(method=replace(METHOD, step_size=lambda k: jnp.where(k % 3 == 1, 1e-4, 0.0), local_steps=3))
    some.fit()
    grid = 2.0 ** (np.floor(np.log2(np.sqrt(2.0 * 1e-4 / (40.0 / 150.0)))) - 20.0)
    places = position(some.site().answer(some.requests("round")[0])) / grid
    assert np.all(places != 0.0)
    np.testing.assert_allclose(places, np.round(places), atol=1e-6)


def test_a_later_step_shows_no_bits_of_an_earlier_one(sites):
    """In coordinates in which the prior pulls so hard that the second step's noise is lost, all of the first is seen.

    Rounded at the end alone, it gave a server the exact sum of clipped gradients, modulo the lattice of normal draws.
    """
    some = sites()
    some.fit()
    step, wide, weight = 2.0**-80, 2.0**90, 40.0 / 150.0
    arrays = {"shared_step_size": np.full(2, step), "shared_coordinates_white": np.full((2, 1), wide)}
    header = {"run": "abcd"}
    request = changed(some.requests("round")[0], header, shared_position=np.zeros((2, 1)), **arrays)
    some.policy.write_text(some.policy.read_text().replace("implausible_answers = 50", "farthest = inf"))
    pull = step * wide**2 / 4.0  # of a prior with variance 4
    first = position(some.site().answer(request)) / (1.0 - pull)
    grid = 2.0 ** (np.floor(np.log2(np.sqrt(2.0 * step / weight))) - 20.0)
    assert np.all(np.abs(first / grid) > 1e3)
    np.testing.assert_allclose(first / grid, np.round(first / grid), atol=1e-3)


def poisson(x, y):
    mu = numpyro.sample("mu", dist.Normal(0.0, 10.0).expand([2]).to_event(1))
    numpyro.sample("y", dist.Poisson(jnp.exp(mu[0] + x * mu[1])), obs=y)


def test_a_code_tells_nothing_of_a_row_that_overflows(sites):
    """Masked out, a row's slope is zero times itself: where that overflowed, the code said so, digit by digit of x."""
    rng = np.random.default_rng(1)
    some = sites(
        data={name: {"x": each["y"], "y": rng.poisson(2.0, len(each["y"]))} for name, each in make_data().items()}
    )
    some.study = Study(poisson, METHOD)
    some.fit()
    some.policy.write_text(some.policy.read_text().replace("implausible_answers = 50", "farthest = inf"))
    site = some.site()
    for place in ([499.0, 499.0], [499.0, -499.0], [1e4, 0.0]):
        request = changed(some.requests("round")[0], {"run": "abcd"}, shared_position=np.tile(place, (2, 1)))
        answer = site.answer(request)
        assert reason(answer) == ""
        assert np.all(arrays_of(unpack(answer).body)["code"] == 0)


@pytest.mark.parametrize("step", [0.0, -0.0, "schedule", "batches"])
def test_a_step_of_size_zero_shows_no_sign_of_the_rows(sites, step):
    """Without noise the sign of 0 - 0 * slope is that of the slope: by bisection a site's mean to 16 digits."""
    some = sites(method=replace(METHOD, **ENDS.get(step, {})))
    some.fit()
    size = {} if step == "schedule" else {"shared_step_size": np.full(2, step if isinstance(step, float) else 0.0)}
    found = []
    for centre in (-2.0, 3.0):  # the slopes of all rows together have either sign
        arrays = {
            "shared_round": np.full(2, 100.0),
            "shared_local_steps": np.ones(2),
            "shared_position": np.full((2, 1), -0.0),
            "shared_coordinates_center": np.full((2, 1), centre),
            "shared_coordinates_white": np.full((2, 1), 1e-6 * np.sign(centre)),
        }
        request = changed(some.requests("round")[0], {"run": "abcd"}, **arrays, **size)
        found += [position(some.site().answer(request)) for _ in range(6)]
    assert np.all(np.concatenate(found) == 0.0)
    assert len({np.signbit(each).tobytes() for each in found}) == 1


def test_a_step_next_to_nothing_is_charged_so_that_it_adds_up(asked):
    """An account that it did not move would let a server ask for ever."""
    before = asked.account()
    request = changed(asked.round, shared_step_size=np.full(2, 1e-200))
    assert reason(asked.site().answer(request)) == ""
    after = asked.account()
    assert np.all(after.spent > before.spent)
    assert after.spent[after.order] - before.spent[after.order] == pytest.approx(
        2 * 2 * 0.5 * ORDERS[after.order] * 1e-10
    )


def two_outcomes(y, w):
    mu = numpyro.sample("mu", dist.Normal(0.0, 2.0).expand([2]).to_event(1))
    numpyro.sample("y", dist.Normal(mu[0], 1.0), obs=y)
    numpyro.sample("w", dist.Normal(mu[1], 1.0), obs=w)


@pytest.mark.parametrize("rows", [["w"], ["y"]])
def test_which_arguments_have_rows_is_not_the_server_s_to_choose(sites, monkeypatch, rows):
    """An outcome that has none by its word is in the gradients of all rows: one of its rows turns them all."""
    some = sites(data={name: {**each, "w": each["y"] + 1.0} for name, each in make_data().items()})
    some.study = Study(two_outcomes, METHOD)
    some.fit()
    request = some.requests("round")[0]
    header = json.loads(json.dumps(unpack(request).header)) | {"run": "abcd"}
    assert reason(some.site().answer(changed(request, header))) == ""
    before = some.account().answers
    header["seat"]["row_arguments"], header["run"] = rows, "ef01"
    assert reason(some.site().answer(changed(request, header))) == "FORMAT"
    assert some.account().answers == before
    # planted: without the check one row of 40 moves a step by 40 times what is charged
    monkeypatch.setattr("fedbayes.network.client.session.check_rows", lambda *_: None)
    fixed_noise(monkeypatch)
    monkeypatch.setattr("fedbayes.network.client.vault.Vault.secret", lambda *_: "0" * 64)
    other, found = ({"w": "y", "y": "w"}[rows[0]], [])
    for run, wild in (("aa", -1e3), ("bb", 1e3)):
        some.data["ada"][other] = np.append(np.zeros(39), wild)
        arrays = {"shared_local_steps": np.ones(2)}
        found.append(position(some.site().answer(changed(request, {**header, "run": run}, **arrays))))
    moved = np.linalg.norm(found[1] - found[0], axis=1)
    assert np.all(moved > 35.0 * 1e-4 * 3.0 / (40.0 / 150.0))


def between(y, c):
    mu = numpyro.sample("mu", dist.Normal(0.0, 2.0))
    numpyro.factor("f", -0.5 * (y[:, None] - mu - c[None, :]) ** 2)


def test_another_table_s_entries_are_not_the_rows(sites, caplog):
    """A site of constants, an axis of the factor, and a server that calls these the rows: a row is in all of them."""
    some = sites(data={name: {**each, "c": np.linspace(-1.0, 1.0, 5)} for name, each in make_data().items()})
    some.study = Study(between, METHOD)
    private = some.policy.read_text()
    some.policy.write_text(private + 'constants = ["c"]\n')  # below [privacy]
    some.fit()
    request = some.requests("round")[0]
    header = json.loads(json.dumps(unpack(request).header)) | {"run": "abcd"}
    assert reason(some.site().answer(changed(request, header))) == ""
    some.policy.write_text(private)
    assert reason(some.site().answer(changed(request, header))) == "FORMAT"
    assert "The gradient of each row depends on all of ['c']" in caplog.text
    some.policy.write_text(private + 'constants = ["c"]\n')
    header["seat"]["row_arguments"], header["seat"]["padded"], header["run"] = ["c"], 6, "ef01"
    assert reason(some.site().answer(changed(request, header))) == "FORMAT"


def line(x, y):
    slope = numpyro.sample("slope", dist.Normal(0.0, 2.0))
    numpyro.sample("y", dist.Normal(slope * x, 1.0), obs=y)


def cancelling(first: int, second: int, share: float) -> np.ndarray:
    """Rows of which two have slopes of 1e30 that cancel, or with another share do not."""
    x, y = np.linspace(-1.0, 1.2, 40), np.zeros(40)
    y[[first, second]] = 1e30, -1e30 * x[first] / x[second] * share
    return y


@pytest.mark.parametrize("method", [METHOD, fb.EP()])
def test_what_join_says_depends_on_no_row(sites, monkeypatch, method):
    """Sums of rows that cancel change by rounding where a row is added: whether they do was heard in `join`."""
    some = sites(method=replace(METHOD, local_steps=1))
    some.data = {name: {"x": each["y"], "y": each["y"]} for name, each in make_data().items()}
    some.study = Study(line, METHOD)
    some.fit()
    request, said = some.requests("join")[0], []
    some.study = Study(line, method)
    request = pack({**unpack(request).header, "study": some.study.digest}, unpack(request).body)

    def joined(y) -> str:
        monkeypatch.setattr("fedbayes.problem.problem._PADDED", Kept(8))  # as in another process
        some.data["ada"] = {"x": np.linspace(-1.0, 1.2, 40), "y": y}
        return str({**unpack(some.site().answer(request)).header, "ticket": 0})

    for rows in ((38, 39), (1, 20)):
        said += [joined(cancelling(*rows, share)) for share in (1.0, 0.5)]
    assert len(set(said)) == 1
    assert ("'EXACT'" in said[0]) == (method is not METHOD)
    if method is METHOD:  # planted: looked at the rows themselves, some of them end in another answer
        monkeypatch.setattr("fedbayes.network.client.reading._of_made_up_numbers", _looked_at)
        assert len({joined(cancelling(38, 39, share)) for share in (1.0, 0.5)}) == 2


def test_a_run_from_before_there_was_a_budget_is_looked_at_anew(asked):
    """An owner who reads in the log what to write, and writes it, has a session that has looked at the rows."""
    site, header = asked.site(), unpack(asked.round).header
    with computing():
        before, after = site.session(header), site.session(header, private=True)
        assert after is not before
        assert site.session(header, private=True) is after


@pytest.mark.parametrize("share", [0.9, 1.1])
def test_a_weight_next_to_zero_is_no_test_of_the_rows(asked, share):
    """Of such a weight the sum of gradients over it would be finite or not, at no charge, as the sum is small or large.

    By bisection a server had the sum to seven digits, before weights had a floor.
    """
    header = json.loads(json.dumps(unpack(asked.round).header))
    header["charter"]["rows"] = [40.0, share * 1.6e308, 1.0]
    header["run"] = "abcd"
    arrays = {"shared_step_size": np.zeros(2), "shared_local_steps": np.ones(2)}
    before = asked.account()
    assert reason(asked.site().answer(changed(asked.round, header, **arrays))) == "FORMAT"
    assert asked.account().answers == before.answers
