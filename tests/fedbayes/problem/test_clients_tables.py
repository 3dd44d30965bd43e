"""Clients from one table."""

import re
import sys
from types import SimpleNamespace

import numpy as np
import pandas as pd
import pytest

import fedbayes as fb


@pytest.fixture
def frame() -> pd.DataFrame:
    return pd.DataFrame(
        {
            "town": ["Oslo", "Bern", "Oslo", "Bern"],
            "year": [2021, 2021, 2022, 2021],
            "age": [61.0, 48.0, 55.0, 30.5],
            "smoker": [True, False, False, True],
            "visits": pd.array([1, 2, 3, 4], dtype="Int64"),
            "weight": pd.array([1.5, 2.5, None, 4.5], dtype="Float64"),
            "sick": [0, 1, 0, 1],
            "sex": ["m", "f", "f", "m"],
            "grade": pd.Categorical(["low", "high", "mid", "low"], categories=["low", "mid", "high"]),
            "since": pd.date_range("2020-03-01", periods=4),
            "dose": ["1", "2", "10", "5"],
            "band": pd.cut([61, 48, 55, 30], [0, 40, 80]),
        },
        index=["p1", "p2", "p3", "p4"],
    )


def test_columns_of_several_kinds_become_numbers(frame):
    clients = fb.clients_from_dataframe(
        frame, by="town", x=["age", "smoker", "visits"], y="sick", z="smoker", n="visits"
    )
    assert list(clients) == ["Oslo", "Bern"]  # in order of first appearance
    np.testing.assert_array_equal(clients["Oslo"]["x"], [[61.0, 1.0, 1.0], [55.0, 0.0, 3.0]])
    np.testing.assert_array_equal(clients["Bern"]["y"], [1, 1])
    kinds = {argument: array.dtype.kind for argument, array in clients["Oslo"].items()}
    assert kinds == {"x": "f", "y": "i", "z": "b", "n": "i"}


def test_clients_of_two_columns(frame):
    clients = fb.clients_from_dataframe(frame, by=["town", "year"], x=["age"])
    assert {name: data["x"].ravel().tolist() for name, data in clients.items()} == {
        "Oslo, 2021": [61.0],
        "Bern, 2021": [48.0, 30.5],
        "Oslo, 2022": [55.0],
    }
    assert list(fb.clients_from_dataframe(frame, by=["town"], y="sick")) == ["Oslo", "Bern"]


def test_clients_of_a_category_are_those_that_occur(frame):
    assert list(fb.clients_from_dataframe(frame[frame.age > 40], by="grade", y="sick")) == ["low", "high", "mid"]
    assert list(fb.clients_from_dataframe(frame[frame.age > 60], by="grade", y="sick")) == ["low"]


def test_columns_need_no_text_for_a_name():
    table = pd.DataFrame(np.array([[0, 1.5, 2.0], [1, 3.0, 4.0]]))
    clients = fb.clients_from_dataframe(table, by=0, x=[1, 2], y=1)
    np.testing.assert_array_equal(clients["1.0"]["x"], [[3.0, 4.0]])
    np.testing.assert_array_equal(clients["0.0"]["y"], [1.5])
    deep = pd.DataFrame({("a", "u"): [1, 2], ("b", "v"): [3.0, 4.0]})
    np.testing.assert_array_equal(fb.clients_from_dataframe(deep, by=("a", "u"), x=("b", "v"))["2"]["x"], [4.0])


REFUSED = {
    "missing in a nullable column": (
        {"x": ["age", "weight"]},
        r"Column 'weight' holds 1 missing value among 4, the first <NA> in row 'p3'\.",
    ),
    "text": ({"x": ["age", "sex"]}, r"Column 'sex' holds text or categories \('f', 'm'\), which no density can"),
    "intervals": ({"x": "band"}, r"`frame\['band'\].* the columns \['band_\(40, 80\]'\] in its place"),
    "category": ({"y": "grade"}, r"Column 'grade' holds text or categories \('low', 'mid', 'high'\)"),
    "dates": ({"x": ["since"]}, r"Column 'since' holds dates, which no density can read\. Write days"),
    "numbers as text": ({"x": "dose"}, r"Write numbers as numbers, `frame\['dose'\] = numpy.asarray\("),
    "no argument": ({}, r"No argument of the model is named\. .*x=\['age', 'bmi'\]"),
    "no column": ({"x": []}, r"`x` names no column; the table has \['town', "),
    "no client": ({"x": "age", "by": []}, r"`by` names no column"),
    "unknown": ({"x": ["age", "bmi"]}, r"The table has no column \['bmi'\]; its columns are \['town', "),
}


@pytest.mark.parametrize("case", REFUSED)
def test_bad_columns(case, frame):
    arguments, message = REFUSED[case]
    with pytest.raises(fb.ClientDataError, match=message):
        fb.clients_from_dataframe(frame, **({"by": "town"} | arguments))


def test_the_lines_of_the_messages_repair_the_table(frame):
    """They are run as they stand."""
    repaired = {"weight": [1.5, 2.5, 4.5], "since": [0.0, 1.0, 2.0, 3.0], "dose": [1.0, 2.0, 10.0, 5.0]}
    repaired |= {"sex": [1, 0, 0, 1], "grade": [0, 2, 1, 0]}
    for column, expected in repaired.items():
        names = {"frame": frame.copy(), "pandas": pd, "numpy": np}
        with pytest.raises(fb.ClientDataError) as error:
            fb.clients_from_dataframe(frame, by="town", x=column)
        lines = re.findall(r"`(frame[^`]* = [^`]*)`", str(error.value))
        exec(lines[0], names)
        clients = fb.clients_from_dataframe(names["frame"].assign(all="one"), by="all", x=column)
        np.testing.assert_array_equal(clients["one"]["x"], expected)
    with pytest.raises(fb.ClientDataError, match=r"the columns \['grade_mid', 'grade_high'\] in its place") as error:
        fb.clients_from_dataframe(frame, by="town", x="grade")
    names = {"frame": frame.copy(), "pandas": pd}
    exec(re.findall(r"`(frame = [^`]*)`", str(error.value))[0], names)
    clients = fb.clients_from_dataframe(names["frame"], by="town", x=["age", "grade_mid", "grade_high"])
    np.testing.assert_array_equal(clients["Oslo"]["x"], [[61.0, 0.0, 0.0], [55.0, 1.0, 0.0]])


def test_many_indicators_are_not_all_listed(frame):
    table = pd.DataFrame({"town": "Oslo", "zip": [f"z{i:02}" for i in range(40)]})
    with pytest.raises(fb.ClientDataError, match=r"'zip_z12'\] and 27 more in its place"):
        fb.clients_from_dataframe(table, by="town", x="zip")


def test_a_column_that_occurs_twice(frame):
    table = pd.concat([frame, frame[["age"]]], axis=1)
    with pytest.raises(fb.ClientDataError, match=r"The table has 2 columns of the name 'age'\. Rename or drop"):
        fb.clients_from_dataframe(table, by="town", x=["age"])


@pytest.mark.parametrize("table", [{"town": ["Oslo"]}, [1.0], None, np.eye(2)])
def test_what_is_no_table(table):
    with pytest.raises(
        fb.ClientDataError, match=r"`frame` is a \w+; write a table of pandas or polars, such as `pandas"
    ):
        fb.clients_from_dataframe(table, by="town", x="age")


def test_a_table_without_rows(frame):
    with pytest.raises(fb.ClientDataError, match=r"The table has no rows, and so no clients"):
        fb.clients_from_dataframe(frame[:0], by="town", x="age")


def test_names_that_are_alike_as_text():
    table = pd.DataFrame({"u": ["a, b", "a"], "v": ["c", "b, c"], "x": [1.0, 2.0]})
    with pytest.raises(
        fb.ClientDataError, match=r"Columns 'u', 'v' name two clients alike .*'a, b, c': \[\('a, b', 'c'"
    ):
        fb.clients_from_dataframe(table, by=["u", "v"], x="x")


class Series:
    """What a column of polars does, as far as it matters here."""

    def __init__(self, values):
        self.values = values

    def __len__(self):
        return len(self.values)

    def is_null(self):
        return Series([value is None for value in self.values])

    def to_numpy(self):
        return np.array(self.values, dtype=object if {type(value) for value in self.values} & {str} else None)

    def to_list(self):
        return self.values

    def __array__(self, dtype=None, copy=None):
        return np.asarray(self.to_numpy(), dtype)


class Table:
    """The same for a table."""

    def __init__(self, columns):
        self.data = {name: Series(values) for name, values in columns.items()}

    @property
    def columns(self):
        return list(self.data)

    def __getitem__(self, name):
        return self.data[name]


def test_a_table_with_the_methods_of_polars(monkeypatch):
    monkeypatch.setitem(sys.modules, "polars", SimpleNamespace(DataFrame=Table, Series=Series))
    table = Table(
        {"town": ["Oslo", "Bern", "Oslo"], "age": [1.5, 2.0, 3.0], "old": [True, False, True], "n": [1, 2, None]}
    )
    clients = fb.clients_from_dataframe(table, by="town", x=["age", "old"], y="old")
    np.testing.assert_array_equal(clients["Oslo"]["x"], [[1.5, 1.0], [3.0, 1.0]])
    np.testing.assert_array_equal(clients["Bern"]["y"], [False])
    with pytest.raises(
        fb.ClientDataError, match=r"Column 'n' holds 1 missing value .* row 2\. .*`frame = frame.fill_nan"
    ):
        fb.clients_from_dataframe(table, by="town", x="n")
    with pytest.raises(
        fb.ClientDataError, match=r"Column 'town' holds text .* `frame = frame.to_dummies\(\['town'\]\)`"
    ):
        fb.clients_from_dataframe(table, by="town", x="town")
    with pytest.raises(fb.ClientDataError, match=r"Column 'n' names the clients, but 1 of its values are missing"):
        fb.clients_from_dataframe(table, by="n", x="age")


def test_a_table_of_polars(frame):
    polars = pytest.importorskip("polars", reason="polars is not installed, which the extra `test` brings")
    table = polars.DataFrame({name: frame[name].to_list() for name in frame.columns if name != "weight"})
    ours = fb.clients_from_dataframe(table, by=["town", "year"], x=["age", "smoker", "visits"], y="sick")
    theirs = fb.clients_from_dataframe(frame, by=["town", "year"], x=["age", "smoker", "visits"], y="sick")
    assert list(ours) == list(theirs)
    for name, data in theirs.items():
        for argument, array in data.items():
            np.testing.assert_array_equal(ours[name][argument], array)
    for column, expected in {"sex": [1, 0, 0, 1], "since": [0, 1, 2, 3]}.items():
        with pytest.raises(fb.ClientDataError) as error:
            fb.clients_from_dataframe(table, by="town", x=column)
        names = {"frame": table, "polars": polars, "numpy": np}
        exec(re.findall(r"`(frame = [^`]*)`", str(error.value))[0], names)
        assert names["frame"][column].to_list() == expected
