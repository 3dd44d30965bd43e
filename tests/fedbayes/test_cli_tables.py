"""The command line on tables in files: table 1, and a regression by a formula."""

import json
from hashlib import sha256
from types import SimpleNamespace

import numpy as np
import pandas as pd
import pytest
from typer.testing import CliRunner

import fedbayes as fb
from fedbayes.cli import analysis, formulas
from fedbayes.cli.files import read_clients
from fedbayes.cli.main import app
from fedbayes.models import tables

STUDENTS = {school: pd.DataFrame(table) for school, table in tables.students().items()}


def run(*arguments):
    return CliRunner().invoke(app, list(map(str, arguments)), env={"COLUMNS": "200", "TERM": "dumb"})


@pytest.fixture
def files(tmp_path):
    """A file for each school, and one of both."""
    for school, table in STUDENTS.items():
        table.to_csv(tmp_path / f"{school}.csv", index=False)
    both = pd.concat([table.assign(school=school) for school, table in STUDENTS.items()])
    both.to_csv(tmp_path / "both.csv", index=False, sep=";")
    both.to_parquet(tmp_path / "both.parquet")
    return tmp_path


def test_a_file_is_a_client_and_has_its_rows(files):
    found = read_clients([files / "GP.csv", files / "MS.csv"], None, "utf-8")
    assert list(found) == ["GP", "MS"]
    for school, table in found.items():
        pd.testing.assert_frame_equal(table, STUDENTS[school], check_dtype=False)


@pytest.mark.parametrize("name", ["both.csv", "both.parquet"])
def test_one_file_has_a_column_of_clients(name, files):
    found = read_clients([files / name], "school", "utf-8")
    assert found.groupby("school").size().to_dict() == {"GP": 423, "MS": 226}


@pytest.mark.parametrize("data", [("GP.csv", "MS.csv"), ("both.csv", "--by", "school")], ids=["files", "one file"])
def test_table_1_is_that_of_the_tables(data, files):
    result = run(
        "describe", *(files / each if each.endswith("csv") else each for each in data), "--columns", "sex,grade3"
    )
    assert result.exit_code == 0, result.output
    assert result.stdout.strip() == repr(fb.describe(STUDENTS, columns=["sex", "grade3"])).strip()


def test_text_among_numbers_is_told_by_file_and_row(files):
    (files / "MS.csv").write_text("age\n15\nold\n17\n18\n")
    result = run("describe", files / "GP.csv", files / "MS.csv", "--columns", "age")
    assert result.exit_code == 2
    assert "MS.csv: column 'age' holds text, 'old' in row 2 below the header, beside numbers in 3 of 4" in result.output


def test_a_table_1_of_all_clients_alone(files):
    result = run("describe", files / "GP.csv", files / "MS.csv", "--columns", "sex", "--no-by-client")
    assert result.stdout.split("\n")[0].split() == ["all", "clients"]


REFUSED = {
    "no file": (["none.csv"], [], "There is no file"),
    "another kind": (["kind.txt"], [], "is no table that can be read: write a file that ends in .csv"),
    "an empty file": (["empty.csv"], [], "empty.csv is empty"),
    "another encoding": (["latin.csv"], [], "is not in the encoding utf-8.*--encoding latin-1"),
    "an encoding that is not there": (["GP.csv"], ["--encoding", "utf-99"], "is not in the encoding utf-99"),
    "no Parquet": (["bad.parquet"], [], "can't be read as a table"),
    "ragged rows": (["ragged.csv"], [], "can't be read as a table"),
    "two columns of a name": (["twice.csv"], [], r"several columns have the name 'x' \(columns 1, 3\)"),
    "two clients of a name": (["GP.csv", "GP.parquet"], [], "are both the client 'GP'"),
    "a column of no client": (["both.csv"], ["--by", "scool"], "names no column.*Did you mean 'school'"),
    "a column and two files": (["both.csv", "GP.csv"], ["--by", "school"], "is for one file, and 2 are given"),
    "levels of nothing": (["GP.csv"], ["--levels", "sex"], "names no levels"),
    "a prior of nothing": (["GP.csv"], ["--prior", "Normal(0, 1)"], "gives no prior. Write `--prior 'age=Normal"),
    "a prior that is none": (["GP.csv"], ["--prior", "age=Norml(0, 1)"], "names no distribution.*mean 'Normal'"),
    "a prior twice": (
        ["GP.csv"],
        ["--prior", "age=Normal(0, 1)", "--prior", "age = Normal(0, 2)"],
        "`--prior age` is given twice",
    ),
    "a prior of no parameter": (
        ["GP.csv"],
        ["--prior", "agee=Normal(0, 1)"],
        "`--prior` names 'agee', which is no parameter",
    ),
    "a prior of other values": (["GP.csv"], ["--prior", "sigma=Normal(0, 1)"], "`--prior` of 'sigma' is of the law"),
    "a missing column": (["GP.csv"], ["--formula", "grade3 ~ sexx"], "no such column.*Did you mean 'sex'"),
    "a group of no column": (
        ["GP.csv"],
        ["--formula", "grade3 ~ (1 | ward)"],
        r"no such.*write `\(... \| site\)`",
    ),
    "missing values": (["missing.csv"], ["--formula", "y ~ x"], "column 'x' lacks 1 of 3 values"),
    "text in a number": (["text.csv"], ["--formula", "y ~ log(x)"], "column 'x' holds text"),
    "a family that is not there": (["GP.csv"], ["--family", "gausian"], "gausian"),
    "a level that is none": (["GP.csv"], ["--level", "90"], "90.* is not in the range"),
    "a folder that is full": (["GP.csv"], ["--out", "."], "is not empty, and nothing in it is overwritten"),
}


@pytest.mark.parametrize("case", REFUSED)
def test_bad_input_ends_in_words_with_code_2_and_nothing_is_written(case, files, monkeypatch):
    monkeypatch.chdir(files)
    (files / "kind.txt").write_text("x\n1\n")
    (files / "empty.csv").touch()
    (files / "latin.csv").write_bytes("größe,y\n1,2\n".encode("latin-1"))
    (files / "bad.parquet").write_bytes(b"nothing")
    (files / "ragged.csv").write_text("x,y\n1,2\n1,2,3,4\n")
    (files / "twice.csv").write_text("x;y;x\n1;2;3\n")
    (files / "GP.parquet").write_bytes((files / "both.parquet").read_bytes())
    (files / "missing.csv").write_text("x,y\n1,2\n,3\n4,4.5\n")
    (files / "text.csv").write_text("x,y\n1,2\nten,3\n4,4.5\n")
    names, options, words = REFUSED[case]
    formula = [] if "--formula" in options else ["--formula", "grade3 ~ sex"]
    before = sorted(files.rglob("*"))
    result = run("fit", *names, *formula, *options)
    assert result.exit_code == 2, result.output
    assert pd.Series([" ".join(result.output.split())]).str.contains(words).all(), result.output
    assert "Traceback" not in result.output
    assert sorted(files.rglob("*")) == before


@pytest.mark.parametrize(("usable", "code"), [(False, 3), (True, 0)])
def test_trouble_is_told_and_a_fit_not_to_be_relied_on_ends_with_code_3(files, monkeypatch, usable, code):
    fit = SimpleNamespace(usable=usable, trouble=lambda: "Two clients are far from all others.")
    monkeypatch.setattr(analysis, "_fitted", lambda *_: fit)
    monkeypatch.setattr(analysis, "_written", lambda *_: {"fit": "the fit"})
    result = run("fit", files / "GP.csv", "--formula", "grade3 ~ sex", "--out", files / "result")
    assert result.exit_code == code
    assert "the fit" in result.output
    assert "Two clients are far" in result.output


def test_priors_are_those_of_python(files):
    options = [
        "--formula",
        "grade3 ~ failures + sex",
        "--prior",
        "failures=Normal(0, 0.1)",
        "--prior",
        "sigma = HalfNormal(3)",
    ]
    result = run("check", files / "GP.csv", files / "MS.csv", *options)
    lines = [line.split(maxsplit=1) for line in result.stdout.splitlines()]
    assert ["failures", "Normal(0, 0.1) (given)"] in lines, result.output
    assert ["sigma", "HalfNormal(3) (given)"] in lines


def test_formulas_of_further_parameters_are_told_apart():
    assert formulas._formulas(["y ~ x"]) == "y ~ x"
    assert formulas._formulas(["y ~ x", "sigma ~ 0 + z"]) == {"mu": "y ~ x", "sigma": "~ 0 + z"}


@pytest.mark.slow
def test_a_fit_is_written_whole_and_is_that_of_python(files, tmp_path):
    result = run(
        "fit", files / "both.csv", "--by", "school", "--formula", "grade3 ~ failures", "--formula", "sigma ~ sex",
        "--out", tmp_path / "result", "--draws", 200, "--seed", 3,
    )  # fmt: skip
    assert result.exit_code == 0, result.output
    out = tmp_path / "result"
    assert {path.name for path in out.iterdir()} == {"fit", "agreed.json", "model.py", "coefficients.csv"}
    table = pd.read_csv(out / "coefficients.csv").set_index("coefficient")
    reg = fb.regression({"mu": "grade3 ~ failures", "sigma": "~ sex"}, agreed=out / "agreed.json", clients=STUDENTS)
    assert reg.source == (out / "model.py").read_text()
    fit = fb.load_fit(out)
    posterior = fit.idata.posterior["failures"]
    assert table.loc["failures", "median"] == pytest.approx(float(np.median(posterior)))
    assert json.loads((out / "agreed.json").read_text())
    again = run("report", out, files / "both.csv", "--by", "school", "--out", tmp_path / "report.html")
    assert again.exit_code == 0, again.output
    found = (tmp_path / "report.html").read_text(encoding="utf-8")
    assert "Sensitivity of each quantity" in found
    assert sha256(reg.source.encode()).hexdigest() in found
