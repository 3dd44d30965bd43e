"""A client's table: columns as numbers or as labels, and what is wrong with them, in words with client and counts."""

import datetime
import hashlib
import re
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from fedbayes.errors import ClientDataError, FormulaError, did_you_mean
from fedbayes.problem.data.values import given_by

_FEW = 5
_DATE = re.compile(r"(\d{4}([-/.])\d{1,2}\2\d{1,2}|\d{1,2}([-/.])\d{1,2}\3\d{4})([T ].*)?")
_IMPUTE = (
    "Write `missing='drop'`, which leaves out rows that lack a value of the formula; or, of a covariate of numbers, "
    "`mi({name})` in its place, which imputes them; or impute them before."
)
_COMPLETE = "Fill them in, or leave these rows out: nothing is expected of a row that lacks a value."


class Table:
    """One client's rows.

    Parameters
    ----------
    client
        Its name, for messages.
    frame
        A table of pandas or polars, or a mapping from names of columns to arrays ``(n,)``.
    new
        Whether these are rows about which a fit is asked, and not a client's data, for messages.

    Raises
    ------
    ClientDataError
        It is none of these, has no rows, or two columns of one name.
    """

    def __init__(self, client: str, frame: Any, *, new: bool = False) -> None:
        self.client, self._new = client, new
        self._frame = _as_pandas(client, frame)
        names = list(self._frame.columns)
        if twice := [name for name in names if names.count(name) > 1]:
            raise ClientDataError(f"Client '{client}' has two columns of the name {twice[0]!r}. Rename one.")
        if not len(self._frame):
            if new:
                raise ClientDataError(f"The table of '{client}' has no rows. Write one row at least.")
            raise ClientDataError(f"Client '{client}' has no rows. Leave the client out.")

    @property
    def names(self) -> tuple[str, ...]:
        """Of the columns."""
        return tuple(map(str, self._frame.columns))

    @property
    def num_rows(self) -> int:
        """How many there are."""
        return len(self._frame)

    def digest(self, columns: Iterable[str]) -> str:
        """What stands for the values of these columns, for the client itself."""
        return hashlib.sha256(self._frame[list(columns)].to_csv(index=False).encode()).hexdigest()

    def as_bytes(self, columns: Iterable[str]) -> Iterator[bytes]:
        """Each row's values of these columns, numbers of any kind as decimals, beside their names."""
        frame = self._frame[list(columns)]
        numbers = frame.select_dtypes(["number", "bool"]).astype(float) + 0.0  # there are two noughts
        for row in frame.assign(**numbers).itertuples(index=False, name=None):
            yield f"{list(frame.columns)} {row}".encode()

    def num_missing(self, name: str) -> int:
        """Rows that lack a value in a column."""
        return int(self._frame[name].isna().sum())

    def without_missing(self, columns: Iterable[str]) -> tuple["Table", int]:
        """The rows in which none of these columns is missing, and how many others there were."""
        columns = [name for name in columns if name in self.names]
        kept = self._frame.dropna(subset=columns)
        if not len(kept):
            raise ClientDataError(
                f"Client '{self.client}' has no row in which none of {columns} is missing. Leave the client out, or a "
                "column."
            )
        return Table(self.client, kept), len(self._frame) - len(kept)

    def part(self, rows: slice) -> "Table":
        """Some of the rows."""
        return Table(self.client, self._frame.iloc[rows], new=self._new)

    def with_column(self, name: str, values: Any) -> "Table":
        """The same rows with another or one more column, of values ``(n,)`` or one for all rows."""
        frame = self._frame.copy()
        frame[name] = values
        return Table(self.client, frame, new=self._new)

    def check_there(self, columns: Iterable[str], imputed: Collection[str] = (), instead: str = "") -> None:
        """Refuse a formula that names columns which this client does not have, or has with missing values.

        Parameters
        ----------
        columns
            That the formula names.
        imputed
            Those among them that may lack values.
        instead
            What to write where a column is not there, beside a name like it.
        """
        for name in columns:
            if name not in self.names:
                raise FormulaError(
                    f"The formula names '{name}', and client '{self.client}' has no such column; it has "
                    f"{_few(self.names, 20)}.{did_you_mean(name, self.names)}{instead}"
                )
            if (missing := self.num_missing(name)) and name not in imputed:
                raise ClientDataError(
                    f"Client '{self.client}': column '{name}' lacks {missing} of {self.num_rows} values. "
                    + (_COMPLETE if self._new else _IMPUTE.format(name=name))
                )

    def is_labels(self, name: str) -> bool:
        """Whether a column holds text or categories, and not numbers.

        Raises
        ------
        ClientDataError
            It holds dates, complex numbers, or objects of other kinds.
        """
        series, types = self._frame[name], _pandas().api.types
        if held := _dates_in(series):
            what, column = held
            raise ClientDataError(
                f"Client '{self.client}': column '{name}' holds {what}. Write a number in its place, such as days "
                f"since the same date for all clients: `({column.format(name=repr(name))} - "
                "pandas.Timestamp('2020-01-01')).dt.days`."
            )
        if isinstance(series.dtype, _pandas().CategoricalDtype) or isinstance(series.dtype, _pandas().StringDtype):
            return True
        if types.is_complex_dtype(series):
            raise ClientDataError(
                f"Client '{self.client}': column '{name}' holds complex numbers. Write a real number in its place, "
                f"such as `numpy.real(frame[{name!r}])`, or real and imaginary parts as two columns."
            )
        if types.is_numeric_dtype(series) or types.is_bool_dtype(series):
            return False
        kinds = sorted({type(value).__name__ for value in series.dropna()})
        if kinds == ["str"]:
            return True
        if set(kinds) <= {"int", "float", "bool", "Decimal", "Fraction", "int64", "float64"}:
            return False
        raise ClientDataError(
            f"Client '{self.client}': column '{name}' holds values of the types {', '.join(kinds)}. Write numbers "
            "alone, or text alone."
        )

    def is_true_or_false(self, name: str) -> bool:
        """Whether a column holds yes and no, and nothing else where it has a value."""
        series = self._frame[name]
        kinds = {type(value) for value in series.dropna()} if series.dtype == object else set()
        return bool(_pandas().api.types.is_bool_dtype(series)) or (bool(kinds) and kinds <= {bool, np.bool_})

    def numbers(self, name: str, used: str) -> np.ndarray:
        """A column as decimals, shape ``(n,)``.

        Parameters
        ----------
        name
            The column.
        used
            What needs its numbers, for the message.

        Raises
        ------
        ClientDataError
            It holds labels, or infinite values.
        """
        if self.is_labels(name):
            shown = _few([str(each) for each in self._frame[name].astype(str).unique()], _FEW)
            raise ClientDataError(
                f"Client '{self.client}': column '{name}' holds text ({shown}), and `{used}` needs numbers. Write the "
                "column by itself, which makes a column of each level, or code it."
            )
        found = self._frame[name].to_numpy(dtype=float, na_value=np.nan)
        if infinite := int(np.isinf(found).sum()):
            raise ClientDataError(
                f"Client '{self.client}': column '{name}' has {infinite} infinite values. Correct them."
            )
        return found

    def num_values(self, name: str) -> int:
        """How many different values a column has, missing ones aside."""
        return int(self._frame[name].nunique())

    def labels(self, name: str) -> np.ndarray:
        """A column as text, shape ``(n,)``; whole numbers without decimals."""
        codes, values = _pandas().factorize(self._frame[name])
        return np.asarray([label_text(value) for value in values], dtype=object)[codes]

    def declared_levels(self, name: str) -> tuple[str, ...] | None:
        """The levels of a categorical column in its own order; ``None`` where it declares none."""
        dtype = self._frame[name].dtype
        if not isinstance(dtype, _pandas().CategoricalDtype):
            return None
        return tuple(label_text(level) for level in dtype.categories)

    def is_ordered(self, name: str) -> bool:
        """Whether a categorical column says that its levels have an order."""
        dtype = self._frame[name].dtype
        return bool(isinstance(dtype, _pandas().CategoricalDtype) and dtype.ordered)


def label_text(value: Any) -> str:
    """A level as text: ``3.0`` and ``3`` are alike."""
    if isinstance(value, bool | np.bool_):
        return str(bool(value))
    if isinstance(value, float | np.floating) and float(value).is_integer():
        return str(int(value))
    return str(value)


def tables_of(clients: Any, site: str) -> dict[str, Table]:
    """Every client's table, from a mapping, or from one table with a column that names the client.

    Raises
    ------
    ClientDataError
        There is none, or the one table lacks the column.
    """
    if not isinstance(clients, Mapping):
        clients = _by_client(clients, site)
    if not clients:
        raise ClientDataError("`clients` is empty: there is nobody to learn from.")
    return {str(name): Table(str(name), frame) for name, frame in clients.items()}


def check_kinds(tables: Mapping[str, Table], name: str) -> bool:
    """Whether a column holds labels at all clients; refused where it does at some."""
    labels, numbers = _split(tables, lambda table: table.is_labels(name))
    if labels and numbers:
        raise ClientDataError(
            f"Column '{name}' holds text at client '{labels[0]}', and numbers at client '{numbers[0]}'. Write it in "
            "the same way at all clients."
        )
    return bool(labels)


def check_words(tables: Mapping[str, Table], name: str) -> None:
    """Refuse levels that are True and False at some clients and numbers at others, where True and 1 would be two."""
    words, others = _split(tables, lambda table: table.is_true_or_false(name))
    if words and others:
        raise ClientDataError(
            f"Column '{name}' holds True and False at client '{words[0]}', and other values at client '{others[0]}'. "
            "As levels True and 1 are two: write it in the same way at all clients, such as `astype(int)`."
        )


def _split(tables: Mapping[str, Table], is_so: Callable[[Table], bool]) -> tuple[list[str], list[str]]:
    """The clients of whose table something holds, and the others."""
    holds = {client: is_so(table) for client, table in tables.items()}
    return [client for client, so in holds.items() if so], [client for client, so in holds.items() if not so]


def _by_client(frame: Any, site: str) -> dict[str, Any]:
    table = _as_pandas("", frame)
    if site not in table.columns:
        raise ClientDataError(
            f"`clients` is one table, and has no column '{site}' that names each row's client. Write `site=` with the "
            f"column's name; there are {_few(list(map(str, table.columns)), 20)}."
        )
    if missing := int(table[site].isna().sum()):
        raise ClientDataError(f"Column '{site}' names the clients, but {missing} of its values are missing.")
    return {label_text(name): rows for name, rows in table.groupby(site, sort=False, observed=True)}


def _as_pandas(client: str, frame: Any) -> Any:
    pandas = _pandas()
    if isinstance(frame, pandas.DataFrame):
        return frame.rename(columns=str)
    if given_by(frame, "polars", "DataFrame"):
        return pandas.DataFrame({name: frame[name].to_list() for name in frame.columns})
    where = f"Client '{client}'" if client else "`clients`"
    if not isinstance(frame, Mapping):
        raise ClientDataError(
            f"{where} is a {type(frame).__name__}; write a table of pandas or polars, or a mapping from columns to "
            "arrays."
        )
    arrays = {str(name): np.asarray(values) for name, values in frame.items()}
    for name, values in arrays.items():
        if values.ndim != 1:
            raise ClientDataError(
                f"{where}: column '{name}' has the shape {values.shape}; a column has one value a row."
            )
    lengths = {name: len(values) for name, values in arrays.items()}
    if len(set(lengths.values())) > 1:
        raise ClientDataError(f"{where} has columns of different lengths, {lengths}.")
    return pandas.DataFrame(arrays)


def _dates_in(series: Any) -> tuple[str, str] | None:
    """Which dates a column holds, and what makes dates of pandas of it; ``None`` where it holds none."""
    pandas = _pandas()
    types, first = pandas.api.types, series.head(1000)
    objects = first.dropna() if series.dtype == object else ()
    if isinstance(series.dtype, pandas.PeriodDtype) or any(isinstance(value, pandas.Period) for value in objects):
        return "periods of time", "frame[{name}].dt.to_timestamp()"
    if types.is_datetime64_any_dtype(series) or types.is_timedelta64_dtype(series):
        return "dates or times", "frame[{name}]"
    if any(isinstance(value, datetime.date) for value in objects):
        return "dates or times", "pandas.to_datetime(frame[{name}])"
    if types.is_numeric_dtype(series) or types.is_bool_dtype(series):
        return None
    values = series.dropna().astype(str).unique()
    if len(values) <= _FEW or not all(map(_DATE.fullmatch, values)):
        return None
    return f"dates as text ({_few(list(values), 2)})", "pandas.to_datetime(frame[{name}])"


def _few(values: Sequence[str], most: int) -> str:
    return ", ".join(map(repr, values[:most])) + (", ..." if len(values) > most else "")


def _pandas() -> Any:
    try:
        import pandas
    except ImportError as error:
        raise FormulaError(
            "Formulas need pandas, which is not installed: `pip install 'fedbayes[formula]'`."
        ) from error
    return pandas
