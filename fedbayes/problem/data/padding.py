"""Ragged clients: pad rows by repeating a real one, mask them out, and bound the waste by buckets of lengths."""

from collections.abc import Mapping, Sequence

import numpy as np

from fedbayes.problem.data.reading import ClientArrays

_WORTH_A_BUCKET = 4000  # rows saved per draw that pay for compiling one more shape


def row_arguments(clients: Sequence[ClientArrays]) -> list[str]:
    """The arguments whose leading axis runs over a client's rows: those in which it differs between clients."""
    first = clients[0].arrays
    return [
        name
        for name, array in first.items()
        if array.ndim and any(client.arrays[name].shape[0] != array.shape[0] for client in clients)
    ]


def num_rows(client: ClientArrays, arguments: Sequence[str]) -> int | None:
    """A client's number of rows; ``None`` where its row arguments disagree."""
    lengths = {client.arrays[name].shape[0] for name in arguments}
    return lengths.pop() if len(lengths) == 1 else None


def bucket_lengths(
    rows: Sequence[int], max_buckets: int = 3, worth: float = _WORTH_A_BUCKET, power: int = 1
) -> list[int]:
    """Padded lengths, ascending, with the least padding; one more only where it saves more than its compilation costs.

    Parameters
    ----------
    rows
        Number of rows of each client.
    max_buckets
        Each costs one compilation.
    worth
        Rows of padding, to that power, that one more saves at least.
    power
        A client's cost grows with this power of its rows.
    """
    lengths, counts = np.unique(np.asarray(rows), return_counts=True)
    if len(lengths) > 64:  # quantiles of the lengths are candidates enough
        keep = np.unique(np.searchsorted(lengths, np.quantile(lengths, np.linspace(0, 1, 64)), side="left"))
        edges = lengths[keep]
        counts = np.bincount(np.searchsorted(edges, np.asarray(rows), side="left"), minlength=len(edges))
        lengths = edges
    total = np.concatenate([[0], np.cumsum(counts)])
    cost = lengths.astype(float) ** power
    best = [[(total[j + 1] * cost[j], [int(lengths[j])]) for j in range(len(lengths))]]
    for _ in range(1, min(max_buckets, len(lengths))):
        previous, current = best[-1], []
        for j in range(len(lengths)):
            options = [previous[j]] + [
                (previous[i][0] + (total[j + 1] - total[i + 1]) * cost[j], [*previous[i][1], int(lengths[j])])
                for i in range(j)
            ]
            current.append(min(options, key=lambda option: option[0]))
        best.append(current)
    chosen = best[0][-1]
    for option in (table[-1] for table in best[1:]):
        saved = chosen[0] - option[0]
        if saved > worth and saved > 0.25 * chosen[0]:
            chosen = option
    return chosen[1]


def pad(arrays: Mapping[str, np.ndarray], arguments: Sequence[str], length: int) -> dict[str, np.ndarray]:
    """Repeat the last real row: zeros under a mask would give NaN gradients (log-normal outcomes, for one)."""
    padded = dict(arrays)
    for name in arguments:
        array = arrays[name]
        widths = [(0, length - array.shape[0])] + [(0, 0)] * (array.ndim - 1)
        padded[name] = np.pad(array, widths, mode="edge")
    return padded
