"""A linear predictor with what is known of its columns, and what a client's rows make of it."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from fedbayes.errors import ClientDataError
from fedbayes.formula.design.design import Design
from fedbayes.formula.design.everybody import Everybody
from fedbayes.formula.design.tables import Table
from fedbayes.formula.program.groups import Group, Kind

_ALIKE = 1e-8  # smallest eigenvalue of the columns' correlations at which they are told apart


@dataclass(frozen=True)
class Columns:
    """Everybody's means and sds of a predictor's columns, shape ``(k,)`` each.

    Attributes
    ----------
    means, sds
        Zero means where there is no intercept, beside which columns are centred.
    of_groups
        The sds of each group's columns.
    offset
        The mean offset.
    """

    means: np.ndarray
    sds: np.ndarray
    of_groups: tuple[np.ndarray, ...] = ()
    offset: float = 0.0


@dataclass(frozen=True)
class Predictor:
    """A linear predictor.

    Attributes
    ----------
    parameter
        Of the family; empty for the one that the link is about.
    design
        Its common columns.
    groups
        Its terms of groups.
    columns
        What is known of the columns.
    stems
        What the arguments of each group begin with.
    """

    parameter: str
    design: Design
    groups: tuple[Group, ...]
    columns: Columns
    stems: tuple[str, ...]

    @property
    def suffix(self) -> str:
        """What tells its arguments and variables from those of others."""
        return f"_{self.parameter}" if self.parameter else ""

    @property
    def prefix(self) -> str:
        """What the names of its sites begin with."""
        return f"{self.parameter}_" if self.parameter else ""

    @property
    def centred(self) -> bool:
        """Whether its columns are moved to everybody's means."""
        return self.design.intercept and self.design.width > 0

    @property
    def reads(self) -> tuple[str, ...]:
        """The columns of a table that it reads."""
        designs = (self.design, *(group.design for group in self.groups))
        found = [name for design in designs for name in design.reads]
        return tuple(dict.fromkeys([*found, *(name for group in self.groups for name in group.grouping.columns)]))

    @property
    def says_rows(self) -> bool:
        """Whether any of its arguments has an entry for each row."""
        return bool(
            self.design.width
            or self.design.offsets
            or any(group.effects != ("1",) or group.grouping.kind is not Kind.CLIENT for group in self.groups)
        )

    def names(self) -> tuple[str, ...]:
        """Of its arguments."""
        found = [f"x{self.suffix}"] if self.design.width else []
        found += [f"offset{self.suffix}"] if self.design.offsets else []
        for group, stem in zip(self.groups, self.stems, strict=True):
            found += [f"{stem}_values"] if group.effects != ("1",) else []
            found += [f"{stem}_index"] if group.grouping.kind is not Kind.CLIENT else []
            found += [f"{stem}_count"] if group.grouping.kind is Kind.WITHIN else []
        return tuple(found)

    def arrays(self, table: Table, groups: Mapping[str, Sequence[str]]) -> dict[str, Any]:
        """A client's arguments: columns ``(n, k)``, offset ``(n,)``, and each row's groups.

        Parameters
        ----------
        table
            Its rows.
        groups
            Names of its groups, in order.
        """
        found: dict[str, Any] = {}
        if self.design.width:
            values = self.design.values(table)
            found[f"x{self.suffix}"] = values - self.columns.means if self.centred else values
        offset = self.design.offset(table)
        if offset is not None:
            found[f"offset{self.suffix}"] = offset
        for group, stem in zip(self.groups, self.stems, strict=True):
            if group.effects != ("1",):
                found[f"{stem}_values"] = group.values(table)
            if group.grouping.kind is not Kind.CLIENT:
                names = groups.get(group.grouping.name, group.grouping.levels)
                found[f"{stem}_index"] = group.grouping.codes(table, names)
                if group.grouping.kind is Kind.WITHIN:
                    found[f"{stem}_count"] = len(names)
        return found


def look_at(
    design: Design, groups: Iterable[Group], everybody: Everybody, parameter: str = ""
) -> tuple[Columns, list[str]]:
    """Everybody's means and sds of all columns, from one sum, and notes on columns that are empty.

    Raises
    ------
    ClientDataError
        A column does not vary, or columns are collinear.
    """
    groups = tuple(groups)
    sums = everybody.total(
        f"products of columns{f' of {parameter}' if parameter else ''}", lambda table: _tell(design, groups, table)
    )
    means, gram = sums["total"] / sums["rows"], sums["products"] / sums["rows"]
    covariance = gram - np.outer(means, means)
    squares = np.diag(gram)
    sds = np.sqrt(np.where(np.diag(covariance) > 1e-9 * squares, np.diag(covariance), 0.0))
    kept, notes = _varying(design, sds, means)
    _check_apart(design, (covariance if design.intercept else gram)[np.ix_(kept, kept)], kept, int(sums["rows"]))
    of_groups = tuple(_sds(sums["groups"][str(place)]) for place in range(len(groups)))
    offset = float(sums["offset"] / sums["rows"])
    return Columns(means if design.intercept else np.zeros_like(means), sds, of_groups, offset), notes


def _tell(design: Design, groups: tuple[Group, ...], table: Table) -> dict[str, Any]:
    values = design.values(table)
    each = {str(place): group.values(table) for place, group in enumerate(groups)}
    offset = design.offset(table)
    return {
        "rows": float(table.num_rows),
        "total": values.sum(axis=0),
        "products": values.T @ values,
        "offset": 0.0 if offset is None else float(offset.sum()),
        "groups": {
            name: np.array([np.full(x.shape[1], len(x)), x.sum(axis=0), (x**2).sum(axis=0)]) for name, x in each.items()
        },
    }


def _sds(sums: np.ndarray) -> np.ndarray:
    rows, first, second = sums
    spread = second / rows - (first / rows) ** 2
    return np.sqrt(np.where(spread > 1e-9 * second / rows, spread, 0.0))


def _varying(design: Design, sds: np.ndarray, means: np.ndarray) -> tuple[np.ndarray, list[str]]:
    """The columns that vary; of levels that nobody has a note is made, all others that do not vary are refused."""
    of_levels = np.array([block.categorical for block in design.blocks for _ in block.labels], bool)
    notes = []
    for place in np.flatnonzero(sds == 0.0) if design.intercept else np.flatnonzero((sds == 0.0) & (means == 0.0)):
        name = design.names[place]
        if of_levels[place] and means[place] == 0.0:
            notes.append(f"No row of any client has {name}: its coefficient is known by its prior alone.")
        else:
            raise ClientDataError(
                f"The column `{name}` is {means[place]:g} in all rows of all clients, or hardly varies beside its "
                f"mean. Leave it out; or, if it does vary, subtract a number, `I({name} - {means[place]:g})`."
            )
    return np.flatnonzero((sds > 0.0) | ((means != 0.0) & (not design.intercept))), notes


def _check_apart(design: Design, products: np.ndarray, kept: np.ndarray, rows: int) -> None:
    """Refuse columns of which one is a sum of others."""
    if not len(kept):
        return
    if len(kept) + design.intercept > rows:
        raise ClientDataError(
            f"The formula has {len(kept) + design.intercept} coefficients, and all clients together {rows} rows, from "
            "which they can't be told apart. Leave terms out."
        )
    scale = np.sqrt(np.diag(products))
    values, vectors = np.linalg.eigh(products / np.outer(scale, scale))
    if values[0] > _ALIKE:
        return
    alike = [design.names[kept[place]] for place in np.flatnonzero(np.abs(vectors[:, 0]) > 1e-3)]
    raise ClientDataError(
        f"The columns {', '.join(f'`{name}`' for name in alike)} are collinear: over all rows of all clients one is a "
        "sum of the others" + (" and a constant" if design.intercept else "") + ". Leave one of them out."
    )
