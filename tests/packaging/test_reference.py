"""The documentation's site has a place for every public name, page and notebook."""

import inspect
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


RELATED = re.compile(r"^(?:fedbayes\.)?([\w.]+) : [A-Z\"`].*\.$")


def related(text: str | None) -> list[str]:
    """The names in a docstring's See Also."""
    section = re.search(r"^See Also\n-+\n(.*?)(?=^\w[\w ]*\n-+\n|\Z)", inspect.cleandoc(text or ""), re.M | re.S)
    lines = section[1].split("\n") if section else []
    found = [RELATED.match(line) for line in lines if line]
    return [match[1] if match else "?" for match in found]


def test_every_public_name_says_what_to_see_also() -> None:
    """Other public names, or methods of theirs, and why."""
    public = {name: getattr(fb, name) for name in fb.__all__}
    public |= {name: getattr(plots, name) for name in plots.__all__ if name.startswith("plot_")}
    known = {*public, *(f"plots.{name}" for name in plots.__all__)}
    known |= {f"FederatedFit.{name}" for name in vars(fb.FederatedFit) if not name.startswith("_")}
    told = {name: related(value.__doc__) for name, value in public.items()}
    assert [name for name, others in told.items() if not others or not set(others) <= known - {name}] == []


def test_every_public_name_has_an_example() -> None:
    """Which runs, see `test_documentation.py`. Pictures are drawn from whole fits, in the notebooks."""
    assert [name for name in fb.__all__ if ">>> " not in getattr(fb, name).__doc__] == []


@pytest.mark.parametrize("line", ["EP", "EP : better", "nobody"])
def test_a_name_without_a_reason_is_found(line) -> None:
    assert related(f"What it does.\n\nSee Also\n--------\n{line}\n\nExamples\n--------\n>>> 1\n1") == ["?"]
    assert related("What it does.") == []
