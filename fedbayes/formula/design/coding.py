"""Which columns a term has, so that all terms together say the same thing once.

Where levels stand beside an intercept, one of them needs no column; in ``a:b`` without ``a`` it does. The rule is that
of patsy (https://patsy.readthedocs.io/en/latest/formulas.html#redundancy-and-categorical-factors): a term spans its
levels' subsets; those that earlier terms span are left out, and what remains is written with as few blocks as possible.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import combinations, product

import numpy as np

from fedbayes.formula.design.factors import Factor
from fedbayes.formula.design.tables import Table
from fedbayes.formula.grammar.terms import Term, Terms

Subterm = frozenset[tuple[str, bool]]  # categorical factors, each with whether all its levels have a column


@dataclass(frozen=True)
class Block:
    """The columns of one term.

    Attributes
    ----------
    name
        The term as it is written.
    factors
        Names of the factors, in order.
    parts
        For each part of the columns, which factors have a column of every level, and which are there at all.
    labels
        One for each column; a single empty one where the term is a single column without levels.
    categorical
        Whether the term has levels and nothing else.
    """

    name: str
    factors: tuple[str, ...]
    parts: tuple[Mapping[str, bool], ...]
    labels: tuple[str, ...]
    categorical: bool

    @property
    def width(self) -> int:
        """Number of columns."""
        return len(self.labels)

    @property
    def scalar(self) -> bool:
        """Whether it is a single column without levels."""
        return self.labels == ("",)

    def values(self, factors: Mapping[str, Factor], table: Table) -> np.ndarray:
        """The columns of a client's rows, shape ``(n, width)``."""
        found = []
        for part in self.parts:
            block = np.ones((table.num_rows, 1))
            for name, full in part.items():
                columns = factors[name].values(table, full)
                block = (block[:, :, None] * columns[:, None, :]).reshape(table.num_rows, -1)
            found.append(block)
        return np.concatenate(found, axis=1)


def blocks_of(terms: Terms, factors: Mapping[str, Factor]) -> tuple[Block, ...]:
    """The columns of every term, in order."""
    spanned: dict[frozenset[str], set[frozenset[str]]] = {frozenset(): {frozenset()} if terms.intercept else set()}
    found = []
    for term in terms.terms:
        names = [factor.name for factor in term.factors]
        numeric = frozenset(name for name in names if not factors[name].categorical)
        levels = [name for name in names if factors[name].categorical]
        parts = _parts(levels, spanned.setdefault(numeric, set()))
        ordered = tuple(_in_order(names, numeric, part) for part in parts)
        if ordered:
            found.append(_block(term, ordered, factors, not numeric))
    return tuple(found)


def _block(term: Term, parts: Sequence[Mapping[str, bool]], factors: Mapping[str, Factor], categorical: bool) -> Block:
    labels: list[str] = []
    for part in parts:
        every = [factors[name].labels(full) for name, full in part.items()]
        labels += [", ".join(filter(None, combination)) for combination in product(*every)]
    names = tuple(factor.name for factor in term.factors)
    return Block(term.name, names, tuple(parts), tuple(labels), categorical)


def _in_order(names: Iterable[str], numeric: frozenset[str], part: Subterm) -> dict[str, bool]:
    full = dict(part)
    return {name: full.get(name, False) for name in names if name in numeric or name in full}


def _parts(levels: Sequence[str], spanned: set[frozenset[str]]) -> list[Subterm]:
    """The parts of a term with these factors, of which the subsets in ``spanned`` are there already."""
    every = [frozenset(chosen) for size in range(len(levels) + 1) for chosen in combinations(levels, size)]
    left: list[Subterm] = [frozenset((name, False) for name in subset) for subset in every if subset not in spanned]
    spanned.update(every)
    while _absorbed(left):
        pass
    return left


def _absorbed(parts: list[Subterm]) -> bool:
    """Write two parts as one where they differ by one factor, which then has a column of every level."""
    for place, short in enumerate(parts):
        for other in range(place + 1, len(parts)):
            long = parts[other]
            if len(long) == len(short) + 1 and short < long:
                ((name, _),) = long - short
                parts[other] = short | {(name, True)}
                del parts[place]
                return True
    return False
