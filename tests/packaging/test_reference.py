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


def test_every_page_and_notebook_is_in_the_contents() -> None:
    listed = entries(DOCS / "index.md")
    pages = {page.stem for page in DOCS.glob("*.md")} - {"index"}
    notebooks = {f"../notebooks/{path.stem}" for path in (DOCS.parent / "notebooks").glob("*.ipynb")}
    assert pages | notebooks <= set(listed)
    assert {page.stem for page in (DOCS / "reference").glob("*.md")} - {"index"} == set(
        entries(DOCS / "reference" / "index.md")
    )
