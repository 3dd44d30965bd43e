"""The command line on two fits side by side."""

import json
import shutil
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from typer.testing import CliRunner

from fedbayes.cli.main import app
from fedbayes.questions.comparison import compare


def run(*arguments):
    result = CliRunner().invoke(app, ["compare", *arguments], env={"COLUMNS": "200", "TERM": "dumb"})
    assert result.exception is None or isinstance(result.exception, SystemExit), result.exception
    return result.exit_code, " ".join(result.output.split())


@pytest.fixture
def fits(stored_fits, tmp_path, monkeypatch):
    """Two folders of one fit, the second one as `fedbayes fit` writes it, with every draw of it moved."""
    monkeypatch.chdir(tmp_path)
    shutil.copytree(stored_fits.HERE / "linear", "a")
    shutil.copytree("a", "b/fit")
    idata = stored_fits.read("linear").idata.copy()
    idata["posterior"]["beta"] = 1.0 + 2.0 * idata["posterior"]["beta"]
    idata.to_netcdf("b/fit/posterior.nc")
    return idata


def test_two_fits_side_by_side(fits, stored_fits):
    code, told = run("b", "a", "--out", "table.csv")
    assert code == 0, told
    assert "beta[0]" in told
    expected = compare(fits, stored_fits.read("linear").idata).rows
    found = pd.read_csv("table.csv").set_index("quantity")
    assert list(found.index) == [row.name for row in expected]
    np.testing.assert_allclose(found["difference in sds of b"], [row.difference for row in expected])
    np.testing.assert_allclose(found.loc[["beta[0]", "beta[1]"], "sd ratio"], 2.0)
    code, again = run("b/fit/posterior.nc", "a/posterior.nc")
    assert code == 0
    assert again.split("beta[0]")[1][:40] == told.split("beta[0]")[1][:40]


@pytest.mark.parametrize(("so", "expected"), [("don't rely on fit.idata", 3), ("fit.idata can be used as it is", 0)])
def test_a_fit_not_to_be_relied_on_is_compared_and_ends_with_code_3(so, expected, fits):
    """What is wrong is told in both cases: the draws of a fit that has not converged may have been corrected."""
    meta = json.loads(Path("b/fit/fit.json").read_text())
    said = {
        "summary": f"Fit\n  verdict   {so}",
        "trouble": "The rounds were spent.",
        "labels": [],
        "cost": meta["cost"],
    }
    Path("b/fit/fit.json").write_text(json.dumps(meta | {"said": said}))
    code, told = run("b", "a", "--out", "table.csv")
    assert code == expected
    assert "b: The rounds were spent." in told
    assert Path("table.csv").exists()


NO_FITS = {
    "nothing": (["a", "nosuch"], "There is no 'nosuch'"),
    "no fit": (["a", "other"], "'other' is not the folder of a fit"),
    "no NetCDF": (["a", "other/text.nc"], r"text\.nc' holds no posterior of ArviZ"),
    "half a fit": (["a", "half", "--out", "table.csv"], r"fit\.json' can't be read .*: it is cut short"),
    "no posterior": (["a/rounds.nc", "a"], r"rounds\.nc' holds no posterior of ArviZ"),
    "other quantities": (["a", "groups"], "can't be compared. The posteriors share no parameter"),
    "a table that is there": (["a", "b", "--out", "other/text.nc"], "is there already, and is not overwritten"),
}


@pytest.mark.parametrize("case", NO_FITS)
def test_what_is_no_fit_is_refused(case, fits, stored_fits):
    Path("other").mkdir()
    Path("other/text.nc").write_text("nothing")
    shutil.copytree(stored_fits.HERE / "groups", "groups")
    shutil.copytree("a", "half")
    Path("half/fit.json").write_text("{")
    arguments, words = NO_FITS[case]
    before = {path: path.read_bytes() for path in Path().rglob("*") if path.is_file()}
    code, told = run(*arguments)
    assert code == 2, told
    assert pd.Series([told]).str.contains(words).all(), told
    assert {path: path.read_bytes() for path in Path().rglob("*") if path.is_file()} == before


def test_the_help_has_examples_and_its_option():
    code, told = run("--help")
    assert code == 0
    for part in ("Example: fedbayes compare", "--out", "2 bad input"):
        assert part in told
