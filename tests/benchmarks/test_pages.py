"""What benchmarks share to write their pages; and pages whose results are stored are as their scripts write them."""

import json
from pathlib import Path

import pytest

FOLDER = Path(__file__).resolve().parents[2] / "benchmarks"

pytestmark = pytest.mark.skipif(not FOLDER.exists(), reason="these tests run away from a checkout")


def test_a_table_ends_with_an_empty_line(load) -> None:
    written = load("pages").table(("", "a", "b"), [("x", 1, 2.5)], right_from=1)
    assert written == ["|  | a | b |", "|---|---:|---:|", "| x | 1 | 2.5 |", ""]


def test_a_section_is_written_anew_and_its_note_stays_last(load) -> None:
    pages = load("pages")
    titles, notes = ("first", "second"), {"first": f"{pages.MARK}one.\n"}
    page = pages.merged("", {"second": "2"}, "# Page\n", titles, notes)
    page = pages.merged(page, {"first": "old"}, "# Page\n", titles, notes)
    page = pages.merged(page, {"first": "1"}, "# Page\n", titles, notes)
    assert page == "# Page\n\n## first\n\n1\n\nWhat the numbers say: one.\n\n## second\n\n2\n"


@pytest.mark.parametrize(
    ("script", "stored", "page", "write"),
    [
        ("run", "results.json", "RESULTS.md", lambda script, results: script.markdown(results)),
        (
            "posteriordb",
            "posteriordb.json",
            "POSTERIORDB.md",
            lambda script, rows: script.markdown(list(rows.values())),
        ),
        ("planted_faults", "planted_faults.json", "PLANTED_FAULTS.md", lambda script, found: script.page(found)),
        ("families", "families.json", "FAMILIES.md", lambda script, found: script.markdown(found)),
        ("questions", "questions.json", "QUESTIONS.md", lambda script, found: script.markdown(found)),
        ("scale", "scale.json", "SCALE.md", lambda script, found: script.markdown(found)),
        ("textbooks", "textbooks.json", "TEXTBOOKS.md", lambda script, found: script.markdown(found)),
        ("analyses", "analyses.json", "ANALYSES.md", lambda script, found: script.COMPARISON.page(found)),
        (
            *("numpyro_examples", "numpyro_examples.json", "NUMPYRO_EXAMPLES.md"),
            lambda script, found: script.COMPARISON.page(found),
        ),
    ],
)
def test_a_page_is_as_its_script_writes_it_from_what_is_stored(load, script, stored, page, write) -> None:
    results = json.loads((FOLDER / stored).read_text())
    assert write(load(script), results) == (FOLDER / page).read_text()
