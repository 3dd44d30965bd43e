"""How much searches for modes compute, as :class:`~fedbayes.contract.work.Work` counts it."""

from fedbayes.contract.work import COLUMN, GIVEN, GRADIENT, Work
from fedbayes.problem.client import Client

_STEPS, _SINGLE_STEPS = 4, 3  # of a search given the globals, most often
_JOINT_STEPS, _COLD_STEPS = 2, 10  # of a search among globals and locals together: without locals, and with them
_CANDIDATES, _DAMPINGS = 3, 5  # points that a step tries: given the globals, and of all together
_ELIMINATION = 20.0  # operations for the cube of a matrix's size: it is not LAPACK that eliminates


def search_given(client: Client, steps: int = _STEPS) -> Work:
    """The locals' mode given the globals: a step takes a curvature, its triangle and its moves, group by group."""
    groups, size = client.groups.shape
    if size == 1:
        return Work(_SINGLE_STEPS * (GIVEN * GRADIENT + COLUMN))
    matrices = float(groups) * size**2
    return Work(steps * (GIVEN * _CANDIDATES + size * COLUMN), 2.0 * steps * size * matrices, 3.0 * matrices)


def joint_search(client: Client) -> Work:
    """The mode of globals and locals together: of each damping a step takes a matrix and its whitener."""
    size = float(client.program.globals.size + client.num_locals)
    steps = _COLD_STEPS if client.num_locals else _JOINT_STEPS
    matrices = _DAMPINGS * size**2 if client.num_locals else 0.0
    return Work(steps * (_DAMPINGS + size * COLUMN), steps * _ELIMINATION * size * matrices, 2.0 * matrices)


def plain_draws(client: Client, num: int) -> Work:
    """Joint draws around the mode, with their scores."""
    return joint_search(client).and_then(Work(num * GRADIENT))
