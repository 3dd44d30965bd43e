"""Sums that clients tell: what each adds up over its own rows, and the sum of all, by which columns are agreed.

A client tells a tree of numbers, and the agreement reads nothing but the sum of all trees. Over a network the same
trees can be added by a secure sum, as their keys are known beforehand: levels are declared, or agreed on before.
"""

from collections.abc import Iterable, Mapping
from typing import Any

import numpy as np

from fedbayes.errors import ClientDataError

BINS = 400  # of the counts by which quantiles are found, each a twentieth of an sd wide
_REACH = 10.0  # sds to both sides of the mean
_HARDLY = 1e-9  # of the mean square: a variance below is lost in the rounding of sums
_SIZES = (1e-15, 1e15)  # root mean squares of columns of whose squares sums and a fit can be computed

Tree = Mapping[str, Any]


def total(told: Iterable[Tree]) -> dict[str, Any]:
    """The sum of what clients tell: numbers and arrays by their keys, where a missing one is zero."""
    found: dict[str, Any] = {}
    for tree in told:
        for key, value in tree.items():
            if isinstance(value, Mapping):
                found[key] = total([found.get(key, {}), value])
            else:
                found[key] = found[key] + value if key in found else value
    return found


def moments(values: np.ndarray) -> np.ndarray:
    """Rows, sum and sum of squares, shape ``(3,)``."""
    with np.errstate(over="ignore", invalid="ignore"):  # what is too large is refused once it is summed
        return np.array([len(values), values.sum(), np.square(values).sum()])


def check_size(name: str, mean: float, square: float) -> None:
    """Refuse a column whose numbers are so large or so small that a fit can't compute with their squares.

    Parameters
    ----------
    name
        Of the column.
    mean, square
        Of its numbers and of their squares over everybody's rows; not finite where a sum overflowed.

    Raises
    ------
    ClientDataError
        The numbers are too large, or too small and not all zero.
    """
    least, most = _SIZES
    size = float(np.nan_to_num(np.sqrt(square) if 0.0 < square < np.inf else abs(mean), nan=np.inf))
    if size == 0.0 or least <= size <= most:
        return
    power = int(np.clip(np.floor(np.log10(size)), -300, 300))
    word, unit = ("large", f"* 1e-{power}") if size > most else ("small", f"/ 1e{power}")
    instead = f"such as `I({name} {unit})`" if name.isidentifier() else "or that of the columns it is made of"
    raise ClientDataError(
        f"The numbers of `{name}`, about 1e{power}, are too {word} for a fit, which squares and adds them in 64 bits: "
        f"their size is from {least:g} to {most:g}. Change the unit, {instead}."
    )


def mean_and_sd(name: str, summed: np.ndarray) -> tuple[float, float]:
    """Everybody's mean and sd (divisor n - 1) of an expression.

    Raises
    ------
    ClientDataError
        It does not vary, or its numbers are too large or too small.
    """
    rows, first, second = map(float, summed)
    mean = first / rows
    check_size(name, mean, second / rows)
    spread = second / rows - mean**2
    if rows < 2 or spread <= _HARDLY * second / rows:
        raise ClientDataError(
            f"`{name}` is {mean:g} in all {rows:.0f} rows of all clients together, or hardly varies beside its mean. "
            f"Leave it out; or, if it does vary, subtract a number, `I({name} - {mean:g})`."
        )
    return mean, float(np.sqrt(spread * rows / (rows - 1.0)))


def binned(values: np.ndarray, mean: float, sd: float) -> np.ndarray:
    """Rows in each of :data:`BINS` bins around the mean, and below and above all of them, shape ``(BINS + 2,)``."""
    z = (values - mean) / sd
    place = np.floor((z + _REACH) / (2 * _REACH) * BINS).astype(int) + 1
    return np.bincount(np.clip(place, 0, BINS + 1), minlength=BINS + 2).astype(float)


def quantiles(counts: np.ndarray, levels: np.ndarray, mean: float, sd: float) -> np.ndarray:
    """Quantiles of everybody's rows from the binned counts; they are exact to the width of a bin.

    Levels of zero and one are the outer ends of the first and the last bin that is not empty.
    """
    inside = counts[1:-1].copy()
    inside[0] += counts[0]
    inside[-1] += counts[-1]
    edges = mean + sd * np.linspace(-_REACH, _REACH, BINS + 1)
    there = np.flatnonzero(inside)
    first, last = there[0], there[-1] + 1
    below = np.concatenate([[0.0], np.cumsum(inside)])[first : last + 1] / inside.sum()
    return np.interp(levels, below, edges[first : last + 1])


def powers(values: np.ndarray, mean: float, sd: float, degree: int) -> np.ndarray:
    """Sums of the standardised values' powers up to twice the degree, shape ``(2 degree + 1,)``."""
    z = (values - mean) / sd
    return np.vander(z, 2 * degree + 1, increasing=True).sum(axis=0)


def orthonormal(name: str, sums: np.ndarray) -> np.ndarray:
    """Polynomials that are orthonormal over everybody's rows, but for the constant one.

    The sums of powers are the Gram matrix of the monomials; the inverse of its Cholesky factor makes them orthonormal.

    Returns
    -------
    numpy.ndarray
        Coefficients, lowest power first, shape ``(degree, degree + 1)``.

    Raises
    ------
    ClientDataError
        There are too few different values.
    """
    degree = len(sums) // 2
    gram = np.array([[sums[i + j] for j in range(degree + 1)] for i in range(degree + 1)])
    scale = np.sqrt(np.diag(gram))
    if np.linalg.eigvalsh(gram / np.outer(scale, scale))[0] < 1e-11:
        raise ClientDataError(
            f"`{name}` has too few different values for a polynomial of degree {degree}; write a lower one."
        )
    return np.linalg.inv(np.linalg.cholesky(gram))[1:]
