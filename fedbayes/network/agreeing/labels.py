"""Sets of labels as tables of numbers, so that the sum of all sites' tables tells the labels of all, and not whose.

Source: Goodrich and Mitzenmacher (2011), Invertible Bloom lookup tables. A label's entry is a count of one, the label
itself and a digest, as words of numbers. A site adds each of its entries to three cells, which a hash of the label
chooses. Tables are linear in this: the sum over the sites is the table of all their labels together. A cell with one
label alone is so many times its entry, which the digest proves; where that is taken out of its other two cells, these
may have one label alone in turn.

Words are so short that sums of them are exact, and small enough for a secure sum.
"""

import hashlib
import json
from collections.abc import Iterable, Iterator

import numpy as np

MOST_BYTES = 60  # of one label, in UTF-8
_SUBTABLES, _CELLS = 3, 64  # a label has a cell in each; for the forty that are agreed on nearly always enough
_WORD = 3  # bytes: of forty labels at each of 255 sites words add up to less than 2**38
_TEXT = 1 + MOST_BYTES + (-1 - MOST_BYTES) % _WORD  # the number of bytes, these, and noughts to the end of a word
_CHECKED = 3 * _WORD  # bytes of a digest
_EXACT = 2.0**53  # whole numbers below are decimals to the last digit
_PLACES = np.array([1 << 16, 1 << 8, 1])


def table_of(labels: Iterable[str], salt: str) -> np.ndarray:
    """One site's labels, each once.

    Parameters
    ----------
    labels
        Of :data:`MOST_BYTES` bytes at most.
    salt
        By which labels are sent to their cells; the same at all sites.

    Returns
    -------
    numpy.ndarray
        Whole numbers, shape ``(subtables, cells, words)``.
    """
    found = np.zeros((_SUBTABLES, _CELLS, 1 + (_TEXT + _CHECKED) // _WORD))
    for label in set(labels):
        found[_cells(label, salt)] += _entry(label, salt)
    return found


def labels_in(summed: np.ndarray, salt: str, num_sites: int) -> dict[str, int] | None:
    """How many sites have each label, from the sum of their tables.

    Parameters
    ----------
    summed
        Of tables with the same salt.
    salt
        Theirs.
    num_sites
        How many tables were added up.

    Returns
    -------
    dict | None
        ``None`` where labels can't be told apart, as two that share all their cells, and where the sum is none of such
        tables.
    """
    if not np.all(np.abs(summed) < _EXACT) or not np.array_equal(summed, np.rint(summed)):
        return None
    left, found = summed.astype(np.int64), {}
    while (alone := next(_alone(left, salt), None)) is not None:
        label, count = alone
        if label in found or count > num_sites:
            return None
        found[label] = count
        left[_cells(label, salt)] -= count * _entry(label, salt)
    return None if left.any() else found


def _alone(left: np.ndarray, salt: str) -> Iterator[tuple[str, int]]:
    """The label in each cell that has one alone, and how often it is there."""
    for cell in np.argwhere(left[..., 0] > 0):
        count = left[tuple(cell)][0]
        entry, rest = np.divmod(left[tuple(cell)], count)
        if not rest.any() and (label := _label(entry, salt)) is not None and cell[1] == _cells(label, salt)[1][cell[0]]:
            yield label, int(count)


def _label(entry: np.ndarray, salt: str) -> str | None:
    """The label of which this is the entry; ``None`` where it is none's."""
    if entry.min() < 0 or entry.max() >= 1 << 8 * _WORD:
        return None
    content = (entry[1:, None] // _PLACES % 256).astype(np.uint8).tobytes()
    try:
        label = content[1 : 1 + content[0]].decode()
    except UnicodeDecodeError:
        return None
    is_short = content[0] <= MOST_BYTES
    return label if is_short and np.array_equal(_entry(label, salt), entry) else None


def _entry(label: str, salt: str) -> np.ndarray:
    """A count of one, the label's words, and those of its digest, shape ``(words,)``."""
    text = label.encode()
    content = (bytes([len(text)]) + text).ljust(_TEXT, b"\0") + _digest(label, salt)[_SUBTABLES:][:_CHECKED]
    words = np.frombuffer(content, np.uint8).reshape(-1, _WORD).astype(np.int64) @ _PLACES
    return np.concatenate([[1], words])


def _cells(label: str, salt: str) -> tuple[np.ndarray, np.ndarray]:
    """The label's cell in each subtable, as an index."""
    chosen = np.frombuffer(_digest(label, salt)[:_SUBTABLES], np.uint8)
    return np.arange(_SUBTABLES), chosen.astype(int) % _CELLS


def _digest(label: str, salt: str) -> bytes:
    return hashlib.sha256(json.dumps([salt, label]).encode()).digest()
