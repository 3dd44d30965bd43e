"""A regression of an agreement alone is the one of the clients' rows, to the last bit; and no other file is taken."""

import json

import numpy as np
import numpyro.distributions as dist
import pandas as pd
import pytest

import fedbayes as fb

RNG = np.random.default_rng(1)
ROWS = 240
FRAME = pd.DataFrame({
    "y": RNG.normal(3.0, 2.0, ROWS), "x": RNG.normal(50.0, 10.0, ROWS), "z": RNG.random(ROWS) + 0.1,
    "sex": RNG.choice(["f", "m"], ROWS), "ward": RNG.choice(list("123"), ROWS), "k": RNG.integers(0, 3, ROWS),
    "stage": RNG.choice(["I", "II", "III"], ROWS), "sick": RNG.choice(["no", "yes"], ROWS),
    "days": RNG.exponential(30.0, ROWS) + 0.1, "event": RNG.integers(0, 2, ROWS),
    "site": np.repeat(["north", "south", "west"], [40, 80, 120]),
})  # fmt: skip
CASES = {
    "numbers": ("y ~ x + I(z ** 2)", {}),
    "levels": ("y ~ sex * x + C(k, Sum) + C(stage, Treatment('II'))", {}),
    "scale": ("scale(y) ~ scale(x) + center(z):sex", {}),
    "spline": ("y ~ bs(x, df=5) + z", {}),
    "polynomial": ("y ~ poly(x, 3) + poly(z, 2, raw=True)", {}),
    "survival with pieces": ("Surv(days, event) ~ x + sex", {"family": "piecewise_exponential"}),
    "survival with declared pieces": ("Surv(days, event) ~ x", {"family": "weibull"}),
    "pieces with ends": ("Surv(days, event) ~ x", {"family": "piecewise_exponential", "ends": [10, 40]}),
    "partial likelihood": (
        "Surv(days, event) ~ x + sex + (0 + x | site) + (1 | stage)",
        {"family": "cox", "levels": {"stage": ["I", "II", "III"]}},
    ),
    "cumulative": ("stage ~ x + sex", {"family": "cumulative", "levels": {"stage": ["I", "II", "III"]}}),
    "categorical": ("stage ~ x", {"family": "categorical"}),
    "two levels": ("sick ~ x + sex", {"family": "bernoulli"}),
    "groups": ("y ~ x + (1 + x | site) + (1 | site:ward)", {}),
    "groups that cross": ("y ~ (1 | stage) + offset(log(z))", {"levels": {"stage": ["III", "II", "I"]}}),
    "two formulas": ({"mu": "y ~ x", "sigma": "~ sex + scale(z)"}, {}),
    "a prior": ("y ~ x", {"priors": {"x": dist.Normal(0.0, 0.25)}}),
    "weights": ("k | weights(z) ~ x", {"family": "poisson"}),
}


def tables():
    return dict(iter(FRAME.drop(columns="site").groupby(FRAME["site"])))


@pytest.fixture
def saved(tmp_path):
    """A saved agreement on ``y ~ x + sex``."""
    path = tmp_path / "agreed.json"
    fb.regression("y ~ x + sex", clients=tables()).agreed.save(path)
    return path


@pytest.mark.parametrize("case", CASES)
def test_a_saved_agreement_makes_the_same_regression(case, tmp_path):
    formula, options = CASES[case]
    clients = tables()
    expected = fb.regression(formula, clients=clients, **options)
    expected.agreed.save(tmp_path / "agreed.json")
    found = fb.regression(formula, agreed=tmp_path / "agreed.json", **options)
    assert found.source == expected.source
    assert found.coords == expected.coords
    assert found.dims == expected.dims
    assert found.terms == expected.terms
    assert found.notes == expected.notes
    assert found._written == expected._written
    assert dict(found.clients) == {}
    for name, table in clients.items():
        arrays = found.arguments(name, table, outcome=True)
        assert arrays.keys() == expected.clients[name].keys()
        for key, array in arrays.items():
            np.testing.assert_array_equal(array, expected.clients[name][key])


def test_an_agreement_saved_twice_is_the_same_file(saved, tmp_path):
    fb.Agreed.load(saved).save(tmp_path / "again.json")
    assert (tmp_path / "again.json").read_bytes() == saved.read_bytes()


def test_the_file_can_be_read_by_a_person(saved):
    told = json.loads(saved.read_text())
    assert told["formula"] == {"mu": "y ~ x + sex"}
    assert told["levels"] == {"sex": {level: [n, 3] for level, n in FRAME["sex"].value_counts().sort_index().items()}}
    assert told["columns"]["mu"]["means"][0] == pytest.approx(FRAME["x"].mean())
    assert told["outcome"]["sd"] == pytest.approx(FRAME["y"].std())
    assert len(saved.read_text()) < 2000


def test_rows_of_clients_can_come_beside_an_agreement(saved):
    found = fb.regression("y ~ x + sex", agreed=saved, clients=tables())
    expected = fb.regression("y ~ x + sex", clients=tables())
    np.testing.assert_array_equal(found.clients["west"]["x"], expected.clients["west"]["x"])
    assert "clients: 3, rows 40 to 120" in repr(found)


def test_other_rows_do_not_move_what_was_agreed(saved):
    """The planted mistake would be to centre a client's rows at their own mean."""
    reg = fb.regression("y ~ x + sex", agreed=saved)
    rows = tables()["west"]
    found = reg.arguments("west", rows.assign(x=rows["x"] + 7.0), outcome=True)
    np.testing.assert_allclose(found["x"][:, 0], rows["x"] + 7.0 - FRAME["x"].mean(), rtol=1e-12)


def test_without_clients_it_says_how_many_agreed_and_refuses_to_fit(saved):
    reg = fb.regression("y ~ x + sex", agreed=saved)
    assert "agreed on by 3 clients with 240 rows in all" in repr(reg)
    with pytest.raises(fb.ClientDataError, match="made of an agreement, and has no clients"):
        reg.fit(key=None)


def test_rows_that_lack_a_value_are_left_out_at_a_site_as_they_were_agreed_on(tmp_path):
    clients = {name: rows.assign(x=rows["x"].where(rows["x"] > 35.0)) for name, rows in tables().items()}
    expected = fb.regression("y ~ x", clients=clients, missing="drop")
    expected.agreed.save(tmp_path / "agreed.json")
    found = fb.regression("y ~ x", agreed=tmp_path / "agreed.json").arguments("west", clients["west"], outcome=True)
    np.testing.assert_array_equal(found["x"], expected.clients["west"]["x"])
    assert len(found["y"]) == clients["west"]["x"].notna().sum()


AT_A_SITE = {
    "a column that is not there": (lambda rows: rows.drop(columns="x"), "'west' has no such column"),
    "text for numbers": (lambda rows: rows.assign(x="old"), r"column 'x' holds text \('old'\)"),
    "a level that was not agreed on": (
        lambda rows: rows.assign(sex=["d", *rows["sex"][1:]]),
        "1 of 120 rows have a level of 'sex' that is none of the declared ones, such as 'd'",
    ),
    "missing values": (lambda rows: rows.assign(x=[None, None, *rows["x"][2:]]), "column 'x' lacks 2 of 120 values"),
    "no outcome": (lambda rows: rows.drop(columns="y"), "names 'y', and client 'west' has no such column"),
}


@pytest.mark.parametrize("case", AT_A_SITE)
def test_bad_rows_are_refused_at_the_site_by_count(case, saved):
    spoil, words = AT_A_SITE[case]
    reg = fb.regression("y ~ x + sex", agreed=saved)
    with pytest.raises((fb.ClientDataError, fb.FormulaError), match=words):
        reg.arguments("west", spoil(tables()["west"]), outcome=True)


OTHER = {
    "formula": ({"formula": "y ~ x"}, "The formula is 'y ~ x', and was 'y ~ x \\+ sex' when the clients agreed"),
    "family": ({"family": "student"}, "The family is student, and was gaussian"),
    "levels of no column": ({"levels": {"zzz": []}}, "`levels` names 'zzz', which is no column of the formula"),
    "no levels": ({"levels": {"sex": []}}, r"`levels\['sex'\]` is empty"),
    "levels": ({"levels": {"sex": ["m", "f"]}}, r"The levels of 'sex' are \['m', 'f'\], and were \['f', 'm'\]"),
    "site": ({"site": "hospital"}, "`site` is 'hospital', and was 'site'"),
    "missing": ({"missing": "drop"}, "`missing` is 'drop', and was 'refuse'"),
    "a further formula": (
        {"formula": {"mu": "y ~ x + sex", "sigma": "~ x"}},
        "The formula of sigma is '~ x', and was 'none' when the clients agreed",
    ),
}


@pytest.mark.parametrize("case", OTHER)
def test_another_regression_than_the_one_agreed_on_is_refused(case, saved):
    changed, words = OTHER[case]
    options = {"formula": "y ~ x + sex", **changed}
    with pytest.raises(fb.FormulaError, match=words):
        fb.regression(options.pop("formula"), agreed=saved, **options)


def test_blanks_in_a_formula_do_not_matter(saved):
    assert fb.regression("y  ~  x +\n sex", agreed=saved).terms == ("x", "sex")


def test_other_ends_of_pieces_are_refused(tmp_path):
    options = {"family": "piecewise_exponential"}
    fb.regression("Surv(days, event) ~ x", clients=tables(), ends=[10, 40], **options).agreed.save(tmp_path / "a.json")
    with pytest.raises(fb.FormulaError, match=r"options are \{'ends': \[10, 41\]\}, and were \{'ends': \[10, 40\]\}"):
        fb.regression("Surv(days, event) ~ x", agreed=tmp_path / "a.json", ends=[10, 41], **options)


def test_a_folder_that_is_not_there_is_named(tmp_path):
    with pytest.raises(fb.FormulaError, match=r"there is no folder '.*nowhere'\. Make it first"):
        fb.regression("y ~ x", clients=tables()).agreed.save(tmp_path / "nowhere" / "a.json")


def test_another_prior_than_the_one_given_then_is_refused(tmp_path):
    fb.regression("y ~ x", clients=tables(), priors={"x": dist.Normal(0.0, 0.25)}).agreed.save(tmp_path / "a.json")
    with pytest.raises(fb.FormulaError, match=r"prior of 'x' is the default, and was dist\.Normal"):
        fb.regression("y ~ x", agreed=tmp_path / "a.json")


TAMPERED = {
    "a number": lambda told: told["columns"]["mu"]["means"].__setitem__(0, 0.0),
    "the order of levels": lambda told: told.update(levels={"sex": dict(reversed(told["levels"]["sex"].items()))}),
    "a part left out": lambda told: told.pop("outcome"),
}


@pytest.mark.parametrize("case", TAMPERED)
def test_a_file_that_was_changed_is_refused(case, saved):
    told = json.loads(saved.read_text())
    TAMPERED[case](told)
    saved.write_text(json.dumps(told))
    with pytest.raises(fb.FormulaError, match="was changed after it was saved"):
        fb.Agreed.load(saved)


FOREIGN = {
    "text": (b"hello", "is no file of JSON"),
    "bytes": (b"\xff\xfe\x00", "is no file of JSON"),
    "other JSON": (b'{"a": 1}', "is no agreement on a regression"),
    "no number": (b'{"format": 1, "sha256": "", "formula": {}, "columns": NaN}', "is no file of JSON"),
    "nested without end": (b"[" * 100_000, "is no file of JSON"),
    "a list": (b"[1, 2]", "is no agreement on a regression"),
    "another format": (b'{"format": 99, "sha256": "", "formula": {}, "columns": {}}', "saved by another version"),
}


@pytest.mark.parametrize("case", FOREIGN)
def test_a_foreign_file_is_refused(case, tmp_path):
    content, words = FOREIGN[case]
    (tmp_path / "a.json").write_bytes(content)
    with pytest.raises(fb.FormulaError, match=words):
        fb.regression("y ~ x", agreed=tmp_path / "a.json")


def test_a_file_that_is_not_there_is_named(tmp_path):
    with pytest.raises(fb.FormulaError, match=r"'.*gone\.json' can't be read: No such file"):
        fb.Agreed.load(tmp_path / "gone.json")


def test_neither_rows_nor_an_agreement_is_refused():
    with pytest.raises(fb.FormulaError, match="needs `clients=`, from whose rows it is agreed on, or `agreed=`"):
        fb.regression("y ~ x")


def test_an_agreement_of_another_type_is_refused():
    with pytest.raises(fb.FormulaError, match=r"`agreed` is a dict; write `reg.agreed`"):
        fb.regression("y ~ x", agreed={})
