"""Test functions of several fidelities, against golden values computed apart from this code."""

from itertools import product

import jax
import numpy as np
import pytest

from fedbayes.models import gp

FIDELITY = gp.fidelity
GOLDEN = {
    "linear": ((0.4,), {"high": 0.1147769745, "low": 4.0573884873}),
    "nonlinear": ((0.2,), {"high": -0.8391721907, "low": 0.9601702866}),
    "currin": ((0.3, 0.6), {"high": 7.5553763342, "low": 7.5485207375}),
    "park": ((0.3, 0.6, 0.2, 0.7), {"high": 8.1744269369, "low": 8.7159977706}),
    "branin": ((0.3, 0.6), {"high": 23.1439228763, "medium": -40.2038966812, "low": -74.4800002684}),
    "hartmann3": ((0.3, 0.6, 0.2), {"high": 0.1127800077, "medium": 0.1126393090, "low": 0.1124986104}),
    "borehole": ((0.3, 0.6, 0.2, 0.7, 0.4, 0.5, 0.8, 0.1), {"high": 40.4342414606, "low": 101.0854229373}),
}
MOMENTS = {
    "currin": (7.60, 2.65),
    "park": (9.05, 4.76),
    "branin": (54.4, 51.3),
    "hartmann3": (0.945, 0.956),
    "borehole": (77.8, 45.6),
}


@pytest.mark.parametrize("name", GOLDEN)
def test_golden_values(name):
    place, values = GOLDEN[name]
    assert set(values) == set(FIDELITY.PROBLEMS[name].levels)
    for level, value in values.items():
        np.testing.assert_allclose(FIDELITY.evaluate(name, [place], level), [value], atol=6e-11, rtol=1e-9)


# the tolerance of mean or sd in standard errors of 160,000 points, whichever is less, measured
ERRORS = {"currin": 13.6, "park": 10.6, "branin": 7.2, "hartmann3": 8.0, "borehole": 11.2}


@pytest.mark.parametrize(
    "name",
    [pytest.param(name, marks=pytest.mark.statistical(key=0, numbers=2, errors=ERRORS[name])) for name in MOMENTS],
)
def test_moments_over_the_cube(name):
    u = np.random.default_rng(0).uniform(size=(160_000, FIDELITY.PROBLEMS[name].dim))
    high = FIDELITY.evaluate(name, u)
    np.testing.assert_allclose((high.mean(), high.std()), MOMENTS[name], rtol=0.02)


@pytest.mark.parametrize("name", GOLDEN)
def test_corners_of_the_cube_are_finite(name):
    problem = FIDELITY.PROBLEMS[name]
    corners = list(product((0.0, 1.0), repeat=problem.dim))
    for level in problem.levels:
        with np.errstate(all="raise", under="ignore"):
            assert np.isfinite(FIDELITY.evaluate(name, corners, level)).all()


def test_limits_at_the_edges():
    assert FIDELITY.evaluate("currin", [[1.0, 0.0]]) == pytest.approx(6352.0 / 624.0)
    near, at = FIDELITY.evaluate("park", [[1e-9, 0.3, 0.4, 0.5], [0.0, 0.3, 0.4, 0.5]])
    assert near == pytest.approx(at, abs=1e-7)


@pytest.mark.parametrize("name", GOLDEN)
def test_clients_are_standardised_and_the_test_points_in_the_high_level_s_units(name):
    clients, truth = FIDELITY.simulate(jax.random.key(0), name, num_test=50)
    problem = FIDELITY.PROBLEMS[name]
    assert {level: len(data["y"]) for level, data in clients.items()} == dict(problem.sizes)
    for data in clients.values():
        assert data["x"].shape == (len(data["y"]), problem.dim)
        np.testing.assert_allclose((data["y"].mean(), data["y"].std()), (0.0, 1.0), atol=1e-12)
    raw = FIDELITY.evaluate(name, clients["high"]["x"])
    np.testing.assert_allclose(clients["high"]["y"] * truth["sd"] + truth["mean"], raw, rtol=1e-10, atol=1e-10)
    there = FIDELITY.evaluate(name, truth["x"])
    np.testing.assert_allclose(truth["f"] * truth["sd"] + truth["mean"], there, rtol=1e-10, atol=1e-10)


def test_sizes_of_one_level_leave_the_others_alone():
    few, _ = FIDELITY.simulate(jax.random.key(1), "branin", sizes={"high": 5}, num_test=3)
    many, _ = FIDELITY.simulate(jax.random.key(1), "branin", num_test=3)
    assert len(few["high"]["y"]) == 5
    np.testing.assert_array_equal(few["low"]["y"], many["low"]["y"])


def test_corners_are_added_to_every_client():
    clients, _ = FIDELITY.simulate(jax.random.key(0), "currin", num_test=3, corners=True)
    assert {level: len(data["y"]) for level, data in clients.items()} == {"low": 204, "high": 44}
    np.testing.assert_array_equal(clients["high"]["x"][-4:], [[0, 0], [0, 1], [1, 0], [1, 1]])


@pytest.mark.parametrize(
    ("call", "words"),
    [
        (lambda: FIDELITY.simulate(jax.random.key(0), "curin"), "no multi-fidelity problem 'curin'.*'currin'"),
        (lambda: FIDELITY.simulate(jax.random.key(0), "park", sizes={"medium": 9}), "names .'medium'.*'low', 'high'"),
        (lambda: FIDELITY.simulate(jax.random.key(0), "park", sizes={"high": 1}), "two rows or more"),
        (lambda: FIDELITY.evaluate("park", np.zeros((2, 4)), "medium"), "no level 'medium'"),
        (lambda: FIDELITY.evaluate("park", np.zeros((2, 3))), r"shape \(2, 3\).*\(n, 4\)"),
        (lambda: FIDELITY.evaluate("branin", [[-5.0, 10.0]]), "scale each input to the unit interval"),
        (lambda: FIDELITY.evaluate("branin", [[np.nan, 0.5]]), "scale each input to the unit interval"),
    ],
)
def test_what_is_refused(call, words):
    with pytest.raises(ValueError, match=words):
        call()
