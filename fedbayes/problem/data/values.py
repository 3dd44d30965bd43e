"""One value as users give it, read as numbers: arrays, tables, their columns, and tensors of other libraries.

No library is imported here for a value's sake: a value can't come from one that is not imported already.
"""

import datetime
import sys
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from decimal import Decimal
from numbers import Integral, Real
from typing import Any, NamedTuple

import numpy as np

from fedbayes.errors import ClientDataError

FEW = 12  # levels that a message lists


class Values(NamedTuple):
    """What was read.

    Attributes
    ----------
    array
        Finite numbers, of kind bool, integer or float.
    labels
        Names of a table's columns, or of a labelled array's; ``None`` where there are none.
    """

    array: np.ndarray
    labels: tuple[str, ...] | None = None


@dataclass(frozen=True)
class Place:
    """Where a value stands, for the messages about it.

    Attributes
    ----------
    owner, subject
        What begins a message about whose value it is, ``Client 'a'``, and about the value, ``Client 'a': `x```.
    code
        The value as the user would write it, such as ``x``.
    repair
        What to do about missing values, as a sentence.
    assigned
        The line that puts an expression in the value's place.
    coded
        What to write instead of text with these levels, as a sentence.
    column
        The place of a column, where the value is a table.
    """

    owner: str
    subject: str
    code: str
    repair: str
    assigned: Callable[[str], str]
    coded: Callable[[list], str]
    column: Callable[[Any], "Place"]

    def refuse_missing(self, array: Any, missing: np.ndarray, labels: Sequence | None, what: str) -> None:
        """Name how many values are missing, and the first by its row label or its place in the array."""
        bad = np.argwhere(missing)
        if not len(bad):
            return
        where = tuple(int(i) for i in bad[0])
        at = (f"at {where}" if where else "") if labels is None else f"in row {_plain(labels[where[0]])!r}"
        among = "" if labels is None else f" among {len(missing)}"
        raise ClientDataError(
            f"{self.subject} holds {len(bad)} {what} value{'s' if len(bad) > 1 else ''}{among}, the first "
            f"{np.asarray(array)[where]}{at and ' '}{at}. {self.repair}"
        )


def argument_place(client: str, argument: str, others: Callable[[], list]) -> Place:
    """The place of a client's argument; ``others`` gives the values of all clients, among which text has its levels."""
    return _argument_place(f"Client '{client}'", f"`{argument}`", argument, others)


def _argument_place(owner: str, what: str, code: str, others: Callable[[], list]) -> Place:
    def coded(levels: list) -> str:
        if not all(isinstance(level, str | Real) for level in levels):  # intervals, dates: they can't be written here
            return (
                f"Code it before the data are split into clients: as an outcome or an index `pandas.Series({code})"
                f".cat.codes`, as a covariate `pandas.get_dummies(pandas.Series({code}), dtype=float).iloc[:, 1:]`, one"
                " column per level but the first."
            )
        known = _all_levels(others(), levels)
        where = f"`levels = {known}`" if len(known) <= FEW else "`levels` a list of the values among all clients"
        return (
            f"Code it in the same way for all clients, with {where}: as an outcome or an index "
            f"`(numpy.asarray({code})[:, None] == levels).argmax(axis=1)`, as a covariate "
            f"`(numpy.asarray({code})[:, None] == levels[1:]).astype(float)`, one column per level but the first."
        )

    def column(name: Any) -> Place:
        def same() -> list:
            return [table[name] for table in others() if is_table(table) and name in table.columns]

        return _argument_place(owner, f"column {name!r} of {what}", f"{code}[{name!r}]", same)

    repair = "Drop or impute these rows, or model them as latents."
    return Place(owner, f"{owner}: {what}", code, repair, lambda expression: expression, coded, column)


def _all_levels(values: list, levels: list) -> list:
    """The levels of one client, followed by those that only others have."""
    found = dict.fromkeys(levels)
    for value in values:
        if value is not None and not isinstance(value, str):
            items = np.asarray(value, dtype=object).reshape(-1).tolist()
            found |= dict.fromkeys(sorted({item for item in items if isinstance(item, str)} - found.keys()))
    return list(found)


def _plain(label: Any) -> Any:
    """A row's label without NumPy's type around it, which its ``repr`` would show."""
    return label.item() if isinstance(label, np.generic) else label


def given_by(value: Any, library: str, *names: str) -> bool:
    """Whether a value is of one of these classes of a library, which is not imported for the question."""
    module = sys.modules.get(library)
    classes = [getattr(module, name, None) for name in names]
    return isinstance(value, tuple(each for each in classes if isinstance(each, type)))


def is_table(value: Any) -> bool:
    """Whether a value has named columns."""
    return given_by(value, "pandas", "DataFrame") or given_by(value, "polars", "DataFrame")


def needs_no_reading(value: Any) -> bool:
    """Whether a value is an array of finite numbers already; with many clients this is what takes time."""
    if type(value) is not np.ndarray or not value.size:
        return False
    return value.dtype.kind in "iub" or (value.dtype.kind == "f" and bool(np.isfinite(value).all()))


def read(value: Any, place: Place) -> Values:
    """A value as numbers.

    Raises
    ------
    ClientDataError
        It is none, or not all of it is: text, dates, missing, masked or infinite values, or nothing at all.
    """
    if is_table(value):
        return _table(value, place)
    if _is_column(value):
        return Values(_nonempty(column_numbers(value, place), place))
    if given_by(value, "xarray", "Dataset"):
        raise ClientDataError(
            f"{place.subject} is a Dataset, which is many arrays. Write one of them, such as "
            f"`{place.code}[{next(iter(value), 'name')!r}]`."
        )
    labels = _axis_labels(value) if given_by(value, "xarray", "DataArray") else None
    return Values(_nonempty(_numbers(_array(value, place), place), place), labels)


def _is_column(value: Any) -> bool:
    if given_by(value, "polars", "Series") or given_by(value, "pandas", "Series", "Index"):
        return True
    extensions = getattr(sys.modules.get("pandas"), "api", None)
    return extensions is not None and isinstance(value, extensions.extensions.ExtensionArray)


def _table(table: Any, place: Place) -> Values:
    """A table as an array ``(rows, columns)``; its index is ignored."""
    names = list(table.columns)
    _nonempty(np.empty(table.shape), place)
    columns = [
        column_numbers(column, place.column(name)) for name, column in zip(names, columns_of(table), strict=True)
    ]
    bare = given_by(table, "pandas", "DataFrame") and given_by(table.columns, "pandas", "RangeIndex")
    return Values(side_by_side(columns), None if bare else tuple(map(str, names)))


def columns_of(table: Any) -> Iterator[Any]:
    """A table's columns, in order."""
    if given_by(table, "polars", "DataFrame"):
        return iter(table.get_columns())
    return (table.iloc[:, i] for i in range(table.shape[1]))


def side_by_side(columns: Sequence[np.ndarray]) -> np.ndarray:
    """Columns as an array ``(rows, columns)`` of the kind of numbers that holds them all."""
    return np.stack([column.astype(np.result_type(*columns)) for column in columns], axis=1)


def column_numbers(column: Any, place: Place) -> np.ndarray:
    """A column of a table as numbers ``(rows,)``; what is missing is named by its row's label.

    Raises
    ------
    ClientDataError
        It holds text, categories, dates, or missing or infinite values.
    """
    if given_by(column, "polars", "Series"):
        missing, labels, array = column.is_null().to_numpy(), range(len(column)), column.to_numpy()
        place.refuse_missing(array, missing, labels, "missing")
        return _numbers(np.asarray(array), place, labels)
    pandas = sys.modules["pandas"]
    series = column if isinstance(column, pandas.Series) else pandas.Series(column)
    missing = np.asarray(series.isna())
    if missing.any():
        place.refuse_missing(np.asarray(series, dtype=object), missing, series.index, "missing")
    if isinstance(series.dtype, pandas.CategoricalDtype):
        raise _text(list(series.dtype.categories), place)
    return _numbers(_without_extension(series, pandas), place, series.index)


def _without_extension(series: Any, pandas: Any) -> np.ndarray:
    """A column without missing values as NumPy has it, where pandas has types of its own."""
    types = pandas.api.types
    if isinstance(series.dtype, np.dtype):
        return series.to_numpy()
    for fits, dtype in (
        (types.is_bool_dtype, bool),
        (types.is_unsigned_integer_dtype, np.uint64),
        (types.is_integer_dtype, np.int64),
        (types.is_float_dtype, np.float64),
    ):
        if fits(series.dtype):
            return series.to_numpy(dtype=dtype)
    return np.asarray(series, dtype=object)


def _axis_labels(array: Any) -> tuple[str, ...] | None:
    """What tells one order of a labelled array's axes and columns from another."""
    if array.ndim < 2:
        return None
    names = [str(name) for name in array.dims]
    columns = [f"{name}={label}" for name in names[1:] if name in array.coords for label in array[name].values.tolist()]
    return (*(f"axis {name}" for name in names), *columns)


def _array(value: Any, place: Place) -> np.ndarray:
    """NumPy's view of a value, of whatever dtype."""
    if isinstance(value, list | tuple):
        value = [_detached(item) for item in value]
        if any(isinstance(item, np.ma.MaskedArray) for item in value):
            value = np.ma.array(value)
    value = _detached(value)
    if isinstance(value, np.ma.MaskedArray):
        _refuse_masked(value, place)
    try:
        return np.asarray(value)
    except Exception as error:  # of any library that the value comes from
        reason = str(error).strip().splitlines()[0] if str(error).strip() else type(error).__name__
        raise ClientDataError(
            f"{place.subject} is not an array: it is a {type(value).__name__}, and NumPy says: {reason.rstrip('.')}. "
            "Write numbers in an array of one shape."
        ) from error


def _detached(value: Any) -> Any:
    """A PyTorch tensor on the CPU and without its gradient's history; anything else as it is."""
    if not given_by(value, "torch", "Tensor"):
        return value
    if "bfloat16" in str(value.dtype):  # which NumPy does not have
        value = value.float()
    return value.detach().cpu().numpy()


def _refuse_masked(value: np.ma.MaskedArray, place: Place) -> None:
    bad = np.argwhere(np.ma.getmaskarray(value))
    if len(bad):
        where, code = tuple(int(i) for i in bad[0]), place.code
        raise ClientDataError(
            f"{place.subject} is a masked array with {len(bad)} of {value.size} values masked, the first at {where}. "
            f"A density would read what is under the mask. Drop these rows from all arguments, impute them with "
            f"`{code}.filled(...)`, or give `{code}.filled(0)` and, as another argument, `observed=~{code}.mask`, for "
            "`dist.Normal(...).mask(observed)` in the model."
        )


def _numbers(array: np.ndarray, place: Place, labels: Sequence | None = None) -> np.ndarray:
    """An array of any dtype as finite numbers."""
    kind = array.dtype.kind
    if kind in "OUST":
        array = _objects(array.astype(object), place, labels)
    elif kind in "Mm":
        place.refuse_missing(array, np.isnat(array), labels, "missing")
        raise _dates(array.reshape(-1)[:1], place)
    elif array.dtype.type.__module__.startswith("ml_dtypes"):  # bfloat16 and its kind
        array = array.astype(np.float32)
    elif kind not in "fiub":
        what = "complex numbers" if kind == "c" else f"values of dtype {array.dtype}"
        raise ClientDataError(
            f"{place.subject} holds {what}, which no density can read. Write real numbers, each part as a column of "
            "its own."
        )
    if array.dtype.kind == "f" and not np.isfinite(array).all():
        if labels is None:
            place.refuse_missing(array, ~np.isfinite(array), labels, "NaN or infinite")
        place.refuse_missing(array, np.isnan(array), labels, "missing")
        infinite = replace(place, repair="Correct them, or drop these rows.")
        infinite.refuse_missing(array, np.isinf(array), labels, "infinite")
    return array


def _objects(array: np.ndarray, place: Place, labels: Sequence | None) -> np.ndarray:
    """Python's objects as numbers, if that is what they are."""
    items = array.reshape(-1).tolist()
    missing = np.array([_is_missing(item) for item in items], bool).reshape(array.shape)
    place.refuse_missing(array, missing, labels, "missing")
    if all(isinstance(item, Real | Decimal | np.bool_) for item in items):
        if all(isinstance(item, bool | np.bool_) for item in items):
            return array.astype(bool)
        whole = all(isinstance(item, Integral | np.bool_) and abs(int(item)) < 2**63 for item in items)
        return array.astype(np.int64 if whole else np.float64)
    if any(isinstance(item, str | bytes) for item in items):
        texts = {item.decode(errors="replace") if isinstance(item, bytes) else str(item) for item in items}
        raise _text(sorted(texts), place, array.ndim)
    if isinstance(items[0], datetime.date):
        day = items[0].date() if isinstance(items[0], datetime.datetime) else items[0]  # NumPy has no time zones
        raise _dates(np.asarray([day], "datetime64[D]"), place)
    kinds = sorted({type(item).__name__ for item in items})
    ways = [way for way in ("toarray", "collect", "to_numpy", "to_pandas") if hasattr(items[0], way)]
    raise ClientDataError(
        f"{place.subject} holds objects of the type {', '.join(kinds)}, which no density can read. Write "
        f"{f'`{place.code}.{ways[0]}()`' if ways and not array.ndim else 'an array of numbers'}."
    )


def _is_missing(item: Any) -> bool:
    if item is None or item is np.ma.masked or type(item).__name__ in ("NAType", "NaTType"):
        return True
    return isinstance(item, float | np.floating) and item != item


def _nonempty(array: np.ndarray, place: Place) -> np.ndarray:
    if 0 in array.shape:
        lacking = "columns" if array.shape[0] else "rows"
        raise ClientDataError(
            f"{place.owner} has no {lacking}: `{place.code}` has shape {array.shape}. Leave the "
            f"{'argument' if array.shape[0] else 'client'} out."
        )
    return array


def _text(levels: list, place: Place, ndim: int = 1) -> ClientDataError:
    shown = ", ".join(repr(level) for level in levels[:FEW]) + (", ..." if len(levels) > FEW else "")
    numbers = f"Write numbers as numbers, `{place.assigned(f'numpy.asarray({place.code}, float)')}`, and categories "
    advice = place.coded(levels)
    if ndim > 1:
        advice = "Give its columns by name, as a table or as arguments of their own, to see how to code the text."
    if _all_numbers(levels):
        advice = f"{numbers}by their codes: {advice[0].lower()}{advice[1:]}"
    return ClientDataError(f"{place.subject} holds text or categories ({shown}), which no density can read. {advice}")


def _all_numbers(levels: list) -> bool:
    try:
        np.asarray(levels, float)
    except (TypeError, ValueError):
        return False
    return True


def _dates(first: np.ndarray, place: Place) -> ClientDataError:
    if first.dtype.kind == "m":
        what, line = "lengths of time", f"numpy.asarray({place.code}) / numpy.timedelta64(1, 'D')"
    else:
        since = first.astype("datetime64[D]")[0]
        what = "dates"
        line = (
            f"(numpy.asarray({place.code}, 'datetime64[ns]') - numpy.datetime64('{since}')) / numpy.timedelta64(1, 'D')"
        )
    return ClientDataError(
        f"{place.subject} holds {what}, which no density can read. Write days, from the same date for all clients: "
        f"`{place.assigned(line)}`."
    )
