"""A project whose study is an agreement: the apps find it, its dry run shows its sums, and its file makes the model."""

import importlib
import sys

import numpy as np
import pytest

import fedbayes as fb
from fedbayes.flower import client_app
from fedbayes.flower.dry_run import dry_run
from fedbayes.flower.programs import agreement_of
from fedbayes.flower.server import _agree
from fedbayes.flower.settings import Settings
from fedbayes.network.agreeing.site import AgreeingSite
from fedbayes.network.rehearsal import Rehearsal
from fedbayes.network.site import Site

AGREEMENT = """
import numpy as np
from fedbayes.network.agreeing.study import FormulaStudy

agreement = FormulaStudy("y ~ age + sex", levels={"sex": ["f", "m"]})


def load_data(config):
    rng = np.random.default_rng(len(config["site-id"]))
    return {"y": rng.normal(size=40), "age": rng.normal(50.0, 9.0, 40), "sex": np.array(["f", "m"] * 20)}
"""
FIT = """

reg = fb.regression("y ~ age + sex", agreed=FOLDER / "agreed.json")
model, method = reg.model, fb.EP(solver="laplace")
table = load_data


def load_data(config):
    return reg.arguments(config["site-id"], table(config), outcome=True)
"""


@pytest.fixture
def module(tmp_path, monkeypatch):
    """The name of a module that holds a study."""
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.delitem(sys.modules, "a_study_of_a_formula", raising=False)

    def written(text):
        (tmp_path / "a_study_of_a_formula.py").write_text(text)
        importlib.invalidate_caches()
        sys.modules.pop("a_study_of_a_formula", None)
        return "a_study_of_a_formula"

    return written


def sites(name, folder):
    app = client_app(name)
    return [app.open_site({"site-id": each, "state-dir": str(folder / each)}) for each in ("east", "north", "bern")]


def test_a_module_with_an_agreement_alone_is_an_agreement(module):
    assert agreement_of(module(AGREEMENT)).formula == "y ~ age + sex"
    assert agreement_of(module(AGREEMENT + "\nmodel = len\n")) is None
    assert agreement_of(len) is None


def test_a_module_that_reads_no_table_is_refused(module, tmp_path):
    with pytest.raises(TypeError, match="does not define load_data, which returns a site's table"):
        sites(module(AGREEMENT.partition("def load_data")[0]), tmp_path)


def test_from_agreement_to_fit_in_one_project(module, tmp_path):
    name = module(AGREEMENT)
    network = Rehearsal(*sites(name, tmp_path))
    assert all(isinstance(site, AgreeingSite) for site in network.sites.values())
    _agree(network, agreement_of(name), Settings(num_clients=3, output=str(tmp_path), join_timeout=2.0))
    agreed = fb.Agreed.load(tmp_path / "agreed.json")
    assert agreed.columns.counts == {"sex": {"f": (60, 3), "m": (60, 3)}}

    paths = f"from pathlib import Path\nimport fedbayes as fb\nFOLDER = Path({str(tmp_path)!r})\n"
    opened = sites(module(paths + AGREEMENT + FIT), tmp_path)
    assert all(isinstance(site, Site) for site in opened)
    assert opened[0].read_data()["x"].shape == (40, 2)
    np.testing.assert_allclose(sum(site.read_data()["x"].sum(axis=0) for site in opened), 0.0, atol=1e-9)


def test_a_dry_run_shows_the_sums_that_would_leave(module, tmp_path):
    leaving = dry_run(sites(module(AGREEMENT), tmp_path)[0])
    sums = {each.update: each for each in leaving if each.kind == "sum"}
    assert list(sums) == [
        "kinds of columns", "columns: levels and moments", "products of columns", "outcomes: moments and levels"
    ]  # fmt: skip
    assert all(each.form == "hidden" for each in sums.values())


def test_what_the_rules_find_in_the_table_is_shown(module, tmp_path):
    few = AGREEMENT.replace('["f", "m"] * 20', '["f"] * 2 + ["m"] * 38')
    found = sites(module(few), tmp_path)[0].disclosure()
    assert found.refused == ("east",)
    assert found.counts("east")["small cell"] == 1


def test_a_column_that_the_table_lacks_is_named_at_the_site(module, tmp_path):
    wrong = AGREEMENT.replace("y ~ age", "y ~ agee")
    with pytest.raises(fb.ClientDataError, match=r"'east' lacks \['agee'\], which the formula reads; .*'age'"):
        sites(module(wrong), tmp_path)[0].disclosure()
