"""What an app is made of and what a run is told."""

import sys

import pytest

pytest.importorskip("flwr")

from fedbayes.flower import client_app, server_app
from fedbayes.flower.programs import parts
from fedbayes.flower.settings import Settings


def test_settings_are_read_from_a_run():
    settings = Settings.of({"num-clients": 3, "round-timeout": 30, "output": "here", "colour": "red"})
    assert settings == Settings(num_clients=3, round_timeout=30.0, output="here")
    assert (settings.keys, settings.names, settings.min_clients) == (None, [], 1)
    named = Settings.of({"sites": "north, south", "min-clients": 2, "node-keys": "yes"})
    assert (named.keys, named.names, named.min_clients) == (True, ["north", "south"], 2)


@pytest.mark.parametrize(
    ("config", "text"),
    [
        ({}, "set either num-clients or sites"),
        ({"num-clients": 1, "sites": "north"}, "set either num-clients or sites"),
        ({"num-clients": "3"}, "The setting num-clients must be of type int; it is '3'"),
        ({"num-clients": True}, "The setting num-clients must be of type int; it is True"),
        ({"num-clients": 3, "round-timeout": "long"}, "The setting round-timeout must be of type float; it is 'long'"),
        ({"num-clients": 3, "node-keys": "maybe"}, "node-keys must be one of yes, no, named; it is 'maybe'"),
    ],
)
def test_wrong_settings_are_named(config, text):
    with pytest.raises(ValueError, match=text):
        Settings.of(config)


@pytest.fixture
def study(tmp_path, monkeypatch):
    (tmp_path / "a_study.py").write_text("model, method, load_data = 'the model', 'the method', 'the data'\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    yield "a_study"
    sys.modules.pop("a_study", None)


def test_parts_come_from_a_module_or_as_they_are(study):
    assert parts(study, method=None, load_data=None) == ["the model", "the method", "the data"]
    assert parts(study, method="another") == ["the model", "another"]
    assert parts(len, method="another") == [len, "another"]


def test_missing_parts_are_named(study):
    with pytest.raises(TypeError, match="the app lacks method and load_data"):
        client_app(len)
    with pytest.raises(TypeError, match="the module 'a_study' does not define colour"):
        parts(study, method=None, colour=None)


def test_an_app_by_name_does_not_import_the_study(study):
    client_app(study)
    server_app(study)
    assert study not in sys.modules
