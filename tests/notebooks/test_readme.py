"""The example of the README prints what the README shows, and its pages are there."""

import contextlib
import io
import re

import pytest

pytest.importorskip("nbformat")

from execution import FOLDER, unlike

README = FOLDER.parent / "README.md"
PAGES = [README, *sorted((FOLDER.parent / "docs").glob("*.md"))]
BLOCK = re.compile(r"^```(python|text)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
LINK = re.compile(r"\]\((?!https?:|#)([^)#]+)")

pytestmark = pytest.mark.skipif(not README.exists(), reason="these tests run away from a checkout")


@pytest.mark.slow
def test_the_example_prints_what_is_shown():
    found = dict(BLOCK.findall(README.read_text()))
    printed = io.StringIO()
    with contextlib.redirect_stdout(printed):
        exec(found["python"], {})
    assert not unlike(found["text"], printed.getvalue())


def test_the_readme_is_read_in_minutes():
    assert len(README.read_text().splitlines()) <= 90


@pytest.mark.parametrize("page", PAGES, ids=lambda path: path.name)
def test_links_lead_somewhere(page):
    lost = [link for link in LINK.findall(page.read_text()) if not (page.parent / link).exists()]
    assert lost == []
