"""A report of a fit is one file that says what the fit says, escapes what it was given, and loads and runs nothing."""

import json
import re
import shutil
import sys
import xml.etree.ElementTree as ET
from html.parser import HTMLParser

import arviz as az
import matplotlib
import numpy as np
import pandas as pd
import pytest
import xarray as xr

import fedbayes as fb
from fedbayes.report import figures, writing
from fedbayes.report.markup import words
from fedbayes.report.quantities import quantities_of
from fedbayes.report.steps import digest

EVIL = "<script>alert(1)</script>"
SECTIONS = [
    "preamble", "model", "computation", "posterior", "sensitivity", "reproducibility", "left", "disagreement",
]  # fmt: skip
VOID = {"meta"}


@pytest.fixture(scope="module")
def text(fit, tmp_path_factory):
    path = tmp_path_factory.mktemp("report") / "report.html"
    assert fit.report(path, question="Which predictors matter?") == path
    return path.read_text(encoding="utf-8")


def parsed(text):
    return ET.fromstring(text.removeprefix("<!DOCTYPE html>\n"))


def section(text, name):
    return next(each for each in parsed(text).iter("section") if each.get("id") == name)


def rows_of(table):
    return [["".join(cell.itertext()) for cell in row] for row in table.iter("tr")]


def tables(text, name):
    return [rows_of(each) for each in section(text, name).iter("table")]


def number(cell):
    return float(cell.replace("\N{MINUS SIGN}", "-").replace(",", ""))


class Balance(HTMLParser):
    """Whether every element that is opened is closed, in order."""

    def __init__(self):
        super().__init__()
        self.open = []

    def handle_starttag(self, tag, attrs):
        if tag not in VOID:
            self.open.append(tag)

    def handle_endtag(self, tag):
        assert self.open.pop() == tag

    def handle_startendtag(self, tag, attrs):
        """Meta elements, and those of a picture."""


def test_it_is_well_formed_and_has_all_parts(text):
    assert [each.get("id") for each in parsed(text).iter("section")] == SECTIONS
    reader = Balance()
    reader.feed(text)
    assert reader.open == []
    ids = [each.get("id") for each in parsed(text).iter() if each.get("id")]
    assert len(ids) == len(set(ids))
    links = re.findall(r'href="#([^"]*)"|url\(#([^)]*)\)', text)
    assert {one or other for one, other in links} <= set(ids)


def test_nothing_in_it_is_run_or_loaded(text):
    root = parsed(text)
    assert {each.tag for each in root.iter()} & {"script", "link", "img", "iframe", "object", "image"} == set()
    for each in root.iter():
        assert not [name for name in each.attrib if name.startswith("on") or name == "src"]
        assert each.get("href", "#").startswith("#")
    assert "@import" not in text
    assert re.findall(r"url\((?!#)", text) == []
    assert "default-src 'none'" in root.find("head/meta[@http-equiv]").get("content")


def test_it_can_be_read_in_the_dark_on_paper_and_without_pictures(text):
    for query in ("prefers-color-scheme: dark", "@media print", "max-width: 34rem"):
        assert query in text
    pictures = list(parsed(text).iter("svg"))
    assert len(pictures) == 2
    for picture in pictures:
        assert picture.get("role") == "img"
        assert len(picture.get("aria-label")) > 20
        inside = ET.tostring(picture, encoding="unicode")
        assert set(re.findall(r"(?:fill|stroke): (?!none|var)([^;\"]+)", inside)) == set()  # the page's colours alone
    assert "lam" in "".join(pictures[1].itertext())  # letters stay text


def test_its_numbers_are_those_of_the_fit(fit, text):
    (table,) = tables(text, "posterior")
    summary = az.summary(fit.idata, kind="stats", round_to="none")
    assert [row[0] for row in table[1:]] == list(summary.index)
    for row in table[1:]:
        draws = fit.idata.posterior[row[0]].values
        mean, sd, low, median, high = (number(row[place]) for place in (1, 3, 4, 5, 6))
        np.testing.assert_allclose([mean, sd], summary.loc[row[0], ["mean", "sd"]].astype(float), atol=6e-4)
        np.testing.assert_allclose([low, median, high], np.quantile(draws, [0.05, 0.5, 0.95]), atol=6e-4)
    diagnosed = az.summary(fit.idata, kind="diagnostics", round_to="none")
    assert [number(row[7]) for row in table[1:]] == pytest.approx(diagnosed["r_hat"].astype(float).tolist(), abs=6e-4)


def test_it_says_what_the_printed_fit_says(fit, text):
    first, *lines = repr(fit).splitlines()
    shown = dict(tables(text, "computation")[0])
    assert f"{first}." in "".join(section(text, "computation").itertext())
    assert shown == {line[:12].strip(): line[12:] for line in lines if "  look at" not in line}
    assert shown["verdict"] in "".join(parsed(text).find("body/header").itertext())
    told = dict(tables(text, "left")[0])
    assert number(told["exchanges"]) == fit.communication.exchanges
    assert told["from each client"] == f"{fit.communication.bytes_up:,} bytes"
    against = tables(text, "disagreement")[0]
    assert [row[0] for row in against[1:]] == list(fit.client_names)


def test_it_has_the_question_the_program_and_the_priors(text):
    assert "Which predictors matter?" in "".join(section(text, "preamble").itertext())
    program = "".join(section(text, "model").find(".//pre").itertext())
    assert program.startswith("def ridge(")
    assert tables(text, "model")[0][1] == ["lam", "scalar", "LogNormal(loc=0, scale=1)"]
    settings = dict(tables(text, "reproducibility")[0])
    assert settings["method"].startswith("EP(")
    assert f"fedbayes {fb.__version__}" in settings["written with"]


def test_a_saved_fit_of_a_network_says_where_it_can_be_asked(facts):
    found = writing.html(facts._replace(whole=False, elsewhere=True, priors={}, sensitivity=None))
    assert "load_fit" not in found
    assert "<code>fit.sensitivity()</code> in the process that made the fit" in found
    assert "the server has seen no row of them" in found


def test_a_disagreement_that_the_printed_fit_keeps_to_itself_is_a_hint(facts):
    conflict = facts.tables["conflict"].assign_attrs(disagreement="client 'client1' disagrees with all the others")
    unsure = facts._replace(tables={**facts.tables, "conflict": conflict})
    sure = unsure._replace(summary=f"{facts.summary}\n  conflict  client1 (lam) disagrees with the others")
    said = ["".join(section(writing.html(each), "disagreement").itertext()) for each in (unsure, sure)]
    assert ["Take it as a hint" in each for each in said] == [True, False]
    assert all("lient1" in each.partition("Each client")[0] for each in said)


def test_long_tails_are_named_beside_the_table(facts):
    tails = "  tails     too long for the sd of sigma2: read its quantiles, see fit.error"
    found = writing.html(facts._replace(summary=f"{facts.summary}\n{tails}"))
    assert "Tails are too long for the sd of sigma2" in "".join(section(found, "posterior").itertext())


def test_what_the_user_has_named_is_escaped_everywhere(facts):
    posterior = xr.Dataset(
        {"b": (("chain", "draw", EVIL), np.random.default_rng(0).normal(size=(2, 50, 2)))},
        coords={EVIL: [EVIL, "$x_&\x00\u202e北"]},
    )
    conflict = facts.tables["conflict"].assign_coords(client=[EVIL, "b", "c"])
    evil = facts._replace(
        summary=f"FederatedFit by {EVIL}\n  clients   {EVIL}\n  verdict   {EVIL}",
        trouble=EVIL,
        method=EVIL,
        clients=[(EVIL, 10.0)],
        globals={EVIL: ()},
        locals=[EVIL],
        idata={"posterior": posterior},
        tables={"conflict": conflict, "rounds": facts.tables["rounds"].assign(phase=("round", [EVIL] * 4))},
        source=f"'{EVIL}'",
        priors={EVIL: EVIL},
    )
    found = writing.html(evil, EVIL)
    assert "<script" not in found
    assert [each for each in parsed(found).iter("script")] == []
    assert words(EVIL) in found
    forest = section(found, "posterior").find(".//svg")
    assert "b[<script>alert(1)</scrip" in "".join(forest.itertext()).replace("\n", "")
    assert "\x00" not in found
    assert "\u202e" not in found


def test_few_rows_are_not_counted(facts):
    found = writing.html(facts._replace(clients=[("a", 4.0), ("b", 5.0), ("c", 0.0), ("d", np.nan)]))
    assert tables(found, "preamble")[0][1:] == [["a", "fewer than 5"], ["b", "5"], ["c", "0"], ["d", "not known"]]


def test_what_was_measured_is_in_it(facts):
    """The error of the Gaussian and of each quantity, and the sensitivity."""
    names = [row.name for row in quantities_of(facts.idata, None, 9)[0]]
    error = xr.Dataset(
        {"quantity_mean_mcse": ("quantity", [0.0123, 0.0456])},
        {"quantity": names},
        {"mean_error": 0.031, "sd_error": 1e-9, "correction": "applied", "k_hat": 0.42, "effective_draws": 1234.0},
    )
    sensitivity = xr.Dataset(
        {
            "sensitivity": (("component", "parameter"), [[0.11, 0.02], [0.13, 0.09]]),
            "diagnosis": ("parameter", ["prior-data conflict", "-"]),
        },
        {"component": ["prior", "likelihood"], "parameter": names},
        {"threshold": 0.05},
    )
    found = writing.html(facts._replace(tables={**facts.tables, "error": error}, sensitivity=sensitivity))
    assert [row[2] for row in tables(found, "posterior")[0][1:]] == ["0.012", "0.046"]
    checked = dict(tables(found, "computation")[1])
    assert checked["means of the Gaussian"].startswith("off by 0.031")
    assert checked["its sds"].startswith("off by less than 1e-04 percent")
    assert checked["effective draws"] == "1,234"
    assert tables(found, "sensitivity")[0][1:] == [
        ["lam", "0.11", "0.13", "prior-data conflict"],
        ["sigma2", "0.02", "0.09", "\N{EN DASH}"],
    ]


def test_of_very_many_quantities_it_has_the_first(facts):
    draws = np.random.default_rng(0).normal(size=(2, 20, 500))
    many = facts._replace(idata={"posterior": xr.Dataset({"w": (("chain", "draw", "k"), draws)}, {"k": range(500)})})
    found = writing.html(many)
    assert len(tables(found, "posterior")[0]) == 201
    assert "300 more of 500 quantities" in found
    assert "The first 60 of 500 quantities" in found


def test_a_point_or_a_constant_is_no_error(facts):
    values = np.stack([np.full((1, 5), 2.0), np.full((1, 5), np.nan)], axis=-1)
    point = facts._replace(idata={"posterior": xr.Dataset({"w": (("chain", "draw", "k"), values)}, {"k": [0, 1]})})
    found = writing.html(point._replace(tables={}, cost=None, progress=""))
    assert tables(found, "posterior")[0][1][1] == "2.000"
    assert "There is one chain" in found


def test_a_fit_without_model_and_data_says_what_needs_them(folder, text, tmp_path):
    loaded = fb.load_fit(folder)
    found = loaded.report(tmp_path / "saved.html", source="def ridge(): ...").read_text(encoding="utf-8")
    assert tables(found, "posterior") == tables(text, "posterior")
    assert tables(found, "left") == tables(text, "left")
    assert tables(found, "computation") == tables(text, "computation")
    assert "read from its folder without model and data" in found
    assert "def ridge(): ..." in found
    for name in ("model", "sensitivity"):
        assert "load_fit(folder, model, clients)" in "".join(section(found, name).itertext())
    assert dict(tables(found, "reproducibility")[0])["draws' digest"] == f"SHA-256 {digest(loaded.idata)}"
    assert len(list(parsed(found).iter("svg"))) == 2


def test_a_loaded_fit_with_its_model_and_data_has_the_sensitivity(folder, facts, stored_fits, tmp_path):
    """The clients in this process are asked for it, and the fit's own count of exchanges stays what it was."""
    again = fb.load_fit(folder, stored_fits.RECIPES["ridge"].model, stored_fits.read_clients("ridge"))
    before = again.communication
    (found,) = tables(again.report(tmp_path / "report.html").read_text(encoding="utf-8"), "sensitivity")
    assert again.communication == before
    expected = again.sensitivity()
    np.testing.assert_allclose(
        [[number(cell) for cell in row[1:3]] for row in found[1:]], expected["sensitivity"].T, rtol=6e-3
    )


def test_rounds_that_did_not_converge_are_named_where_the_draws_can_be_used(facts):
    first, *lines = facts.summary.splitlines()
    stopped = "\n".join([first.replace("converged", "NOT CONVERGED"), *lines])
    for summary, said in ((facts.summary, False), (stopped, True)):
        found = writing.html(facts._replace(summary=summary))
        head = "".join(parsed(found).find("body/header").itertext())
        assert ("The rounds did not converge, but" in head) == said
        assert "can be used" in head


def test_tables_that_it_is_given_are_shown_with_their_remarks(facts):
    check = xr.Dataset(
        {"tail_probability": (("client_name", "statistic"), [[0.41, 0.00012]])},
        {"client_name": [EVIL], "statistic": ["mean", "sd"]},
        {"caveat": "data are used twice", "outside": "none"},
    )
    given = writing.given_tables({"Predictive check": check, "By hand": pd.DataFrame({"a": [True] * 201})})
    found = writing.html(facts._replace(given=given))
    first, second = tables(found, "given")
    head, *lines = first
    assert head == ["client name", "statistic", "tail probability"]
    assert lines == [[EVIL, "mean", "0.41"], [EVIL, "sd", "0.00012"]]
    assert len(second) == 201
    assert second[1] == ["yes"]
    said = "".join(section(found, "given").itertext())
    assert "Data are used twice." in said
    assert "1 more of 201 lines are not shown" in said
    assert "whether the model describes the data" not in found
    assert "whether the model describes the data" in writing.html(facts)


@pytest.mark.parametrize(
    ("given", "words_"), [({"Title": 3}, "is a int; write a table of pandas"), ([1], "is a list; write a title")]
)
def test_what_is_no_table_is_refused_before_anything_is_done(given, words_, fit, tmp_path, monkeypatch):
    monkeypatch.setattr(writing, "facts_of", None)
    with pytest.raises(fb.ReportError, match=words_):
        fit.report(tmp_path / "report.html", tables=given)


def test_narrow_screens_leave_out_columns_and_no_line_of_the_program_is_cut(text):
    style, media = text.partition("</style>")[0].partition("@media screen and (max-width: 34rem)")[::2]
    narrow = media.partition("@media print")[0]
    assert re.search(r"pre \{[^}]*white-space: pre-wrap", style)
    assert ".less { display: none; }" in narrow
    table = section(text, "posterior").find(".//table")
    for row in table.iter("tr"):
        kept = [cell for cell in row if "less" not in cell.get("class", "").split()]
        assert len(kept) == 4  # the name, and three quantiles
    left_out = "".join(table.find("caption/span").itertext())
    assert left_out == " (on a wider screen and on paper also mean, error of mean, sd, R-hat, effective)"


def test_a_fit_saved_by_an_earlier_version_has_a_report_that_trusts_it_not(stored_fits, tmp_path):
    """It had neither its own words nor its error in the folder."""
    old = tmp_path / "old"
    shutil.copytree(stored_fits.HERE / "linear", old)
    meta = json.loads((old / "fit.json").read_text())
    assert meta.pop("said")
    (old / "fit.json").write_text(json.dumps(meta))
    for name in ("error.nc", "conflict.nc"):
        (old / name).unlink()
    found = fb.load_fit(old).report(tmp_path / "report.html").read_text(encoding="utf-8")
    assert "should not be relied on as it is" in found
    assert "was not saved with this fit" in found


def test_a_path_that_can_not_be_is_refused_before_anything_is_done(fit, tmp_path, monkeypatch):
    monkeypatch.setattr(writing, "facts_of", None)
    monkeypatch.setattr(writing, "facts_in", None)
    with pytest.raises(fb.ReportError, match="is a folder; name a file in it"):
        fit.report(tmp_path)
    with pytest.raises(fb.ReportError, match=r"There is no folder '.*nowhere'"):
        fit.report(tmp_path / "nowhere" / "report.html")
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    with pytest.raises(ImportError, match=re.escape("pip install 'fedbayes[demo]'")):
        fit.report(tmp_path / "report.html")
    assert list(tmp_path.iterdir()) == []


def test_a_report_that_fails_leaves_the_old_one(fit, facts, tmp_path, monkeypatch):
    path = tmp_path / "report.html"
    path.write_text("the old one")
    monkeypatch.setattr(writing, "facts_of", lambda _: facts._replace(idata={}))
    with pytest.raises(KeyError, match="posterior"):
        fit.report(path)
    assert [(each.name, each.read_text()) for each in tmp_path.iterdir()] == [("report.html", "the old one")]
    monkeypatch.setattr(writing, "facts_of", lambda _: facts)
    fit.report(path)
    assert [each.name for each in tmp_path.iterdir()] == ["report.html"]
    assert path.read_text(encoding="utf-8").endswith("</html>\n")


def test_pictures_have_the_same_look_in_every_style(facts):
    rows = quantities_of(facts.idata, None, 9)[0]
    plain = figures.forest(rows)
    with matplotlib.rc_context({"axes.facecolor": "black", "text.color": "white", "font.size": 30.0}):
        assert figures.forest(rows) == plain
        assert matplotlib.rcParams["font.size"] == 30.0
