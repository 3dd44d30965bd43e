"""Disclosure rules on planted data: each finds what it is for, with the count, and nothing else."""

from dataclasses import replace

import jax.numpy as jnp
import numpy as np
import numpyro
import numpyro.distributions as dist
import pytest

import fedbayes as fb
from fedbayes.errors import ClientDataError
from fedbayes.models import heart_disease
from fedbayes.owner.columns import Roles
from fedbayes.owner.findings import findings_of
from fedbayes.owner.rules import Rule
from fedbayes.problem.data.reading import ClientArrays
from fedbayes.questions.summary import summary

ROWS = 200


def logistic(x, y=None):
    beta = numpyro.sample("beta", dist.Normal(0.0, 1.0).expand([x.shape[1]]).to_event(1))
    numpyro.sample("y", dist.Bernoulli(logits=x @ beta), obs=y)


def poisson(x, y=None):
    beta = numpyro.sample("beta", dist.Normal(0.0, 1.0).expand([x.shape[1]]).to_event(1))
    numpyro.sample("y", dist.Poisson(jnp.exp(x @ beta)), obs=y)


def by_ward(ward, y=None):
    level = numpyro.sample("level", dist.Normal(0.0, 1.0).expand([3]).to_event(1))
    numpyro.sample("y", dist.Normal(level[ward], 1.0), obs=y)


def clean() -> dict:
    """A measurement, a column of two values, and an outcome, with enough rows everywhere."""
    rng = np.random.default_rng(0)
    x = np.column_stack([rng.normal(size=ROWS), rng.integers(0, 2, ROWS)])
    return {"x": x, "y": rng.integers(0, 2, ROWS)}


def changed(change) -> dict:
    data = clean()
    change(data["x"], data["y"])
    return data


def set_dummy(x, rows, value=1.0, other=0.0):
    x[:, 1] = other
    x[rows, 1] = value


def told_by_dummy(x, y):
    x[:, 1] = np.arange(ROWS) < 20
    y[:20] = 1


def crossed(x, y):
    x[:, 1] = np.arange(ROWS) < 20
    y[:20], y[18:20] = 1, 0


def nearly_constant(x, y):
    x[:, 0] = 3.7
    x[:4, 0] = [1.0, 2.0, 4.0, 5.0]


def parted(x, y):
    y[:] = x[:, 0] > 0.3


def rare(x, y):
    y[:] = 0
    y[[3, 50]] = 1


PLANTED = {
    "one patient has it": (lambda x, y: set_dummy(x, [7]), [(Rule.CELL, "x[1]", 1, 1)]),
    "four have it not": (lambda x, y: set_dummy(x, [7, 8, 9, 11], 0.0, 1.0), [(Rule.CELL, "x[1]", 4, 1)]),
    "at any value": (lambda x, y: set_dummy(x, [7, 9], -2.3, 41.0), [(Rule.CELL, "x[1]", 2, 1)]),
    "two small cells": (lambda x, y: x.__setitem__((slice(3), 1), [5, 5, 6]), [(Rule.CELL, "x[1]", 1, 2)]),
    "with the outcome": (crossed, [(Rule.CROSS, "y by x[1]", 2, 1)]),
    "tells the outcome": (told_by_dummy, [(Rule.SEPARATION, "y by x[1]", 20, 1)]),
    "a threshold tells it": (parted, [(Rule.SEPARATION, "y by x[0]", ROWS, 1)]),
    "few have the outcome": (rare, [(Rule.RARE_OUTCOME, "y", 2, 1)]),
    "all have the outcome": (lambda x, y: y.fill(1), [(Rule.ALIKE, "y", ROWS, 1)]),
}


def found_in(model, data, **options):
    disclosed = fb.disclosure(model, {"north": data}, **options)
    return [(each.rule, each.column, each.size, each.cells) for each in disclosed.findings["north"]]


def test_nothing_is_found_where_nothing_is():
    assert found_in(logistic, clean()) == []
    found = fb.disclosure(logistic, {"north": clean(), "south": clean()})
    assert found.refused == ()
    assert repr(found).splitlines() == [
        "Disclosure: these rules find nothing in 2 clients.",
        "  looked at: outcome y; columns of x",
    ]


@pytest.mark.parametrize("case", PLANTED)
def test_what_is_planted_is_found(case):
    change, expected = PLANTED[case]
    assert found_in(logistic, changed(change)) == expected


def test_a_measurement_that_all_but_a_few_share_is_found():
    """With few different values it is a table; as a measurement it has a rule of its own."""
    few, many = (fb.DisclosureRules(few_values=number) for number in (10, 3))
    data = changed(nearly_constant)
    assert found_in(logistic, data, rules=few) == [(Rule.CELL, "x[0]", 1, 4)]
    assert found_in(logistic, data, rules=many) == [(Rule.NEARLY_CONSTANT, "x[0]", 4, 1)]


def test_five_rows_are_enough():
    five = changed(lambda x, y: (set_dummy(x, list(range(5))), y.__setitem__(slice(5), 1)))
    assert found_in(logistic, five, rules=fb.DisclosureRules(separation=False)) == []
    assert found_in(logistic, five) == [(Rule.SEPARATION, "y by x[1]", 5, 1)]
    assert found_in(logistic, five, rules=fb.DisclosureRules(smallest_cell=6)) == [(Rule.CELL, "x[1]", 5, 1)]


def test_counts_are_numbers_and_no_groups():
    data = clean()
    data["y"] = np.random.default_rng(1).poisson(1.0, ROWS)
    assert np.bincount(data["y"]).min() < 5
    assert found_in(poisson, data) == []
    data["y"] = np.where(np.arange(ROWS) < 3, [7, 2, 5] + [0] * (ROWS - 3), 0)
    assert found_in(poisson, data) == [(Rule.NEARLY_CONSTANT, "y", 3, 1)]


def test_an_index_of_the_model_is_a_table_whatever_its_levels():
    """The model can't be run with decimals in its place, which is how an index is told from a number."""
    y = np.random.default_rng(1).normal(size=ROWS)
    ward = np.arange(ROWS) % 40
    assert found_in(by_ward, {"ward": ward, "y": y}) == []
    ward[3] = 4
    assert found_in(by_ward, {"ward": ward, "y": y}) == [(Rule.CELL, "ward", 4, 1)]
    assert found_in(by_ward, {"ward": np.arange(ROWS) % 41, "y": y}) == [(Rule.LEVELS, "ward", 41, 1)]
    assert found_in(by_ward, {"ward": np.arange(60) % 30, "y": y[:60]}) == [(Rule.LEVELS, "ward", 30, 1)]


def test_rows_against_globals():
    data = {name: array[:6] for name, array in clean().items()}
    assert found_in(logistic, data, rules=fb.DisclosureRules(separation=False))[0] == (Rule.ROWS, "", 6, 1)
    assert found_in(logistic, data, rules=fb.DisclosureRules(1, 0.5, separation=False)) == []
    few = {name: array[:3] for name, array in clean().items()}
    assert found_in(logistic, few) == [(Rule.ROWS, "", 3, 1)]  # of which every cell would be small


def test_the_owner_lets_columns_pass():
    data = changed(lambda x, y: set_dummy(x, [7]))
    assert found_in(logistic, data, rules=fb.DisclosureRules(except_columns=("x[1]", "y by x[1]"))) == []
    # what passes by itself is still looked at together with an outcome
    passed = fb.disclosure(logistic, {"north": data}, rules=fb.DisclosureRules(except_columns=("x[1]", "x[sexx]")))
    assert [(each.rule, each.column) for each in passed.findings["north"]] == [(Rule.CROSS, "y by x[1]")]
    assert "of these the study has no column x[sexx]" in passed.looked_at
    frame = fb.disclosure(logistic, {"north": data}, columns={"x": ["age", "sex"]})
    assert [each.column for each in frame.findings["north"]] == ["x[sex]"]


def test_missing_values_are_one_value():
    data = changed(lambda x, y: x.__setitem__((slice(3), 1), np.nan))
    roles = Roles({"y": True})
    (found,) = findings_of(ClientArrays(data, {}), roles, 2, fb.DisclosureRules(), {})
    assert (found.rule, found.column, found.size, found.cells) == (Rule.CELL, "x[1]", 3, 1)


@pytest.mark.parametrize(
    ("limits", "told"),
    [
        ({"smallest_cell": 0}, r"`smallest_cell` is 0; write a whole number from 1 on\."),
        ({"few_values": 2.5}, r"`few_values` is 2\.5; write a whole number"),
        ({"globals_per_row": 0.0}, r"`globals_per_row` is 0\.0; write a positive number\."),
        ({"levels_per_row": "a third"}, r"`levels_per_row` is 'a third'; write a positive number"),
        ({"separation": 1}, r"`separation` is 1; write true or false"),
        ({"except_columns": "x[1]"}, r"`except_columns` is 'x\[1\]'; write names"),
    ],
)
def test_limits_out_of_range(limits, told):
    with pytest.raises(ValueError, match=told):
        fb.DisclosureRules(**limits)


@pytest.mark.parametrize(
    ("columns", "told"),
    [
        ({"z": ["age"]}, r"`columns` names 'z', which is no array: \['x', 'y'\]"),
        ({"x": ["age"]}, r"`columns\['x'\]` has 1 names, but `x` has the shape \(200, 2\)"),
        ({"x": "age"}, r"`columns\['x'\]` is 'age'; write a list of names"),
    ],
)
def test_names_that_fit_no_column(columns, told):
    with pytest.raises(ClientDataError, match=told):
        fb.disclosure(logistic, {"north": clean()}, columns=columns)


# the hospitals


def test_the_swiss_patient_appears():
    names = {"x": heart_disease.COORDS["coefficient"]}
    found = fb.disclosure(heart_disease.model, heart_disease.clients(), columns=names)
    assert found.refused == heart_disease.HOSPITALS
    assert ("switzerland", "46", "small cell", "x[cp_2]", "1 row") in found.table()
    lines = repr(found).splitlines()
    assert lines[0] == "Disclosure: by these rules 4 of 4 clients would not take part."
    assert ["switzerland", "46", "small", "cell", "x[cp_2]", "1", "row"] in [line.split() for line in lines]
    assert lines[-4].startswith("  small cell: Merge the value with another")
    assert ("switzerland", "46", "small cell", "neither x[cp_2] to x[cp_4]", "1 row") in found.table()
    assert ("va", "130", "small cell", "neither x[cp_2] to x[cp_4]", "3 rows") in found.table()
    assert found._repr_html_().count("<tr>") == 1 + len(found.table())


def test_the_careful_analyst_s_columns_pass_but_for_zurich():
    found = fb.disclosure(heart_disease.model, heart_disease.coarse_clients(), columns={"x": heart_disease.COARSE})
    assert found.refused == ("switzerland",)
    assert found.counts("switzerland") == {"small cell": 2, "rare outcome": 1}
    assert found.counts("va") == {}
    clients = heart_disease.coarse_clients()
    assert {name: len(data["y"]) for name, data in clients.items()} == {
        "cleveland": 303, "hungarian": 261, "switzerland": 46, "va": 125,
    }  # fmt: skip


def test_a_fit_says_who_would_refuse(small_fit):
    line = next(line for line in repr(small_fit).splitlines() if line.startswith("  owners"))
    refused = small_fit.disclosure().refused
    who = f"{len(refused)} of {len(small_fit.client_names)} clients ({', '.join(refused)})"
    told = "would not send this by the usual disclosure rules; here nothing was withheld: fit.disclosure()"
    assert line == f"  owners    {who} {told}"


def test_a_fit_that_all_would_take_part_in_says_nothing(small_fit, monkeypatch):
    monkeypatch.setattr("fedbayes.questions.summary.disclosure_of", lambda *_: fb.disclosure(logistic, {"a": clean()}))
    assert "  owners" not in summary(replace(small_fit.fitted, answers={}))


def test_a_fit_whose_model_can_not_be_run_any_more_can_be_printed(small_fit, monkeypatch):
    def broken(*_):
        raise NameError("name 'SCALE' is not defined")

    monkeypatch.setattr("fedbayes.questions.summary.disclosure_of", broken)
    assert "  owners" not in summary(replace(small_fit.fitted, answers={}))


# how outcomes, indices and rows are found


def observing(value):
    def program(x, y):
        beta = numpyro.sample("beta", dist.Normal(0.0, 1.0).expand([x.shape[1]]).to_event(1))
        numpyro.sample("o", dist.Bernoulli(logits=x @ beta), obs=value(x, y))

    return program


MADE = {
    "less one": (lambda x, y: y - 1, (ROWS,)),
    "as integers": (lambda x, y: y.astype(int) - 1, (ROWS,)),
    "a column": (lambda x, y: y[:, 0] - 1, (ROWS, 1)),
}


@pytest.mark.parametrize("case", MADE)
def test_an_outcome_is_found_whatever_is_made_of_it(case):
    value, shape = MADE[case]
    data = changed(told_by_dummy)
    found = found_in(observing(value), {**data, "y": (data["y"] + 1.0).reshape(shape)})
    assert [(rule, size) for rule, _, size, _ in found] == [(Rule.SEPARATION, 20)]


def test_outcomes_that_are_columns_of_a_table_with_the_covariates():
    def program(table):
        beta = numpyro.sample("beta", dist.Normal(0.0, 1.0).expand([2]).to_event(1))
        numpyro.sample("o", dist.Bernoulli(logits=table[:, :2] @ beta), obs=table[:, 2])

    data = changed(told_by_dummy)
    table = np.column_stack([data["x"], data["y"]])
    assert (Rule.SEPARATION, "table[2] by table[1]", 20, 1) in found_in(program, {"table": table})
    table[:, 1] = np.concatenate([[7.0], np.arange(ROWS - 1) % 3])
    assert (Rule.CELL, "table[1]", 1, 1) in found_in(program, {"table": table})


def test_no_outcome_is_said():
    def program(x, y):
        beta = numpyro.sample("beta", dist.Normal(0.0, 1.0).expand([2]).to_event(1))
        numpyro.factor("density", jnp.sum(dist.Bernoulli(logits=x @ beta).log_prob(y)))

    found = fb.disclosure(program, {"north": clean()})
    assert "no outcome, so nothing was looked at together with one" in repr(found)


def test_the_reference_level_of_dummies_is_a_cell():
    level = np.concatenate([[0], np.arange(ROWS - 1) % 3 + 1])
    x = (level[:, None] == np.array([1, 2, 3])).astype(float)
    y = np.random.default_rng(2).integers(0, 2, ROWS)
    expected = [(Rule.CELL, "neither x[0] to x[2]", 1, 1)]
    assert found_in(logistic, {"x": x, "y": y}) == expected
    assert found_in(logistic, {"x": (x - x.mean(axis=0)) / x.std(axis=0), "y": y}) == expected
    told = np.where(np.arange(ROWS) < 20, 0, level)
    x = (told[:, None] == np.array([1, 2, 3])).astype(float)
    y[:20] = 1
    assert found_in(logistic, {"x": x, "y": y}) == [(Rule.SEPARATION, "y by neither x[0] to x[2]", 20, 1)]


def test_arguments_of_another_length_are_looked_at():
    def program(x, subject, y):
        beta = numpyro.sample("beta", dist.Normal(0.0, 1.0).expand([2]).to_event(1))
        numpyro.sample("y", dist.Normal((x @ beta)[subject], 1.0), obs=y)

    rng = np.random.default_rng(0)
    x = np.column_stack([rng.normal(size=20), np.arange(20) < 1])
    data = {"x": x, "subject": np.repeat(np.arange(20), 10), "y": rng.normal(size=ROWS)}
    assert (Rule.CELL, "x[1]", 1, 1) in found_in(program, data)


@pytest.mark.parametrize("local", [True, False])
def test_an_index_of_local_latents_alone_is_no_group(local):
    """Their entries never leave the client."""

    def program(person, y):
        mu = numpyro.sample("mu", dist.Normal(0.0, 1.0))
        own = numpyro.sample("own", dist.Normal(mu, 1.0).expand([50]).to_event(1))
        numpyro.sample("y", dist.Normal(own[person], 1.0), obs=y)

    data = {"person": np.repeat(np.arange(50), 4), "y": np.random.default_rng(0).normal(size=ROWS)}
    found = fb.disclosure(program, {"north": data}, local=("own",) if local else ())
    rules = [each.rule for each in found.findings["north"]]
    assert rules == ([] if local else [Rule.LEVELS])
    assert ("not looked at: person" in found.looked_at) == local


LAWS = {
    "Poisson": (lambda rate: dist.Poisson(jnp.exp(rate)), False),
    "masked": (lambda rate: dist.Poisson(jnp.exp(rate)).mask(True), False),
    "event": (lambda rate: dist.Poisson(jnp.exp(rate)).to_event(1), False),
    "binomial": (lambda rate: dist.Binomial(10, logits=rate), False),
    "normal": (lambda rate: dist.Normal(rate, 1.0), False),
    "categories": (lambda rate: dist.Categorical(logits=rate[:, None] * jnp.arange(8.0)), True),
}


@pytest.mark.parametrize("law", LAWS)
def test_only_categories_are_groups(law):
    """A count of seven, and a measurement rounded to whole numbers, say no more of a row than its neighbours do."""
    make, grouped = LAWS[law]

    def program(x, y):
        beta = numpyro.sample("beta", dist.Normal(0.0, 1.0).expand([2]).to_event(1))
        numpyro.sample("y", make(x @ beta), obs=y)

    data = clean()
    data["y"] = np.concatenate([[7, 6, 6], np.arange(ROWS - 3) % 6])
    expected = [(Rule.RARE_OUTCOME, "y", 1, 2)] if grouped else []
    assert [each for each in found_in(program, data) if each[0] is not Rule.CROSS] == expected


def test_few_rows_of_a_measurement_are_no_table():
    rng = np.random.default_rng(0)
    data = {"x": rng.normal(size=(10, 2)), "y": np.arange(10) % 2}
    assert found_in(logistic, data) == []


def test_a_notebook_shows_as_many_lines_as_a_terminal():
    x = np.zeros((ROWS, 100))
    x[0] = 1.0
    found = fb.disclosure(logistic, {"north": {"x": x, "y": np.arange(ROWS) % 2}})
    assert len(found.table()) >= 100
    assert found._repr_html_().count("<tr>") == 41
    assert "more findings: `.table()` has all." in found._repr_html_()
