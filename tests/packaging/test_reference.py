"""The documentation's site has a place for every public name, page and notebook."""

import re
from collections import Counter
from pathlib import Path

import pytest

import fedbayes as fb
from fedbayes import plots

DOCS = Path(__file__).resolve().parents[2] / "docs"
ENTRY = re.compile(r"^\.\. auto(?:function|class|exception):: (\w+)$", re.MULTILINE)

pytestmark = pytest.mark.skipif(not DOCS.exists(), reason="these tests run away from a checkout")


def entries(page: Path) -> list[str]:
    """A toctree's documents, without their endings."""
    blocks = re.findall(r"^```{toctree}\n(.*?)^```$", page.read_text(), re.MULTILINE | re.DOTALL)
    return [line for block in blocks for line in block.splitlines() if line and not line.startswith(":")]


def test_every_public_name_has_one_entry_in_the_reference() -> None:
    found = Counter(name for page in (DOCS / "reference").glob("*.md") for name in ENTRY.findall(page.read_text()))
    pictures = [name for name in plots.__all__ if name.startswith("plot_")]
    assert found == Counter([*fb.__all__, *pictures])


def test_every_page_and_notebook_is_in_one_section() -> None:
    index, sections = DOCS / "index.md", DOCS / "sections"
    assert {f"sections/{page.stem}" for page in sections.glob("*.md")} | {"reference/index"} <= set(entries(index))
    listed = Counter(entry for page in sections.glob("*.md") for entry in entries(page))
    pages = {f"../{page.stem}" for page in DOCS.glob("*.md")} - {"../index"}
    notebooks = {f"../../notebooks/{path.stem}" for path in (DOCS.parent / "notebooks").glob("*.ipynb")}
    assert {name: listed[name] for name in pages | notebooks} == dict.fromkeys(pages | notebooks, 1)
    reference = DOCS / "reference"
    assert {page.stem for page in reference.glob("*.md")} - {"index"} == set(entries(reference / "index.md"))
