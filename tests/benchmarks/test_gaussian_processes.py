"""The benchmark of Gaussian processes runs, small, and writes its page section by section."""

import os
from pathlib import Path

import jax
import numpy as np
import pytest

from fedbayes.models import gp

SCRIPT = Path(__file__).resolve().parents[2] / "benchmarks" / "gaussian_processes.py"

pytestmark = pytest.mark.skipif(not SCRIPT.exists(), reason="these tests run away from a checkout")


@pytest.fixture(scope="module")
def script(load):
    threads = os.environ.get("OPENBLAS_NUM_THREADS")
    module = load("gaussian_processes")
    if threads is None:
        os.environ.pop("OPENBLAS_NUM_THREADS")
    return module


@pytest.fixture(scope="module")
def low_and_high():
    return gp.fidelity.simulate(jax.random.key(0), "linear", num_test=40)


def test_the_mode_of_a_laplace_fit_predicts_the_high_fidelity(script, low_and_high):
    clients, truth = low_and_high
    # the Gaussian's own draws: the posterior is skewed, and the mean of its draws is not at the mode
    fit = script.fitted(gp.model, clients, "laplace", num_draws=200, correct=False)
    theta = script.mode(fit)
    for name, value in theta.items():
        draws = np.log(fit.idata.posterior[name].values)
        assert abs(np.log(value) - draws.mean()) < 0.3 * draws.std()
    mean, sd = script.plug_in(theta, clients["high"], truth["x"])
    assert script.rmse(mean, truth["f"]) < 0.2
    assert np.all(sd > 0.0)


def test_a_plug_in_is_the_library_s_own_prediction_at_that_point(script, low_and_high):
    clients, truth = low_and_high
    fit = script.fitted(script.flat_model, clients, script.averaging(0.1, 5, batch_size=20, epochs=1))
    free = fit.idata.posterior["free"].values[0, 0]
    found = script.FLOORS + np.log1p(np.exp(free))
    theta = dict(zip(("length_scale", "variance", "noise"), found, strict=True))
    theta["noise"] -= 1e-4  # which `gp.model` adds
    for mine, library in zip(
        script.plug_in(theta, clients["high"], truth["x"]), script.moments(fit, "high", truth["x"]), strict=True
    ):
        np.testing.assert_allclose(mine, library, rtol=1e-6, atol=1e-8)


def test_parts_without_their_data_are_skipped(script, tmp_path):
    for part in ("engines", "robot"):
        _, measure = script.PARTS[part]
        assert "Skipped" in measure(1, tmp_path)[0]


def test_engines_are_read_split_and_scaled(script, tmp_path):
    rng = np.random.default_rng(0)
    rows = np.array([[unit, t, *rng.normal(size=24)] for unit in (1, 2) for t in range(1, 31)])
    np.savetxt(tmp_path / "train.txt", rows)
    halves = script.engines(tmp_path / "train.txt", 2, 0)
    assert list(halves.train) == ["engine1", "engine2"]
    y = np.concatenate([part["engine1"]["y"] for part in halves])
    np.testing.assert_allclose((y.mean(), y.std()), (0.0, 1.0), atol=1e-12)
    wanted = (rows[:30, 6] - rows[:30, 6].mean()) / rows[:30, 6].std()
    np.testing.assert_allclose(np.sort(y), np.sort(wanted), atol=1e-12)
    x = np.concatenate([part["engine1"]["x"] for part in halves])
    np.testing.assert_allclose(np.sort(x[:, 0]), np.arange(1, 31) / 100.0)


def test_sections_are_replaced_and_kept_in_order(script):
    titles = {name: title for name, (title, _) in script.PARTS.items()}
    page = script.merged("", {titles["robot"]: "two"})
    page = script.merged(page, {titles["fidelity"]: "zero\n\nmore"})
    page = script.merged(page, {titles["robot"]: "new"})
    noted = f"zero\n\nmore\n\n{script.MARK}{script.NOTES['fidelity']}"
    assert page == script.HEAD + f"\n## {titles['fidelity']}\n\n{noted}\n## {titles['robot']}\n\nnew\n"
