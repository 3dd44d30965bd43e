"""Fits by a formula end where those of programs written by hand do."""

import arviz as az
import jax
import numpy as np
import numpyro.distributions as dist
import pandas as pd
import pytest
from numpyro.infer.util import log_density

import fedbayes as fb
from fedbayes.models import eight_schools, heart_disease, hierarchical_linear, linear

NAMES = heart_disease.COORDS["coefficient"]


def hospitals():
    frames = {
        name: pd.DataFrame(data["x"], columns=NAMES).assign(sick=data["y"])
        for name, data in heart_disease.clients().items()
    }
    priors = {name: dist.Normal(0.0, 1.0) for name in NAMES} | {"Intercept": dist.Normal(0.0, 5.0)}
    return fb.regression(f"sick ~ {' + '.join(NAMES)}", family="bernoulli", clients=frames, priors=priors)


def moments(idata, names):
    """Means and sds of parameters, and the Monte Carlo errors of the means."""
    posterior = {name: np.asarray(idata.posterior[name]) for name in names}
    means, sds = [values.mean() for values in posterior.values()], [values.std() for values in posterior.values()]
    errors = [float(az.mcse(values)) for values in posterior.values()]
    return np.array(means), np.array(sds), np.array(errors)


@pytest.mark.slow
@pytest.mark.statistical(key=1, numbers=14, errors=6.0)
def test_the_hospitals_by_a_formula_are_the_hospitals(key):
    key = jax.random.key(1)
    found = moments(hospitals().fit(key=key, progress=False).idata, ["Intercept", *NAMES])
    fit = fb.fit_federated(heart_disease.model, heart_disease.clients(), key=key, progress=False)
    beta = fit.idata.posterior["beta"].to_numpy()
    expected = [fit.idata.posterior["intercept"].to_numpy(), *np.moveaxis(beta, -1, 0)]
    mean, sd = np.array([each.mean() for each in expected]), np.array([each.std() for each in expected])
    error = np.hypot(found[2], [float(az.mcse(each)) for each in expected])
    assert (np.abs(found[0] - mean) < 6.0 * error).all()
    np.testing.assert_allclose(found[1], sd, rtol=0.05)


SD = dist.LogNormal(0.0, 0.5)  # of a standard deviation whose square is log-normal with an sd of one


def coefficients_of_clients():
    """`hierarchical_linear`, whose noise is known, by a formula with a prior that all but knows it."""
    clients, _ = hierarchical_linear.simulate(jax.random.key(3), 6, 30, dim=2)
    frames = {name: {"a": data["x"][:, 0], "b": data["x"][:, 1], "y": data["y"]} for name, data in clients.items()}
    normal = dist.Normal(0.0, 1.0)
    priors = {"a": normal, "b": normal, "a + b|site_sigma": SD, "sigma": dist.LogNormal(0.0, 1e-4)}
    return clients, fb.regression("y ~ 0 + a + b + (0 + a + b || site)", clients=frames, priors=priors)


def test_coefficients_of_clients_have_the_density_of_the_ready_program():
    """The same but for the square: ``p(sd) = p(sd^2) 2 sd``."""
    clients, reg = coefficients_of_clients()
    mean, sd, raw = np.array([0.4, -1.1]), np.array([0.8, 1.7]), np.array([0.3, -0.6])
    values = {"a": mean[0], "b": mean[1], "a + b|site_sigma": sd, "sigma": 1.0, "a + b|site_offset": raw}
    by_hand = {"mu": mean, "tau": sd**2, "theta_raw": raw}
    with jax.enable_x64(True):
        for name, data in clients.items():
            found, _ = log_density(reg.model, (), dict(reg.clients[name]), values)
            expected, _ = log_density(hierarchical_linear.model_noncentered, (), data, by_hand)
            known = float(reg.priors["sigma"].log_prob(1.0))
            assert float(found) - known == pytest.approx(float(expected) + np.log(2.0 * sd).sum(), rel=1e-6)


def density(reg, values, model, clients, by_hand):
    """Log densities of each client by a formula, and by a ready program."""
    with jax.enable_x64(True):
        found = [float(log_density(reg.model, (), dict(reg.clients[name]), values)[0]) for name in clients]
        expected = [float(log_density(model, (), data, by_hand)[0]) for data in clients.values()]
    return found, expected


def test_the_hospitals_have_the_density_of_the_ready_program():
    beta = np.linspace(-1.0, 1.0, len(NAMES))
    values = dict(zip(NAMES, beta, strict=True)) | {"Intercept": 0.3, "Intercept_centred": 0.3}
    clients = heart_disease.clients()
    by_hand = {"intercept": 0.3, "beta": beta}
    found, expected = density(hospitals(), values, heart_disease.model, clients, by_hand)
    np.testing.assert_allclose(found, expected, rtol=1e-6)


def test_a_regression_with_known_noise_has_the_density_of_the_ready_program():
    clients, _ = linear.simulate(jax.random.key(4), (5, 9), dim=2)
    frames = {
        name: {"a": data["x"][:, 0], "b": data["x"][:, 1], "y": data["y"], "s": np.ones(len(data["y"]))}
        for name, data in clients.items()
    }
    priors = {"a": dist.Normal(0.0, 1.0), "b": dist.Normal(0.0, 1.0)}
    reg = fb.regression("y | se(s) ~ 0 + a + b", clients=frames, priors=priors)
    beta = np.array([0.4, -1.1])
    found, expected = density(reg, {"a": beta[0], "b": beta[1]}, linear.model, clients, {"beta": beta})
    np.testing.assert_allclose(found, expected, rtol=1e-6)


def test_clients_coefficients_with_known_noise_have_the_density_of_the_ready_program():
    """As the ready program's docstring writes it."""
    clients, _ = hierarchical_linear.simulate(jax.random.key(3), 2, 30, dim=2)
    frames = {
        name: {"a": data["x"][:, 0], "b": data["x"][:, 1], "y": data["y"], "s": np.ones(len(data["y"]))}
        for name, data in clients.items()
    }
    normal = dist.Normal(0.0, 1.0)
    priors = {"a": normal, "b": normal, "a + b|site_sigma": SD}
    reg = fb.regression("y | se(s) ~ 0 + a + b + (0 + a + b || site)", clients=frames, priors=priors)
    mean, sd, raw = np.array([0.4, -1.1]), np.array([0.8, 1.7]), np.array([0.3, -0.6])
    values = {"a": mean[0], "b": mean[1], "a + b|site_sigma": sd, "a + b|site_offset": raw}
    by_hand = {"mu": mean, "tau": sd**2, "theta_raw": raw}
    found, expected = density(reg, values, hierarchical_linear.model_noncentered, clients, by_hand)
    np.testing.assert_allclose(found, np.asarray(expected) + np.log(2.0 * sd).sum(), rtol=1e-6)


def test_eight_schools_have_the_density_of_the_ready_program():
    schools = eight_schools.clients()
    frames = {name: {"effect": data["y"], "error": data["sigma"]} for name, data in schools.items()}
    priors = {"Intercept": dist.Normal(0.0, 5.0), "1|site_sigma": dist.HalfCauchy(5.0)}
    reg = fb.regression("effect | se(error) ~ 1 + (1 | site)", clients=frames, priors=priors)
    assert list(reg.priors) == ["Intercept", "1|site_sigma"]
    values = {"Intercept": 4.4, "1|site_sigma": 3.3, "1|site_offset": -0.7}
    by_hand = {"mu": 4.4, "tau": 3.3, "theta_raw": -0.7}
    with jax.enable_x64(True):
        for name, data in schools.items():
            found, _ = log_density(reg.model, (), dict(reg.clients[name]), values)
            expected, _ = log_density(eight_schools.model_noncentered, (), data, by_hand)
            assert float(found) == pytest.approx(float(expected), rel=1e-12)
    assert reg.arguments("A", {"error": [9.0]})["errors"] == [9.0]


@pytest.mark.slow
@pytest.mark.statistical(key=2, numbers=4, errors=6.0)
def test_coefficients_of_clients_are_those_of_the_ready_program(key):
    key = jax.random.key(2)
    clients, reg = coefficients_of_clients()
    one = reg.fit(key=key, progress=False).idata.posterior
    two = fb.fit_federated(hierarchical_linear.model_noncentered, clients, key=key, progress=False).idata.posterior
    pairs = [(one["a"], two["mu"][..., 0]), (one["b"], two["mu"][..., 1])]
    pairs += [(np.log(one["a + b|site_sigma"][..., i]), 0.5 * np.log(two["tau"][..., i])) for i in range(2)]
    for found, expected in pairs:
        found, expected = found.to_numpy(), expected.to_numpy()
        error = np.hypot(float(az.mcse(found)), float(az.mcse(expected)))
        assert abs(found.mean() - expected.mean()) < 6.0 * error
        assert found.std() == pytest.approx(expected.std(), rel=0.1)


@pytest.fixture(scope="module")
def small():
    """A fit of a random intercept whose data say much, and its regression."""
    rng = np.random.default_rng(0)
    own = dict(zip("abcd", (-2.0, -0.5, 0.5, 2.0), strict=True))
    frame = pd.DataFrame({"x": rng.normal(3.0, 1.0, 160), "ward": np.repeat(list("abcd"), 40)})
    frame["y"] = 1.0 + 2.0 * frame["x"] + frame["ward"].map(own) + 0.3 * rng.normal(size=160)
    reg = fb.regression("y ~ x + (1 | ward)", clients=frame, site="ward")
    wards = np.array(list("abcd"))
    columns = np.column_stack([frame["x"], frame["ward"].to_numpy()[:, None] == wards])
    known = dict(zip(wards, np.linalg.lstsq(columns, frame["y"], rcond=None)[0][1:], strict=True))
    return reg, reg.fit(method="laplace", key=jax.random.key(0), progress=False), known


def test_a_fit_is_one_call_with_names_for_arviz(small):
    _, fit, _ = small
    posterior = fit.idata.posterior
    assert set(posterior) == {"Intercept", "Intercept_centred", "x", "1|ward_sigma", "sigma"}
    assert float(posterior["x"].mean()) == pytest.approx(2.0, abs=0.15)
    assert float(posterior["Intercept"].mean()) == pytest.approx(1.0, abs=1.5)


def test_a_client_has_its_own_effect(small):
    _, fit, known = small
    effects = [float(fit.client_posterior(name).posterior["1|ward"].mean()) for name in "abcd"]
    np.testing.assert_allclose(np.diff(effects), np.diff(list(known.values())), atol=0.02)  # they are shrunk by 0.005


def test_new_rows_are_predicted(small):
    reg, fit, _ = small
    predicted = fit.predict("d", **reg.arguments("d", {"x": [0.0, 5.0]})).posterior_predictive["y"]
    np.testing.assert_allclose(predicted.mean(("chain", "draw")), [3.0, 13.0], atol=0.7)


def test_a_fit_is_saved_and_loaded(small, tmp_path):
    reg, fit, _ = small
    fit.save(tmp_path / "fit")
    alone = fb.load_fit(tmp_path / "fit")
    whole = fb.load_fit(tmp_path / "fit", reg.model, reg.clients)
    for each in (alone, whole):
        np.testing.assert_allclose(each.idata.posterior["1|ward_sigma"], fit.idata.posterior["1|ward_sigma"])
