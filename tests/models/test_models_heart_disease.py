import csv
from importlib.resources import files

import jax
import numpy as np
import pytest
from numpyro import handlers
from numpyro.infer.util import log_density
from scipy import stats

from fedbayes.models import heart_disease
from fedbayes.problem.program.sites import LOCAL


@pytest.fixture(scope="module")
def clients():
    return heart_disease.clients()


@pytest.fixture(scope="module")
def pooled(clients):
    return {name: np.concatenate([client[name] for client in clients.values()]) for name in ("x", "y")}


def test_rows_and_outcomes(clients):
    assert {name: len(client["x"]) for name, client in clients.items()} == {
        "cleveland": 303,
        "hungarian": 261,
        "switzerland": 46,
        "va": 130,
    }
    assert [int(client["y"].sum()) for client in clients.values()] == [139, 98, 45, 101]
    for client in clients.values():
        assert client["x"].shape == (len(client["y"]), 13)
        assert client["x"].dtype == np.float64
        assert client["y"].dtype == np.int32
        assert set(np.unique(client["y"])) == {0, 1}


def test_pooled_columns_are_standardised(pooled):
    np.testing.assert_allclose(pooled["x"].mean(axis=0), 0, atol=1e-12)
    np.testing.assert_allclose(pooled["x"].std(axis=0), 1, atol=1e-12)


def test_columns_against_a_plain_reading_of_the_files(clients, pooled):
    rows = []
    for hospital in heart_disease.HOSPITALS:
        with (files("fedbayes.models") / "data" / "heart" / f"{hospital}.csv").open() as file:
            for patient in csv.DictReader(file):
                value = {name: float(patient[name]) for name in patient if name not in ("slope", "ca", "thal")}
                if -9 not in value.values():
                    rows.append(value)

    def column(name):
        stem, _, level = name.partition("_")
        return np.array([row[stem] == float(level) if level else row[stem] for row in rows], float)

    expected = np.stack([column(name) for name in heart_disease.COORDS["coefficient"]], axis=1)
    assert expected.shape == (740, 13)
    np.testing.assert_allclose(pooled["x"], (expected - expected.mean(0)) / expected.std(0), atol=1e-11)
    np.testing.assert_array_equal(pooled["y"], [row["num"] > 0 for row in rows])


def test_names_of_the_coefficients():
    assert heart_disease.DIMS == {"beta": ["coefficient"]}
    names = heart_disease.COORDS["coefficient"]
    assert len(names) == len(set(names)) == 13
    assert [name for name in names if "_" in name] == ["cp_2", "cp_3", "cp_4", "restecg_1", "restecg_2"]


def test_pooled_scale_needs_only_moments():
    rng = np.random.default_rng(0)
    parts = [rng.normal([3.0, -200.0], [0.1, 40.0], size=(n, 2)) for n in (1, 0, 7, 30)]
    mean, sd = heart_disease.pooled_scale(heart_disease.moments(x) for x in parts)
    np.testing.assert_allclose(mean, np.concatenate(parts).mean(axis=0), rtol=1e-12)
    np.testing.assert_allclose(sd, np.concatenate(parts).std(axis=0), rtol=1e-8)


def test_pooled_scale_leaves_a_constant_column_at_sd_one():
    parts = [np.full((n, 2), [1.1, 145.7]) for n in (7, 100)]  # rounding: variances 1e-15 and -7e-11
    mean, sd = heart_disease.pooled_scale(heart_disease.moments(x) for x in parts)
    np.testing.assert_allclose(mean, [1.1, 145.7])
    np.testing.assert_array_equal(sd, 1.0)


def test_sites(clients):
    trace = handlers.trace(handlers.seed(heart_disease.model, 0)).get_trace(**clients["switzerland"])
    assert {name: np.shape(site["value"]) for name, site in trace.items() if site["type"] == "sample"} == {
        "intercept": (),
        "beta": (13,),
        "y": (46,),
    }
    assert not any(LOCAL in site["infer"] for site in trace.values())
    assert trace["y"]["fn"].log_prob(trace["y"]["value"]).shape == (46,)


def test_log_density(clients):
    rng = np.random.default_rng(1)
    intercept, beta = 1.3, rng.standard_normal(13)
    x, y = clients["va"]["x"], clients["va"]["y"]
    logit = intercept + x @ beta
    likelihood = np.sum(y * logit - np.logaddexp(0, logit))
    prior = -(intercept**2) / 50 - np.log(5) - beta @ beta / 2 - 14 * np.log(2 * np.pi) / 2
    with jax.enable_x64(True):
        value, _ = log_density(heart_disease.model, (x, y), {}, {"intercept": intercept, "beta": beta})
        np.testing.assert_allclose(value, prior + likelihood, rtol=1e-12)


@pytest.mark.statistical(key=0, alarm=2e-5)  # chi-squared at 1e-5; variances to 5, covariances to 7 errors
def test_simulate_draws_from_the_model():
    clients, truth = heart_disease.simulate(jax.random.key(0), rows=(20_000, 0, 1), intercept=-0.5)
    assert [client["x"].shape for client in clients.values()] == [(20_000, 13), (0, 13), (1, 13)]
    assert truth["intercept"] == -0.5
    x, y = clients["hospital0"]["x"], clients["hospital0"]["y"]
    np.testing.assert_allclose(np.cov(x.T), np.eye(13), atol=0.05)
    p = 1 / (1 + np.exp(-(truth["intercept"] + x @ truth["beta"])))
    design = np.column_stack([np.ones(len(y)), x])
    score, information = design.T @ (y - p), (design.T * (p * (1 - p))) @ design
    limit = stats.chi2.isf(1e-5, 14)
    assert score @ np.linalg.solve(information, score) < limit
    planted = design.T @ (y - 1 / (1 + np.exp(-x @ truth["beta"])))  # the intercept left out
    assert planted @ np.linalg.solve(information, planted) > 4 * limit


@pytest.mark.statistical(key="0 to 1999", alarm=3.8e-4)  # a mean to 3.6 errors, sd to 5.1, 13 variances to 4.7
def test_simulate_draws_the_truth_from_the_prior():
    truths = [heart_disease.simulate(jax.random.key(seed), rows=())[1] for seed in range(2000)]
    intercepts, betas = np.stack([t["intercept"] for t in truths]), np.stack([t["beta"] for t in truths])
    np.testing.assert_allclose([intercepts.mean() / 5, intercepts.std() / 5], [0, 1], atol=0.08)
    np.testing.assert_allclose(np.cov(betas.T), np.eye(13), atol=0.15)


def test_simulate_depends_on_the_key_and_the_client_alone():
    first, _ = heart_disease.simulate(jax.random.key(3), rows=(5, 6))
    again, _ = heart_disease.simulate(jax.random.key(3), rows=(9, 6, 4))
    other, _ = heart_disease.simulate(jax.random.key(4), rows=(5, 6))
    np.testing.assert_array_equal(first["hospital1"]["x"], again["hospital1"]["x"])
    np.testing.assert_array_equal(first["hospital1"]["y"], again["hospital1"]["y"])
    assert not np.array_equal(first["hospital1"]["x"], other["hospital1"]["x"])
    assert not np.array_equal(first["hospital0"]["x"][:5], first["hospital1"]["x"][:5])
