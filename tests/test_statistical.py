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

# Tests that would fail for too many other keys, and what each needs. They are not in the sum; one that has been mended
# leaves this list.
TOO_OFTEN = {
    "test_conflict.py::test_few_false_alarms_where_information_depends_on_the_data": "more than 60 fits",
    "test_fald_digits.py::test_scores_are_those_of_the_notes": "more than 16 chains",
    "test_faults.py::test_what_the_server_may_ask_after_the_rounds_works_over_the_network": "more draws: 3.5 errors",
    "test_fed_ensemble.py::test_randomised_modes_of_logistic_regression_have_the_posterior_s_spread": "640 modes",
    "test_fedpa.py::test_gradient_solvers_find_the_posterior": "more samples: its limit is the fit's own warning",
    "test_gibbs.py::test_chain_agrees_with_nuts_of_the_joint_model": "effective draws that are measured, not bounded",
    "test_left_out.py::test_it_agrees_with_fits_without_the_client": "12 replicates",
    "test_models_penalised.py::test_a_clients_coefficients_are_those_of_the_pooled_posterior": "more draws: 4 errors",
    "test_models_penalised.py::test_intervals_of_the_globals_cover": "more than 120 data sets",
    "test_models_penalised.py::test_simulated_cases_select_as_an_exact_sampler_does": "more than 10 data sets",
    "test_notebooks.py::test_a_notebook_prints_what_is_stored": "notebooks with more than 4,000 draws",
}


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


def name_of(each: Row) -> str:
    """File and function, without folders and parameters."""
    return each.test.partition("[")[0].rpartition("/")[2]


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
    rare = [each for each in found if name_of(each) not in TOO_OFTEN]
    print(table(found))
    print(f"{len(rare)} of {len(found)} statistical tests fail by chance with a probability below {total(rare):.2g}.")
    assert total(rare) < MOST


def test_a_test_that_is_known_to_fail_too_often_does(collected) -> None:
    """An entry that is needed no more leaves the list: alone it would take more than a hundredth of what all may."""
    found = [each for each in rows(collected) if name_of(each) in TOO_OFTEN]
    assert {name_of(each) for each in found} == {name_of(each) for each in found if each.alarm > MOST / 100}


def test_a_planted_loose_test_breaks_the_bound() -> None:
    """Negative control: ten numbers to two and a half standard errors."""
    assert total([row("tight", key=0, numbers=10, errors=4.0)]) < MOST
    assert total([row("loose", key=0, numbers=10, errors=2.5)]) > MOST


@pytest.mark.parametrize("declared", [{}, {"errors": 4.0, "alarm": 1e-4}])
def test_a_row_has_one_tolerance(declared) -> None:
    with pytest.raises(ValueError, match="give `errors`, a multiple of the standard error, or `alarm`"):
        row("a test", key=0, **declared)
