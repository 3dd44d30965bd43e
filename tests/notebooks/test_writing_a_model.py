"""The page on writing a model: its programs are fitted as they stand there."""

import re
from pathlib import Path

import pytest

PAGE = Path(__file__).resolve().parents[2] / "docs" / "writing-a-model.md"

pytestmark = pytest.mark.skipif(not PAGE.exists(), reason="the page is in the checkout alone")


def test_its_programs_are_fitted() -> None:
    code = "\n".join(re.findall(r"^```python\n(.*?)^```$", PAGE.read_text(), re.MULTILINE | re.DOTALL))
    found: dict = {}
    exec(compile(code, str(PAGE), "exec"), found)
    assert found["fit"].converged
    assert found["fit"].client_names == ("north", "south", "west")
    assert found["own"].dims == ("chain", "draw")
