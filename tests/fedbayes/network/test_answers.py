"""Which methods and questions a site answers, and how finely, as its owner's policy says by name."""

from pathlib import Path

import numpy as np
import optax
import pytest
from permissive import PERMISSIVE

import fedbayes as fb
from fedbayes.contract.algorithm import Reply
from fedbayes.errors import FederatedError
from fedbayes.network.client.points import rounded
from fedbayes.network.messages import unpack
from fedbayes.network.rehearsal import Rehearsal
from fedbayes.rounds.wire import arrays_of


@pytest.fixture
def policy(tmp_path, monkeypatch):
    """Writes what all sites' owners allow beside everything else."""

    everything = Path(PERMISSIVE["policy"]).read_text()

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
