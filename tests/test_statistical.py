"""Statistical tests as one table: how often a full run fails although nothing is wrong.

A test whose answer is a Monte Carlo estimate declares what it compares::

    @pytest.mark.statistical(key=3, numbers=8, errors=4.0)

key
    Of all its random numbers. It is fixed, so that the test is the same in each run; another version of JAX, another
    machine or another order of operations may draw other numbers, and the rates below are rates over these.
numbers
    How many estimates are compared.
errors
    The tolerance as a multiple of the standard error of each estimate: the smallest one if they differ.
alarm
    In place of ``errors``, the probability of a false alarm of the whole test, where it is no comparison of this kind
    (for instance a test at a level). Otherwise the probability is bounded by ``numbers`` times the two-sided normal
    tail beyond ``errors``.

``pytest -k table_of_statistical_tests -s`` prints the table of all tests.
"""

from collections.abc import Iterable, Iterator
from typing import Any, NamedTuple

import pytest
from scipy import stats

MOST = 0.01  # the probability that a full run fails although nothing is wrong


class Row(NamedTuple):
    """One statistical test; a parametrised one has a row for each of its parameters."""

    test: str
    key: Any
    numbers: int
    errors: float | None
    alarm: float


def row(test: str, *, key: Any, numbers: int = 1, errors: float | None = None, alarm: float | None = None) -> Row:
    """What a mark declares."""
    if (errors is None) == (alarm is None):
        raise ValueError(f"{test}: give `errors`, a multiple of the standard error, or `alarm`, a probability.")
    rate = numbers * 2.0 * stats.norm.sf(errors) if alarm is None else alarm
    return Row(test, key, numbers, errors, float(rate))


def rows(items: Iterable[pytest.Item]) -> Iterator[Row]:
    """The table, of the tests among these."""
    for item in items:
        for mark in item.iter_markers("statistical"):
            yield row(item.nodeid, **mark.kwargs)


def table(found: Iterable[Row]) -> str:
    """For people, the largest probabilities first."""
    lines = [f"{'alarm':>9}  {'errors':>6}  {'numbers':>7}  key  test"]
    for each in sorted(found, key=lambda one: -one.alarm):
        errors = "" if each.errors is None else f"{each.errors:g}"
        lines.append(f"{each.alarm:9.1e}  {errors:>6}  {each.numbers:7d}  {each.key}  {each.test}")
    return "\n".join(lines)


def total(found: Iterable[Row]) -> float:
    """A bound on the probability that any of them fails by chance."""
    return sum(each.alarm for each in found)


def test_the_table_of_statistical_tests_has_few_false_alarms(collected) -> None:
    """All tests that were collected, also those that this run leaves out: ``-m ""`` or not, the table is the same."""
    found = list(rows(collected))
    print(table(found))
    print(f"One of the {len(found)} statistical tests fails by chance with a probability below {total(found):.2g}.")
    assert total(found) < MOST


def test_a_planted_loose_test_breaks_the_bound() -> None:
    """Negative control: ten numbers to two and a half standard errors."""
    assert total([row("tight", key=0, numbers=10, errors=4.0)]) < MOST
    assert total([row("loose", key=0, numbers=10, errors=2.5)]) > MOST


@pytest.mark.parametrize("declared", [{}, {"errors": 4.0, "alarm": 1e-4}])
def test_a_row_has_one_tolerance(declared) -> None:
    with pytest.raises(ValueError, match="give `errors`, a multiple of the standard error, or `alarm`"):
        row("a test", key=0, **declared)
