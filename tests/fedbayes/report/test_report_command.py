"""The command `fedbayes report`: what it writes, of which folders, and the codes that it ends with."""

import pytest
from typer.testing import CliRunner

import fedbayes as fb
from fedbayes.cli import reports
from fedbayes.cli.main import app
from fedbayes.report import writing


def run(*arguments):
    return CliRunner().invoke(app, ["report", *map(str, arguments)], env={"COLUMNS": "200", "TERM": "dumb"})


def test_the_command_writes_it(folder, tmp_path):
    out = tmp_path / "report.html"
    result = run(folder, "--out", out, "--question", "Why?")
    assert result.exit_code == 0, result.output
    assert "fit.idata can be used as it is" in result.stdout
    assert "Why?" in out.read_text(encoding="utf-8")


@pytest.mark.parametrize(("beside", "program"), [("agreed.json", "model.py"), ("summary.csv", "study.py")])
def test_the_command_takes_what_fedbayes_fit_has_written_with_its_program(beside, program, folder, tmp_path):
    """A regression has its agreement and its program beside the fit; a study, a table and the study file."""
    result = tmp_path / "result"
    result.mkdir()
    (result / "fit").symlink_to(folder)
    (result / beside).touch()
    (result / program).write_text("def model(x, y=None): ...")
    for given in (result, result / "fit"):
        assert run(given, "--out", tmp_path / "report.html").exit_code == 0
        assert "def model(x, y=None): ..." in (tmp_path / "report.html").read_text(encoding="utf-8")


def test_the_command_says_by_its_code_that_a_fit_should_not_be_relied_on(folder, facts, tmp_path, monkeypatch):
    far = facts._replace(summary="FederatedFit\n  verdict   don't rely on fit.idata", trouble="Two clients are far.")
    monkeypatch.setattr(writing, "facts_in", lambda *_: far)
    result = run(folder, "--out", tmp_path / "report.html")
    assert result.exit_code == 3
    assert "Two clients are far." in result.output
    assert "should not be relied on" in (tmp_path / "report.html").read_text(encoding="utf-8")


def test_the_command_reads_the_files_again(folder, stored_fits, tmp_path, monkeypatch):
    """With them the report has what needs model and data."""
    again = fb.load_fit(folder, stored_fits.RECIPES["ridge"].model, stored_fits.read_clients("ridge"))
    monkeypatch.setattr(reports, "whole_fit", lambda _, data, by, encoding: again if data and by == "site" else None)
    result = run(folder, tmp_path / "a.csv", "--by", "site", "--out", tmp_path / "report.html")
    assert result.exit_code == 0, result.output
    assert "Sensitivity of each quantity" in (tmp_path / "report.html").read_text(encoding="utf-8")


@pytest.mark.parametrize("case", ["no fit", "no regression", "no folder", "a folder", "cut short", "no posterior"])
def test_bad_input_ends_in_words_with_code_2_and_nothing_is_written(case, folder, tmp_path):
    given, out, words_ = folder, tmp_path / "report.html", "'posterior.nc'"
    if case in ("cut short", "no posterior"):
        given = tmp_path / "fit"
        given.mkdir()
        meta = (folder / "fit.json").read_text()
        (given / "fit.json").write_text(meta if case == "no posterior" else meta[:100])
    if case == "no fit":
        given, words_ = tmp_path, "holds no 'fit.json'"
    if case == "no folder":
        out, words_ = tmp_path / "nowhere" / "report.html", "There is no folder"
    if case == "a folder":
        out, words_ = tmp_path, "is a folder"
    data = []
    if case == "no regression":
        data, words_ = [tmp_path / "north.csv"], "agreed.json' is not there. Leave them out"
    result = run(given, *data, "--out", out)
    assert result.exit_code == 2, result.output
    assert words_ in " ".join(result.output.split())
    assert "Traceback" not in result.output
    assert not (tmp_path / "report.html").exists()
