"""A study's code runs at a site once a person there has approved it, to the letter."""

import json
import shutil
import stat
import sys

import pytest

pytest.importorskip("flwr")

from typer.testing import CliRunner

from fedbayes.cli import app
from fedbayes.flower.approval import Approvals, code_digest, is_approved, refusal
from fedbayes.flower.node.source import sources_of
from fedbayes.network.client.journal import Journal
from fedbayes.network.messages import pack, unpack


@pytest.fixture
def study(tmp_path, monkeypatch):
    """A package of two files, and a site's configuration."""
    package = tmp_path / "lies_here" / "approved_study"
    package.mkdir(parents=True)
    (package / "__init__.py").write_text("")
    (package / "study.py").write_text("model = None\n")
    monkeypatch.syspath_prepend(package.parent)
    return package, {"site-id": "north", "state-dir": str(tmp_path / "state")}


MODULES = ("approved_study.client_app", "approved_study.study")


def test_only_the_code_that_was_approved_may_run(study, caplog):
    package, config = study
    assert not is_approved(config, MODULES)
    assert "was approved by nobody at site north. Look at it with `fedbayes approve`" in caplog.text
    Approvals(package.parents[1] / "state").add(code_digest(MODULES))
    assert is_approved(config, MODULES)
    (package / "study.py").write_text("model = None \n")
    assert not is_approved(config, MODULES)
    (package / "study.py").write_text("model = None\n")
    assert is_approved(config, MODULES)
    for name in ("another.py", "agreed.json"):
        (package / name).write_text("")
        assert not is_approved(config, MODULES)
        (package / name).unlink()
    assert is_approved(config, MODULES)


def test_a_digest_does_not_depend_on_where_the_code_lies(study, tmp_path, monkeypatch):
    package, _ = study
    here = code_digest(MODULES)
    assert [name for name, _ in sources_of(MODULES)] == ["approved_study/__init__.py", "approved_study/study.py"]
    elsewhere = tmp_path / "elsewhere"
    shutil.copytree(package.parent, elsewhere)
    shutil.rmtree(package)
    monkeypatch.syspath_prepend(elsewhere)
    assert code_digest(MODULES) == here


def test_an_owner_may_let_any_study_run(study):
    package, config = study
    state = package.parents[1] / "state"
    state.mkdir()
    (state / "policy.toml").write_text("[studies]\nany = true\n")
    assert is_approved(config, MODULES)
    (state / "policy.toml").write_text("[studies]\nany = 1\n")
    assert not is_approved(config, MODULES)  # what nobody has approved is not even imported
    Approvals(state).add(code_digest(MODULES))
    assert is_approved(config, MODULES)  # the worker refuses everything by the code POLICY


def test_the_refusal_is_a_code_and_a_line_in_the_log(study):
    package, config = study
    answer = unpack(refusal(config, pack({"kind": "hello", "study": "s"}))).header
    assert (answer["kind"], answer["site"], answer["reason"]) == ("refusal", "north", "APPROVAL")
    assert unpack(refusal(config, b"rubbish")).header["reason"] == "APPROVAL"
    state = package.parents[1] / "state"
    assert [(entry.kind, entry.result) for entry in Journal(state).entries()] == [
        ("hello", "APPROVAL"),
        ("", "APPROVAL"),
    ]
    assert stat.S_IMODE(state.stat().st_mode) == 0o700


def test_the_command_shows_the_study_and_asks(tmp_path, monkeypatch):
    from fedbayes.flower.project import write_project

    project = tmp_path / "heart"
    write_project(project)
    monkeypatch.setattr(sys, "path", list(sys.path))
    for name in [name for name in sys.modules if name == "app" or name.startswith("app.")]:
        monkeypatch.delitem(sys.modules, name)
    config = f'site-id="north" data-path="{project}/data/cleveland.csv" state-dir="{tmp_path}/state"'
    words = ["approve", "--no-dry-run", "--project", str(project), "--config", config]
    said_no = CliRunner().invoke(app, words, input="n\n")
    assert said_no.exit_code == 1
    assert 'numpyro.sample("y", dist.Bernoulli(logits=intercept + x @ beta), obs=y)' in said_no.output
    assert "these rules find nothing in this client" in said_no.output
    assert not (tmp_path / "state" / "approved.json").exists()
    said_yes = CliRunner().invoke(app, words, input="y\n")
    assert said_yes.exit_code == 0
    assert "It may run on the data of site north from now on." in said_yes.output
    (digest,) = json.loads((tmp_path / "state" / "approved.json").read_text())
    again = CliRunner().invoke(app, words)
    assert f"has the digest {digest[:12]}.\nIt was approved at " in again.output
    for name in [name for name in sys.modules if name == "app" or name.startswith("app.")]:
        monkeypatch.delitem(sys.modules, name)
