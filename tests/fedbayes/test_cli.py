import sys
import warnings
from types import SimpleNamespace

import jax
import numpy as np
import pytest
import typer
import xarray as xr
from typer.testing import CliRunner

import fedbayes
from fedbayes.cli import demo
from fedbayes.cli.errors import plain_errors, told_plainly
from fedbayes.cli.main import app, comparison_table, rounds_table, summary_table
from fedbayes.errors import ClientDataError, SlowFitWarning
from fedbayes.models import linear
from fedbayes.network.messages import Refusal, Refused
from fedbayes.questions.comparison import compare
from fedbayes.results.arviz import to_arviz

FILES = {"posterior.nc", "rounds.nc", "rounds.png", "influence.png"}


def run(*arguments):
    return CliRunner().invoke(app, arguments, env={"COLUMNS": "100", "TERM": "dumb"})


def cells(table):
    return [list(column.cells) for column in table.columns]


def test_version():
    result = run("--version")
    assert result.exit_code == 0
    assert result.stdout == f"fedbayes {fedbayes.__version__}\n"


@pytest.mark.parametrize("arguments", [(), ("--help",)])
def test_help_names_the_commands(arguments):
    result = run(*arguments)
    assert "demo" in result.output
    assert "Usage: " in result.output


def test_help_of_the_demo_names_its_options():
    result = run("demo", "--help")
    assert result.exit_code == 0
    for option in ("--output", "--seed", "--no-nuts", "--quick"):
        assert option in result.output


def test_an_unknown_command_is_refused():
    result = run("nosuchcommand")
    assert result.exit_code == 2
    assert "nosuchcommand" in result.output


def test_what_a_site_keeps_from_the_server_is_told_to_its_owner(capsys):
    with pytest.raises(typer.Exit), plain_errors():
        raise Refused(Refusal.DATA) from ClientDataError("'cleveland.csv' is not there")
    assert capsys.readouterr().err == "'cleveland.csv' is not there\n"


def test_a_warning_during_a_fit_is_a_sentence_and_others_stay_as_they_are(capsys):
    with warnings.catch_warnings(record=True) as others:
        warnings.simplefilter("always")
        with told_plainly(SlowFitWarning):
            warnings.warn("This fit will go on for about an hour.", SlowFitWarning, stacklevel=1)
            warnings.warn("Two clients hold the same rows.", UserWarning, stacklevel=1)
    assert capsys.readouterr().err == "This fit will go on for about an hour.\n"
    assert [str(each.message) for each in others] == ["Two clients hold the same rows."]


def test_without_matplotlib_the_demo_says_what_to_install(monkeypatch, tmp_path):
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    result = run("demo", "--quick", "--output", str(tmp_path))
    assert result.exit_code == 1
    assert "pip install 'fedbayes[demo]'" in " ".join(result.output.split())
    assert "Traceback" not in result.output
    assert list(tmp_path.iterdir()) == []


def test_a_file_in_place_of_the_folder_is_refused(tmp_path):
    (tmp_path / "here").touch()
    assert run("demo", "--quick", "--output", str(tmp_path / "here")).exit_code == 2


@pytest.mark.slow
@pytest.mark.optimised
@pytest.mark.timeout(600)
def test_the_quick_demo_writes_the_files(tmp_path):
    result = run("demo", "--quick", "--no-nuts", "--output", str(tmp_path / "a" / "b"))
    assert result.exit_code == 0, result.output
    written = {path.name for path in (tmp_path / "a" / "b").iterdir()}
    assert written >= FILES
    assert "comparison.png" not in written
    assert "converged" in result.stdout
    assert "beta[oldpeak]" in result.stdout
    assert "NUTS" not in result.stdout


@pytest.mark.slow
@pytest.mark.optimised
@pytest.mark.timeout(600)
@pytest.mark.statistical(key=1, numbers=1, errors=10.0)  # 0.014 / sqrt(28) each, above 0.017 with EP's own error
def test_the_full_demo_agrees_with_nuts(tmp_path):
    result = run("demo", "--output", str(tmp_path), "--seed", "1")
    assert result.exit_code == 0, result.output
    assert {path.name for path in tmp_path.iterdir()} >= {*FILES, "comparison.png"}
    words = result.stdout.split()
    # of 0.014, Monte Carlo error of both sides, and what the Gaussian approximation adds
    assert float(words[words.index("differ") + 2]) < 0.05


@pytest.mark.statistical(key=0, numbers=2, errors=7.0)  # 1 / sqrt(800), and half a printed digit
def test_table_of_a_summary():
    rng = np.random.default_rng(0)
    idata = to_arviz({"posterior": {"b": rng.normal(3.0, 1.0, (2, 400, 2))}}, {"c": ["x", "y"]}, {"b": ["c"]}, {})
    columns = cells(summary_table(idata))
    assert columns[0] == ["b[x]", "b[y]"] or columns[0] == [r"b\[x]", r"b\[y]"]
    assert [abs(float(value) - 3.0) < 0.3 for value in columns[1]] == [True, True]
    assert all("." not in value for column in columns for value in column if float_or_zero(value) > 100)


def float_or_zero(text):
    try:
        return float(text)
    except ValueError:
        return 0.0


def test_table_of_a_comparison():
    rng = np.random.default_rng(0)
    ours, theirs = rng.normal(1.0, 2.0, (2, 500)), rng.normal(0.0, 1.0, (2, 500))
    idatas = [to_arviz({"posterior": {"a": draws}}, {}, {}, {}) for draws in (ours, theirs)]
    row = [column[0] for column in cells(comparison_table(compare(*idatas)))]
    assert row[0] == "a"
    expected = [
        ours.mean(), ours.std(ddof=1), theirs.mean(), theirs.std(ddof=1),
        (ours.mean() - theirs.mean()) / theirs.std(ddof=1), ours.std(ddof=1) / theirs.std(ddof=1),
    ]  # fmt: skip
    np.testing.assert_allclose([float(value) for value in row[1:]], expected, atol=6e-4)


def test_table_of_the_rounds(small_fit):
    columns = cells(rounds_table(small_fit))
    rounds = small_fit.rounds
    assert len(columns[0]) == rounds.sizes["round"]
    assert [name for name in columns[0] if name] == list(dict.fromkeys(rounds["phase"].to_numpy().tolist()))
    change = rounds["change"].max("replicate").to_numpy()
    np.testing.assert_allclose([float(value) for value in columns[2]], change, rtol=6e-3)


def test_table_of_rounds_that_report_less_has_dashes():
    """The rounds of the mode have neither noise nor k-hat."""
    clients, _ = linear.simulate(jax.random.key(0), rows=(5, 20, 60))
    method = fedbayes.EP(init="mode", num_replicates=2)
    fit = fedbayes.fit_federated(linear.model, clients, method=method, key=jax.random.key(1), progress=False)
    columns = cells(rounds_table(fit))
    mode = fit.rounds["phase"].to_numpy() == "mode"
    assert mode.any()
    assert not mode.all()
    noise, k_hat = ([value for value, here in zip(columns[i], mode, strict=True) if here] for i in (3, 5))
    assert set(noise) | set(k_hat) == {"–"}
    step = fit.rounds["step"].min("replicate").to_numpy()
    np.testing.assert_allclose([float(value) for value in columns[4]], step, atol=6e-3)
    last = fit.rounds["k_hat"][-1].max().item()
    np.testing.assert_allclose(float(columns[5][-1]), last, atol=6e-3)


def fit_with(**diagnostics):
    """A fit of two rounds and one replicate with these diagnostics."""
    variables = {name: (("round", "replicate"), np.asarray(values)[:, None]) for name, values in diagnostics.items()}
    every = {"phase": (("round",), np.array(["EP", "EP"])), "seconds": (("round",), np.ones(2))}
    return SimpleNamespace(rounds=xr.Dataset(variables | every), method=fedbayes.OneShot())


def test_table_of_rounds_without_a_column_has_dashes():
    columns = cells(rounds_table(fit_with(change=[0.5, np.nan])))
    assert columns[2] == ["0.5", "–"]
    assert columns[3] == columns[4] == columns[5] == ["–", "–"]


def test_table_of_rounds_without_changes_says_what_is_lacking():
    message = "`rounds_table` needs the diagnostic `change`, which a fit by OneShot does not have; it has: misfit"
    with pytest.raises(ValueError, match=message):
        rounds_table(fit_with(misfit=[0.5, 0.1]))


def test_the_size_of_the_quick_demo_is_smaller():
    assert all(few < many for few, many in zip(demo.QUICK, demo.FULL, strict=True))
