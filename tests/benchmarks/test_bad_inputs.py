"""All bad inputs of the benchmark are refused, or warned of, in fedbayes's own words."""

from pathlib import Path

import numpy as np
import pytest

SCRIPT = Path(__file__).resolve().parents[2] / "benchmarks" / "bad_inputs.py"

pytestmark = pytest.mark.skipif(not SCRIPT.exists(), reason="these tests run away from a checkout")


@pytest.fixture(scope="module")
def script(load, tmp_path_factory):
    module = load("bad_inputs")
    module.FOLDER = tmp_path_factory.mktemp("bad-inputs")
    return module


@pytest.mark.parametrize("group", ["data", "tables", "model", "options", "files", "a fit"])
def test_no_bad_input_gets_a_raw_error(group, script):
    found = script.rows([group])
    assert len(found) > 5
    assert [row for row in found if script.is_raw(row)] == []


def test_there_are_enough_of_them(script):
    assert sum(map(len, script.CASES.values())) >= 50
    assert {"data", "tables", "model", "options", "files", "a fit"} == set(script.CASES)


@pytest.mark.parametrize(
    "call", [lambda: {}["key"], lambda: np.zeros(2) + np.zeros(3), lambda: None, lambda: int("one")]
)
def test_a_raw_error_is_recognised(call, script):
    assert script.is_raw(script.Row("data", "planted", *script.run(call)))


def test_the_page_names_what_is_raw(script):
    rows = [
        script.Row("data", "text | dates", "ValueError, RAW", "one\ntwo"),
        script.Row("data", "u", "TypeError", "w"),
    ]
    page = script.table(rows)
    assert "2 bad inputs, 1 of them RAW" in page
    assert "| ValueError, RAW | one<br>two |" in page
