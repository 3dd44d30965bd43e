"""What a fit says of itself in its last line, and in a notebook: of stored fits, with what a check may have shown."""

import json
import re
from dataclasses import replace
from html import unescape
from types import SimpleNamespace

import numpy as np
import pytest
import xarray as xr

import fedbayes.questions.summary as words
from fedbayes.contract.answer import Verdict
from fedbayes.correction.images import Looked
from fedbayes.questions.summary import as_html, summary, trouble
from fedbayes.results.checked import Checked
from fedbayes.results.fitted import rounds, verdict

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
    assert last.startswith(f"  verdict   {words}")


def test_what_was_not_checked_is_not_vouched_for(fitted) -> None:
    failed = summary(replace(fitted, unchecked="The check has failed.", answers={}))
    assert failed.splitlines()[-1] == "  verdict   fit.idata has a Gaussian's draws, whose error is not known"


def test_modes_are_told(fitted) -> None:
    assert "around one of 4 separate modes" in summary(with_check(fitted, GOOD._replace(modes=4)))
    left = CASES["modes left"][0]
    assert "around one of many separate modes, of which fit.idata lacks some" in summary(with_check(fitted, left))


@pytest.mark.parametrize(
    ("modes", "looked", "told"),
    [
        (1, Looked(15), "looked for at 15 images under sign changes and label swaps, from one starting point"),
        (1, Looked(1), "looked for at 1 image under sign changes and label swaps, from one starting point"),
        (1, Looked(), "looked for from one starting point"),
        (1, Looked(as_wide=True), "looked for at draws as wide as the prior"),
        (2, Looked(0, 8, 8), "looked for from 8 starting points"),
        (2, Looked(0, 8, 5), "looked for from 8 starting points (5 searches converged)"),
    ],
)
def test_it_says_where_modes_were_looked_for(fitted, modes: int, looked: Looked, told: str) -> None:
    """Also of a fit that was saved; one of an early version, which has not written it down, says nothing."""
    check = Checked.read(json.loads(json.dumps(GOOD._replace(modes=modes, looked=looked)._asdict())))
    found = "one" if modes == 1 else "2"
    assert f"  modes     {found} found, {told}\n" in summary(with_check(fitted, check))
    assert "  modes  " not in summary(with_check(fitted, GOOD))
    bad = CASES["bad weights"][0]._replace(looked=looked)
    assert "  modes  " not in summary(with_check(fitted, bad))


@pytest.mark.parametrize(
    ("sd_error", "untold", "told"),
    [
        (0.02, 0, "off by 0.1 posterior sds in means, 2 percent in sds; fit"),
        (0.02, 1, "2 percent in sds (1 with long tails left out); fit"),
        (np.nan, 2, "in means, an unknown amount in sds; fit"),
    ],
)
def test_errors_that_are_not_known_are_left_out(fitted, sd_error: float, untold: int, told: str) -> None:
    check = GOOD._replace(sd_error=sd_error, untold=untold)
    assert told in summary(with_check(fitted, check))
    assert check.gaussian_enough == np.isfinite(sd_error)
    assert "off by an unknown amount in means" in summary(with_check(fitted, check._replace(mean_error=np.nan)))
    assert not check._replace(mean_error=np.nan).gaussian_enough


def test_a_notebook_shows_the_same_words(fitted) -> None:
    html = as_html(with_check(fitted, GOOD))
    cells = [unescape(cell) for cell in re.findall(r"<t[hd][^>]*>(.*?)</t[hd]>", html)]
    lines = summary(with_check(fitted, GOOD)).splitlines()
    assert [f"  {one:10}{two}" for one, two in zip(cells[::2], cells[1::2], strict=True)] == lines[1:]
    assert lines[0] in unescape(html)
    assert "<script" not in as_html(fitted)


@pytest.fixture
def doubtful(fitted):
    """The fit, as if its rounds had not converged and a far client were a cause to think of."""
    found = Verdict(False, 0.1, [], "The fit did not converge.", [], ask_who_disagrees=True)
    check = GOOD._replace(correction="not needed", distance=1e-3)
    return replace(fitted, saved=replace(fitted.saved, checked=check), answers={verdict: found})


def conflicting(disagreement: str, p: float) -> xr.Dataset:
    data = {"p_adjusted": (("client", "coordinate"), [[p], [1.0]]), "p_overall_adjusted": ("client", [np.nan, 1.0])}
    return xr.Dataset(data, attrs={"disagreement": disagreement})


def test_who_is_far_is_said_where_the_fit_can_tell(doubtful, monkeypatch) -> None:
    disagreement = "client 'x' disagrees with all the others about mu (z = 40.0); client 'y' disagrees"
    monkeypatch.setattr(words, "conflict", lambda _: conflicting(disagreement, p=1e-9))
    assert "Client 'x' disagrees with all the others about mu (z = 40.0), which can keep" in trouble(doubtful)
    assert "'y'" not in trouble(doubtful)
    assert "`fit.idata` is right all the same, to 1e-03 posterior sds" in trouble(doubtful)
    monkeypatch.setattr(words, "conflict", lambda _: conflicting(disagreement, p=1e-3))
    assert "keep the rounds" not in trouble(doubtful)  # as far as that many a client is


def test_over_a_network_the_fit_says_how_to_ask_who_is_far(doubtful, monkeypatch) -> None:
    monkeypatch.setattr(type(doubtful.clients), "cavities_at_hand", lambda _: False)
    assert "keep the rounds from converging: ask `fit.conflict()`" in trouble(doubtful)


def test_a_point_is_called_one_whether_its_rounds_have_converged_or_not(fitted) -> None:
    point = SimpleNamespace(posterior=None, locals_from=fitted.answer.locals_from)
    for converged in (True, False):
        found = Verdict(converged, float("nan"), [], "" if converged else "Too few rounds.", ["a point estimate"])
        shown = fitted.shown._replace(correct=False)
        fit = replace(fitted, answer=point, shown=shown, saved=None, answers={verdict: found, rounds: rounds(fitted)})
        first, *_, last = summary(fit).splitlines()
        assert f"{'converged' if converged else 'NOT CONVERGED'}, a point estimate" in first
        assert "point that says nothing" in last or "a point: it says nothing" in last


@pytest.mark.parametrize(
    ("converged", "mean_error", "told"), [(False, 0.9, True), (False, 0.01, False), (True, 0.9, False)]
)
def test_who_disagrees_is_not_known_where_rounds_have_stopped_far_off(fitted, converged, mean_error, told) -> None:
    found = Verdict(converged, 0.1, [], "" if converged else "The fit did not converge.", [])
    check = GOOD._replace(correction="applied", mean_error=mean_error)
    fit = replace(fitted, saved=replace(fitted.saved, checked=check), answers={verdict: found})
    assert ("  conflict  not known, as the rounds did not converge" in summary(fit).splitlines()) is told


def test_six_of_those_who_disagree_are_named(monkeypatch) -> None:
    named = [f"c{k} (mu)" for k in range(9)]
    monkeypatch.setattr(words, "_conflict_at_hand", lambda fitted: named)
    monkeypatch.setattr(words, "disagreeing", lambda found: found)
    improper = SimpleNamespace(roster=SimpleNamespace(prior=SimpleNamespace(is_proper=False)))
    (line,) = words._disagreement_lines(improper)
    assert line == f"  conflict  {', '.join(named[:6])}, ... (3 more) disagree with the others; see fit.conflict()"
