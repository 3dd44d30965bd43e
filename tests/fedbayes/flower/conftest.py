"""Federations of real processes; their logs are shown where a test fails."""

import json
import sys
from pathlib import Path

import pytest

HERE = Path(__file__).parent
sys.path.append(str(HERE))  # for the helpers beside this file; the package itself is found where it is installed


@pytest.fixture
def echo(tmp_path):
    """An app whose sites say what they were asked."""
    from federation import copy_app

    return copy_app(HERE / "echo", tmp_path / "echo")


@pytest.fixture
def federate(tmp_path, request):
    """Makes a federation that ends with the test."""
    from federation import Federation, wait_until

    made = []

    def make(**options):
        made.append(Federation(tmp_path / f"federation-{len(made)}", **options))
        return made[-1]

    yield make
    for federation in made:
        federation.stop()
        print(federation.logs())  # pytest shows it where the test has failed
        wait_until(lambda: not federation.processes(), 60, "the end of all processes")  # noqa: B023


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
