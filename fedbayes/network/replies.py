"""Whether the numbers of a reply can be meant: asked by a site of what it hides, by the server of what it sees."""

import numpy as np

from fedbayes.contract.algorithm import EACH_SEARCH, Reply
from fedbayes.errors import usable
from fedbayes.rounds.wire import named_arrays

LARGEST = 1e30  # no natural parameter, sum or step of a sound client is larger


def plausible(reply: Reply, largest: float = LARGEST) -> bool:
    """Whether all that would be used of a reply is finite, and no number is absurdly large.

    The constant of a Gaussian may be NaN, where it is not known: it enters the evidence alone. So may one of several
    answers that stand side by side.
    """
    used = np.asarray(usable(reply.code))
    leaves = {name: leaf for name, leaf in named_arrays((reply.total, reply.each)).items() if leaf.dtype.kind == "f"}
    for name, values in leaves.items():
        mine = values[used] if values.shape[:1] == used.shape else values
        if name.endswith("log_scale") or EACH_SEARCH in name:
            mine = mine[~np.isnan(mine)]
        if used.any() and not np.all(np.abs(mine) < largest):  # NaN is not smaller
            return False
    return True
