"""What shows a fit's progress where nobody looks on."""

import sys

import numpy as np
import pytest

from fedbayes.rounds import progress
from fedbayes.rounds.progress import Bar, Lines, Silent, show


def test_a_log_has_a_line_now_and_then(monkeypatch, capsys) -> None:
    now = iter([0.0, 3.0, 11.0, 11.0, 12.0])
    monkeypatch.setattr(progress.time, "monotonic", lambda: next(now))
    lines = Lines()
    lines.start("EP", 30, done=2)
    for change in (2.0, 1.0, 0.5):
        lines.after_round({"change": np.array([0.0, change])})
    lines.close()
    assert capsys.readouterr().err == "EP: compiling\nEP: 4 rounds, change 1 sd\n"


@pytest.mark.parametrize(
    ("asked", "in_terminal", "in_notebook", "kind"),
    [(False, True, True, Silent), (True, True, False, Bar), (True, False, True, Bar), (True, False, False, Lines)],
)
def test_a_bar_is_for_people(monkeypatch, asked, in_terminal, in_notebook, kind) -> None:
    monkeypatch.setattr(sys.stderr, "isatty", lambda: in_terminal, raising=False)
    monkeypatch.setattr(progress, "_is_plain", lambda: not in_notebook)
    assert isinstance(show(asked), kind)


def test_words_stand_above_a_bar_and_in_a_log_and_nowhere_in_silence(capsys) -> None:
    for kind in (Bar, Lines, Silent):
        kind().say(f"of {kind.__name__}")
    assert capsys.readouterr().err == "of Bar\nof Lines\n"
