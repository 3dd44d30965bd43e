"""Where a client's update runs: batched in one process, sharded over devices, one by one, or through bytes.

Executors differ in nothing else: the same keys, the same data, the same pure functions, so the same answers. An
executor owns the clients' private states: the loop never sees them.
"""

from collections.abc import Callable, Mapping

from fedbayes.rounds.executors.batched import MOST_ROUNDS, Batched
from fedbayes.rounds.executors.executor import Executor, summed
from fedbayes.rounds.executors.sequential import Loopback, Sequential

__all__ = ["EXECUTORS", "MOST_ROUNDS", "Batched", "Executor", "Loopback", "Sequential", "summed"]

EXECUTORS: Mapping[str, Callable[[], Executor]] = {"batched": Batched, "sequential": Sequential, "loopback": Loopback}
