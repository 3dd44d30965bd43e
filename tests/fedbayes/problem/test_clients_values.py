"""Whatever form a client's data have: read as numbers, or refused with what to write instead."""

import datetime
import re
import sys
from decimal import Decimal
from fractions import Fraction
from types import SimpleNamespace

import jax
import jax.numpy as jnp
import numpy as np
import pandas as pd
import pytest
import scipy.sparse
import xarray as xr

import fedbayes as fb
from fedbayes.problem.data.reading import prepare_clients

FLOAT = np.dtype(np.float64)


def read(**arguments):
    """The arrays of one client."""
    return prepare_clients({"a": arguments}, FLOAT)["a"].arrays


LABELLED = xr.DataArray([[1.0, 2.0], [3.0, 4.0]], dims=("row", "feature"), coords={"feature": ["age", "bmi"]})
TABLE = pd.DataFrame({"age": [1.0, 2.0], "smoker": [True, False], "visits": pd.array([3, 4], dtype="Int64")})
READABLE = {
    "list": ([1.0, 2.0], [1.0, 2.0]),
    "series": (pd.Series([1.0, 2.0], index=[7, 3]), [1.0, 2.0]),
    "nullable integers": (pd.Series([1, 2], dtype="Int64"), [1, 2]),
    "nullable unsigned": (pd.Series([1, 2], dtype="UInt8"), [1, 2]),
    "nullable decimals": (pd.Series([1.5, 2.0], dtype="Float64"), [1.5, 2.0]),
    "nullable booleans": (pd.Series([True, False], dtype="boolean"), [True, False]),
    "extension array": (pd.array([1, 2]), [1, 2]),
    "index": (pd.Index([1, 2]), [1, 2]),
    "sparse column": (pd.Series([0.0, 2.0], dtype="Sparse[float]"), [0.0, 2.0]),
    "mixed table": (TABLE, [[1.0, 1.0, 3.0], [2.0, 0.0, 4.0]]),
    "one column": (TABLE[["smoker"]], [[True], [False]]),
    "table as objects": (TABLE.to_numpy(), [[1.0, 1.0, 3.0], [2.0, 0.0, 4.0]]),
    "objects that are integers": (np.array([1, True], dtype=object), [1, 1]),
    "objects that are booleans": (np.array([True, False], dtype=object), [True, False]),
    "Python's exact numbers": ([Decimal("0.5"), Fraction(1, 4)], [0.5, 0.25]),
    "huge integers": (np.array([10**30, 1], dtype=object), [1e30, 1.0]),
    "nothing masked": (np.ma.array([1, 2], mask=[False, False]), [1, 2]),
    "labelled array": (LABELLED, [[1.0, 2.0], [3.0, 4.0]]),
    "JAX array": (jnp.array([1.0, 2.0]), [1.0, 2.0]),
    "half precision of JAX": (jnp.array([1.0, 2.0], jnp.bfloat16), [1.0, 2.0]),
    "half precision": (np.array([1.0, 2.0], np.float16), [1.0, 2.0]),
}


@pytest.mark.parametrize("case", READABLE)
def test_numbers_are_read(case):
    value, expected = READABLE[case]
    array, expected = read(x=value)["x"], np.asarray(expected)
    assert array.dtype.kind.replace("u", "i") == expected.dtype.kind
    assert type(array) is np.ndarray
    np.testing.assert_array_equal(array, expected)


def test_the_arrays_are_the_fits_own():
    """What is done to them after the fit does not change its data."""
    given = {"x": np.ones(3), "n": np.arange(3)}
    found = read(**given)
    for array in given.values():
        array[0] = 7
    np.testing.assert_array_equal(found["x"], np.ones(3))
    np.testing.assert_array_equal(found["n"], np.arange(3))


DAYS = np.array(["2020-03-01", "2020-03-03"], "datetime64[D]")
MASKED = np.ma.array([1.0, 2.0, 3.0], mask=[False, True, True])
REFUSED = {
    "masked": (MASKED, r"`x` is a masked array with 2 of 3 values masked, the first at \(1,\)\. .*`x.filled\(...\)`"),
    "list of masked": ([MASKED, MASKED], r"masked array with 4 of 6 values masked, the first at \(0, 1\)"),
    "none": (np.array([1.0, None]), r"`x` holds 1 missing value, the first None at \(1,\)\. Drop or impute"),
    "missing in a list": ([1.0, pd.NA], r"`x` holds 1 missing value, the first <NA> at \(1,\)"),
    "missing altogether": (pd.NA, r"`x` holds 1 missing value, the first <NA>\. Drop"),
    "nullable column": (
        pd.Series([1, None, None], dtype="Int64", index=["p1", "p2", "p3"]),
        r"`x` holds 2 missing values among 3, the first <NA> in row 'p2'\. Drop or impute",
    ),
    "nullable boolean": (pd.Series([True, None], dtype="boolean"), r"the first <NA> in row 1\."),
    "missing in a table": (
        pd.DataFrame({"age": [1.0, 2.0], "bmi": [1.0, np.nan]}, index=["p1", "p2"]),
        r": column 'bmi' of `x` holds 1 missing value among 2, the first nan in row 'p2'",
    ),
    "infinite in a table": (pd.DataFrame({"bmi": [np.inf]}), r"column 'bmi' of `x` holds 1 infinite value .*Correct"),
    "no time": (np.array(["2020-01-01", "NaT"], "datetime64[D]"), r"1 missing value, the first NaT at \(1,\)"),
    "text": (np.array(["u", "v"]), r"`x` holds text or categories \('u', 'v'\), which no density can read\. Code it"),
    "new text": (np.array(["u", "v"], np.dtypes.StringDType()), r"holds text or categories \('u', 'v'\)"),
    "bytes": (np.array([b"u", b"v"]), r"holds text or categories \('u', 'v'\)"),
    "text in rows": (np.array([["u", 1.0]], dtype=object), r"Give its columns by name, as a table or as arguments"),
    "category": (pd.Categorical(["l", "h"], categories=["l", "m", "h"]), r"categories \('l', 'm', 'h'\)"),
    "category in a table": (TABLE.assign(sex=list("fm")), r"column 'sex' of `x` .*numpy.asarray\(x\['sex'\]\)"),
    "intervals": (
        pd.cut([1.0, 5.0], [0.0, 2.0, 8.0]),
        r"`pandas.Series\(x\).cat.codes`, as a covariate `pandas.get_dumm",
    ),
    "numbers as text": (["1.5", "2"], r"Write numbers as numbers, `numpy.asarray\(x, float\)`, and categories"),
    "dates": (DAYS, r"`x` holds dates, .*`\(numpy.asarray\(x, 'datetime64\[ns\]'\) - .*'2020-03-01'\)\) / "),
    "dates with a zone": (pd.Series(pd.to_datetime(DAYS)).dt.tz_localize("UTC"), r"`x` holds dates"),
    "Python's dates": ([datetime.date(2020, 3, 1)], r"`x` holds dates"),
    "periods": (pd.Series(pd.period_range("2020", periods=2)), r"objects of the type Period, which no density can"),
    "lengths of time": (DAYS - DAYS[0], r"`x` holds lengths of time.*numpy.timedelta64\(1, 'D'\)"),
    "complex": (np.array([1j]), r"`x` holds complex numbers, which no density can read"),
    "records": (np.zeros(2, [("u", float)]), r"`x` holds values of dtype \[\('u', '<f8'\)\]"),
    "dictionary": ({"u": 1.0}, r"`x` holds objects of the type dict, .* Write an array of numbers"),
    "generator": ((i for i in range(3)), r"objects of the type generator"),
    "sparse": (scipy.sparse.csr_matrix(np.eye(2)), r"objects of the type csr_matrix, .* Write `x.toarray\(\)`"),
    "dataset": (xr.Dataset({"u": ("row", [1.0])}), r"`x` is a Dataset, which is many arrays\. .* `x\['u'\]`"),
    "keys": (jax.random.key(0), r"`x` is not an array: it is a PRNGKeyArray, and NumPy says: .*"),
    "empty table": (pd.DataFrame({"u": []}), r" has no rows: `x` has shape \(0, 1\)\. Leave the client out"),
    "table without columns": (pd.DataFrame(index=[1, 2]), r" has no columns: `x` has shape \(2, 0\)"),
}


@pytest.mark.parametrize("case", REFUSED)
def test_what_is_no_number_is_refused(case):
    value, message = REFUSED[case]
    with pytest.raises(fb.ClientDataError, match=rf"^Client 'a'.*{message}"):
        read(x=value)


def advised(error):
    """The expressions that a message offers."""
    return re.findall(r"`([^`]*(?:numpy|pandas)[^`]*)`", str(error.value))


@pytest.mark.parametrize(
    "wrap", [np.asarray, pd.Series, pd.Categorical, lambda v: pd.DataFrame({"sex": v}), lambda v: v]
)
def test_the_advice_for_text_codes_it_alike_for_all_clients(wrap):
    clients = {name: {"x": wrap(values)} for name, values in {"a": ["u", "v", "u"], "b": ["v", "w"]}.items()}
    with pytest.raises(fb.ClientDataError, match=r"with `levels = \['u', 'v', 'w'\]`") as error:
        prepare_clients(clients, FLOAT)
    codes, indicators = advised(error)
    levels = ["u", "v", "w"]
    found = [eval(codes, {"numpy": np, "levels": levels, "x": data["x"]}) for data in clients.values()]
    assert [list(array) for array in found] == [[0, 1, 0], [1, 2]]
    found = [eval(indicators, {"numpy": np, "levels": levels, "x": data["x"]}) for data in clients.values()]
    assert [array.tolist() for array in found] == [[[0, 0], [1, 0], [0, 0]], [[1, 0], [0, 1]]]


@pytest.mark.parametrize("value", [DAYS, pd.Series(DAYS), pd.to_datetime(DAYS), list(DAYS.tolist())])
def test_the_advice_for_dates_makes_days(value):
    with pytest.raises(fb.ClientDataError, match="holds dates") as error:
        read(x=value)
    (line,) = advised(error)
    np.testing.assert_array_equal(eval(line, {"numpy": np, "x": value}), [0.0, 2.0])


def test_many_levels_are_not_listed():
    with pytest.raises(fb.ClientDataError, match=r"'11', \.\.\.\).* with `levels` a list of the values among all"):
        read(x=[f"z{i}" if i > 20 else f"{i:02}" for i in range(30)])


def test_numbers_of_several_kinds_are_decimals_for_all_clients():
    clients = {
        "a": {"x": np.array([1, 2]), "s": 2},
        "b": {"x": pd.Series([0.5], dtype="Float64"), "s": 2.5},
        "c": {"x": np.array([True, False]), "s": 3},
    }
    found = prepare_clients(clients, np.dtype(np.float32))
    assert {array.dtype for client in found.values() for array in client.arrays.values()} == {np.dtype(np.float32)}
    np.testing.assert_array_equal(found["c"].arrays["x"], [1.0, 0.0])
    assert float(found["a"].arrays["s"]) == 2.0
    whole = prepare_clients({"a": {"x": np.array([1], np.int8)}, "b": {"x": np.array([True])}}, FLOAT)
    assert {client.arrays["x"].dtype for client in whole.values()} == {np.dtype(np.int8)}


def test_a_size_is_no_data_until_it_differs():
    same = prepare_clients({"a": {"y": [1.0], "n": 3}, "b": {"y": [1.0], "n": 3}}, FLOAT)
    assert same["a"].static == {"n": 3}
    other = prepare_clients({"a": {"y": [1.0], "n": 3}, "b": {"y": [1.0], "n": 4}}, FLOAT)
    assert int(other["b"].arrays["n"]) == 4


def test_columns_in_another_order_are_refused():
    frames = {"a": pd.DataFrame({"age": [1.0], "bmi": [2.0]}), "b": pd.DataFrame({"bmi": [2.0], "age": [1.0]})}
    with pytest.raises(
        fb.ClientDataError,
        match=r"'b': `x` has the columns \['bmi', 'age'\], but client 'a' has .*`x\[\['age', 'bmi'\]\]` for every",
    ):
        prepare_clients({name: {"x": frame} for name, frame in frames.items()}, FLOAT)
    bare = {"a": {"x": frames["a"]}, "b": {"x": frames["b"][["age", "bmi"]].to_numpy()}, "c": {"x": [[1.0, 2.0]]}}
    assert len(prepare_clients(bare, FLOAT)) == 3  # arrays have no names to compare
    unnamed = {"a": {"x": pd.DataFrame(np.eye(2))}, "b": {"x": frames["a"]}}
    assert len(prepare_clients(unnamed, FLOAT)) == 2


def test_labelled_columns_in_another_order_are_refused():
    clients = {"a": {"x": LABELLED}, "b": {"x": LABELLED[:, ::-1]}}
    with pytest.raises(
        fb.ClientDataError, match=r"'b': `x` has the columns \['axis row', 'axis feature', 'feature=bmi'"
    ):
        prepare_clients(clients, FLOAT)
    with pytest.raises(
        fb.ClientDataError, match=r"'b': `x` has the columns \['axis feature', 'axis row'\], .* one order\.$"
    ):
        prepare_clients({"a": {"x": LABELLED}, "b": {"x": LABELLED.drop_vars("feature").T}}, FLOAT)


def test_values_too_large_for_single_precision():
    with pytest.raises(fb.ClientDataError, match=r"`x` holds 1 values too large for float32, the first 1e\+40\. Use"):
        prepare_clients({"a": {"x": np.array([1.0, 1e40])}}, np.dtype(np.float32))


class Tensor:
    """What PyTorch's tensors do, as far as it matters here."""

    def __init__(self, values, dtype="float64", requires_grad=False):
        self.values, self.dtype, self.requires_grad = np.asarray(values), f"torch.{dtype}", requires_grad

    def detach(self):
        return Tensor(self.values)

    def cpu(self):
        return self

    def float(self):
        return Tensor(self.values, "float32", self.requires_grad)

    def numpy(self):
        if self.requires_grad:
            raise RuntimeError("Can't call numpy() on Tensor that requires grad. Use tensor.detach().numpy() instead.")
        if "bfloat16" in self.dtype:
            raise TypeError("Got unsupported ScalarType BFloat16")
        return self.values

    def __array__(self, dtype=None, copy=None):
        return self.numpy()


@pytest.mark.parametrize("options", [{}, {"requires_grad": True}, {"dtype": "bfloat16", "requires_grad": True}])
def test_tensors_are_read(options, monkeypatch):
    monkeypatch.setitem(sys.modules, "torch", SimpleNamespace(Tensor=Tensor))
    np.testing.assert_array_equal(read(x=Tensor([1.0, 2.0], **options))["x"], [1.0, 2.0])
    np.testing.assert_array_equal(read(x=[Tensor(1.0, **options), Tensor(2.0, **options)])["x"], [1.0, 2.0])


def test_tensors_of_pytorch_itself():
    torch = pytest.importorskip(
        "torch",
        reason="PyTorch is not installed: too large for the extra `test`, so CI goes without, where the test before "
        "this one reads stand-ins for its tensors; pip install torch",
    )
    np.testing.assert_array_equal(read(x=torch.ones(2, requires_grad=True))["x"], [1.0, 1.0])
    np.testing.assert_array_equal(read(x=torch.ones(2, dtype=torch.bfloat16))["x"], [1.0, 1.0])


def test_columns_of_polars():
    polars = pytest.importorskip("polars", reason="polars is not installed, which the extra `test` brings")
    table = polars.DataFrame({"age": [1.5, 2.0], "smoker": [True, False], "n": [1, None]})
    np.testing.assert_array_equal(read(x=table[["age", "smoker"]])["x"], [[1.5, 1.0], [2.0, 0.0]])
    np.testing.assert_array_equal(read(x=table["smoker"])["x"], [True, False])
    with pytest.raises(
        fb.ClientDataError, match=r"column 'n' of `x` holds 1 missing value among 2, the first .* row 1"
    ):
        read(x=table)
    with pytest.raises(fb.ClientDataError, match=r"objects of the type LazyFrame, .* Write `x.collect\(\)`"):
        read(x=table.lazy())
