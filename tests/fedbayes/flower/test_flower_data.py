"""A client's data from the file that its node's configuration names."""

import sys

import numpy as np
import pytest

pytest.importorskip("flwr")

from fedbayes.errors import ClientDataError
from fedbayes.flower.data import columns

AGE, BMI, SICK = np.array([61.0, 48.5, 55.0]), np.array([24, 31, 28]), np.array([1, 0, 1])
load_data = columns(x=["age", "bmi"], y="sick")


def config(path):
    return {"site-id": "north", "data-path": str(path)}


NO_PYARROW = "pyarrow is not installed, by which pandas reads Parquet; the extra `test` brings it"


def frame():
    pandas = pytest.importorskip("pandas")
    return pandas.DataFrame({"sick": SICK, "age": AGE, "bmi": BMI, "name": ["a", "b", "c"]})


def write_csv(path):
    path.write_text("sick, age,bmi,name\n1,61.0,24,a\n0,48.5,31,b\n1,55.0,28,c\n")


def write_parquet(path):
    pytest.importorskip("pyarrow", reason=NO_PYARROW)
    frame().to_parquet(path)


def write_npz(path):
    np.savez(path, sick=SICK, age=AGE, bmi=BMI)


WRITERS = {"csv": write_csv, "parquet": write_parquet, "npz": write_npz}


@pytest.fixture(params=WRITERS)
def table(request, tmp_path):
    """A file of each kind with the same columns."""
    path = tmp_path / f"north.{request.param}"
    WRITERS[request.param](path)
    return path


def test_columns_become_the_arguments_of_the_model(table):
    data = load_data(config(table))
    assert set(data) == {"x", "y"}
    np.testing.assert_array_equal(data["x"], np.column_stack([AGE, BMI]))
    np.testing.assert_array_equal(data["y"], SICK)
    assert data["x"].dtype == np.float64
    assert data["y"].dtype.kind == "i"
    assert type(data["y"]) is np.ndarray
    assert data["x"]["column"].to_numpy().tolist() == ["age", "bmi"]  # so that rules can name them


def test_one_name_in_a_list_is_a_matrix_of_one_column(table):
    assert columns(x=["age"])(config(table))["x"].shape == (3, 1)


def test_a_column_that_is_missing_is_named_with_those_there_are(table):
    with pytest.raises(ClientDataError, match=r"north\.\w+' has no (column|array) 'weight'; it has \['sick', 'age'"):
        columns(x=["age", "weight"])(config(table))


def test_all_arrays_of_an_npz_file(tmp_path):
    path = tmp_path / "north.NPZ"
    with path.open("wb") as file:  # by its name the ending would be changed
        np.savez(file, x=np.ones((3, 2)), y=SICK)
    data = columns()(config(path))
    assert {name: array.shape for name, array in data.items()} == {"x": (3, 2), "y": (3,)}


def test_a_table_needs_names_of_columns(tmp_path):
    write_csv(tmp_path / "north.csv")
    with pytest.raises(ClientDataError, match=r"No argument of the model is named, and .*'sick', 'age'.*columns\(x="):
        columns()(config(tmp_path / "north.csv"))


def test_an_argument_without_columns_is_refused_before_any_file_is_read():
    with pytest.raises(ClientDataError, match=r'`columns\(x=\.\.\.\)` names no column.*\["age", "bmi"\]'):
        columns(x=[], y="sick")


@pytest.mark.parametrize("given", [{"site-id": "north"}, {"site-id": "north", "data-path": " "}])
def test_a_node_that_names_no_file(given):
    with pytest.raises(ClientDataError, match=r"does not say where its data are\. Write `--node-config .*it has \['"):
        load_data(given)


def test_a_file_that_is_not_there(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(ClientDataError, match=r"is 'north\.csv', which is not there \(looked for in '.*full path"):
        load_data(config("north.csv"))
    with pytest.raises(ClientDataError, match=r"north\.csv', which is not there\. Write the path of a file"):
        load_data(config(tmp_path / "north.csv"))
    with pytest.raises(ClientDataError, match="which is a folder"):
        load_data(config(tmp_path))


def test_an_ending_that_nobody_reads(tmp_path):
    (tmp_path / "north.xlsx").touch()
    with pytest.raises(ClientDataError, match=r"ends in '\.xlsx'; files are read that end in \.csv, \.parquet, \.npz"):
        load_data(config(tmp_path / "north.xlsx"))


@pytest.mark.parametrize("ending", ["csv", "parquet", "npz"])
def test_a_file_that_is_not_what_its_ending_promises(ending, tmp_path):
    if ending == "parquet":
        pytest.importorskip("pyarrow", reason=NO_PYARROW)
    (tmp_path / f"north.{ending}").write_bytes(b"" if ending == "csv" else b"something else")
    with pytest.raises(ClientDataError, match=rf"can't be read as its ending '\.{ending}' promises"):
        load_data(config(tmp_path / f"north.{ending}"))


def test_arrays_that_need_pickle_are_not_read(tmp_path):
    np.savez(tmp_path / "north.npz", x=np.array([{}], dtype=object))
    with pytest.raises(ClientDataError, match=r"can't be read.*ValueError"):
        columns()(config(tmp_path / "north.npz"))


def test_text_in_a_column_is_refused_without_quoting_it(tmp_path):
    write_csv(tmp_path / "north.csv")
    with pytest.raises(ClientDataError, match=r"Column 'name' of .* holds something else than numbers") as refused:
        columns(x="name")(config(tmp_path / "north.csv"))
    assert "'a'" not in str(refused.value)


def test_two_columns_of_one_name(tmp_path):
    pyarrow = pytest.importorskip("pyarrow", reason=NO_PYARROW)
    parquet = pytest.importorskip("pyarrow.parquet", reason=NO_PYARROW)
    twice = pyarrow.table([SICK, AGE, AGE], names=["sick", "age", "age"])
    parquet.write_table(twice, tmp_path / "north.parquet")
    with pytest.raises(ClientDataError):
        columns(x="age")(config(tmp_path / "north.parquet"))


def test_two_columns_of_one_name_in_text_which_pandas_would_rename(tmp_path):
    (tmp_path / "north.csv").write_text("sick,age,bmi, age,note,note\n1,61,24,35,a,b\n")
    with pytest.raises(ClientDataError, match=r"several columns have the name 'age' \(columns 2, 4\)"):
        columns(x="age")(config(tmp_path / "north.csv"))
    np.testing.assert_array_equal(columns(x="bmi")(config(tmp_path / "north.csv"))["x"], [24])  # others don't matter


def test_vectors_of_different_lengths_make_no_matrix(tmp_path):
    np.savez(tmp_path / "north.npz", age=AGE, bmi=BMI[:2])
    with pytest.raises(ClientDataError, match=r"must be vectors of one length; .* \[\(3,\), \(2,\)\]"):
        columns(x=["age", "bmi"])(config(tmp_path / "north.npz"))


def test_missing_values_are_left_for_the_fit_to_refuse(tmp_path):
    (tmp_path / "north.csv").write_text("age,bmi,sick\n61,,1\n48,31,0\n")
    data = load_data(config(tmp_path / "north.csv"))
    assert np.isnan(data["x"]).sum() == 1


def test_columns_of_pandas_own_kinds(tmp_path):
    from fedbayes.flower.data import _numbers

    pandas = pytest.importorskip("pandas")
    whole = pandas.Series([1, 2], dtype="Int64")
    assert _numbers(whole, "a", tmp_path).dtype == np.int64
    assert _numbers(whole.astype("boolean") | True, "a", tmp_path).dtype == np.bool_
    np.testing.assert_array_equal(_numbers(pandas.Series([1, None], dtype="Int64"), "a", tmp_path), [1.0, np.nan])


@pytest.mark.parametrize("name", ["pandas", "pyarrow"])
def test_what_is_not_installed_is_named(name, tmp_path, monkeypatch):
    pytest.importorskip("pandas")
    monkeypatch.setitem(sys.modules, name, None)
    path = tmp_path / ("north.csv" if name == "pandas" else "north.parquet")
    path.touch()
    with pytest.raises(ClientDataError, match=rf"needs {name}: write `pip install {name}` where the node runs"):
        load_data(config(path))
