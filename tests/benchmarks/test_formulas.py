"""The page on formulas of textbooks is as its script writes it: all are right, or refused in words."""

from pathlib import Path

import pytest

SCRIPT = Path(__file__).resolve().parents[2] / "benchmarks" / "formulas.py"

pytestmark = pytest.mark.skipif(not SCRIPT.exists(), reason="these tests run away from a checkout")


@pytest.fixture(scope="module")
def script(load):
    return load("formulas")


def test_the_page_is_as_its_script_writes_it(script) -> None:
    page = script.page()
    assert page == script.PAGE.read_text()
    assert "24 of 24 formulas" in " ".join(page.split())
    assert "12 of 12 others" in " ".join(page.split())


def test_other_columns_are_no_right_answer(script, monkeypatch) -> None:
    tests = script.formulas()
    monkeypatch.setitem(tests.COLUMNS, "share ~ dose", lambda data: [data["age"]])
    verdicts = {row[0]: row[3] for row in script.answered(tests)}
    assert [formula for formula, verdict in verdicts.items() if verdict != "right"] == ["`share ~ dose`"]


def test_what_is_not_refused_is_seen(script) -> None:
    tests = script.formulas()
    tests.NOT_THERE = [("y ~ s(dose)", "gaussian", ""), ("y ~ dose", "gaussian", "")]
    tests.OF_THE_REFUSED = {"y ~ s(dose)": "one", "y ~ dose": "two"}
    assert [row[3] == "NOT REFUSED" for row in script.refused(tests)] == [False, True]
