"""What FedPA ends with: the merged posterior, dense or of low rank, and what its rounds report."""

from collections.abc import Mapping

import jax.numpy as jnp
import numpy as np

from fedbayes.contract.answer import CLIENT, COORDINATE, REPLICATE, Diagnostic
from fedbayes.contract.state import RunState
from fedbayes.inference.fedpa.low_rank_merge import low_rank_product
from fedbayes.inference.merging.answer import DIAGNOSTICS as MERGING
from fedbayes.inference.merging.answer import MergedAnswer
from fedbayes.inference.mode import DIAGNOSTICS as MODE
from fedbayes.inference.options import DENSE_LIMIT
from fedbayes.problem.roster import Roster

DIAGNOSTICS: Mapping[str, Diagnostic] = {
    **MODE,
    **MERGING,
    "change": Diagnostic(
        (REPLICATE,), "how far the round moved the server, root mean square over the globals", "shared coordinates"
    ),
    "pull": Diagnostic(
        (REPLICATE,),
        "length of the clients' mean delta, before the server's optimiser, root mean square",
        "shared coordinates",
    ),
    "drift": Diagnostic(
        (CLIENT, REPLICATE), "how far the client's samples lie from the server, root mean square", "shared coordinates"
    ),
    "server": Diagnostic((REPLICATE, COORDINATE), "where the server is after the round, unconstrained space"),
}


def merged_answer(roster: Roster, weights: np.ndarray, run: RunState) -> MergedAnswer:
    """The merged posterior; with very many globals it is the product of the clients' factors."""
    if roster.size > DENSE_LIMIT:
        return MergedAnswer(roster, run, low_rank_product(run.state, jnp.asarray(weights)))
    return MergedAnswer(roster, run, run.state.merged)
