"""`benchmarks/textbooks.py`: tables are those of the publications, priors are given, and verdicts as they say."""

import json
from pathlib import Path

import numpy as np
import pytest

FOLDER = Path(__file__).resolve().parents[2] / "benchmarks"

pytestmark = pytest.mark.skipif(not FOLDER.exists(), reason="these tests run away from a checkout")


@pytest.fixture(scope="module")
def script(load):
    return load("textbooks")


@pytest.fixture(scope="module")
def results():
    return json.loads((FOLDER / "textbooks.json").read_text())


def joined(tables, column):
    return np.concatenate([table[column] for table in tables.values()])


def test_the_measurements_have_the_mean_and_sd_of_which_bambi_made_its_priors(script):
    tables = script.TEXTBOOKS["sleepstudy, Bambi"].tables()
    reaction, days = joined(tables, "Reaction"), joined(tables, "Days")
    assert len(tables) == 18
    assert len(reaction) == 180
    assert reaction.mean() == pytest.approx(298.5079, abs=5e-5)
    assert reaction.std() == pytest.approx(56.1721, abs=5e-5)
    assert 2.5 * reaction.std() / days.std() == pytest.approx(48.8915, abs=5e-5)
    assert np.median(reaction) == pytest.approx(289.0, abs=0.5)  # of which brms made its own


def test_the_seizures_are_those_of_the_trial(script):
    tables = script.TEXTBOOKS["epilepsy, brms"].tables()
    count, treated = joined(tables, "count"), joined(tables, "Trt")
    assert len(tables) == 59
    assert len(count) == 236
    assert (treated == 1).sum() == 4 * 31
    assert (treated == 0).sum() == 4 * 28
    assert count.max() == 102
    assert count.sum() == 1948
    for column in ("zAge", "zBase"):
        assert joined(tables, column).mean() == pytest.approx(0.0, abs=1e-12)
        assert joined(tables, column).std(ddof=1) == pytest.approx(1.0)


def test_the_applicants_are_those_of_the_six_departments(script):
    tables = script.TEXTBOOKS["admissions, brms"].tables()
    applications, admitted, male = (joined(tables, name) for name in ("applications", "admit", "male"))
    assert list(tables) == list("ABCDEF")
    assert applications.sum() == 4526
    assert admitted.sum() == 1755
    assert applications[male == 1].sum() == 2691
    assert admitted[male == 1].sum() == 1198


@pytest.mark.parametrize("name", ["sleepstudy, brms", "sleepstudy, Bambi", "epilepsy, brms", "admissions, brms"])
def test_all_priors_are_the_publications(script, name):
    book = script.TEXTBOOKS[name]
    reg = book.regression()
    uniform = {"1 + Days|site_cholesky"} if name == "sleepstudy, brms" else set()  # LKJ(1) is the default of both
    assert set(reg.priors) - uniform == set(book.priors)


def test_rounding_is_read_off_the_digits(script):
    assert script.rounding("251.42") == pytest.approx(0.005)
    assert script.rounding("-0.57878250") == pytest.approx(5e-9)
    assert script.rounding("12") == pytest.approx(0.5)


def test_a_difference_within_rounding_and_monte_carlo_errors_is_the_same_and_no_other_is(script):
    published = script.Published("a", "a", "1.00", "0.50", 900)
    own = {"mean": 1.0, "sd": 0.5, "kurtosis": 3.0, "mcse": 0.0, "mcse_sd": 0.0}
    allowed = 0.005 + 3.0 * 0.5 / 30.0
    allowed_sd = 0.005 + 3.0 * 0.5 / np.sqrt(2.0 * 900.0)
    compared = lambda **other: script.compared(published, own | other, 4000)  # noqa: E731
    assert compared()["same"]
    assert compared()["allowed"] == pytest.approx(allowed / 0.5)
    assert compared(mean=1.0 + 0.99 * allowed)["same"]
    assert not compared(mean=1.0 + 1.01 * allowed)["same"]
    assert not compared(mean=1.0 - 1.01 * allowed)["same"]
    assert compared()["allowed_sd"] == pytest.approx(allowed_sd / 0.5)
    assert not compared(sd=0.5 + 2.0 * allowed_sd)["same"]


def test_where_no_effective_number_is_printed_it_is_a_quarter_of_the_draws(script):
    own = {"mean": 1.0, "sd": 0.5, "kurtosis": 3.0, "mcse": 0.0, "mcse_sd": 0.0}
    said, unsaid = (script.Published("a", "a", "1.00", "0.50", number) for number in (1000, 0))
    assert script.compared(unsaid, own, 4000) == script.compared(said, own, 4000)


def test_every_published_parameter_was_measured_by_fits_that_say_they_can_be_used(script, results):
    assert list(results) == list(script.TEXTBOOKS)
    for name, book in script.TEXTBOOKS.items():
        for part in ("fit", "defaults"):
            assert list(results[name][part]["moments"]) == [each.ours for each in book.published]
        assert results[name]["fit"]["converged"]
        assert results[name]["fit"]["conclusion"].startswith("fit.idata can be used")


def test_the_answers_are_the_published_ones(script, results):
    """What README says of it."""
    found = script.verdicts(results)
    assert len(found) == 23
    assert all(each["same"] for each in found.values())
