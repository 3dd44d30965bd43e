"""Whether the numbers of a reply can be meant: asked by a site of what it hides, by the server of what it sees."""

from typing import Any

import numpy as np

from fedbayes.contract.algorithm import EACH_SEARCH, Reply
from fedbayes.errors import usable
from fedbayes.rounds.wire import named_arrays

LARGEST = 1e30  # no natural parameter, sum or step of a sound client is larger


def plausible(reply: Reply, largest: float = LARGEST) -> bool:
    """Whether all that would be used of a reply is finite, and no number is absurdly large.

    The constant of a Gaussian may be NaN, where it is not known: it enters the evidence alone. So may one of several
    answers that stand side by side, as a whole.
    """
    used, (beyond, nothing) = np.asarray(usable(reply.code)), searches(reply.total, largest)
    if np.any(beyond & ~nothing):
        return False
    leaves = {name: leaf for name, leaf in named_arrays((reply.total, reply.each)).items() if leaf.dtype.kind == "f"}
    for name, values in leaves.items():
        if EACH_SEARCH in name.split("/"):
            continue
        mine = values[used] if values.shape[:1] == used.shape else values
        if name.endswith("log_scale"):
            mine = mine[~np.isnan(mine)]
        if used.any() and not np.all(np.abs(mine) < largest):  # NaN is not smaller
            return False
    return True


def searches(total: Any, largest: float) -> tuple[np.ndarray, np.ndarray]:
    """Of the answers that stand side by side in a total: which hold a number that is not finite, or is too large.

    Returns
    -------
    beyond, nothing
        Each of shape ``(replicate, search)``, no searches without such answers; ``nothing`` where all numbers are NaN.
    """
    found = [leaf for name, leaf in named_arrays(total).items() if EACH_SEARCH in name.split("/")]
    if not found:
        return np.zeros((1, 0), bool), np.zeros((1, 0), bool)
    flat = np.concatenate([leaf.reshape(*leaf.shape[:2], -1) for leaf in found], axis=-1)
    return ~np.all(np.abs(flat) < largest, axis=-1), np.all(np.isnan(flat), axis=-1)  # NaN is not smaller
