"""Where a run stands: what the server knows after each round, and all of it that a checkpoint holds."""

from dataclasses import dataclass, field
from typing import Any

import numpy as np
from jaxtyping import Bool, Float

Record = dict[str, np.ndarray]


@dataclass
class RunState:
    """Where a run stands. The clients' private states are the executor's.

    Attributes
    ----------
    phase
        Index of the running phase.
    rounds_in_phase
        Rounds it has done.
    state
        The server's.
    updates
        Name of each client's update in the next round.
    settled
        Clients that have replied since the state last changed.
    converged
        Whether the last phase has converged.
    history
        One record of arrays per round, or per block of rounds where rounds are draws.
    draws
        Blocks of draws of the unconstrained globals.
    """

    phase: int
    rounds_in_phase: int
    state: Any
    updates: list[str]
    settled: Bool[np.ndarray, " client"]
    converged: bool
    history: list[Record] = field(default_factory=list)
    draws: list[Float[np.ndarray, "draw chain d"]] = field(default_factory=list)

    def last(self, name: str) -> float:
        """The last value of a diagnostic, the largest over replicates and clients; NaN where there is none."""
        found = [record[name] for record in self.history if name in record]
        return float(np.max(found[-1])) if found else float("nan")
