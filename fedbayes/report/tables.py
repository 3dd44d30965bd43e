"""Tables that a report is given: what a fit has answered, as it would be printed."""

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from fedbayes.errors import ReportError
from fedbayes.owner.text import estimate_cells
from fedbayes.report.markup import Markup, joined, paragraph, signed, table

_MOST = 200  # lines
_REMARKS = ("remarks", "caveat")  # attributes of a dataset that are sentences
_LESS = (
    "term",
    "sd",
    "tau",
    "shrinkage",
    "predictive_sd",
    "mcse",
    "psis",
    "psis_k_hat",
    "gaussian",
)  # columns that narrow screens leave out
_CHECK = "tail_probability"  # the column by which a check of the model is known


class Given(NamedTuple):
    """A table with its title; ``columns`` are the names of its columns in the data, ``rows`` their text."""

    title: str
    columns: Sequence[str]
    rows: Sequence[Sequence[str]]
    num_words: int
    notes: Sequence[str] = ()


def given_tables(tables: Mapping[str, Any] | None) -> tuple[Given, ...]:
    """Tables by title: estimates of a regression, a dataset that a fit has returned, or a table of pandas.

    Raises
    ------
    ReportError
        One of them is no table.
    """
    if not isinstance(tables or {}, Mapping):
        raise ReportError(
            f"`tables` is a {type(tables).__name__}; write a title for each table, "
            '`tables={"Predictive check": fit.predictive_check()}`.'
        )
    return tuple(_given(str(title), one) for title, one in (tables or {}).items())


def _given(title: str, one: Any) -> Given:
    if hasattr(one, "printed"):
        head, *rows = one.printed()
        return _named(title, list(head), [list(row) for row in rows], list(one.notes))
    notes = [_sentence(str(one.attrs[name])) for name in _REMARKS if getattr(one, "attrs", {}).get(name)]
    frame = one.to_dataframe().reset_index() if hasattr(one, "to_dataframe") else one
    if not hasattr(frame, "itertuples"):
        raise ReportError(
            f"`tables[{title!r}]` is a {type(one).__name__}; write a table of pandas, a dataset such as "
            "`fit.predictive_check()`, or estimates such as `fit.random_effects()`."
        )
    lines = [{name: _in_words(value) for name, value in line.items()} for line in frame.head(_MOST).to_dict("records")]
    rows = [list(estimate_cells(line, is_ratio=False)) for line in lines]
    if len(frame) > _MOST:
        notes.append(f"{len(frame) - _MOST:,} more of {len(frame):,} lines are not shown.")
    return _named(title, [str(name) for name in frame.columns], rows, notes)


def _in_words(value: Any) -> Any:
    return ("yes" if value else "no") if isinstance(value, bool) else value


def _sentence(text: str) -> str:
    return f"{text[0].upper()}{text[1:].rstrip('.')}."


def _named(title: str, columns: list[str], rows: list[list[str]], notes: list[str]) -> Given:
    """With the columns of words first, which are told by what is in them."""
    words = 0
    while words < len(columns) and any(not _is_number(row[words]) for row in rows):
        words += 1
    return Given(title, columns, rows, max(words, 1), notes)


def _is_number(text: str) -> bool:
    try:
        float(text.removeprefix(">") or "nan")
    except ValueError:
        return False
    return True


def has_check(given: Sequence[Given]) -> bool:
    """Whether a check of the model against the data is among them."""
    return any(_CHECK in each.columns for each in given)


def shown(given: Sequence[Given]) -> Markup:
    """One after the other."""
    parts: list[Markup] = []
    for each in given:
        head = [name.replace("_", " ") for name in each.columns]
        less = [place for place, name in enumerate(each.columns) if name in _LESS]
        rows = [[*row[: each.num_words], *map(signed, row[each.num_words :])] for row in each.rows]
        parts += [table(each.title, head, rows, each.num_words, less), *map(paragraph, each.notes)]
    return joined(*parts)
