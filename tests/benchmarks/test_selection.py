"""The benchmark of variable selection: its rivals, its split of the pupils, and its page."""

import json
from pathlib import Path

import jax
import numpy as np
import pytest

from fedbayes.models import penalised

SCRIPT = Path(__file__).resolve().parents[2] / "benchmarks" / "selection.py"

pytestmark = pytest.mark.skipif(not SCRIPT.exists(), reason="these tests run away from a checkout")


@pytest.fixture(scope="module")
def script(load):
    return load("selection")


@pytest.fixture
def pupils():
    rng = np.random.default_rng(0)
    jobs = ("at_home", "health", "other")
    return [
        {"school": "GP" if i < 30 else "MS", "sex": "FM"[rng.integers(2)], "age": str(rng.integers(15, 20))}
        | {"Mjob": jobs[rng.integers(3)], "G1": "9", "G2": "9", "G3": str(rng.integers(0, 20))}
        for i in range(50)
    ]


def test_predictors_have_names(script, pupils):
    assert script.names(pupils) == ["sex M", "age", "Mjob health", "Mjob other"]


def test_attributes_with_missing_cells_are_left_out_and_named(script, pupils):
    pupils[7]["age"] = ""
    left, gaps = script.complete(pupils)
    assert gaps == ["age"]
    assert script.names(left) == ["sex M", "Mjob health", "Mjob other"]
    assert script.complete(left) == (left, [])


def test_a_result_is_found_once_and_stored(script, tmp_path, monkeypatch):
    monkeypatch.setattr(script, "STORED", tmp_path / "stored.json")
    one = script.Schools([0.5, 0.25], [-1.0, -2.0], [3, 4], 1.0)
    assert script.Schools(**script.kept("lasso 0", lambda: one)) == one
    assert script.Schools(**script.kept("lasso 0", lambda: pytest.fail("found anew"))) == one
    assert json.loads(script.STORED.read_text()) == {"lasso 0": one._asdict()}


def test_pupils_are_split_centred_and_scaled_by_the_training_rows(script, pupils):
    data = script.schools(pupils, 0)
    assert {name: len(part["y"]) for name, part in data.train.items()} == {"GP": 18, "MS": 12}
    assert {name: len(part["y"]) for name, part in data.test.items()} == {"GP": 12, "MS": 8}
    x, y = (np.concatenate([part[name] for part in data.train.values()]) for name in ("x", "y"))
    assert x.shape[1] == 4
    np.testing.assert_allclose(x.mean(axis=0), 0.0, atol=1e-12)
    np.testing.assert_allclose((x[:, 1].std(), y.mean(), y.std()), (1.0, 0.0, 1.0), atol=1e-12)
    assert len(np.unique(x[:, 0])) == 2
    assert sum(len(part["y"]) for part in script.schools(pupils, None).train.values()) == 50


@pytest.mark.statistical(key="0 to 39", numbers=2, errors=3.7)  # measured: intervals of one client share its error
def test_intervals_of_least_squares_hold_nine_times_in_ten(script):
    scores = [script.by_least_squares("I", 3.0, seed) for seed in range(40)]
    covered = np.mean([score.covered for score in scores])
    assert abs(covered - 0.9) < 4 * np.sqrt(0.09 / (40 * 80))  # binomial, 40 data sets of 80 intervals
    false = np.mean([score.false for score in scores])
    assert abs(false - 0.1) < 4 * np.sqrt(0.09 / (40 * 50))


@pytest.mark.statistical(key="0 to 7", numbers=1, errors=8.0)
def test_scores_of_the_truth(script):
    errors = []
    for seed in range(8):
        train, test, theta = penalised.simulate_case(jax.random.key(seed), "II", 0.05)
        mean = np.tile(theta, (len(train), 1))
        found = script.scored(mean, mean - 0.1, mean + 0.1, test, theta, converged=True)
        assert (found.correct, found.false, found.covered, found.noiseless) == (1.0, 0.0, 1.0, 0.0)
        errors.append(found.error)
    assert abs(np.mean(errors) - 0.05) < 0.001  # sds from 10,000 rows each: standard error 0.00035 / sqrt(8)
    planted = script.scored(mean, mean + 0.1, mean + 0.2, test, theta, converged=True)
    assert (planted.false, planted.covered) == (1.0, 0.0)


def test_clients_are_filled_up(script):
    clients = {"a": {"x": np.ones((2, 3)), "y": np.ones(2)}, "b": {"x": np.ones((4, 3)), "y": np.ones(4)}}
    rows = script.stacked(clients)
    assert rows["x"].shape == (2, 4, 3)
    assert rows["real"].sum(axis=1).tolist() == [2, 4]
    assert rows["y"].sum() == 6.0


def test_sections_are_replaced_and_kept_in_order(script):
    titles = [title for title, _ in script.PARTS.values()]
    page = script.merged("", {titles[2]: "outdated"})
    page = script.merged(page, {titles[0]: "zeroth"})
    page = script.merged(page, {titles[2]: "renewed"})
    assert page.index("zeroth") < page.index("renewed")
    assert "outdated" not in page
    assert page.startswith(script.HEAD)
