"""Clients' data from one table."""

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from fedbayes.errors import ClientDataError
from fedbayes.problem.data.values import FEW, Place, column_numbers, given_by, is_table, side_by_side

if TYPE_CHECKING:
    import pandas as pd
    import polars as pl


def clients_from_dataframe(
    frame: "pd.DataFrame | pl.DataFrame", by: str | Sequence[str], **arguments: str | Sequence[str]
) -> dict[str, dict[str, np.ndarray]]:
    """Clients' data from one table of pandas or polars: one client per value of the column ``by``.

    Numbers come out as numbers, also from nullable columns; columns of one argument become the kind of numbers that
    holds them all, so that true and false beside decimals are 1.0 and 0.0. Text, categories and dates are refused, with
    the line that codes them: a category may be an index, an outcome or a covariate, and only you know which.

    Parameters
    ----------
    frame
        The table. Its index is ignored.
    by
        Column whose values name the clients, or a list of columns: a client for each combination that occurs, named by
        its values with a comma between them, such as ``"Oslo, 2021"``.
    **arguments
        The model's arguments: a column name gives an array ``(rows,)``, a list of names an array ``(rows, columns)``.

    Returns
    -------
    dict
        From client name to the model's keyword arguments, in order of first appearance.

    Raises
    ------
    ClientDataError
        A column is not there or occurs twice, holds no numbers, or has missing or infinite values; two clients would
        have the same name.

    See Also
    --------
    fit_federated : Fits a model by a method.
    regression : Takes tables as they are.
    describe : Table 1 of the clients.

    Examples
    --------
    >>> import pandas as pd, fedbayes as fb
    >>> frame = pd.DataFrame({"hospital": ["a", "b", "a"], "age": [61.0, 48.0, 55.0], "sick": [1, 0, 1]})
    >>> frame["bmi"] = [24.0, 31.0, 28.0]
    >>> clients = fb.clients_from_dataframe(frame, by="hospital", x=["age", "bmi"], y="sick")
    >>> {name: client["x"].shape for name, client in clients.items()}
    {'a': (2, 2), 'b': (1, 2)}
    """
    if not is_table(frame):
        raise ClientDataError(_no_table(frame))
    known = list(frame.columns)
    wanted = {argument: _names(value, known) for argument, value in arguments.items()}
    keys = _names(by, known)[0]
    _check_names(known, keys, {argument: names for argument, (names, _) in wanted.items()})
    used = list(dict.fromkeys(name for names, _ in wanted.values() for name in names))
    columns = {name: column_numbers(frame[name], _column_place(frame, name, used)) for name in used}
    whole = {
        argument: columns[names[0]] if single else side_by_side([columns[name] for name in names])
        for argument, (names, single) in wanted.items()
    }
    groups = _rows_by_client(frame, keys)
    return {name: {argument: array[rows] for argument, array in whole.items()} for name, rows in groups.items()}


def _no_table(frame: Any) -> str:
    ways = [way for way in ("to_pandas", "collect", "compute") if hasattr(frame, way)]
    what = f"`frame.{ways[0]}()`" if ways else "`pandas.DataFrame(...)`"
    return f"`frame` is a {type(frame).__name__}; write a table of pandas or polars, such as {what}."


def _names(value: Any, known: list) -> tuple[list, bool]:
    """Names of columns, and whether it is one name rather than a list of them; a tuple may be a name itself."""
    one = isinstance(value, str) or not hasattr(value, "__iter__") or (isinstance(value, tuple) and value in known)
    return ([value], True) if one else (list(value), False)


def _check_names(known: list, keys: list, wanted: dict[str, list]) -> None:
    if not wanted:
        raise ClientDataError(
            "No argument of the model is named. Say which columns they are, such as "
            "`clients_from_dataframe(frame, by='hospital', x=['age', 'bmi'], y='sick')`."
        )
    if empty := [name for name, names in {"by": keys, **wanted}.items() if not names]:
        raise ClientDataError(f"`{empty[0]}` names no column; the table has {known}.")
    used = [name for names in wanted.values() for name in names]
    if missing := [name for name in [*keys, *used] if name not in known]:
        raise ClientDataError(f"The table has no column {missing}; its columns are {known}.")
    if twice := [name for name in [*keys, *used] if known.count(name) > 1]:
        raise ClientDataError(
            f"The table has {known.count(twice[0])} columns of the name {twice[0]!r}. Rename or drop all but one."
        )


def _column_place(frame: Any, name: Any, used: list) -> Place:
    """A column's place, with the lines that would repair it."""
    polars = given_by(frame, "polars", "DataFrame")
    dropped = f"fill_nan(None).drop_nulls({used})" if polars else f"dropna(subset={used})"
    code = f"frame[{name!r}]"

    def assigned(expression: str) -> str:
        return (
            f"frame = frame.with_columns(polars.Series({name!r}, {expression}))" if polars else f"{code} = {expression}"
        )

    def coded(levels: list) -> str:
        if polars:
            dummies = f"frame = frame.to_dummies([{name!r}])"
            codes = assigned(f"{code}.cast(polars.Enum({code}.unique().cast(str).sort())).to_physical()")
        else:
            dummies = f"frame = pandas.get_dummies(frame, columns=[{name!r}], dtype=float)"
            codes = f"{code} = {code}.astype('category').cat.codes"
        columns = [f"{name}_{level}" for level in levels[1:]]
        shown = f"{columns[:FEW]}" + (f" and {len(columns) - FEW} more" if len(columns) > FEW else "")
        return (
            f"Code it before the table is split into clients. As an outcome or an index: `{codes}`, which counts from "
            f"0. As a covariate: `{dummies}`, and among the arguments the columns {shown} in its place, one per level "
            "but the first."
        )

    repair = f"Impute them, or drop the rows with missing values: `frame = frame.{dropped}`."
    subject = f"Column {name!r}"
    return Place(subject, subject, code, repair, assigned, coded, lambda name: _column_place(frame, name, used))


def _rows_by_client(frame: Any, keys: list) -> dict[str, np.ndarray]:
    """The rows of each client, by its name, in order of first appearance."""
    columns = []
    for name in keys:
        column = frame[name]
        missing = np.asarray(column.is_null() if given_by(frame, "polars", "DataFrame") else column.isna())
        if missing.any():
            raise ClientDataError(
                f"Column '{name}' names the clients, but {int(missing.sum())} of its values are missing."
            )
        columns.append(column.to_list())
    found: dict[tuple, list[int]] = {}
    for row, key in enumerate(zip(*columns, strict=True)):
        found.setdefault(key, []).append(row)
    names = [", ".join(map(str, key)) for key in found]
    if len(set(names)) < len(names):
        twice = next(name for name in names if names.count(name) > 1)
        alike = [key[0] if len(key) == 1 else key for key, name in zip(found, names, strict=True) if name == twice]
        raise ClientDataError(
            f"Column{'s' if len(keys) > 1 else ''} {', '.join(repr(name) for name in keys)} name"
            f"{'' if len(keys) > 1 else 's'} two clients alike once written as text, '{twice}': {alike}. Write their "
            "names differently."
        )
    if not found:
        raise ClientDataError("The table has no rows, and so no clients.")
    return {name: np.asarray(rows) for name, rows in zip(names, found.values(), strict=True)}
