"""Tables of real data for regressions by a formula: client by client, columns as they are called in the source.

``fedbayes.regression(formula, clients=tables.lung(), ...)``. Nothing is standardised or coded: levels are text, and a
column of yes and no is 0 and 1. Sources and licences stand beside the data, in ``data/*/LICENSE.md``.
"""

import csv
from collections.abc import Callable, Mapping
from importlib.resources import files

import numpy as np

from fedbayes.models.heart_disease import HOSPITALS, MISSING

Columns = dict[str, np.ndarray]

_PAIN = {1.0: "typical angina", 2.0: "atypical angina", 3.0: "other pain", 4.0: "no pain"}
_ECG = {0.0: "normal", 1.0: "ST-T abnormal", 2.0: "hypertrophy"}
_HEART: Mapping[str, tuple[str, Callable[[float], object]]] = {
    "sick": ("num", lambda value: int(value > 0)),
    "age": ("age", float),
    "sex": ("sex", {0.0: "female", 1.0: "male"}.__getitem__),
    "pain": ("cp", _PAIN.__getitem__),
    "pressure": ("trestbps", float),
    "chol": ("chol", float),
    "sugar": ("fbs", int),
    "ecg": ("restecg", _ECG.__getitem__),
    "rate": ("thalach", float),
    "angina": ("exang", int),
    "depression": ("oldpeak", float),
}


def hospitals() -> dict[str, Columns]:
    """Heart disease in four hospitals, 740 patients without missing values.

    Returns
    -------
    dict
        Of each hospital: ``sick`` (0 or 1), ``age`` (years), ``sex``, ``pain`` (its kind), ``pressure`` (mm Hg),
        ``chol`` (mg/dl; 0 in all of Switzerland, as in the source), ``sugar`` (above 120 mg/dl), ``ecg``, ``rate``
        (beats per minute), ``angina`` (by exercise), ``depression`` (of the ST segment, mm), shape (n,) each.

    Examples
    --------
    >>> {name: len(table["sick"]) for name, table in hospitals().items()}
    {'cleveland': 303, 'hungarian': 261, 'switzerland': 46, 'va': 130}
    """
    found = {}
    for hospital in HOSPITALS:
        rows = [{name: float(row[name]) for name, _ in _HEART.values()} for row in _rows("heart", hospital)]
        complete = [row for row in rows if MISSING not in row.values()]
        found[hospital] = {
            name: np.array([read(row[source]) for row in complete]) for name, (source, read) in _HEART.items()
        }
    return found


def lung() -> dict[str, Columns]:
    """Survival with advanced lung cancer at 18 institutions of the North Central Cancer Treatment Group, 226 patients.

    Returns
    -------
    dict
        Of each institution, 2 to 36 patients: ``days`` until death or the end of observation, ``died`` (0: censored),
        ``age`` (years), ``sex``, ``ecog`` (performance, from 0, good, to 3), shape (n,) each.

    Examples
    --------
    >>> tables = lung()  # from institution to table
    >>> len(tables), int(sum(table["died"].sum() for table in tables.values()))
    (18, 163)
    """
    found: dict[str, list[tuple[object, ...]]] = {}
    for row in _rows("lung", "lung"):
        sex = "male" if row["sex"] == "1" else "female"
        values = float(row["time"]), int(row["status"]), float(row["age"]), sex, int(row["ph.ecog"])
        found.setdefault(f"institution {int(row['inst']):02d}", []).append(values)
    return {name: _columns(("days", "died", "age", "sex", "ecog"), found[name]) for name in sorted(found)}


def students() -> dict[str, Columns]:
    """Grades in Portuguese at two schools, 649 students, three grades each.

    Returns
    -------
    dict
        Of each school: ``grade1``, ``grade2``, ``grade3`` (0 to 20), ``sex``, ``studytime`` (1: below 2 hours a week,
        to 4: above 10), ``failures`` (earlier ones, 0 to 3), shape (n,) each.

    Examples
    --------
    >>> {name: (len(table["grade3"]), float(table["grade3"].mean().round(2))) for name, table in students().items()}
    {'GP': (423, 12.58), 'MS': (226, 10.65)}
    """
    found: dict[str, list[tuple[object, ...]]] = {}
    for row in _rows("students", "students"):
        grades = tuple(int(row[name]) for name in ("G1", "G2", "G3"))
        sex = {"F": "female", "M": "male"}[row["sex"]]
        found.setdefault(row["school"], []).append((*grades, sex, int(row["studytime"]), int(row["failures"])))
    names = ("grade1", "grade2", "grade3", "sex", "studytime", "failures")
    return {school: _columns(names, rows) for school, rows in sorted(found.items())}


def bcg() -> dict[str, Columns]:
    """Thirteen trials of the BCG vaccine against tuberculosis, one row each.

    Returns
    -------
    dict
        Of each trial: ``log_ratio``, the logarithm of the risk with the vaccine over that without, its standard error
        ``se``, and the ``latitude`` (degrees), shape (1,) each.

    Notes
    -----
    ``log_ratio = log((a / n1) / (c / n2))`` and ``se^2 = 1/a - 1/n1 + 1/c - 1/n2``, with ``a`` of ``n1`` vaccinated and
    ``c`` of ``n2`` others ill.

    Examples
    --------
    >>> bcg()["TPT Madras 1980"]["log_ratio"].round(3)
    array([0.012])
    """
    found = {}
    for row in _rows("bcg", "bcg"):
        a, b, c, d = (float(row[f"{arm}_{end}"]) for arm in ("vaccinated", "control") for end in ("ill", "well"))
        ratio, variance = np.log(a / (a + b) / (c / (c + d))), 1 / a - 1 / (a + b) + 1 / c - 1 / (c + d)
        columns = {"log_ratio": ratio, "se": np.sqrt(variance), "latitude": float(row["latitude"])}
        found[f"{row['trial']} {row['year']}"] = {name: np.array([value]) for name, value in columns.items()}
    return found


def _rows(folder: str, name: str) -> list[dict[str, str]]:
    with (files("fedbayes.models") / "data" / folder / f"{name}.csv").open() as file:
        return list(csv.DictReader(file))


def _columns(names: tuple[str, ...], rows: list[tuple[object, ...]]) -> Columns:
    return {name: np.array(values) for name, values in zip(names, zip(*rows, strict=True), strict=True)}
