"""The source's algorithm for correlated clients: a round by hand, and its known defects."""

import numpy as np
import pytest

from fedbayes.theory.correlated import objective, source_algorithm, stable_rounds


def make_clients(num=4, size=3, seed=0):
    rng = np.random.default_rng(seed)
    found = []
    for k in range(num):
        x = rng.normal(size=(9 + k, size))
        found.append((x, x @ rng.normal(size=size) + 0.1 * rng.normal(size=9 + k)))
    return found


def test_a_round_with_all_rows_is_the_sources():
    """By hand, twice: the start of the second round is the end of the first."""
    clients = make_clients()
    options = {"local_steps": 1, "batch_size": None, "step_size": 0.004, "smoothing": 0.2}
    theta, omega = source_algorithm(clients, rounds=0)
    for rounds in (1, 2):
        pull = np.linalg.inv(omega) @ theta
        moved = [own + 0.008 * x.T @ (y - x @ own) for own, (x, y) in zip(theta, clients, strict=True)]
        theta = np.stack(moved) - 0.008 * pull
        omega = 0.8 * omega + 0.2 / 3 * theta @ theta.T
        found = source_algorithm(clients, rounds=rounds, **options)
        np.testing.assert_allclose(found[0], theta, rtol=1e-12)
        np.testing.assert_allclose(found[1], omega, rtol=1e-12)


def test_the_objective_is_unbounded_below():
    """``v' Theta = 0`` and Omega's eigenvalue along v to zero; the slope is m in its logarithm."""
    rng = np.random.default_rng(0)
    axes = np.linalg.qr(rng.normal(size=(4, 4)))[0]
    theta = rng.normal(size=(4, 3))
    theta -= np.outer(axes[:, 0], axes[:, 0] @ theta)
    sizes = (1.0, 1e-3, 1e-6, 1e-12)
    levels = [objective(theta, axes @ np.diag([size, 1.0, 1.0, 1.0]) @ axes.T, 0.0) for size in sizes]
    # the notes' golden numbers 287.5, 266.8, 246.0, 204.6 fall by the same amounts
    np.testing.assert_allclose(np.diff(levels), np.diff([287.5, 266.8, 246.0, 204.6]), atol=0.15)
    np.testing.assert_allclose(np.diff(levels), 3.0 * np.log([1e-3, 1e-3, 1e-6]), rtol=2e-4)


def test_the_sources_numbers_are_stable_for_44_rounds():
    assert stable_rounds(0.01, 0.1) == pytest.approx(43.7, abs=0.01)


def test_all_rows_diverge_where_the_step_is_too_long():
    clients = make_clients()
    steepest = max(np.linalg.eigvalsh(x.T @ x)[-1] for x, _ in clients)
    for factor, bounded in ((0.9, True), (1.1, False)):
        options = {"rounds": 1, "local_steps": 200, "batch_size": None, "step_size": factor / steepest}
        theta, _ = source_algorithm(clients, **options)
        assert (np.max(np.abs(theta)) < 1e3) == bounded
