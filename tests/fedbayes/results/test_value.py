"""A fit is a value: questions are functions of it, keep their answers in one place, and change nothing else."""

import inspect
from dataclasses import FrozenInstanceError, replace

import jax
import numpy as np
import numpyro
import numpyro.distributions as dist
import pytest

import fedbayes as fb
from fedbayes.models import linear
from fedbayes.questions.conflict.question import conflict
from fedbayes.questions.summary import summary
from fedbayes.results.corrected import theta, weighed
from fedbayes.results.fitted import Fitted, once, was_asked


@pytest.fixture(scope="module")
def clients():
    return linear.simulate(jax.random.key(0), rows=(5, 20, 60))[0]


@pytest.fixture(scope="module")
def fit(clients):
    return fb.fit_federated(linear.model, clients, key=jax.random.key(1), num_draws=100, progress=False)


def without_answers(fit: fb.FederatedFit) -> Fitted:
    """The same fit, not asked anything yet."""
    return replace(fit.fitted, answers={})


def test_nothing_of_a_fit_can_be_put_in_another_place(fit):
    with pytest.raises(FrozenInstanceError):
        fit.fitted.key = jax.random.key(2)
    with pytest.raises(AttributeError):
        fit.posterior = None


def test_a_question_is_asked_once(fit):
    calls = []

    @once
    def question(fitted):
        calls.append(fitted)
        return None

    fitted = without_answers(fit)
    assert not was_asked(fitted, question)
    assert question(fitted) is question(fitted) is None
    assert was_asked(fitted, question)
    question(without_answers(fit))
    assert len(calls) == 2


def test_repr_asks_nobody_and_changes_nothing(fit):
    """Not even where the check is still to come, for which it would need an exchange."""
    fitted = without_answers(fit)
    before = list(fitted.ledger)
    told = summary(fitted)
    assert "  Gaussian  of unknown error; fit.error asks the clients" in told
    assert fitted.ledger == before
    assert not was_asked(fitted, weighed)
    assert summary(fitted) == told
    theta(fitted)  # which is checked
    assert len(fitted.ledger) == len(before) + 1
    assert "  Gaussian  exact to" in summary(fitted)


def groups(idata) -> set[str]:
    found = idata.groups() if callable(idata.groups) else idata.groups  # ArviZ 0.x and 1.x
    return {name.strip("/") for name in found} - {""}


def test_no_question_changes_the_posterior(fit, clients, tmp_path):
    before = groups(fit.idata)
    fit.sensitivity(by_client=True)
    assert "observed_data" in fit.check(10)
    assert "log_prior" in fit.with_log_prior()
    fit.save(tmp_path / "fit")
    assert groups(fit.idata) == before
    loaded = fb.load_fit(tmp_path / "fit", linear.model, clients)
    assert groups(loaded.idata) == before  # no client's outcomes are in the file


def test_a_method_is_its_function(fit):
    """The same answer, and the same words in the help."""
    np.testing.assert_array_equal(fit.conflict()["z"], conflict(fit.fitted)["z"])
    assert fb.FederatedFit.conflict.__doc__ == conflict.__doc__
    assert list(inspect.signature(fb.FederatedFit.conflict).parameters) == ["self"]
    assert str(inspect.signature(fit.leave_one_out)) == "() -> 'xr.Dataset'"
    assert list(inspect.signature(fit.select).parameters)[:2] == ["coefficients", "level"]
    assert fb.FederatedFit.predict.__qualname__ == "FederatedFit.predict"


def test_a_model_may_have_an_argument_by_the_name_of_ours():
    def model(fitted, y=None):
        mu = numpyro.sample("mu", dist.Normal(0.0, 1.0))
        numpyro.sample("y", dist.Normal(0.0 * mu + fitted, 0.1), obs=y)

    rng = np.random.default_rng(0)
    clients = {name: {"fitted": np.zeros(4), "y": rng.normal(size=4)} for name in "ab"}
    fit = fb.fit_federated(model, clients, key=jax.random.key(0), num_draws=50, progress=False, correct=False)
    predicted = fit.predict("a", fitted=np.full(2, 7.0)).posterior_predictive["y"]
    assert abs(float(predicted.mean()) - 7.0) < 0.5
