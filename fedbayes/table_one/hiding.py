"""Which cells of a table are hidden, so that none below a limit can be read, or got by subtraction from those shown.

A cell with fewer rows than the limit is hidden. Rows and columns of a table add up to totals, so that further cells
have to be hidden with it. Whether enough of them are is not a matter of rules of thumb: whoever reads the table knows
linear equations, and that a hidden cell is not empty, since noughts are shown. The largest number that a small cell
could have, given all that, is the solution of a linear program. It has to reach the limit: then nobody can tell from
the table that the cell is a small one.

Source: Fischetti and Salazar-Gonzalez (2000), Models and algorithms for optimizing cell suppression in tabular data
with linear constraints, J. Amer. Statist. Assoc. 95, whose attacker this is. The choice of further cells is greedy.
"""

from typing import NamedTuple

import numpy as np
from scipy.optimize import linprog

_SLACK = 1e-6  # of the solver


class Hidden(NamedTuple):
    """Which cells are not shown.

    Attributes
    ----------
    cells
        Of each level at each client, shape ``(levels, clients)``.
    totals
        Of each level over all clients, shape ``(levels,)``.
    """

    cells: np.ndarray
    totals: np.ndarray


def hidden_cells(counts: np.ndarray, smallest: int) -> Hidden:
    """Which cells of a table of levels by clients are hidden; the number of rows of each client is known.

    Parameters
    ----------
    counts
        Rows, shape ``(levels, clients)``.
    smallest
        Fewest rows in a cell that is shown; empty cells are shown, but not those of a client with fewer rows.

    Returns
    -------
    Hidden
        Small cells, and the smallest others that protect them.

    Examples
    --------
    >>> hidden_cells(np.array([[3, 30, 8], [27, 40, 9]]), 5).cells
    array([[ True, False,  True],
           [ True, False,  True]])
    """
    alone = counts.shape[1] == 1  # which is all there is
    table = counts if alone else np.column_stack([counts, counts.sum(axis=1)])
    few = (table.sum(axis=0) > 0) & (table.sum(axis=0) < smallest)
    small = (table > 0) & (table < smallest) | (few & (table < smallest))
    most = (table > 0) | small
    wanted = {place: min(float(smallest), _largest(table, most, few, place)) for place in _places(small)}
    hidden = small.copy()
    while exposed := [place for place in wanted if _largest(table, hidden, few, place) < wanted[place] - _SLACK]:
        for place in exposed:
            _hide_another(table, hidden, most, place)
    return Hidden(hidden, hidden[:, 0]) if alone else Hidden(hidden[:, :-1], hidden[:, -1])


def hidden_clients(rows: np.ndarray, small: np.ndarray, smallest: int) -> tuple[np.ndarray, bool]:
    """Whose mean and sd of a column are hidden, and whether those over all clients are.

    With the rows known, the means that are shown and that over all give the mean of all hidden ones together. So there
    have to be two of these, with as many rows as a cell needs.

    Parameters
    ----------
    rows
        With a value, by client, shape ``(clients,)``.
    small
        Which are hidden in any case.
    smallest
        Fewest rows of which a mean is shown.
    """
    hidden = small.copy()
    while hidden.any() and (hidden.sum() < 2 or rows[hidden].sum() < smallest):
        left = np.flatnonzero(~hidden & (rows > 0))
        if not len(left):
            return hidden, True
        hidden[left[np.argmin(rows[left])]] = True
    return hidden, bool(0 < rows.sum() < smallest)


def _places(mask: np.ndarray) -> list[tuple[int, int]]:
    return [(int(row), int(column)) for row, column in np.argwhere(mask)]


def _hide_another(table: np.ndarray, hidden: np.ndarray, most: np.ndarray, place: tuple[int, int]) -> None:
    """Hide one cell more: the smallest that may protect this one, and a total only if there is no other.

    In a line in which this one alone is hidden, another is needed; and best where others are hidden in its other line.
    """
    rows, columns = np.broadcast_arrays(hidden.any(axis=1, keepdims=True), hidden.any(axis=0, keepdims=True))
    row, column, cells = np.zeros_like(hidden), np.zeros_like(hidden), np.ones_like(hidden)
    row[place[0]], column[:, place[1]] = True, True
    cells[:, -1] = hidden.shape[1] == 1
    if hidden[place[0]].sum() == 1 < hidden.shape[1]:
        first = [row & columns & cells, row & cells]
    elif hidden[:, place[1]].sum() == 1:
        first = [column & rows & cells, column & cells]
    else:
        first = [rows & columns & cells]
    for among in (*first, (row | column) & cells, cells, np.ones_like(hidden)):
        free = among & most & ~hidden
        if free.any():
            hidden.flat[np.argmin(np.where(free, table, table.max() + 1))] = True
            return


def _largest(table: np.ndarray, hidden: np.ndarray, few: np.ndarray, place: tuple[int, int]) -> float:
    """The largest number that a hidden cell could have, for all that the table shows."""
    variables = {at: number for number, at in enumerate(_places(hidden))}
    levels, groups = table.shape
    equations, known = [], []
    lines = [[(row, column) for row in range(levels)] for column in range(groups)]
    for line, total in zip(lines, table.sum(axis=0), strict=True):
        equations.append({at: 1.0 for at in line if hidden[at]})
        known.append(total - sum(table[at] for at in line if not hidden[at]))
    for row in range(levels if groups > 1 else 0):
        signed = {(row, column): 1.0 for column in range(groups - 1)} | {(row, groups - 1): -1.0}
        equations.append({at: sign for at, sign in signed.items() if hidden[at]})
        known.append(-sum(sign * table[at] for at, sign in signed.items() if not hidden[at]))
    matrix = np.zeros((len(equations), len(variables)))
    for number, equation in enumerate(equations):
        for at, sign in equation.items():
            matrix[number, variables[at]] = sign
    aim = np.zeros(len(variables))
    aim[variables[place]] = -1.0
    bounds = [(0.0 if few[column] else 1.0, None) for _, column in variables]
    found = linprog(aim, A_eq=matrix, b_eq=np.asarray(known, float), bounds=bounds, method="highs")
    return float(-found.fun)
