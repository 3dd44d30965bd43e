"""The header of a CSV file, before pandas reads it: of two columns of one name pandas would rename the second."""

import csv
from collections.abc import Collection
from pathlib import Path

from fedbayes.errors import ClientDataError


def check_header(
    path: Path, separator: str = ",", encoding: str = "utf-8", wanted: Collection[str] | None = None
) -> None:
    """Refuse a file in which two columns have one name.

    Parameters
    ----------
    path, separator, encoding
        The file, and how it is written.
    wanted
        The names that matter; ``None``: all of them.

    Raises
    ------
    ClientDataError
        It names the file, the column and its places.
    """
    with path.open(encoding=encoding, newline="") as file:
        names = [name.strip("\ufeff ") for name in next(csv.reader(file, delimiter=separator), [])]
    for name in dict.fromkeys(names if wanted is None else wanted):
        places = [str(place) for place, each in enumerate(names, start=1) if each == name]
        if name and len(places) > 1:
            raise ClientDataError(
                f"{path}: several columns have the name '{name}' (columns {', '.join(places)}). Rename or drop all but "
                "one."
            )
