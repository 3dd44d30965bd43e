"""A linear predictor with what is known of its columns, and what a client's rows make of it."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from fedbayes.errors import ClientDataError
from fedbayes.formula.design.design import Design
from fedbayes.formula.design.everybody import Everybody
from fedbayes.formula.design.tables import Table
from fedbayes.formula.design.totals import check_size
from fedbayes.formula.program.groups import Group, Kind

_ALIKE = 1e-8  # smallest eigenvalue of the columns' correlations at which they are told apart
_BASELINE = "each client has a baseline of its own, from which what is the same for all its rows can't be told"
_INSTEAD = "Leave it out, or take family='piecewise_exponential', whose baseline hazard is one for all clients."


@dataclass(frozen=True)
class Columns:
    """Everybody's means and sds of a predictor's columns, shape ``(k,)`` each.

    Attributes
    ----------
    means, sds
        Zero means where there is no intercept, beside which columns are centred. Where each client has a baseline of
        its own, sds are those within clients.
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
        """A client's arguments: columns ``(n, k)`` without imputed factors, offset ``(n,)``, and each row's groups.

        Parameters
        ----------
        table
            Its rows.
        groups
            Names of its groups, in order.
        """
        found: dict[str, Any] = {}
        if self.design.width:
            values, means = self.design.without_imputed().values(table), self.columns.means.copy()
            means[self.design.with_imputed] = 0.0  # these the program centres, once it has the imputed values
            found[f"x{self.suffix}"] = values - means if self.centred else values
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
    design: Design, groups: Iterable[Group], everybody: Everybody, parameter: str = "", *, within: bool = False
) -> tuple[Columns, list[str]]:
    """Everybody's means and sds of all columns, from one sum, and notes on columns that are empty.

    Parameters
    ----------
    design, groups
        The columns.
    everybody
        Who is asked.
    parameter
        Whose linear predictor it is.
    within
        Whether each client has a baseline of its own: columns then have to vary, and to differ, within clients.

    Raises
    ------
    ClientDataError
        A column does not vary, or its numbers are too large or too small; or columns are collinear.
    """
    groups = tuple(groups)
    with np.errstate(over="ignore", invalid="ignore"):  # what is too large is refused by its name
        sums = everybody.total(
            f"products of columns{f' of {parameter}' if parameter else ''}",
            lambda table: _tell(design, groups, table, within),
        )
        means, gram = sums["total"] / sums["rows"], sums["products"] / sums["rows"]
        squares = np.diag(gram) + means**2 if within else np.diag(gram)
    _check_sizes(design, groups, means, squares, sums.get("groups", {}))
    covariance = gram if within else gram - np.outer(means, means)
    sds = np.sqrt(np.where(np.diag(covariance) > 1e-9 * squares, np.diag(covariance), 0.0))
    if len(places := design.with_imputed):
        means[places], sds[places] = _of_seen(design, sums["seen"])
    kept, notes = _varying(design, sds, means, within)
    products = covariance if design.intercept else gram
    _check_apart(design, products[np.ix_(kept, kept)], kept, int(sums["rows"]), within)
    of_groups = tuple(_sds(sums["groups"][str(place)]) for place in range(len(groups)))
    if within:
        _check_groups(groups, of_groups)
    offset = float(sums["offset"] / sums["rows"])
    return Columns(means if design.intercept else np.zeros_like(means), sds, of_groups, offset), notes


def _tell(design: Design, groups: tuple[Group, ...], table: Table, within: bool) -> dict[str, Any]:
    """A client's sums; within clients, products are of its columns around its own means."""
    values = design.values(table)
    around = _around_own_means(values) if within else values
    each = {str(place): _within(group, table) if within else group.values(table) for place, group in enumerate(groups)}
    offset = design.offset(table)
    found = {
        "rows": float(table.num_rows),
        "total": values.sum(axis=0),
        "products": around.T @ around,
        "offset": 0.0 if offset is None else float(offset.sum()),
        "groups": {
            name: np.array([np.full(x.shape[1], len(x)), x.sum(axis=0), (x**2).sum(axis=0)]) for name, x in each.items()
        },
    }
    if len(design.with_imputed):
        there = design.seen(table)
        seen = values[:, design.with_imputed] * there
        found["seen"] = np.array([there.sum(axis=0), seen.sum(axis=0), (seen**2).sum(axis=0)])
    return found


def _check_sizes(
    design: Design,
    groups: tuple[Group, ...],
    means: np.ndarray,
    squares: np.ndarray,
    of_groups: Mapping[str, np.ndarray],
) -> None:
    """Refuse columns, those of groups as well, that are too large or too small for a fit."""
    for name, mean, square in zip(design.names, means, squares, strict=True):
        check_size(name, float(mean), float(square))
    for place, group in enumerate(groups):
        for name, (rows, first, second) in zip(group.effects, of_groups[str(place)].T, strict=True):
            check_size(name, float(first / rows), float(second / rows))


def _of_seen(design: Design, sums: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Means and sds of columns with imputed factors, over the rows in which these have values."""
    if not sums[0].all():
        name = design.names[design.with_imputed[np.flatnonzero(sums[0] == 0)[0]]]
        raise ClientDataError(f"No row of any client has all values of `{name}`. Leave the term out.")
    return sums[1] / sums[0], _sds(sums)


def _around_own_means(values: np.ndarray) -> np.ndarray:
    """Columns ``(n, k)`` less a client's own means; exactly zero where they are the same in all its rows."""
    found = values - values.mean(axis=0)
    return np.where((found**2).mean(axis=0) > 1e-24 * (values**2).mean(axis=0), found, 0.0)


def _within(group: Group, table: Table) -> np.ndarray:
    """A group's columns around the client's own means; the intercept's are of which rows are in its first group."""
    values = group.values(table)
    if group.design.intercept:
        labels = group.grouping.labels(table)
        values = np.column_stack([labels == labels[0], values[:, 1:]]) if group.grouping.columns else values
    return _around_own_means(values.astype(float))


def _sds(sums: np.ndarray) -> np.ndarray:
    rows, first, second = sums
    spread = second / rows - (first / rows) ** 2
    return np.sqrt(np.where(spread > 1e-9 * second / rows, spread, 0.0))


def _check_groups(groups: tuple[Group, ...], of_groups: tuple[np.ndarray, ...]) -> None:
    """Refuse effects that are the same for all rows of a client."""
    for group, sds in zip(groups, of_groups, strict=True):
        if group.grouping.kind is not Kind.CLIENT:
            if group.design.intercept and sds[0] == 0.0:
                raise ClientDataError(
                    f"No client has rows of several groups of '{group.grouping.name}': {_BASELINE}, and so can't the "
                    f"effects '({group.name})'. {_INSTEAD}"
                )
            continue
        # an intercept is refused before anybody is asked
        of_levels = [block.categorical for block in group.design.blocks for _ in block.labels]
        for name, sd, of_level in zip(group.design.names, sds, of_levels, strict=True):
            if sd == 0.0 and not of_level:
                raise _same_within_clients(name)


def _same_within_clients(name: str) -> ClientDataError:
    """The refusal of a column that says nothing beside baselines."""
    return ClientDataError(
        f"The column `{name}` does not vary within any client, or hardly varies beside its mean: {_BASELINE}. "
        f"{_INSTEAD}"
    )


def _varying(design: Design, sds: np.ndarray, means: np.ndarray, within: bool) -> tuple[np.ndarray, list[str]]:
    """The columns that vary; of levels that nobody has a note is made, all others that do not vary are refused."""
    of_levels = np.array([block.categorical for block in design.blocks for _ in block.labels], bool)
    notes = []
    for place in np.flatnonzero(sds == 0.0) if design.intercept else np.flatnonzero((sds == 0.0) & (means == 0.0)):
        name = design.names[place]
        if of_levels[place] and means[place] == 0.0:
            cancelled = ", or no client has rows with and without it" if within else ""  # contrasts can sum to zero
            notes.append(f"No row of any client has {name}{cancelled}: its coefficient is known by its prior alone.")
        elif within:
            raise _same_within_clients(name)
        else:
            raise ClientDataError(
                f"The column `{name}` is {means[place]:g} in all rows of all clients, or hardly varies beside its "
                f"mean. Leave it out; or, if it does vary, subtract a number, `I({name} - {means[place]:g})`."
            )
    return np.flatnonzero((sds > 0.0) | ((means != 0.0) & (not design.intercept))), notes


def _check_apart(design: Design, products: np.ndarray, kept: np.ndarray, rows: int, within: bool) -> None:
    """Refuse columns of which one is a sum of others."""
    if not len(kept):
        return
    coefficients = len(kept) + (design.intercept and not within)
    if coefficients > rows:
        raise ClientDataError(
            f"The formula has {coefficients} coefficients, and all clients together {rows} rows, from "
            "which they can't be told apart. Leave terms out."
        )
    scale = np.sqrt(np.diag(products))
    values, vectors = np.linalg.eigh(products / np.outer(scale, scale))
    if values[0] > _ALIKE:
        return
    alike = [design.names[kept[place]] for place in np.flatnonzero(np.abs(vectors[:, 0]) > 1e-3)]
    where = "within each client, which has a baseline of its own," if within else "over all rows of all clients"
    raise ClientDataError(
        f"The columns {', '.join(f'`{name}`' for name in alike)} are collinear: {where} one is a sum of the others"
        + (" and a constant" if design.intercept else "")
        + ". Leave one of them out."
    )
