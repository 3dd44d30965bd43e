"""Federations of real processes; their logs are shown where a test fails."""

import json
import sys
from pathlib import Path

import pytest

HERE = Path(__file__).parent
sys.path.append(str(HERE))  # for the helpers beside this file; the package itself is found where it is installed


FAILED = pytest.StashKey[bool]()


def pytest_runtest_makereport(item, call):
    """Remember what failed, for `shared`."""
    item.stash[FAILED] = item.stash.get(FAILED, False) or call.excinfo is not None


@pytest.fixture
def echo(tmp_path, request):
    """An app whose sites say what they were asked; no other test's, so that its workers are new."""
    from federation import copy_app

    app = copy_app(HERE / "echo", tmp_path / "echo")
    with (app / "echo" / "client.py").open("a") as file:
        file.write(f"# {request.node.nodeid}\n")
    return app


def end(federation):
    from federation import wait_until

    federation.stop()
    wait_until(lambda: not federation.processes(), 60, "the end of all processes")


@pytest.fixture
def federate(tmp_path):
    """Makes a federation that ends with the test."""
    from federation import Federation

    made = []

    def make(**options):
        made.append(Federation(tmp_path / f"federation-{len(made)}", **options))
        return made[-1]

    yield make
    for federation in made:
        print(federation.logs())  # pytest shows it where the test has failed
        end(federation)


@pytest.fixture(scope="module")
def _kept():
    """The federation that the tests of a file share, once one of them has asked for it."""
    kept = []
    yield kept
    for federation in kept:
        end(federation)


@pytest.fixture
def shared(_kept, request, tmp_path_factory):
    """The federation of all tests of a file, which runs already; a test that has failed takes it along."""
    from federation import Federation

    def give(options):
        if not _kept:
            _kept.append(Federation(tmp_path_factory.mktemp("federation"), **options()))
            _kept[0].start()
        return _kept[0]

    yield give
    for federation in _kept:
        print(federation.logs())
    if request.node.stash.get(FAILED, False):
        while _kept:
            end(_kept.pop())


@pytest.fixture
def output(tmp_path):
    """Where the echo app's server writes, as a setting of its run."""
    return {"output": str(tmp_path / "rounds.jsonl")}


@pytest.fixture
def rounds(tmp_path):
    """What the echo app's server has written so far: for each round, the answers by site, failures by node."""

    def read():
        path = tmp_path / "rounds.jsonl"
        lines = path.read_text().splitlines() if path.exists() else []
        return [json.loads(line) for line in lines]

    return read
