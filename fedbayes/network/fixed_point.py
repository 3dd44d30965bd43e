"""Numbers as integers modulo ``2**128``: sums of them are the same bits in any order, and a mask hides each of them.

A number ``x`` is the integer ``round(2**68 x)``, in the lower 112 bits. The upper 16 bits count how many terms were not
known (NaN), and how many were minus infinity, so that the sum of such terms is what it is in floating point. Nothing is
clipped: a finite number that does not fit is told apart by :func:`fits`.
"""

import secrets

import numpy as np

FRACTION = 68  # bits behind the binary point: a resolution of 3e-21
FEWEST_SITES, MOST_SITES = 3, 255  # of the sum of two each can subtract its own term; what eight bits can count
_VALUE = 48  # bits of the upper word that belong to the value; sixteen count
_WORD = 2.0**64
_LARGEST = 2.0**43  # of a sum, half of what 112 - 68 bits hold


def largest(num_sites: int) -> float:
    """The largest magnitude that one of so many terms may have."""
    return _LARGEST / num_sites


def fits(values: np.ndarray, num_sites: int) -> np.ndarray:
    """Which numbers can be terms; those that are not finite can."""
    return ~(np.abs(np.where(np.isfinite(values), values, 0.0)) >= largest(num_sites))


def to_integers(values: np.ndarray) -> np.ndarray:
    """Numbers of shape ``(n,)`` as integers, their lower and upper words ``(n, 2)``.

    Infinity counts as not known. Finite numbers fit, see :func:`fits`.
    """
    finite = np.isfinite(values)
    scaled = np.rint(np.where(finite, values, 0.0) * 2.0**FRACTION)
    size = np.abs(scaled)
    upper = np.floor(size / _WORD)
    words = np.stack([(size - upper * _WORD).astype(np.uint64), upper.astype(np.uint64)], axis=-1)
    words = np.where((scaled < 0.0)[:, None], negative(words), words)
    below = values == -np.inf
    counts = (~finite & ~below).astype(np.uint64) + (below.astype(np.uint64) << np.uint64(8))
    words[:, 1] += counts << np.uint64(_VALUE)
    return words


def unknown(words: np.ndarray, values: np.ndarray, num_sites: int) -> np.ndarray:
    """The integers of ``values``, random ones where these are not finite: nought would leave the sum of the others.

    They are so large that a term beside them can't be told, and so small that the sum of all still fits.
    """
    shift = 128 - 1 - (_VALUE + 64 - 1) + (num_sites - 1).bit_length()
    random = np.frombuffer(secrets.token_bytes(words.nbytes), np.int64).reshape(words.shape)
    noise = np.stack([random[:, 0].view(np.uint64), (random[:, 1] >> shift).view(np.uint64)], axis=-1)
    return np.where(np.isfinite(values)[:, None], words, plus(words, noise))


def to_numbers(words: np.ndarray) -> np.ndarray:
    """The numbers ``(n,)`` that a sum ``(n, 2)`` of integers stands for; to two units in the last place."""
    value = _value_of(words)
    counts = (words[:, 1] - value) >> np.uint64(_VALUE)
    signed = np.stack([words[:, 0], value], axis=-1)
    below_zero = value.view(np.int64) < 0
    size = np.where(below_zero[:, None], negative(signed), signed).astype(np.float64)
    found = (size[:, 1] * _WORD + size[:, 0]) * 2.0**-FRACTION
    found = np.where(below_zero, -found, found)
    found = np.where(counts >> np.uint64(8) > 0, -np.inf, found)
    return np.where(counts & np.uint64(0xFF) > 0, np.nan, found)


def cancelled(words: np.ndarray, num: int) -> bool:
    """Whether a sum of ``num`` terms can be one: the counts of masks that do not cancel are random bits."""
    counts = words[:, 1] - _value_of(words) >> np.uint64(_VALUE)
    return bool(np.all((counts & np.uint64(0xFF) <= num) & (counts >> np.uint64(8) <= num)))


def _value_of(words: np.ndarray) -> np.ndarray:
    """The upper words without their counts, their sign continued."""
    return ((words[:, 1] << np.uint64(64 - _VALUE)).view(np.int64) >> np.int64(64 - _VALUE)).view(np.uint64)


def plus(one: np.ndarray, other: np.ndarray) -> np.ndarray:
    """The sum modulo ``2**128``, shapes ``(n, 2)``."""
    lower = one[:, 0] + other[:, 0]
    return np.stack([lower, one[:, 1] + other[:, 1] + (lower < one[:, 0])], axis=-1)


def negative(words: np.ndarray) -> np.ndarray:
    """The integers that give zero when they are added to these, shapes ``(n, 2)``."""
    lower = ~words[:, 0] + np.uint64(1)
    return np.stack([lower, ~words[:, 1] + (words[:, 0] == 0)], axis=-1)
