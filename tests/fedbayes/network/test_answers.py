"""Which methods and questions a site answers, and how finely, as its owner's policy says by name."""

import secrets
from pathlib import Path

import numpy as np
import numpyro
import numpyro.distributions as dist
import optax
import pytest
from permissive import PERMISSIVE

import fedbayes as fb
from fedbayes.contract.algorithm import Reply
from fedbayes.errors import FederatedError, ResultCode
from fedbayes.network.client.journal import as_text, failures_told
from fedbayes.network.client.masks import Masks, public_key
from fedbayes.network.client.points import rounded
from fedbayes.network.client.secure import Hiding, Sent, Sums
from fedbayes.network.client.vault import Vault
from fedbayes.network.messages import pack, unpack
from fedbayes.network.rehearsal import Rehearsal
from fedbayes.rounds.wire import arrays_of, encode


@pytest.fixture
def policy(tmp_path, monkeypatch):
    """Writes what all sites' owners allow beside everything else."""

    # which draws a site's own rows find implausible, and how they are counted, is in test_points
    everything = Path(PERMISSIVE["policy"]).read_text().replace("implausible_answers = 50", "nats_per_row = inf")

    def write(answers: str) -> None:
        path = tmp_path / "policy.toml"
        path.write_text(f"{everything}[answers]\n{answers}\n")
        monkeypatch.setitem(PERMISSIVE, "policy", str(path))

    return write


def test_a_study_by_another_method_is_refused_before_data_are_read(federation, policy):
    policy('methods = ["Laplace"]')
    world = federation()
    world.data = None  # whoever reads it fails
    network = Rehearsal(*(world.site(name) for name in ("ada", "bo", "cy")))
    with pytest.raises(FederatedError, match="does not answer this study's method; its owner sets that by `methods`"):
        world.fit(network)


@pytest.mark.parametrize("name", ["EP", "ep"])
def test_one_by_a_method_that_is_named_is_answered(federation, policy, name):
    policy(f'methods = ["{name}", "laplace"]\nlocal_steps = false')
    assert federation().fit().converged


def test_several_local_steps_are_refused_before_data_are_read(federation, policy):
    policy("local_steps = false")
    world = federation(fb.FedAvg(local_steps=2))
    world.data = None  # whoever reads it fails
    network = Rehearsal(*(world.site(name) for name in ("ada", "bo", "cy")))
    with pytest.raises(FederatedError, match="does not answer a method that may take several local steps in a round"):
        world.fit(network)


@pytest.mark.parametrize(
    ("method", "several"),
    [
        (fb.EP(), False),
        (fb.Laplace(), False),
        (fb.FedAvg(), True),
        (fb.FedAvg(local_steps=1), False),
        (fb.FedAvg(local_steps=1, optimizer=optax.adam(0.1)), True),  # of one site the sign of its gradient
        (fb.FedAvg(local_steps=1, batch_size=4), True),
        (fb.FedAvg(local_steps=1, fairness=fb.GIFAIR()), True),
        (fb.FedAvg(local_steps=1, scheme="with_replacement", num_active=3), True),  # the server says who was drawn
        (fb.FedAvg(epochs=1, batch_size=4), True),
        (fb.FedProx(solver="newton"), True),
        (fb.FedEnsemble(local_steps=1), False),
        (fb.FedEnsemble(assignment="all", randomised=True), True),
        (fb.FALD(local_steps=1), True),  # the number is told with each round, and the curvatures' squares are asked for
        (fb.FedPA(), True),
        (fb.OneShot(), True),
        (fb.CorrelatedClients(), True),
    ],
)
def test_what_takes_several_steps(method, several):
    """A method of which nothing is known is one that does."""
    assert method.takes_local_steps is several


@pytest.mark.parametrize("secure", [True, False], ids=["secure sums", "single messages"])
@pytest.mark.filterwarnings("ignore::fedbayes.errors.UnreliableWarning")
def test_without_the_check_the_fit_says_so(federation, policy, secure):
    policy("questions = []")
    fit = federation().fit(correct=True, secure_sums=secure)
    assert fit.converged
    assert fit.idata.posterior["mu"].shape == (1, 50)
    assert "does not answer this question about a finished fit; its owner sets that by `questions`" in fit.trouble()


def test_a_question_that_is_not_named_is_refused_and_one_that_is_answered(federation, policy):
    policy('questions = ["check", "cavities"]')
    fit = federation().fit(correct=True)
    assert fit.conflict()["z"].notnull().any()
    with pytest.raises(FederatedError, match="does not answer this question"):
        fit.loo()
    policy('questions = ["check", "cavities", "log-likelihoods"]')
    assert federation().fit(correct=True).loo().elpd_loo < 0.0


@pytest.mark.parametrize("secure", [True, False], ids=["secure sums", "single messages"])
def test_log_likelihoods_are_rounded_and_the_fit_knows(federation, policy, secure):
    """By .1 nats at three sites the posterior's means move by less than a hundredth of an sd."""
    fits = []
    for answers in ("most = 1000000", "nats = 0.1"):
        policy(answers)
        world = federation()
        network = world.network()
        fits.append(world.fit(network, correct=True, secure_sums=secure))
    exact, coarse = fits
    more = coarse.correction.pool.noise - exact.correction.pool.noise
    np.testing.assert_allclose(more, 3 * 0.1**2 / 12.0, rtol=1e-6)
    told = [unpack(answer) for answer in network.answered if unpack(answer).header["kind"] == "after"]
    if not secure:
        values = [max(arrays_of(each.body).values(), key=np.size) for each in told]
        assert all(np.abs(each / 0.1 - np.round(each / 0.1)).max() < 1e-9 for each in values)
    (mean, covariance), (moved, _) = (fit.correction.pool.moments() for fit in fits)
    assert 0.0 < np.abs((moved - mean) / np.sqrt(np.diag(covariance))).max() < 0.01


@pytest.mark.parametrize("alone", [True, False])
def test_what_is_said_of_an_error_is_no_finer_than_the_values(alone):
    """With locals each log-likelihood comes with its noise and with its difference from a coarser one."""
    values, noise, halved = np.random.default_rng(0).gamma(0.2, 1.0, size=(3, 1, 200))
    info = {"noise": noise, "halved": -halved}
    reply = Reply(each=values, info=info, code=np.zeros(1)) if alone else Reply(total=(values, info), code=np.zeros(1))
    found = rounded(reply, 0.1)
    coarse, told = (found.each, found.info) if alone else found.total
    unit = 0.1**2 / 12.0
    for numbers, step in ((coarse, 0.1), (told["noise"], unit), (told["halved"], unit)):
        np.testing.assert_allclose(numbers / step, np.round(numbers / step), atol=1e-6)
    assert np.all((noise + unit <= told["noise"]) & (told["noise"] < noise + 2.0 * unit))
    np.testing.assert_allclose(told["halved"], -halved, atol=0.51 * unit)


def test_a_report_of_a_finished_fit_asks_nobody(federation, tmp_path):
    fit = federation().fit(correct=False)
    before = fit.communication
    found = fit.report(tmp_path / "report.html").read_text(encoding="utf-8")
    assert fit.communication == before
    assert "in other processes, and the server has seen no row of them" in found


def sharp(y):
    """Where the sd is next to nothing, the log-likelihood is too large for a sum: where that begins tells the rows."""
    mu, tau = numpyro.sample("mu", dist.Normal(0.0, 2.0)), numpyro.sample("tau", dist.LogNormal(0.0, 3.0))
    numpyro.sample("y", dist.Normal(mu, tau), obs=y)


class Thresholds:
    """A server that asks single sites where a number begins to be too large, under masks, in a run that has ended."""

    TOO_LARGE, TOO_FAR = -15.0, -151.0  # log sds

    def __init__(self, federation) -> None:
        self.world = federation(fb.Laplace(), program=sharp)
        network = self.world.network()
        self.world.fit(network, correct=True, secure_sums=True)
        self.sent = [unpack(request) for request in network.sent]
        self.site = self.world.site("ada")

    def asked(self, kind: str, **arrays) -> dict:
        """What becomes of the first request of a kind with other arrays and masks: the header, and the arrays."""
        first = next(each for each in self.sent if each.header["kind"] == kind)
        body = {name: array for name, array in arrays_of(first.body).items() if not name.startswith("recipes")}
        header = {**first.header, "ticket": secrets.token_hex(16)}
        answer = unpack(self.site.answer(pack(header, encode({**body, **arrays}))))
        return {**answer.header, **(arrays_of(answer.body) if answer.body else {})}

    def draws(self, num: int, log_sd: float) -> str:
        """What becomes of a request about a hundred draws of which so many have this sd, and the others one of 1."""
        shared = np.zeros((1, 100, 2))
        shared[0, :num, 1] = log_sd
        found = self.asked("after", shared=shared)
        return found["reason"] if found["kind"] == "refusal" else "hidden" if "masked" in found else "open"

    @property
    def failures(self) -> int:
        """All that the site has written down."""
        return failures_told(self.site.journal.entries())


def test_so_many_numbers_that_are_too_large_are_told_and_then_nothing(federation, policy):
    """Over all processes and runs, and whatever is asked then: else the refusals would tell what answers did."""
    policy("")
    server = Thresholds(federation)
    assert server.failures == 0  # an honest fit
    assert [server.draws(100, server.TOO_LARGE) for _ in range(2)] == ["hidden"] * 2
    server.site = server.world.site("ada")  # a new process
    assert server.draws(56, server.TOO_LARGE) == "hidden"  # 256, the default
    assert server.draws(0, server.TOO_LARGE) == "hidden"
    assert server.draws(1, server.TOO_LARGE) == "FAILURES"
    assert [server.draws(num, server.TOO_LARGE) for num in (0, 100)] == ["FAILURES"] * 2
    server.site = server.world.site("ada")
    assert server.draws(0, server.TOO_LARGE) == "FAILURES"
    assert server.failures == 257
    shown = as_text(list(server.site.journal.entries()), 5)
    assert "257 times a number was not finite or too large for a sum, or a density was improper." in shown
    with pytest.raises(FederatedError, match=r"would tell more often than its owner allows .* `failures` under"):
        server.world.fit(secure_sums=True)
    policy("failures = 257")
    server.site = server.world.site("ada")
    assert server.draws(0, server.TOO_LARGE) == "hidden"
    assert server.draws(1, server.TOO_LARGE) == "FAILURES"
    server.world.data["ada"] = {"y": server.world.data["ada"]["y"] + 0.1}  # other data
    assert server.world.fit(secure_sums=True).converged


def test_an_answer_with_too_many_is_refused_as_a_whole_and_counts_as_one(federation, policy):
    policy("failures = 3")
    server = Thresholds(federation)
    assert [server.draws(num, server.TOO_LARGE) for num in (100, 0, 3, 1)] == [
        "FAILURES",
        "hidden",
        "FAILURES",
        "hidden",
    ]
    assert server.failures == 3
    assert [server.draws(num, server.TOO_LARGE) for num in (0, 1, 0)] == ["hidden", "FAILURES", "FAILURES"]
    assert server.failures == 4


def test_what_is_too_far_away_is_no_failure(federation, policy):
    """A site says nothing there, whatever its data are."""
    policy("failures = 0")
    server = Thresholds(federation)
    assert server.draws(100, server.TOO_FAR) == "hidden"
    far = server.asked("round", **{"shared/0": np.array([[0.0, server.TOO_FAR]])})
    assert far["code"] == ResultCode.NOT_FINITE
    assert server.failures == 0


def test_a_code_that_a_round_has_failed_counts(federation, policy):
    policy("failures = 2")
    server = Thresholds(federation)
    told = {"shared/0": np.array([[0.0, server.TOO_LARGE - 10.0]])}
    found = [server.asked("round", **told) for _ in range(3)]
    assert [each["code"].item() for each in found[:2]] == [ResultCode.NOT_FINITE] * 2
    assert found[2]["reason"] == "FAILURES"
    assert "failures" not in found[0]  # how many is for the site's own log


def term_of(folder, reply: Reply, hidden: bool, **options) -> Sent:
    """What leaves the first of three sites."""
    privates = [f"{place:064x}" for place in (1, 2, 3)]
    masks = Masks.agreed(privates[0], 0, [public_key(each) for each in privates], {})
    sums = Sums(Vault(folder / "site"), ("ada", "bo", "cy"), 0, {})
    return sums.sent(reply, Hiding(masks, b"this") if hidden else None, **options)


@pytest.mark.parametrize("hidden", [True, False])
@pytest.mark.parametrize(
    ("codes", "values", "failures"),
    [
        ((ResultCode.OK, ResultCode.NOISY), (1.0, 2.0), 0),
        ((ResultCode.NOT_FINITE, ResultCode.OK), (np.nan, 1.0), 1),
        ((ResultCode.IN_PART, ResultCode.IMPROPER), (1.0, 0.0), 2),
        ((ResultCode.LOST, ResultCode.OK), (0.0, 1.0), 0),  # the server says which replies have counted
    ],
)
def test_failures_are_counted_by_replicate(tmp_path, hidden, codes, values, failures):
    reply = Reply(total=np.array(values), code=np.array(codes, np.int32))
    assert term_of(tmp_path, reply, hidden).failures == failures


@pytest.mark.parametrize(("hidden", "failures"), [(True, 4), (False, 3)])
def test_after_the_rounds_each_number_counts(tmp_path, hidden, failures):
    """Without masks one that is too large for a sum is told as it is."""
    reply = Reply(total=np.array([[1.0, np.nan, -np.inf, np.inf, -1e13, 5.0]]), code=np.zeros(1, np.int32))
    assert term_of(tmp_path, reply, hidden, finite=False).failures == failures


def test_an_honest_fit_has_no_failures(federation):
    """By these secrets: by its own draws of its locals a site finds one draw implausible in two of five fits or so."""
    world = federation()
    for place, name in enumerate(world.data):
        Vault(world.folder / name).folder.mkdir(parents=True, exist_ok=True)
        (world.folder / name / "secret").write_text(f"{place + 10:064x}")
    network = world.network()
    assert world.fit(network, correct=True, secure_sums=True).converged
    assert [failures_told(site.journal.entries()) for site in network.sites.values()] == [0, 0, 0]
