"""Check and correct: exact answers stay, wrong ones are corrected to references, and hopeless ones say so."""

import json
from collections.abc import Callable
from functools import cache
from pathlib import Path
from types import SimpleNamespace

import jax
import jax.numpy as jnp
import numpy as np
import numpyro
import numpyro.distributions as dist
import pytest

import fedbayes as fb
from fedbayes.correction import correct
from fedbayes.errors import FederatedError, NotConvergedWarning, UnreliableWarning
from fedbayes.models import eight_schools, linear
from fedbayes.numerics.gaussian import Gaussian
from fedbayes.problem.program.prior import Prior
from fedbayes.results.checked import Checked

MOMENTS = json.loads((Path(__file__).parents[2] / "data" / "posteriordb" / "moments.json").read_text())
# mean of mu, of log tau, and their sds, with 10, 30 and 100 clients: a grid over both (notes E3.3 of Yue 2023)
EXACT = {10: (1.0020, -0.1961, 0.2893, 0.4473), 30: (0.8445, -0.1870, 0.1667, 0.2591)}

# the smallest fit of two replicates, where the answer of the rounds is known and only the check of it is asked about
SMALL = dict(
    method=fb.EP(num_replicates=2, solver="laplace", init="prior", damping=1.0), key=jax.random.key(1), num_draws=500,
    progress=False,
)  # fmt: skip


def scale_model(th) -> None:
    mu = numpyro.sample("mu", dist.Normal(0.0, 1.0))
    ell = numpyro.sample("ell", dist.Normal(0.0, 1.0))
    numpyro.sample("estimate", dist.Normal(mu, jnp.sqrt(jnp.exp(ell) + 0.05**2 / 100)), obs=th)


def scale_clients(num: int) -> dict:
    th = 1.0 + np.sqrt(1.17) * np.random.default_rng(0).standard_normal(num)
    return {f"client{k}": {"th": th[k]} for k in range(num)}


def deep_funnel(y) -> None:
    """Twenty-five globals whose scale is one of them, and data that say little."""
    v = numpyro.sample("v", dist.Normal(0.0, 3.0))
    x = numpyro.sample("x", dist.Normal(0.0, jnp.exp(0.5 * v)).expand([24]).to_event(1))
    numpyro.sample("y", dist.Normal(x, 5.0).to_event(1), obs=y)


@pytest.fixture(scope="module")
def straight() -> dict:
    return linear.simulate(jax.random.key(0), rows=(5, 20, 60))[0]


@pytest.fixture(scope="module")
def corrected() -> fb.FederatedFit:
    """A fit whose Gaussian is corrected, of few draws."""
    asked = dict(method=fb.EP(num_replicates=2), key=jax.random.key(1), num_draws=500, progress=False)
    fit = fb.fit_federated(scale_model, scale_clients(10), **asked)
    assert fit.correction.applied
    return fit


@pytest.fixture(scope="module")
def schools() -> fb.FederatedFit:
    clients = eight_schools.clients()
    return fb.fit_federated(eight_schools.model, clients, key=jax.random.key(0), num_draws=4000, progress=False)


@pytest.fixture(scope="module")
def scales() -> Callable[[int], fb.FederatedFit]:
    """Fits of a hierarchical scale, with so many draws that their Monte Carlo errors are a tenth of a percent."""

    @cache
    def fit_of(num: int) -> fb.FederatedFit:
        return fb.fit_federated(
            scale_model, scale_clients(num), key=jax.random.key(0), num_draws=16_000, progress=False
        )

    return fit_of


def test_an_exact_answer_stays_as_it_is(straight: dict) -> None:
    fit = fb.fit_federated(linear.model, straight, **SMALL)
    plain = fb.fit_federated(linear.model, straight, **SMALL, correct=False)
    assert fit.error.attrs["correction"] == "not needed"
    assert fit.error.attrs["distance"] < 1e-6
    np.testing.assert_allclose(fit.error["mean"], 0.0, atol=1e-9)
    np.testing.assert_array_equal(fit.idata.posterior["beta"], plain.idata.posterior["beta"])
    np.testing.assert_allclose(fit.idata.log_likelihood["client"], plain.idata.log_likelihood["client"], rtol=1e-9)
    assert "exact to" in repr(fit)
    assert fit.trouble() == ""


def test_what_the_check_costs_is_counted(straight: dict) -> None:
    fit = fb.fit_federated(linear.model, straight, **SMALL)
    plain = fb.fit_federated(linear.model, straight, **SMALL, correct=False)
    assert fit.communication.exchanges == plain.communication.exchanges + 1
    # of each replicate 500 draws of the Gaussian and 250 wider ones, a number each from a client
    assert fit.communication.bytes_up - plain.communication.bytes_up >= 2 * 750 * 8
    before = fit.communication
    assert fit.idata.log_likelihood["client"].shape == (2, 500, 3)
    assert fit.communication == before
    with pytest.raises(ValueError, match="`correct=False`"):
        _ = plain.error


@pytest.mark.parametrize("rounds", [None, 1])
def test_a_check_that_fails_does_not_lose_the_fit(straight: dict, rounds, monkeypatch, tmp_path: Path) -> None:
    def fails(*given):
        raise FederatedError("The clients' answer asks for 53.6 GiB of memory at once.")

    monkeypatch.setattr("fedbayes.results.corrected.correct", fails)
    category = UnreliableWarning if rounds is None else NotConvergedWarning
    with pytest.warns(category, match=r"53\.6 GiB of memory at once\. `fit\.idata` has the answer of the rounds"):
        fit = fb.fit_federated(linear.model, straight, num_rounds=rounds, **SMALL)
    monkeypatch.undo()
    assert "the check has failed" in repr(fit)
    assert "53.6 GiB" in fit.trouble()
    assert fit.correction is None
    with pytest.raises(ValueError, match=r"53\.6 GiB"):
        _ = fit.error
    idata = fit.idata
    assert idata.posterior.attrs["correction"] == "failed"
    assert not hasattr(idata, "log_likelihood")
    if rounds is None:
        plain = fb.fit_federated(linear.model, straight, **SMALL, correct=False)
        np.testing.assert_array_equal(idata.posterior["beta"], plain.idata.posterior["beta"])
    fit.save(tmp_path / "fit")
    loaded = fb.load_fit(tmp_path / "fit", linear.model, straight)
    assert loaded.idata.posterior["beta"].shape[:2] == (2, 500)
    assert repr(loaded) == repr(fit)
    assert loaded.trouble() == fit.trouble()
    assert np.isfinite(loaded.leave_one_out()["elpd"]).all()  # the clients are there, and answer
    assert len(loaded.loo()) > 0


def test_questions_are_no_part_of_what_idata_costs(straight: dict, tmp_path: Path) -> None:
    fit = fb.fit_federated(linear.model, straight, **SMALL, correct=False)
    rounds = fit.communication.exchanges
    fit.exact(progress=False)
    asked = fit.communication.exchanges - rounds
    assert asked >= 1
    assert "; fit.idata takes one more" in repr(fit)
    fit.save(tmp_path / "fit")  # asks for `idata`
    assert ", fit.idata included" in repr(fit)
    assert fit.communication.exchanges == rounds + asked + 1
    loaded = fb.load_fit(tmp_path / "fit", linear.model, straight)
    assert loaded.communication.exchanges == rounds + 1
    assert ", fit.idata included" in repr(loaded)
    loaded.exact(progress=False)
    assert loaded.communication == fit.communication


def heard(log_factor, theta, noise: float) -> SimpleNamespace:
    """One client's answer with this relative variance."""
    value = log_factor(theta)[None]
    return SimpleNamespace(
        replies=SimpleNamespace(each=value), infos={"noise": np.full(value.shape, noise), "halved": np.zeros(())}
    )


@pytest.mark.parametrize(("coarse", "fine", "asked", "state"), [
    (0.9, None, [(0, False)], "not needed"),
    (1.1, 0.1, [(0, False), (1, True)], "not needed"),
    (40.0, 1.2, [(0, False), (1, True), (2, True), (3, True)], "unreliable"),
])  # fmt: skip
def test_noisy_clients_are_asked_again_for_more_draws_of_their_locals(coarse, fine, asked, state) -> None:
    """Two chains with the exact posterior, a standard Normal: only the noise can be wrong."""
    said = []

    def ask(drawn, turn, finer=False):
        said.append((turn, finer))
        return heard(lambda theta: np.zeros(theta.shape[:2]), drawn.theta, fine if finer else coarse)

    law = Gaussian(jnp.zeros((2, 1)), jnp.ones((2, 1, 1)), jnp.zeros(2))
    with jax.enable_x64(True):
        prior = Prior(lambda theta: -0.5 * jnp.sum(theta**2), 1)
        found = correct.correct(law, 500, prior, ask, (jax.random.key(1), jax.random.key(2)))
    assert said == asked
    assert found.state == state
    assert found.dataset(["theta"]).attrs["exchanges"] == len(asked)
    assert [turn for turn, _ in found.exchanged()] == [turn for turn, finer in asked if finer == found.finer]
    trouble = Checked.of(found).trouble()
    assert ("even with many draws of their locals the estimates have the relative variance 1.2" in trouble) == (
        state == "unreliable"
    )


@pytest.mark.statistical(key=0, numbers=4, errors=5.0)
def test_a_client_that_joins_updates_the_corrected_posterior() -> None:
    """One whose data say nothing: what it is told is the posterior, and the Gaussian's sds are off by 3 percent."""

    def mean_and_sd(th, weight=1.0) -> None:
        mu = numpyro.sample("mu", dist.Normal(0.0, 1.0))
        ell = numpyro.sample("ell", dist.Normal(0.0, 1.0))
        with numpyro.handlers.scale(scale=weight):
            numpyro.sample("estimate", dist.Normal(mu, jnp.sqrt(jnp.exp(ell) + 0.05**2 / 100)), obs=th)

    clients = {name: {**data, "weight": np.array(1.0)} for name, data in scale_clients(10).items()}
    fit = fb.fit_federated(mean_and_sd, clients, key=jax.random.key(0), num_draws=4000, progress=False)
    joined = fit.adapt({"th": np.array(1.0), "weight": np.array(1e-9)}).posterior
    assert fit.correction.applied
    exact = np.asarray(EXACT[10])
    found = [joined[name].values for name in ("mu", "ell")]
    error = 1.0 / np.sqrt(fit.error.attrs["effective_draws"])
    assert np.all(np.abs([each.mean() for each in found] - exact[:2]) / exact[2:] < 5.0 * error)
    assert np.all(np.abs([each.std() for each in found] / exact[2:] - 1.0) < 5.0 * error / np.sqrt(2.0))
    off = np.abs(fit.error["sd"].values)
    assert np.max(off) > 5.0 * error / np.sqrt(2.0)  # the Gaussian itself would fail


def rarely(y) -> None:
    """A rare event in each client, whose locals are skewed."""
    mu = numpyro.sample("mu", dist.Normal(0.0, 1.5))
    with fb.local(), numpyro.plate("two", 2):  # which depend on each other: one alone is integrated by quadrature
        z = numpyro.sample("z", dist.Normal(0.0, 0.7))
    numpyro.sample("y", dist.Bernoulli(logits=mu + z[0] + z[1]), obs=y)


@pytest.mark.statistical(key=0, numbers=2, errors=6.0)
def test_more_draws_of_the_locals_give_the_same_posterior(monkeypatch: pytest.MonkeyPatch) -> None:
    clients = {name: {"y": np.array([0.0, 0.0, float(name == "b")])} for name in "abc"}
    asked = dict(method=fb.Laplace(), key=jax.random.key(0), num_draws=2000, progress=False)
    plain = fb.fit_federated(rarely, clients, **asked)
    monkeypatch.setattr(correct.Pool, "needs_finer", True)
    finer = fb.fit_federated(rarely, clients, **asked)
    assert (plain.correction.finer, finer.correction.finer) == (False, True)
    assert finer.communication.exchanges == plain.communication.exchanges + 1
    assert finer.error.attrs["noise"] < 0.3 * plain.error.attrs["noise"]
    mine, other = finer.error["quantity_mean"], plain.error["quantity_mean"]
    assert abs(mine - other) < 6.0 * plain.error["quantity_mean_mcse"]
    z = [each.client_posterior("b").posterior["z"].values for each in (plain, finer)]
    assert abs(z[0].mean() - z[1].mean()) < 6.0 * np.sqrt(2.0) * z[0].std() / np.sqrt(
        plain.error.attrs["effective_draws"]
    )


@pytest.mark.slow
@pytest.mark.statistical(key=0, numbers=7, errors=4.7)  # with the sds of log tau, to 0.06 and more
def test_eight_schools_are_corrected_to_the_reference_draws(schools: fb.FederatedFit) -> None:
    """Mean and sd of mu and log tau within 4.7 Monte Carlo errors, ours and the reference's (10,000 draws)."""
    found = schools.error
    assert found.attrs["correction"] == "applied"
    assert found.sel({"coordinate": "tau"})["sd"] < -0.15  # what the Gaussian has got wrong
    for place, name in enumerate(("mu", "log_tau")):
        mean, sd = MOMENTS["eight_schools"][name]
        own = found.isel({"coordinate": place})
        error = np.hypot(float(own["mean_mcse"]) * sd, sd / np.sqrt(10_000))
        assert abs(float(own["posterior_mean"]) - mean) < 4.7 * error
        error = np.hypot(float(own["sd_mcse"]), 2.0 / np.sqrt(2.0 * 10_000))  # log tau has a kurtosis above three
        assert abs(float(own["posterior_sd"]) / sd - 1.0) < 4.7 * error
    drawn = np.log(schools.idata.posterior["tau"].values)
    assert abs(drawn.std() / MOMENTS["eight_schools"]["log_tau"][1] - 1.0) < 0.06
    approximate = np.log(schools.approximate_idata.posterior["tau"].values)
    assert approximate.std() < 0.87 * drawn.std()
    assert schools.approximate_idata.posterior.attrs["correction"] == "none"


@pytest.mark.slow
@pytest.mark.statistical(key=0, numbers=16, errors=4.7)
def test_every_schools_own_effect_is_the_references(schools: fb.FederatedFit) -> None:
    for place, name in enumerate(schools.client_names):
        theta = schools.client_posterior(name).posterior["theta"].values
        mean, sd = MOMENTS["eight_schools"][f"theta[{place + 1}]"]
        assert abs(theta.mean() - mean) < 0.06 * sd  # 4.7 Monte Carlo errors of 16,000 and 10,000 draws
        assert abs(theta.std() / sd - 1.0) < 0.06


@pytest.mark.slow
@pytest.mark.parametrize(
    "num",
    [  # measured: the sds of the moments are at most 0.08 percent, of the Gaussian's own error 0.25 and 0.11
        pytest.param(10, marks=pytest.mark.statistical(key=0, numbers=6, errors=10.0)),
        pytest.param(30, marks=pytest.mark.statistical(key=0, numbers=6, errors=5.0)),
    ],
)
def test_a_hierarchical_scale_is_within_a_percent(num: int, scales: Callable[[int], fb.FederatedFit]) -> None:
    """The Gaussian's sds are 3 to 7 percent too small there."""
    fit, exact = scales(num), np.asarray(EXACT[num])
    np.testing.assert_allclose(fit.error["posterior_sd"], exact[2:], rtol=0.01)
    np.testing.assert_array_less(np.abs(fit.error["posterior_mean"] - exact[:2]) / exact[2:], 0.01)
    assert np.all(fit.error["sd"] < -0.02)


def test_the_prior_left_out_of_the_weights_is_seen(monkeypatch: pytest.MonkeyPatch) -> None:
    """Planted bug: without the prior the corrected moments miss the exact ones by far more than the tolerance above."""
    monkeypatch.setattr(correct, "log_joint", lambda prior, theta, log_likelihood: log_likelihood.sum(axis=-1))
    asked = dict(method=fb.EP(num_replicates=2), key=jax.random.key(1), num_draws=500, progress=False)
    fit = fb.fit_federated(scale_model, scale_clients(10), **asked)
    exact = np.asarray(EXACT[10])
    assert np.max(np.abs(fit.error["posterior_sd"] / exact[2:] - 1.0)) > 0.05


@pytest.mark.slow
def test_a_funnel_says_that_it_is_not_to_be_trusted() -> None:
    clients = {f"client{k}": {"y": y} for k, y in enumerate(np.random.default_rng(0).normal(0.0, 5.0, (3, 24)))}
    method = fb.OneShot(combine="gaussian_product", check=False, num_replicates=2)
    with pytest.warns(fb.UnreliableWarning, match=r"too far from Gaussian .* k-hat is .*`fit.exact\(\)`"):
        fit = fb.fit_federated(
            deep_funnel, clients, method=method, key=jax.random.key(0), num_draws=600, progress=False
        )
    assert fit.error.attrs["correction"] == "unreliable"
    assert fit.error.attrs["exchanges"] == 3
    assert "not to be trusted" in repr(fit)
    assert "too far from Gaussian" in fit.trouble()
    assert fit.idata.posterior.attrs["inference"] == "merged-posteriors"


@pytest.mark.slow
@pytest.mark.statistical(key=0, numbers=1, errors=10.0)  # measured: an sd of 0.0008
def test_evidence_is_corrected_too(scales: Callable[[int], fb.FederatedFit]) -> None:
    """Against a grid over both globals."""
    mu, ell = np.meshgrid(np.linspace(-1.0, 3.0, 801), np.linspace(-3.0, 3.0, 801), indexing="ij")
    variance = np.exp(ell) + 0.05**2 / 100
    log_joint = -0.5 * (mu**2 + ell**2) - np.log(2.0 * np.pi)
    for client in scale_clients(10).values():
        log_joint = log_joint - 0.5 * ((client["th"] - mu) ** 2 / variance + np.log(2.0 * np.pi * variance))
    exact = np.log(np.exp(log_joint).sum() * (4.0 / 800) * (6.0 / 800))
    np.testing.assert_allclose(scales(10).log_evidence.mean(), exact, atol=0.01)


def test_a_loaded_fit_says_the_same(corrected: fb.FederatedFit, tmp_path: Path) -> None:
    corrected.save(tmp_path / "fit")
    loaded = fb.load_fit(tmp_path / "fit", scale_model, scale_clients(10))
    np.testing.assert_array_equal(loaded.idata.posterior["ell"], corrected.idata.posterior["ell"])
    assert loaded.communication == corrected.communication
    np.testing.assert_allclose(loaded.error["posterior_sd"], corrected.error["posterior_sd"], rtol=1e-9)
    again = loaded.communication.exchanges - corrected.communication.exchanges  # its weights are not in the file
    assert again == corrected.error.attrs["exchanges"]


def test_a_fit_saved_before_checks_were_is_checked_when_it_is_asked(corrected: fb.FederatedFit, tmp_path: Path) -> None:
    corrected.save(tmp_path / "fit")
    file = tmp_path / "fit" / "fit.json"
    meta = json.loads(file.read_text())
    del meta["checked"]
    file.write_text(json.dumps(meta))
    loaded = fb.load_fit(tmp_path / "fit", scale_model, scale_clients(10))
    assert "  Gaussian  of unknown error; fit.error asks the clients" in repr(loaded)
    assert loaded.fitted.ledger == []
    assert loaded.trouble() == corrected.trouble()
    again, first = repr(loaded).splitlines(), repr(corrected).splitlines()
    assert [line for line in again if "Gaussian" in line] == [line for line in first if "Gaussian" in line] != []


def test_executors_agree_on_the_correction(corrected: fb.FederatedFit) -> None:
    # with this key no client changes to NUTS, whose steps magnify the rounding in which executors differ
    assert "nuts" not in corrected.rounds["solver"].values
    asked = dict(method=corrected.method, key=jax.random.key(1), num_draws=500, progress=False)
    other = fb.fit_federated(scale_model, scale_clients(10), **asked, executor="loopback")
    np.testing.assert_allclose(corrected.error["posterior_sd"], other.error["posterior_sd"], rtol=1e-9)
