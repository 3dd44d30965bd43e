"""What a fit says of itself in its last line, and in a notebook: of stored fits, with what a check may have shown."""

import re
from dataclasses import replace
from html import unescape

import pytest

from fedbayes.questions.summary import as_html, summary
from fedbayes.results.checked import Checked

GOOD = Checked("applied", True, 0.1, 0.1, 0.2, 0.3, 900.0, 0.0, 1000)
CASES = {
    "as it is": (GOOD, "fit.idata can be used as it is"),
    "bad weights": (GOOD._replace(reliable=False, correction="unreliable", k_hat=1.2), "don't rely on fit.idata"),
    "modes left": (GOOD._replace(reliable=False, correction="unreliable", all_modes=False), "don't rely on fit.idata"),
}


def with_check(fitted, check: Checked):
    return replace(fitted, saved=replace(fitted.saved, checked=check), answers={})


@pytest.fixture(scope="module")
def fitted(stored_fits):
    return stored_fits.read("scale").fitted


@pytest.mark.parametrize("case", CASES)
def test_the_last_line_says_whether_the_draws_can_be_used(fitted, case: str) -> None:
    check, words = CASES[case]
    last = summary(with_check(fitted, check)).splitlines()[-1]
    assert last.startswith(f"  so        {words}")


def test_what_was_not_checked_is_not_vouched_for(fitted) -> None:
    failed = summary(replace(fitted, unchecked="The check has failed.", answers={}))
    assert failed.splitlines()[-1] == "  so        fit.idata has a Gaussian's draws, whose error is not known"


def test_modes_are_told(fitted) -> None:
    assert "around one of 4 separate modes" in summary(with_check(fitted, GOOD._replace(modes=4)))
    left = CASES["modes left"][0]
    assert "around one of many separate modes, of which fit.idata lacks some" in summary(with_check(fitted, left))


def test_a_notebook_shows_the_same_words(fitted) -> None:
    html = as_html(with_check(fitted, GOOD))
    cells = [unescape(cell) for cell in re.findall(r"<t[hd][^>]*>(.*?)</t[hd]>", html)]
    lines = summary(with_check(fitted, GOOD)).splitlines()
    assert [f"  {one:10}{two}" for one, two in zip(cells[::2], cells[1::2], strict=True)] == lines[1:]
    assert lines[0] in unescape(html)
    assert "<script" not in as_html(fitted)
