"""Correlated clients from end to end: exact sites, other likelihoods, every question a fit is asked."""

from dataclasses import replace

import jax
import matplotlib.pyplot
import numpy as np
import numpyro
import numpyro.distributions as dist
import pytest

import fedbayes as fb
from fedbayes import plots
from fedbayes.inference.correlated.answer import BayesAnswer
from fedbayes.inference.correlated.plots import client_correlation

KEY = jax.random.key(1)
QUICK = {"num_chains": 2, "num_sweeps": 100, "thinning": 1}


def known(x, y=None):
    """Known noise and no globals."""
    with fb.local():
        theta = numpyro.sample("theta", dist.Normal(0.0, 1.0).expand([x.shape[1]]).to_event(1))
    numpyro.sample("y", dist.Normal(x @ theta, 0.3), obs=y)


def common_mean(x, y=None):
    """A common mean, and noise of each client's own."""
    mu = numpyro.sample("mu", dist.Normal(0.0, 2.0).expand([x.shape[1]]).to_event(1))
    with fb.local():
        sigma = numpyro.sample("sigma", dist.HalfNormal(1.0))
        z = numpyro.sample("z", dist.Normal(0.0, 1.0).expand([x.shape[1]]).to_event(1))
    numpyro.sample("y", dist.Normal(x @ (mu + z), sigma), obs=y)


def logistic(x, y=None):
    intercept = numpyro.sample("intercept", dist.Normal(0.0, 1.0))
    with fb.local():
        theta = numpyro.sample("theta", dist.Normal(0.0, 1.0).expand([x.shape[1]]).to_event(1))
    numpyro.sample("y", dist.Bernoulli(logits=intercept + x @ theta), obs=y)


def make_clients(num=5, size=4, rank=1, rows=12, noise=0.3, seed=0, binary=False):
    rng = np.random.default_rng(seed)
    theta = rng.normal(size=(num, rank)) @ rng.normal(size=(rank, size)) + 0.1 * rng.normal(size=(num, size))
    clients = {}
    for k in range(num):
        x = rng.normal(size=(rows + k, size))
        y = x @ theta[k]
        y = (rng.random(len(y)) < 1 / (1 + np.exp(-y))).astype(float) if binary else y + noise * rng.normal(size=len(y))
        clients[f"c{k}"] = {"x": x, "y": y}
    return clients, theta


def fitted(model, clients, **options):
    return fb.fit_federated(
        model, clients, method=fb.CorrelatedClients(**(QUICK | options)), key=KEY, progress=False, num_draws=200
    )


@pytest.fixture(scope="module")
def linear():
    clients, theta = make_clients()
    return fitted(known, clients), clients, theta


def test_linear_sites_are_exact_after_one_exchange(linear):
    fit, clients, _ = linear
    sites = fit.fitted.run.state.sites
    for k, data in enumerate(clients.values()):
        np.testing.assert_allclose(sites.precision[0, k], data["x"].T @ data["x"] / 0.09, rtol=1e-7, atol=1e-7)
        np.testing.assert_allclose(sites.shift[0, k], data["x"].T @ data["y"] / 0.09, rtol=1e-7, atol=1e-7)
    assert fit.converged
    assert fit.communication.exchanges <= 3
    assert float(fit.rounds["change"][-1].max()) < 1e-6


def test_idata_holds_omega_and_all_clients(linear):
    fit, _, theta = linear
    posterior = fit.idata.posterior
    assert posterior["omega"].dims == ("chain", "draw", "client_name", "other_client_name")
    assert list(posterior["client_name"].values) == list(fit.client_names)
    omega = posterior["omega"].values
    np.testing.assert_allclose(omega, np.swapaxes(omega, -1, -2))
    assert np.all(np.linalg.eigvalsh(omega) > 0)
    estimate = posterior["theta_by_client"].mean(("chain", "draw")).values
    assert np.abs(estimate - theta).max() < 0.5
    assert {"r_hat", "ess", "rank"} <= set(fit.rounds.attrs)


@pytest.mark.parametrize(("r_hat", "ess"), [(1.016, 2000.0), (1.001, 214.0), (float("nan"), float("nan"))])
def test_chains_that_have_not_mixed_are_no_convergence(linear, monkeypatch, r_hat, ess):
    """By R-hat below 1.01 as everywhere, and by enough draws for R-hat to mean it, after four times the sweeps."""
    fit, *_ = linear
    monkeypatch.setattr(BayesAnswer, "_mixing_of", lambda answer, drawn: (r_hat, ess))
    answer = fit.method.answer(fit.fitted.roster, fit.fitted.run)
    found = answer.verdict(fit.rounds)
    assert not found.converged
    assert answer.thinning == 4 * fit.method.thinning
    assert "(below 1.01 is wanted)" in found.trouble
    assert "at least 400 are wanted" in found.trouble
    assert "`CorrelatedClients(thinning=16)`" in found.trouble


def test_a_single_chain_knows_no_r_hat(linear, monkeypatch):
    fit, *_ = linear
    monkeypatch.setattr(BayesAnswer, "_mixing_of", lambda answer, drawn: (float("nan"), float("nan")))
    found = replace(fit.method, num_chains=1).answer(fit.fitted.roster, fit.fitted.run).verdict(fit.rounds)
    assert not found.converged
    assert "R-hat needs two chains at least" in found.trouble


def test_a_clients_posterior_is_its_part_of_the_chains(linear):
    fit, *_ = linear
    own = fit.client_posterior("c1").posterior["theta"]
    np.testing.assert_array_equal(own, fit.idata.posterior["theta_by_client"].sel(client_name="c1"))
    assert fit.client_posteriors().posterior["theta"].dims == ("chain", "draw", "client_name", "theta_dim_0")


def test_every_question_is_answered_or_refused_in_words(linear, tmp_path):
    fit, clients, _ = linear
    data = clients["c0"]
    assert fit.predict("c0", x=data["x"]).posterior_predictive["y"].shape == (2, 200, 12)
    assert np.all(np.isfinite(fit.log_predictive_density("c0", **data)["y"]))
    assert fit.check(10)["observed_data"]["y"].shape == (sum(len(each["y"]) for each in clients.values()),)
    for ask in (lambda: fit.adapt(data), lambda: fit.predict(x=data["x"])):
        with pytest.raises(ValueError, match="couples the clients by a covariance that has no entry for a client"):
            ask()
    fit.save(tmp_path / "fit")
    again = fb.load_fit(tmp_path / "fit", known, clients)
    np.testing.assert_allclose(again.idata.posterior["omega"], fit.idata.posterior["omega"])
    np.testing.assert_allclose(
        again.client_posterior("c1").posterior["theta"], fit.client_posterior("c1").posterior["theta"], rtol=1e-9
    )
    assert again.converged


def test_pictures(linear):
    fit, clients, _ = linear
    correlation = client_correlation(fit)
    ax = plots.plot_client_correlation(fit)
    shown = ax.images[0].get_array()
    names = [label.get_text() for label in ax.get_yticklabels()]
    places = [fit.client_names.index(name) for name in names]
    np.testing.assert_allclose(shown, correlation[np.ix_(places, places)])
    np.testing.assert_allclose(np.diagonal(shown), 1.0)
    separate = {name: np.linalg.lstsq(data["x"], data["y"])[0] for name, data in clients.items()}
    ax = plots.plot_shrinkage(fit, separate, component=2)
    own, middle = (line for line in ax.lines if line.get_label().startswith(("own", "everybody")))
    order = [fit.client_names.index(label.get_text()) for label in ax.get_yticklabels()]
    np.testing.assert_allclose(own.get_xdata(), [separate[fit.client_names[place]][2] for place in order])
    draws = fit.idata.posterior["theta_by_client"].values[..., 2]
    np.testing.assert_allclose(middle.get_xdata(), np.median(draws, axis=(0, 1))[order])
    assert ax.get_xlabel() == "theta[2]"
    matplotlib.pyplot.close("all")


def test_pictures_of_other_fits_are_refused(linear):
    fit, *_ = linear
    with pytest.raises(ValueError, match=r"no estimate of the clients \['c0'"):
        plots.plot_shrinkage(fit, {})
    with pytest.raises(ValueError, match="`component` is 9; write a number from 0 to 3"):
        plots.plot_shrinkage(fit, {name: np.zeros(4) for name in fit.client_names}, component=9)
    other = fb.fit_federated(no_local, CLIENTS, method="laplace", key=KEY, progress=False)
    with pytest.raises(ValueError, match="knows no covariance between clients"):
        plots.plot_client_correlation(other)
    with pytest.raises(ValueError, match="does not couple the clients' coefficients"):
        plots.plot_shrinkage(other, {})


def test_the_answer_moves_with_the_unit(linear):
    fit, clients, _ = linear
    larger = {name: {"x": data["x"] / 1000.0, "y": data["y"]} for name, data in clients.items()}
    other = fitted(known, larger)
    one, two = (each.idata.posterior["theta_by_client"].mean(("chain", "draw")).values for each in (fit, other))
    np.testing.assert_allclose(two / 1000.0, one, rtol=0.02, atol=0.01)


@pytest.mark.slow
@pytest.mark.optimised
def test_other_locals_are_integrated_out():
    clients, _ = make_clients(rows=25)
    fit = fitted(common_mean, clients, tolerance=0.1, thinning=8, solver="importance")
    own = fit.client_posterior("c0").posterior
    assert set(own.data_vars) == {"mu", "sigma", "z"}
    assert 0.2 < float(own["sigma"].mean()) < 0.45
    together = fit.client_posteriors().posterior
    assert "sigma" in together
    assert "mu" not in together


@pytest.mark.slow
@pytest.mark.optimised
def test_a_likelihood_that_is_not_gaussian():
    clients, theta = make_clients(rows=80, binary=True)
    fit = fitted(logistic, clients, tolerance=0.05, thinning=4)
    assert fit.converged
    estimate = fit.idata.posterior["theta_by_client"].mean(("chain", "draw")).values
    sd = fit.idata.posterior["theta_by_client"].std(("chain", "draw")).values
    assert np.sqrt(np.mean(((estimate - theta) / sd) ** 2)) < 1.6


def no_local(x, y=None):
    theta = numpyro.sample("theta", dist.Normal(0.0, 1.0).expand([x.shape[1]]).to_event(1))
    numpyro.sample("y", dist.Normal(x @ theta, 1.0), obs=y)


def two_locals(x, y=None):
    with fb.local():
        one = numpyro.sample("one", dist.Normal(0.0, 1.0).expand([x.shape[1]]).to_event(1))
        two = numpyro.sample("two", dist.Normal(0.0, 1.0).expand([x.shape[1]]).to_event(1))
    numpyro.sample("y", dist.Normal(x @ (one + two), 1.0), obs=y)


def constrained(x, y=None):
    with fb.local():
        theta = numpyro.sample("theta", dist.HalfNormal(1.0).expand([x.shape[1]]).to_event(1))
    numpyro.sample("y", dist.Normal(x @ theta, 1.0), obs=y)


def scalar(x, y=None):
    with fb.local():
        theta = numpyro.sample("theta", dist.Normal(0.0, 1.0))
    numpyro.sample("y", dist.Normal(theta, 1.0).expand([len(x)]).to_event(1), obs=y)


def related(x, y=None):
    mu = numpyro.sample("mu", dist.Normal(0.0, 1.0))
    with fb.local():
        theta = numpyro.sample("theta", dist.Normal(mu, 1.0).expand([x.shape[1]]).to_event(1))
    numpyro.sample("y", dist.Normal(x @ theta, 1.0), obs=y)


def own_shape(x, num, y=None):
    with fb.local():
        theta = numpyro.sample("theta", dist.Normal(0.0, 1.0).expand([num]).to_event(1))
    numpyro.sample("y", dist.Normal(x @ theta[:4] + theta.sum(), 1.0), obs=y)


CLIENTS, _ = make_clients()
SIZED = {name: data | {"num": 4 + place} for place, (name, data) in enumerate(CLIENTS.items())}
BAD = {
    "no local latent": (no_local, CLIENTS, {}, "no continuous local latent"),
    "several": (two_locals, CLIENTS, {}, r"several local latents, \['one', 'two'\]"),
    "an unknown name": (known, CLIENTS, {"latent": "beta"}, "'beta', which is no continuous local latent"),
    "constrained": (constrained, CLIENTS, {}, "'theta' is constrained"),
    "a single number": (scalar, CLIENTS, {}, "'theta' is a single number"),
    "a prior that is lost": (related, CLIENTS, {}, "depends on other latents"),
    "one client": (known, {"c0": CLIENTS["c0"]}, {}, "There is one client, c0"),
    "rank": (known, CLIENTS, {"rank": 5}, "`rank` is 5, but 5 clients with 4 coefficients"),
    "shapes": (own_shape, SIZED, {}, r"'c1' has shape \(5,\), but that of client 'c0' has \(4,\)"),
}


@pytest.mark.parametrize("case", BAD)
def test_bad_input_is_refused_before_work_starts(case):
    model, clients, options, message = BAD[case]
    with pytest.raises((ValueError, fb.ModelError, fb.ClientDataError), match=message):
        fb.fit_federated(model, clients, method=fb.CorrelatedClients(**options), key=KEY, progress=False)


@pytest.mark.parametrize(
    ("option", "value"),
    [
        ("rank", 0),
        ("solver", "nuts"),
        ("num_samples", 100),
        ("latent", 3),
        ("tolerance", 0.0),
        ("num_chains", 0),
    ],
)
def test_bad_options_are_named(option, value):
    with pytest.raises(ValueError, match=f"`{option}` is"):
        fb.CorrelatedClients(**{option: value})


def test_without_globals_other_methods_point_to_such_as_this_one():
    with pytest.raises(fb.ModelError, match=r"no global latent: \['theta'\].*couples the clients' own coefficients"):
        fb.fit_federated(known, CLIENTS, key=KEY, progress=False)
