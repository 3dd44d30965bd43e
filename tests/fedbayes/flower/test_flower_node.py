"""The node of ``fedbayes start-node``: when it looks for messages, and who starts their processes."""

import inspect
import multiprocessing
import subprocess
import sys
import time
from importlib import import_module
from types import SimpleNamespace

import pytest

pytest.importorskip("flwr")

from flwr.supercore.inflatable import inflatable_utils
from typer.testing import CliRunner

from fedbayes.flower.node import start as node
from fedbayes.flower.waits import ask_sooner


@pytest.fixture
def loop(monkeypatch):
    """The module of Flower's loop, which is as before after the test."""
    found = import_module(node._LOOP)
    for name in ("time", "subprocess"):
        monkeypatch.setattr(found, name, getattr(found, name))
    return found


def test_a_node_looks_the_sooner_the_shorter_nothing_has_come():
    waits = node.Waits()
    came = time.monotonic() + 100.0
    assert waits.pause(0.5, came) == 0.05  # it has a message, and waits for the answer
    for silent, pause in ((0.0, 0.25), (2.0, 0.25), (10.0, 1.0), (60.0, 6.0)):
        assert waits.pause(3.0, came + silent) == pytest.approx(pause)
    assert waits.pause(0.5, came + 60.0) == 0.05
    assert waits.pause(3.0, came + 61.0) == 0.25


def test_it_never_waits_for_longer_than_flower_would(monkeypatch):
    slept = []
    monkeypatch.setattr(node, "time", SimpleNamespace(monotonic=iter([0.0, 1.0, 2000.0]).__next__, sleep=slept.append))
    waits = node.Waits()
    waits(0.01)
    waits(3.0)
    assert slept == [0.01, 3.0]


def test_flower_s_own_loop_runs_with_our_waits_and_our_processes(loop, monkeypatch):
    seen = {}

    def flower_supernode():
        seen.update(argv=sys.argv, sleep=loop.time.sleep, popen=loop.subprocess.Popen, clock=loop.time.time)

    monkeypatch.setattr("flwr.supernode.cli.flower_supernode", flower_supernode)
    monkeypatch.setattr(sys, "argv", list(sys.argv))
    from fedbayes.cli.main import app

    flags = ["--superlink", "a:1", "--insecure", "--node-config", 'site-id="a"']
    assert CliRunner().invoke(app, ["start-node", *flags]).exit_code == 0
    assert seen["argv"] == ["flower-supernode", *flags]
    assert isinstance(seen["sleep"], node.Waits)
    assert seen["popen"] is node.popen
    assert seen["clock"] is time.time
    assert time.sleep is not seen["sleep"]  # nobody else's


def test_flower_still_has_what_is_replaced():
    """Should this fail with a later Flower, rounds take seconds again, and nothing else is wrong."""
    loop = import_module(node._LOOP)
    source = inspect.getsource(loop.start_client_internal)
    assert "time.sleep(3)" in source
    assert 'command = ["flower-superexec"]' in source
    assert "subprocess.Popen(command)" in source
    assert "time.sleep(0.5)" in inspect.getsource(loop._push_messages)
    superexec = import_module("flwr.supercore.superexec.run_superexec")
    assert "executor = get_executor(" in inspect.getsource(superexec.run_superexec)
    ask_sooner()
    for pull in (inflatable_utils.pull_objects, inflatable_utils.pull_and_inflate_object_from_tree):
        assert inspect.signature(pull).parameters["initial_backoff"].default == 0.05


def test_only_the_process_of_messages_is_started_by_other_code(monkeypatch):
    started = []
    monkeypatch.setattr(subprocess, "Popen", lambda command, **options: started.append((command, options)))
    node.popen(["flower-superexec", "--insecure"])
    node.popen(["ls"], cwd="/")
    assert started[0][0][-1:] == ["--insecure"]
    assert "-P" in started[0][0]
    assert "fedbayes.flower.node.tasks" in started[0][0][3]
    assert started[1] == (["ls"], {"cwd": "/"})


def test_where_processes_cannot_be_forked_flower_starts_them(monkeypatch):
    from fedbayes.flower.node import tasks

    superexec = import_module(tasks._LOOP)
    ran = []
    monkeypatch.setattr(superexec, "get_executor", usual := superexec.get_executor)
    monkeypatch.setattr(tasks, "flower_superexec", lambda: ran.append(superexec.get_executor))
    monkeypatch.setattr(multiprocessing, "get_all_start_methods", lambda: ["spawn"])
    tasks.main()
    monkeypatch.setattr(multiprocessing, "get_all_start_methods", lambda: ["spawn", "forkserver"])
    tasks.main()
    assert ran[0] is usual
    assert ran[1] is not usual
