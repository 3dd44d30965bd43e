"""Tables of clients from files: CSV or Parquet, a file a client, or one file with a column that names the client."""

import codecs
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from fedbayes.errors import ClientDataError, did_you_mean
from fedbayes.problem.data.headers import check_header

if TYPE_CHECKING:
    import pandas as pd

_READS = (".csv", ".parquet", ".pq")
_WIDE = (codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE)  # how files of 16-bit characters begin


class Asked(NamedTuple):
    """What the command was given.

    Attributes
    ----------
    data, formula, family, by, levels, priors, drop_missing, method, options, encoding
        Arguments and options of the command; ``levels`` by column, ``priors`` by parameter, ``options`` of the method
        by name.
    """

    data: Sequence[Path]
    formula: Sequence[str]
    family: str | None
    by: str | None
    levels: Mapping[str, list[str]]
    priors: Mapping[str, Any]
    drop_missing: bool
    method: str | None
    options: Mapping[str, Any]
    encoding: str


def read_clients(paths: Sequence[Path], by: str | None, encoding: str) -> Any:
    """The clients' tables, by the file's name without its ending; or one table, where ``by`` names its clients.

    Raises
    ------
    ClientDataError
        A file is missing, empty, of another kind, in another encoding, or no table; two files have one name; there is
        no column ``by``.
    """
    if by is not None:
        if len(paths) > 1:
            raise ClientDataError(
                f"`--by {by}` is for one file, and {len(paths)} are given. Leave it out, or join them."
            )
        table = read_table(paths[0], encoding)
        if by not in table.columns:
            known = [str(name) for name in table.columns]
            raise ClientDataError(
                f"`--by {by}` names no column of {paths[0]}, which has {known[:20]}.{did_you_mean(by, known)}"
            )
        return table
    check_names(paths)
    return {path.stem: read_table(path, encoding) for path in paths}


def check_names(paths: Sequence[Path]) -> None:
    """Refuse two files of one name, which would be one client.

    Raises
    ------
    ClientDataError
        There are two.
    """
    names = [path.stem for path in paths]
    for name in names:
        if names.count(name) > 1:
            both = " and ".join(str(path) for path in paths if path.stem == name)
            raise ClientDataError(f"{both} are both the client '{name}'. Rename a file: its name is the client's.")


def of_files(paths: Sequence[Path], found: Any, by: str | None) -> dict[Path, "pd.DataFrame"]:
    """The table of each file, of what :func:`read_clients` has found."""
    return {paths[0]: found} if by else dict(zip(paths, found.values(), strict=True))


def by_file(paths: Sequence[Path], found: Any, by: str | None) -> dict[str, tuple[Path, "pd.DataFrame"]]:
    """Each client's file and table, of what :func:`read_clients` has found.

    Raises
    ------
    ClientDataError
        Rows of the one table name no client.
    """
    from fedbayes.formula.design.tables import label_text

    if by is None:
        return {path.stem: (path, found[path.stem]) for path in paths}
    if missing := int(found[by].isna().sum()):
        raise ClientDataError(f"{paths[0]}: column '{by}' names the clients, and lacks {missing} values. Fill them in.")
    groups = found.groupby(by, sort=False, observed=True)
    return {label_text(name): (paths[0], rows) for name, rows in groups}


def read_table(path: Path, encoding: str) -> "pd.DataFrame":
    """The table of a file.

    Raises
    ------
    ClientDataError
        It is missing, empty, of another kind, in another encoding, or no table.
    """
    try:
        import pandas as pd
    except ImportError:
        raise ClientDataError(
            "Files are read by pandas, which is not installed: `pip install 'fedbayes[formula]'`."
        ) from None
    if not path.is_file():
        raise ClientDataError(f"There is no file {path}.")
    if path.suffix.lower() not in _READS:
        raise ClientDataError(f"{path} is no table that can be read: write a file that ends in {', '.join(_READS)}.")
    try:
        if path.suffix.lower() != ".csv":
            return pd.read_parquet(path)
        # separated by what its first line is separated by: commas, semicolons or tabs
        separator = _separator(path, encoding)
        check_header(path, separator, encoding)
        return pd.read_csv(path, sep=separator, encoding=encoding, skipinitialspace=True)
    except ClientDataError:
        raise
    except ImportError:
        raise ClientDataError(f"{path}: pandas needs pyarrow for Parquet. Install it, or write CSV.") from None
    except (UnicodeError, LookupError) as error:
        other = "utf-16" if path.read_bytes()[:2] in _WIDE else "latin-1"
        raise ClientDataError(
            f"{path} is not in the encoding {encoding}: {error}. Write `--encoding`, such as `--encoding {other}`."
        ) from None
    except pd.errors.EmptyDataError:
        raise ClientDataError(f"{path} is empty. Leave it out, or write a header and rows.") from None
    except (pd.errors.ParserError, ValueError, OSError) as error:
        raise ClientDataError(f"{path} can't be read as a table: {str(error).strip()}") from None


def _separator(path: Path, encoding: str) -> str:
    with path.open(encoding=encoding) as file:
        first = file.readline()
    return max(",;\t", key=first.count)
