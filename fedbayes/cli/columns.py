"""What is wrong with columns of files, said with the file, the column and the first row."""

import re
from collections.abc import Collection, Iterable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from fedbayes.errors import ClientDataError, did_you_mean

if TYPE_CHECKING:
    import pandas as pd

_COMMA = re.compile(r"[-+]?\d+,\d+")
_SHOWN = 20


class ReadBy(NamedTuple):
    """What reads the columns, and how.

    Attributes
    ----------
    names
        Of the columns.
    imputed
        Those that may lack values.
    numbers
        Those that can be nothing but numbers.
    covariates
        Those that are numbers, or levels as text.
    groups
        Those that name groups.
    site
        The word that stands for the client.
    """

    names: Sequence[str]
    imputed: Collection[str] = ()
    numbers: Collection[str] = ()
    covariates: Collection[str] = ()
    groups: Collection[str] = ()
    site: str = "site"


def reads_of_formulas(formula: str | Mapping[str, str], family: str, site: str, declared: Iterable[str]) -> ReadBy:
    """The columns that formulas read; those are no numbers that are declared to be levels, or name groups.

    Raises
    ------
    FormulaError
        The formulas can't be read.
    """
    from fedbayes.formula.families import family_of
    from fedbayes.formula.outcome import plan_outcome
    from fedbayes.formula.planned import (
        columns_imputed,
        columns_read,
        expressions_in,
        group_columns,
        read_formulas,
        settled,
    )

    law = family_of(family, {})
    formulas = read_formulas(formula, law)
    outcome = plan_outcome(formulas.texts[""], settled(law, formulas))
    plain = [each for each in expressions_in(formulas).values() if each.kind != "C"]
    covariates = {*outcome.columns, *(name for each in plain for name in each.columns)} - {*declared}
    reads = columns_read(formulas, outcome, site)
    names, groups = [name for name in reads if name != site], group_columns(formulas, site)
    return ReadBy(names, columns_imputed(formulas), (), covariates, groups, site)


def reads_all(table: "pd.DataFrame") -> ReadBy:
    """Every column, each of numbers or of levels, with values missing or not."""
    names = list(map(str, table.columns))
    return ReadBy(names, imputed=names, covariates=names)


def check_columns(tables: Mapping[Path, "pd.DataFrame"], reads: ReadBy, who: str, *, dropped: bool) -> None:
    """Refuse files whose columns can't be read as they are.

    Parameters
    ----------
    tables
        By file.
    reads
        What reads them.
    who
        The same in words, to begin a sentence: ``"The formula"``.
    dropped
        Whether rows that lack values are left out.

    Raises
    ------
    ClientDataError
        A file has no rows, or lacks a column; text stands among numbers; a value is missing or infinite.
    """
    for path, table in tables.items():
        if not len(table):
            raise ClientDataError(f"{path} has a header and no rows. Leave the file out.")
        for name in reads.names:
            _check_there(path, table, name, who, reads)
            if name in reads.numbers or name in reads.covariates:
                _check_numbers(path, table[name], name, levels=name not in reads.numbers)
            if not dropped and name not in reads.imputed:
                _check_missing(path, table[name], name)


def _check_there(path: Path, table: "pd.DataFrame", name: str, who: str, reads: ReadBy) -> None:
    from fedbayes.formula.program.groups import whole_client

    known = [str(column) for column in table.columns]
    if name not in known:
        more = ", ..." if len(known) > _SHOWN else ""
        raise ClientDataError(
            f"{who} names '{name}', and {path} has no such column; it has {', '.join(map(repr, known[:_SHOWN]))}"
            f"{more}.{did_you_mean(name, known)}{whole_client(reads.site) if name in reads.groups else ''}"
        )


def _check_missing(path: Path, column: "pd.Series", name: str) -> None:
    lacking = column.isna().to_numpy()
    if lacking.any():
        raise ClientDataError(
            f"{path}: column '{name}' lacks {lacking.sum()} of {len(column)} values, the first in row "
            f"{_row(lacking)}. Write `--drop-missing`, which leaves such rows out, or fill them in."
        )


def _check_numbers(path: Path, column: "pd.Series", name: str, *, levels: bool) -> None:
    """Refuse infinite numbers, and text in a column of numbers; where it may be levels, only beside many numbers."""
    import pandas as pd

    if pd.api.types.is_numeric_dtype(column) or pd.api.types.is_bool_dtype(column):
        infinite = column.isin([float("inf"), float("-inf")]).to_numpy()
        if infinite.any():
            raise ClientDataError(
                f"{path}: column '{name}' is infinite in {infinite.sum()} of {len(column)} rows, the first of them row "
                f"{_row(infinite)}. Correct it, or leave the value empty."
            )
        return
    there = column.notna().to_numpy()
    numbers = pd.to_numeric(column.astype(object), errors="coerce").notna().to_numpy() & there
    text = there & ~numbers
    if not text.any() or (levels and 2 * numbers.sum() <= there.sum()):
        return
    first = str(column[text].iloc[0])
    point = " Decimals are written with a point." if _COMMA.fullmatch(first) else ""
    ways = f" If these are levels, declare them: `--levels {name}=A,B,...`." if levels else ""
    found = f"{path}: column '{name}' holds text, {first[:40]!r} in row {_row(text)}"
    if not numbers.any():
        raise ClientDataError(f"{found}, and the model needs numbers. Code it as numbers in the file.{point}")
    raise ClientDataError(
        f"{found}, beside numbers in {numbers.sum()} of {len(column)} rows. Correct it, or leave the value empty."
        f"{point}{ways}"
    )


def _row(found: Any) -> str:
    """The first row of a file that is meant."""
    return f"{int(found.argmax()) + 1} below the header"
