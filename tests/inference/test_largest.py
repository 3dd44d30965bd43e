"""The largest of the clients' numbers, read from a sum of terms that does not show whose any number is."""

from itertools import pairwise

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from fedbayes.inference.largest import hiding, largest_of, terms_of
from fedbayes.network.fixed_point import plus, to_integers, to_numbers


def terms(numbers, seed=0):
    with jax.enable_x64(True):
        keys = jax.random.split(jax.random.key(seed), len(numbers))
        return np.stack([terms_of(jnp.asarray(x), hiding(key, (), 0)) for x, key in zip(numbers, keys, strict=True)])


def largest(numbers):
    with jax.enable_x64(True):
        return float(largest_of(jnp.asarray(terms(numbers).sum(axis=0))))


@pytest.mark.parametrize("numbers", [[3.0], [1e-6, 2e-6, 5e-6], [0.0, 7.0, 6.0], [-4.0, 0.25], [2.0, 1.0, 1.999, 2.0]])
def test_it_is_the_norm_in_closed_form(numbers) -> None:
    top = max(numbers)
    norm = top * np.sum((np.maximum(numbers, 0.0) / top) ** 128) ** (1 / 128)
    np.testing.assert_allclose(largest(numbers), norm, rtol=1e-13)
    assert top <= largest(numbers) * (1 + 1e-14) <= top * len(numbers) ** (1 / 128) * (1 + 2e-14)


def test_a_tenth_apart_it_is_the_largest() -> None:
    np.testing.assert_allclose(largest([0.9, 1.0, 0.9]), 1.0, rtol=1e-6)


def test_wherever_between_two_points_of_the_grid() -> None:
    for top in np.geomspace(1.0, 2.0, 41):
        np.testing.assert_allclose(largest([top, top / 2]), top, rtol=1e-13)
        np.testing.assert_allclose(largest([top] * 100), top * 100 ** (1 / 128), rtol=1e-13)


def test_nothing_and_too_much() -> None:
    assert largest([0.0, -1.0]) == 0.0
    assert largest([1.0, 1e30]) == np.inf


def test_the_sum_in_fixed_point_is_as_good() -> None:
    """Over a network terms are added as integers, in steps of 3e-21."""
    numbers = [0.3, 4.1, 3.9]
    words = [to_integers(each) for each in terms(numbers)]
    with jax.enable_x64(True):
        found = largest_of(jnp.asarray(to_numbers(plus(plus(words[0], words[1]), words[2]))))
    np.testing.assert_allclose(found, largest(numbers), rtol=1e-9)


def test_the_others_are_not_seen_exactly() -> None:
    """Above the largest the terms of a number half as large are nothing; below it random numbers hide them.

    A count in place of the random numbers, which is the obvious thing to send, would show the second number exactly:
    at the points between the two the sum is one and its own term.
    """
    total = terms([8.0, 4.1]).sum(axis=0)
    alone = terms([8.0, 0.0]).sum(axis=0)
    moved = np.abs(total - alone)
    assert np.all(moved[total < 1.0] < 1e-30)
    between = (alone >= 1.0) & (terms([0.0, 4.1]).sum(axis=0) < 1.0)
    assert between.sum() > 2
    # what is random there has a spread of 2^20, and does not come from the number: a term of up to one can't be told
    again = np.stack([terms([8.0, 0.0], seed)[0][between] for seed in range(20)])
    assert np.all(again.std(axis=0) > 1e5)
    counted = np.where(alone >= 1.0, 1.0, alone) + terms([0.0, 4.1])[1]
    grid = 2.0 ** (np.arange(-320, 321) / 4)
    at = np.flatnonzero(between)[0]
    np.testing.assert_allclose(grid[at] * (counted[at] - 1.0) ** (1 / 128), 4.1, rtol=1e-9)


def test_random_numbers_do_not_come_again_at_another_point() -> None:
    """They would cancel in the difference of two sums, which is of the clients below them alone."""
    points = [np.array([0.5, -1.0]), np.array([0.5, 1.0]), np.array([-1.0, 0.5]), np.array([-0.5, 1.0])]
    with jax.enable_x64(True):
        key = jax.random.key(3)
        drawn = [np.asarray(hiding(key, (jnp.asarray(point), ()), 0)) for point in points]
        again = np.asarray(hiding(key, (jnp.asarray(points[0]), ()), 0))
    np.testing.assert_array_equal(again, drawn[0])  # the same question has the same answer
    assert all(np.mean(one == other) < 0.01 for one, other in pairwise([*drawn, drawn[0]]))
