"""The command line on a study file, and what is checked before a fit."""

import shutil
import sys
from pathlib import Path
from types import ModuleType

import numpy as np
import pandas as pd
import pytest
from typer.testing import CliRunner

pytest.importorskip("flwr")  # by whose front end a study maps columns to arguments

import jax

import fedbayes as fb
from fedbayes.cli.columns import reads_of_formulas
from fedbayes.cli.main import app
from fedbayes.cli.study import load_study
from fedbayes.questions.comparison import compare

STUDY = """
import numpyro
import numpyro.distributions as dist

from fedbayes.flower.data import columns

NAMES = ["age", "bmi"]


def model(x, y=None):
    beta = numpyro.sample("beta", dist.Normal(0.0, 1.0).expand([x.shape[1]]).to_event(1))
    numpyro.sample("y", dist.Normal(x @ beta, 1.0), obs=y)


method = "laplace"
load_data = columns(x=NAMES, y="sick")
coords, dims = {"c": NAMES}, {"beta": ["c"]}
"""
OWN = "def load_data(config):\n    return {'x': 1.0}\n"


@pytest.fixture(autouse=True)
def as_it_was():
    """A study's folder is on the path of Python while the command runs."""
    path, modules = list(sys.path), set(sys.modules)
    yield
    sys.path[:] = path
    for name in [name for name in sys.modules if name not in modules and name.split(".")[0] in ("app", "study_study")]:
        del sys.modules[name]


def run(*arguments):
    result = CliRunner().invoke(app, list(map(str, arguments)), env={"COLUMNS": "200", "TERM": "dumb"})
    assert result.exception is None or isinstance(result.exception, SystemExit), result.exception
    return result.exit_code, " ".join(result.output.split())


def table(seed, rows=20):
    rng = np.random.default_rng(seed)
    age, bmi = rng.normal(size=(2, rows))
    return pd.DataFrame({"sick": age - bmi + rng.normal(size=rows), "age": age, "bmi": bmi})


@pytest.fixture
def files(tmp_path, monkeypatch):
    """A study, two clients' files, and one file of both with semicolons."""
    monkeypatch.chdir(tmp_path)
    Path("study.py").write_text(STUDY)
    both = {name: table(seed) for seed, name in enumerate(["north", "south"])}
    for name, each in both.items():
        each.to_csv(f"{name}.csv", index=False)
    pd.concat([each.assign(site=name) for name, each in both.items()]).to_csv("both.csv", index=False, sep=";")
    return tmp_path


def test_a_study_is_fitted_as_in_python_and_written_whole(files):
    code, told = run(
        *("fit", "study.py", "north.csv", "south.csv", "--out", "result"),
        *("--checkpoint", "kept", "--draws", 100, "--seed", 3),
    )
    assert code == 0, told
    assert {path.name for path in Path("result").iterdir()} == {"fit", "summary.csv", "study.py"}
    assert Path("result/study.py").read_text() == STUDY
    found = fb.load_fit("result/fit").idata
    study = load_study(Path("study.py"))
    clients = {name: study.load_data({"data-path": f"{name}.csv"}) for name in ("north", "south")}
    fit = fb.fit_federated(
        study.model, clients, method="laplace", key=jax.random.key(3), num_draws=100, progress=False,
        coords=study.coords, dims=study.dims,
    )  # fmt: skip
    assert all(abs(row.difference) < 1e-9 for row in compare(found, fit.idata).rows)  # in posterior sds: rounding
    summary = pd.read_csv("result/summary.csv").set_index("quantity")
    assert list(summary.index) == ["beta[age]", "beta[bmi]"]
    assert summary.loc["beta[age]", "mean"] == pytest.approx(float(fit.idata.posterior["beta"][..., 0].mean()))
    # what the rounds have left belongs to this fit alone
    code, told = run(
        *("fit", "study.py", "north.csv", "south.csv", "--out", "other"),
        *("--checkpoint", "kept", "--draws", 100, "--seed", 4),
    )
    assert code == 2
    assert "belongs to another fit" in told
    assert not Path("other").exists()


def test_one_file_with_a_column_of_clients_is_the_same_as_a_file_each(files):
    code, told = run("check", "study.py", "both.csv", "--by", "site", "--method", "one_shot")
    assert (code, told.count("nothing")) == (0, 3), told
    for part in ("clients: north, south", "method: 'one_shot'", "north 20 nothing", "2 globals"):
        assert part in told


def test_options_of_the_method_are_numbers_words_and_nothing(files):
    options = "num_samples=512 num_replicates=2 solver=laplace damping=null".split()
    code, told = run(
        "check", "study.py", "both.csv", "--by", "site", "--method", "ep", *(f"--option={o}" for o in options)
    )
    assert code == 0, told
    assert "method: EP(num_samples=512, solver='laplace', damping=None," in told
    assert "num_replicates=2, num_starts=1)" in told


def test_a_client_that_would_not_take_part_ends_a_check_with_code_3(files):
    table(0).assign(bmi=[1.0] * 3 + [0.0] * 17).to_csv("south.csv", index=False)
    code, told = run("check", "study.py", "north.csv", "south.csv")
    assert code == 3
    assert "1 of 2 clients would not take part" in told
    assert "south 20 small cell (1)" in told
    assert "x[bmi]" in told
    code, told = run("check", "north.csv", "south.csv", "--formula", "sick ~ age + bmi")
    assert code == 3
    assert "x[bmi]" in told


def test_a_formula_is_checked_as_well(files):
    code, told = run("check", "north.csv", "south.csv", "--formula", "sick ~ age")
    assert code == 0, told
    assert "formula: sick ~ age" in told
    assert "the rules find nothing in 2 clients" in told.replace("these rules", "the rules")


def test_a_study_in_a_package_may_import_its_neighbours_and_leaves_nothing_behind(files, monkeypatch):
    elsewhere = ModuleType("app")  # another project's, which this process has imported before
    elsewhere.__path__ = [str(files / "elsewhere" / "app")]
    monkeypatch.setitem(sys.modules, "app", elsewhere)
    Path("app").mkdir()
    Path("app/__init__.py").touch()
    Path("app/names.py").write_text('NAMES = ["age", "bmi"]\n')
    Path("app/study.py").write_text(STUDY.replace('NAMES = ["age", "bmi"]', "from app.names import NAMES"))
    before = sorted(files.rglob("*"))
    assert load_study(Path("app/study.py")).load_data.names == ("age", "bmi", "sick")
    assert sorted(files.rglob("*")) == before


def test_rows_that_lack_a_value_are_left_out_when_asked_for(files):
    frame = table(0)
    frame.loc[[4, 7], "bmi"] = np.nan
    frame.to_csv("north.csv", index=False)
    code, told = run("check", "study.py", "north.csv", "south.csv", "--drop-missing")
    assert code == 0, told
    assert "north.csv: 2 of 20 rows of 'north' lack a value: left out" in told
    assert "north 18 nothing" in told


def test_a_function_of_the_study_reads_other_files(files):
    Path("study.py").write_text(
        STUDY.split("load_data")[0] + "import numpy as np\n\n\ndef load_data(config):\n"
        "    assert config['site-id'] == 'north'\n"
        "    return dict(zip('xy', (np.load(config['data-path'])[:, :2], np.load(config['data-path'])[:, 2])))\n"
    )
    np.save("north.npy", np.random.default_rng(0).normal(size=(20, 3)))
    code, told = run("check", "study.py", "north.npy")
    assert code == 0, told
    assert "north 20 nothing" in told


CHANGED = {  # what the study says in place of what, and the options
    "no model": (("def model", "def modell"), [], r"study\.py defines no `model`\. Did you mean 'modell'\? A study"),
    "no method": (('method = "laplace"', ""), [], r"defines no `method`\. A study defines"),
    "a model that is none": (("load_data = ", "model = 3\nload_data = "), [], r"`model` of study\.py is 3\. Write"),
    "an agreement": (("def model", "agreement = 1\ndef other"), [], "defines an `agreement`.*write the formula itself"),
    "a syntax error": (("def model(", "def model(("), [], r"study\.py, line 1[0-9], is no Python .*: `"),
    "an import": (("import numpyro\n", "import nosuchmodule\n"), [], r"study\.py, line 2: No module named 'nosuchm"),
    "an error": (("NAMES = ", "NAMES = 1 / 0 + "), [], r"study\.py, line 7, fails with ZeroDivisionError: division"),
    "an exit": (("NAMES = ", "raise SystemExit\nNAMES = "), [], r"study\.py, line 7, fails with SystemExit"),
    "a mapping to nothing": (("x=NAMES", "x=[]"), [], r"study\.py, line 16: `columns\(x=\.\.\.\)` names no column"),
    "another argument": (("x=NAMES", "z=NAMES"), [], r"don't fit the model.*`z`"),
    "a model that fails": (("x @ beta", "x @ gamma"), [], r"study\.py, line 12, fails with NameError: name 'gamma'"),
    "another method": (('"laplace"', '"laplac"'), [], r"study\.py: `method` is 'laplac'; the methods are"),
    "an option without a value": (("", ""), ["--option", "damping"], "names no value. Write `--option damping=0.5`"),
    "an option twice": (("", ""), ["--option", "a=1", "--option", "a=2"], "`--option a` is given twice"),
    "an option of another method": (
        ("", ""), ["--method", "ep", "--option", "dampin=0.5"], "EP has no such option; it has .*Did you mean 'damping'"
    ),
    "an option's old name": (("", ""), ["--method", "ep", "--option", "covariance=score"], "estimator='score'"),
    "an option's value": (("", ""), ["--method", "ep", "--option", "damping=2"], "`damping` is 2; write the step"),
    "a method that is not there": (("", ""), ["--method", "laplac"], "`--method` is 'laplac'; the methods are"),
    "other coords": (('"c": NAMES', '"c": ["age"]'), [], r"study\.py: `coords\['c'\]` has 1 labels"),
    "coords that are none": (('{"c": NAMES}', '"c"'), [], r"`coords` of study\.py is 'c'\. Write a mapping"),
    "a formula": (("", ""), ["--formula", "sick ~ age"], r"`--formula` is for a regression by a formula.*Leave out"),
    "a family": (("", ""), ["--family", "poisson"], "`--family` is for a regression by a formula"),
    "levels": (("", ""), ["--levels", "age=1,2"], "`--levels` is for a regression by a formula"),
    "a prior": (("", ""), ["--prior", "age=Normal(0, 1)"], "`--prior` is for a regression by a formula"),
    "a missing column": (('"age", "bmi"', '"age", "bmmi"'), [], r"names 'bmmi', and north\.csv.*Did you mean 'bmi'"),
    "a function and --by": (("load_data = columns", f"{OWN}other = columns"), ["--by", "site"], "`--by` is about"),
    "no arrays": (("load_data = columns", "def load_data(config): pass\nother = columns"), [], "returns a NoneType"),
}  # fmt: skip


def refused(words, *arguments):
    """A command that ends in words, with code 2, and leaves all files as they were."""
    before = {path: path.read_bytes() for path in Path().rglob("*") if path.is_file()}
    code, told = run(*arguments)
    assert code == 2, told
    assert pd.Series([told]).str.contains(words).all(), told
    assert "Traceback" not in told
    assert {path: path.read_bytes() for path in Path().rglob("*") if path.is_file()} == before


def test_a_check_looks_at_names_too(files):
    Path("study.py").write_text(STUDY.replace('"c": NAMES', '"c": ["age"]'))
    refused(r"study\.py: `coords\['c'\]` has 1 labels", "check", "study.py", "north.csv", "south.csv")


@pytest.mark.parametrize("case", CHANGED)
def test_a_study_that_can_not_be_meant_is_refused_with_its_line(case, files):
    (old, new), options, words = CHANGED[case]
    assert old in STUDY
    Path("study.py").write_text(STUDY.replace(old, new, 1) if old else STUDY)
    refused(words, "fit", "study.py", "north.csv", "south.csv", *options)


FILES = {
    "no study": (["nosuch.py", "north.csv"], "There is no study file nosuch.py"),
    "no tables": (["study.py"], "No tables are given beside the study study.py"),
    "a study after tables": (["north.csv", "study.py"], "study.py is a study. Write it first"),
    "no formula": (["north.csv", "south.csv"], "`--formula` is missing.*or a study file"),
    "no file": (["study.py", "nosuch.csv"], r"There is no file nosuch\.csv"),
    "two of a name": (["study.py", "north.csv", "more/north.csv"], "are both the client 'north'"),
    "an empty file": (["study.py", "empty.csv"], r"empty\.csv is empty\. Leave it out"),
    "no rows": (["study.py", "header.csv"], r"header\.csv has a header and no rows"),
    "another encoding": (["study.py", "latin.csv"], "is not in the encoding utf-8.*--encoding latin-1"),
    "text in a number": (["study.py", "text.csv"], "column 'age' holds text, 'ten' in row 2 below the header"),
    "another encoding yet": (["study.py", "wide.csv"], "is not in the encoding utf-8.*--encoding utf-16"),
    "an infinite number": (["study.py", "inf.csv"], "inf.csv: column 'bmi' is infinite in 1 of 3 rows.* row 2"),
    "decimal commas": (["study.py", "comma.csv"], "'1,5' in row 1 below the header, and the.*with a point"),
    "missing values": (["study.py", "gap.csv"], "gap.csv: column 'bmi' lacks 1 of 3 values, the first in row 3.*--d"),
    "text among numbers": (
        ["text.csv", "north.csv", "--formula", "sick ~ age"],
        "'ten' in row 2 below the header, beside numbers in 2 of 3 rows.*declare them: `--levels",
    ),
    "another formula's gap": (
        ["gap.csv", "--formula", "sick ~ bmi"],
        "gap.csv: column 'bmi' lacks 1 of 3 values, the first in row 3.*--drop-missing",
    ),
    "a checkpoint that is a file": (["study.py", "north.csv", "--checkpoint", "gap.csv"], "gap.csv.* is a file"),
}  # fmt: skip


@pytest.mark.parametrize("case", FILES)
def test_files_that_can_not_be_read_are_refused_with_column_and_row(case, files):
    Path("more").mkdir()
    shutil.copy("north.csv", "more")
    Path("empty.csv").touch()
    Path("header.csv").write_text("sick,age,bmi\n")
    Path("latin.csv").write_bytes("größe,y\n1,2\n".encode("latin-1"))
    Path("text.csv").write_text("sick,age,bmi\n1,1.5,2\n0,ten,3\n1,2,4\n")
    Path("wide.csv").write_text("sick,age,bmi\n1,2,3\n", encoding="utf-16")
    Path("inf.csv").write_text("sick,age,bmi\n1,1.5,2\n0,1,inf\n1,2,4\n")
    Path("comma.csv").write_text("sick;age;bmi\n1;1,5;2\n0;2,5;3\n")
    Path("gap.csv").write_text("sick,age,bmi\n1,1.5,2\n0,1,3\n1,2,\n")
    arguments, words = FILES[case]
    refused(words, "fit", *arguments)


def test_columns_of_groups_and_declared_levels_may_hold_text_among_numbers():
    formula = {"mu": "y ~ age + C(ward) + mi(bmi) + (1 | clinic)", "sigma": "~ stage"}
    reads = reads_of_formulas(formula, "gaussian", "site", ["stage"])
    assert set(reads.covariates) == {"y", "age", "bmi"}
    assert set(reads.names) == {"y", "age", "ward", "bmi", "clinic", "stage"}
    assert reads.imputed == ["bmi"]


@pytest.mark.parametrize("command", ["fit", "check"])
def test_the_help_has_examples_and_every_option(command):
    code, told = run(command, "--help")
    assert code == 0
    assert f"Example: fedbayes {command}" in told
    options = {"fit": "--method --option --checkpoint --drop-missing", "check": "--by --levels"}[command]
    for option in options.split():
        assert option in told
    assert "2 bad input" in told
