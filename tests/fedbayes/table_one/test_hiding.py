"""No small cell is found by whoever knows all that a table shows, which a search through all tables says."""

from itertools import product

import numpy as np
import pytest

from fedbayes.table_one.hiding import Hidden, hidden_cells, hidden_clients

SMALLEST = 3


def splits(total: int, parts: int) -> list[tuple[int, ...]]:
    """All ways to write a number as so many others."""
    if parts == 1:
        return [(total,)]
    return [(first, *rest) for first in range(total + 1) for rest in splits(total - first, parts - 1)]


def possible(counts: np.ndarray, hidden: Hidden) -> np.ndarray:
    """Every table that agrees with what is shown, by the search of an attacker who knows that a hidden cell has rows.

    Of clients with few rows empty cells are hidden, too.
    """
    few = counts.sum(axis=0) < SMALLEST
    columns = []
    for place in range(counts.shape[1]):
        ways = np.array(splits(int(counts[:, place].sum()), len(counts)))
        unseen = hidden.cells[:, place]
        right = (ways[:, ~unseen] == counts[~unseen, place]).all(axis=1)
        right &= few[place] | (ways[:, unseen] > 0).all(axis=1)
        columns.append(ways[right])
    found = [np.column_stack(each) for each in product(*columns)]
    totals = counts.sum(axis=1)
    all_few = counts.sum() < SMALLEST
    return np.array([
        each
        for each in found
        if (each.sum(axis=1)[~hidden.totals] == totals[~hidden.totals]).all()
        and (all_few or (each.sum(axis=1)[hidden.totals] > 0).all())
    ])  # fmt: skip


def found_out(counts: np.ndarray, hidden: Hidden) -> list[tuple[int, int]]:
    """The small cells of which the attacker knows that they are small, though not all cells would tell that."""
    nothing = Hidden((counts > 0) | (counts.sum(axis=0) < SMALLEST), counts.sum(axis=1) > 0)
    known, best = possible(counts, hidden).max(axis=0), possible(counts, nothing).max(axis=0)
    small = (counts > 0) & (counts < SMALLEST)
    return [tuple(at) for at in np.argwhere(small & (known < np.minimum(SMALLEST, best)))]


def tables() -> list[np.ndarray]:
    rng = np.random.default_rng(0)
    return [rng.poisson(rng.uniform(0.5, 4.0), size=(3, 2 + number % 2)) for number in range(20)]


@pytest.mark.parametrize("number", range(20))
def test_an_attacker_who_tries_all_tables_finds_no_small_cell(number):
    counts = tables()[number]
    if counts.sum():
        hidden = hidden_cells(counts, SMALLEST)
        assert hidden.cells[(counts > 0) & (counts < SMALLEST)].all()
        assert found_out(counts, hidden) == []


def test_hiding_small_cells_alone_is_caught():
    """The planted mistake."""
    naive = [
        Hidden((counts > 0) & (counts < SMALLEST), (0 < counts.sum(axis=1)) & (counts.sum(axis=1) < SMALLEST))
        for counts in tables()[:8]
    ]
    caught = [bool(found_out(counts, each)) for counts, each in zip(tables(), naive, strict=False) if counts.sum()]
    assert sum(caught) >= 3


def test_two_hidden_cells_that_are_both_one_row_are_not_enough():
    """Their total is 2, and neither is empty: each is 1, though neither is found by subtraction."""
    counts = np.array([[1, 1, 20], [30, 30, 30]])
    hidden = hidden_cells(counts, 5)
    assert hidden.cells.all()  # with the third one there are 22, of which one cell may have 20
    assert not hidden.totals.any()


def test_a_table_without_small_cells_is_shown():
    hidden = hidden_cells(np.array([[5, 0], [9, 12]]), 5)
    assert not hidden.cells.any()
    assert not hidden.totals.any()


def test_of_a_client_with_few_rows_no_cell_is_shown():
    hidden = hidden_cells(np.array([[3, 20, 30], [0, 20, 30]]), 5)
    assert hidden.cells[:, 0].all()
    assert hidden.cells[:, 1].all()  # or the first client's would be found from the totals


def test_one_column_alone_hides_the_next_smallest_cell():
    np.testing.assert_array_equal(hidden_cells(np.array([[2], [7], [30]]), 5).cells[:, 0], [True, True, False])


def test_a_mean_is_hidden_with_a_second_one():
    hidden, all_clients = hidden_clients(np.array([3, 40, 20]), np.array([True, False, False]), 5)
    np.testing.assert_array_equal(hidden, [True, False, True])
    assert not all_clients


def test_a_mean_over_all_is_hidden_where_no_second_client_has_rows():
    hidden, all_clients = hidden_clients(np.array([40]), np.array([True]), 5)
    assert hidden.all()
    assert all_clients


def test_hidden_means_have_the_rows_of_a_cell_together():
    hidden, _ = hidden_clients(np.array([1, 2, 40, 20]), np.array([True, True, False, False]), 5)
    np.testing.assert_array_equal(hidden, [True, True, False, True])
