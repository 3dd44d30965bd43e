"""Rounds that are draws: blocks of them, each block one compiled program where the executor can fuse rounds.

A draw is the chain's position at a synchronisation, every ``stride`` rounds. Diagnostics are averaged over a block
(result codes: the worst), so that ten thousand rounds leave a few dozen records.
"""

from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple

import numpy as np

from fedbayes.contract.algorithm import Recording, State

_BLOCKS = 50  # of a run: after each, progress, checkpoint and diagnostics


class Pace(NamedTuple):
    """How a budget of rounds is spent: draws, rounds from one to the next, and draws per block."""

    draws: int
    stride: int
    block: int


def pace(recording: Recording, state: State, budget: int, num_draws: int) -> Pace:
    """The pace of the chains; fewer rounds per draw, then fewer draws, where the budget of rounds asks for it."""
    wanted = recording.num_warmup + num_draws
    stride = max(1, min(recording.stride(state), budget // wanted))
    draws = min(wanted, budget)
    if draws <= recording.num_warmup:
        raise ValueError(
            f"{budget} rounds leave no draws after the {recording.num_warmup} of the warm-up. Raise `num_rounds`, or "
            "write a smaller `num_warmup`."
        )
    return Pace(draws, stride, -(-draws // _BLOCKS))


def summary(records: Sequence[Mapping[str, np.ndarray]]) -> dict[str, np.ndarray]:
    """One record for many rounds: means of floats, maxima of codes, sums of seconds, whether ever active."""
    # the diagnostics of a client that sat out a round count as zero there
    reduce: dict[str, Callable] = {"f": lambda a: np.nan_to_num(a).mean(axis=0), "U": lambda a: a[-1]}
    merged = {}
    for name in records[0]:
        values = np.stack([record[name] for record in records])
        merged[name] = reduce.get(values.dtype.kind, lambda a: a.max(axis=0))(values)
    for name in ("seconds", "rounds", "bytes_down", "bytes_up"):
        merged[name] = np.sum([record[name] for record in records])
    return merged
