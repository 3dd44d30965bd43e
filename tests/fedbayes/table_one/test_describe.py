"""A table 1 has pandas' numbers, and hides what few rows would tell of."""

import math

import numpy as np
import pandas as pd
import pytest

import fedbayes as fb

RNG = np.random.default_rng(2)
ROWS = 300
FRAME = pd.DataFrame({
    "age": RNG.normal(55.0, 9.0, ROWS), "bmi": np.where(RNG.random(ROWS) < 0.1, np.nan, RNG.normal(25.0, 4.0, ROWS)),
    "sex": RNG.choice(["f", "m"], ROWS), "sick": RNG.integers(0, 2, ROWS),
    "stage": np.where(RNG.random(ROWS) < 0.1, None, RNG.choice(["I", "II", "III"], ROWS, p=[0.5, 0.3, 0.2])),
    "site": np.repeat(["north", "south", "west"], [60, 90, 150]),
})  # fmt: skip
ALL = "all clients"
OPEN = fb.DisclosureRules(smallest_cell=1)


def tables(frame=FRAME):
    return dict(iter(frame.drop(columns="site").groupby(frame["site"])))


def groups():
    return {**tables(), ALL: FRAME}


def test_means_sds_and_missing_values_are_those_of_pandas():
    found = fb.describe(tables(), rules=OPEN)
    for name in ("age", "bmi"):
        for group, rows in groups().items():
            summary = found.numbers[name][group]
            assert summary.rows == rows[name].count()
            assert summary.missing == rows[name].isna().sum()
            assert summary.mean == pytest.approx(rows[name].mean(), rel=1e-12)
            assert summary.sd == pytest.approx(rows[name].std(), rel=1e-10)


def test_quartiles_are_those_of_pandas_to_a_bin():
    found = fb.describe(tables(), rules=OPEN)
    for group, rows in groups().items():
        for quartile, level in zip(found.numbers["age"][group].quartiles, (0.25, 0.5, 0.75), strict=True):
            near = np.sort(rows["age"])
            place = level * len(near)
            low, high = near[max(0, int(place) - 1)], near[min(len(near) - 1, int(place) + 1)]
            assert low - FRAME["age"].std() / 20 <= quartile <= high + FRAME["age"].std() / 20


def test_quartiles_are_within_what_mean_and_sd_leave_possible():
    """Rows that are all alike have their value, where a bin's ends would give numbers a little below and above."""
    alike = {"x": np.zeros(30)}
    described = fb.describe({"alike": alike, "other": {"x": RNG.exponential(40.0, 60)}})
    assert "-0" not in repr(described)
    found = described.numbers["x"]
    assert found["alike"].sd == 0.0
    assert found["alike"].quartiles == pytest.approx((0.0, 0.0, 0.0), abs=1e-12)
    rare = {"x": np.where(np.arange(1000) < 6, 90.0, 7.0) + 1e-3 * np.arange(1000)}
    summary = fb.describe({"rare": rare, "other": {"x": RNG.normal(0.0, 500.0, 60)}}, rules=OPEN).numbers["x"]["rare"]
    truth = np.quantile(rare["x"], (0.25, 0.5, 0.75))
    sd = summary.sd
    assert (np.abs(np.asarray(summary.quartiles) - summary.mean) <= np.array([3.0**0.5, 1.0, 3.0**0.5]) * sd).all()
    assert (np.abs(truth - summary.quartiles) < 500.0 / 20).all()


def test_one_row_is_its_own_quartiles():
    found = fb.describe({"one": {"x": [3.7]}, "other": {"x": RNG.normal(size=40)}}, rules=OPEN).numbers["x"]["one"]
    assert found.quartiles == pytest.approx((3.7, 3.7, 3.7))


def test_levels_that_are_true_here_and_one_there_are_not_counted_apart():
    flag = np.arange(40) % 2
    clients = {"a": {"flag": flag == 1}, "b": {"flag": flag}}
    with pytest.raises(fb.ClientDataError, match="'flag' holds True and False at client 'a', and other values at"):
        fb.describe(clients, columns=["flag"])


def test_counts_of_levels_are_those_of_pandas():
    found = fb.describe(tables(), rules=OPEN)
    for group, rows in groups().items():
        assert found.levels["sex"][group].counts == rows["sex"].value_counts().to_dict()
        assert found.levels["stage"][group].counts == rows["stage"].value_counts().to_dict()
        assert found.levels["stage"][group].missing == rows["stage"].isna().sum()
        assert found.levels["sick"][group].counts == {str(k): n for k, n in rows["sick"].value_counts().items()}


def test_one_table_with_a_column_of_clients_says_the_same():
    assert fb.describe(FRAME).table() == fb.describe(tables()).table()


def test_without_clients_there_is_one_column_of_the_same_sums():
    by_client, alone = fb.describe(tables(), rules=OPEN), fb.describe(tables(), rules=OPEN, by_client=False)
    assert list(alone.rows) == [ALL]
    assert alone.levels["stage"][ALL] == by_client.levels["stage"][ALL]
    assert alone.numbers["age"][ALL].quartiles == by_client.numbers["age"][ALL].quartiles


def test_printed_it_is_a_table_one():
    lines = repr(fb.describe(tables(), columns=["age", "stage"])).splitlines()
    assert lines[0].split() == ["north", "south", "west", "all", "clients"]
    assert lines[1].split() == ["rows", "60", "90", "150", "300"]
    assert lines[2].startswith("age, mean (sd)")
    assert f"{FRAME['age'].mean():.1f} ({FRAME['age'].std():.1f})" in lines[2]
    count = (FRAME["stage"] == "I").sum()
    assert f"{count} ({100 * count / FRAME['stage'].count():.1f}%)" in lines[5]
    assert lines[8].startswith("  missing")
    assert lines[-1] == "quartiles are exact to a twentieth of the sd over all clients"


def test_as_a_frame_it_has_the_numbers():
    frame = fb.describe(tables(), columns=["age", "sex"], rules=OPEN).to_pandas()
    assert frame.loc[("age", "mean"), "south"] == pytest.approx(tables()["south"]["age"].mean())
    assert frame.loc[("sex", "f"), ALL] == (FRAME["sex"] == "f").sum()
    assert frame.loc[("rows", ""), "west"] == 150


def with_rare():
    """A level that two rows of the first client have, and many of the others'."""
    rare = np.zeros(ROWS, dtype=object)
    rare[:] = "no"
    rare[[0, 1, *range(60, 90), *range(160, 200)]] = "yes"
    return FRAME.assign(rare=rare)


def test_a_small_cell_is_hidden_and_can_t_be_subtracted():
    found = fb.describe(with_rare(), columns=["rare"]).levels["rare"]
    assert found["north"].counts == {"no": None, "yes": None}
    hidden = [name for name in ("south", "west") if found[name].counts["yes"] is None]
    assert len(hidden) == 1
    assert found[hidden[0]].counts["no"] is None
    assert found[ALL].counts == {"no": 228, "yes": 72}


def test_the_limit_is_the_owners():
    shown = fb.describe(with_rare(), columns=["rare"], rules=fb.DisclosureRules(smallest_cell=2))
    assert shown.levels["rare"]["north"].counts == {"no": 58, "yes": 2}
    assert shown.hidden == 0


def test_what_is_hidden_is_said():
    found = fb.describe(with_rare(), columns=["rare"])
    assert found.hidden == 4
    assert "–: hidden, since fewer than 5 rows would be told of, by themselves or by subtraction" in repr(found)
    assert "hidden" not in repr(fb.describe(FRAME, columns=["sex"]))


def test_a_number_with_few_values_is_hidden_as_levels_are():
    """The mean of zeros and two ones says how many ones there are."""
    found = fb.describe(with_rare().assign(rare=lambda frame: (frame["rare"] == "yes") * 1), columns=["rare"])
    assert found.levels["rare"]["north"].counts == {"0": None, "1": None}


def test_a_mean_of_few_rows_is_hidden_with_another_one():
    few = FRAME.assign(age=FRAME["age"].where((FRAME["site"] != "north") | (FRAME.index < 3)))
    found = fb.describe(few, columns=["age"]).numbers["age"]
    assert math.isnan(found["north"].mean)
    assert math.isnan(found["south"].mean)  # north's would be what all have less the two others
    assert found["west"].mean == pytest.approx(tables()["west"]["age"].mean())
    assert found[ALL].mean == pytest.approx(few["age"].mean())
    assert (found["north"].rows, found["north"].missing) == (3, 57)


def test_a_mean_of_rows_that_are_nearly_all_alike_is_hidden():
    counts = np.where(FRAME["site"] == "north", 0.0, FRAME["age"])
    counts[:2] = [7.0, 9.0]
    found = fb.describe(FRAME.assign(n=counts), columns=["n"]).numbers["n"]
    assert math.isnan(found["north"].mean)
    assert math.isnan(found["south"].mean)


def test_names_of_rare_levels_are_not_told_unless_declared():
    frame = FRAME.assign(stage=["V", "VI", *FRAME["stage"][2:]])
    found = fb.describe(frame, columns=["stage"])
    assert list(found.levels["stage"][ALL].counts) == ["I", "II", "III", "(other levels)"]
    declared = fb.describe(frame, columns=["stage"], levels={"stage": ["I", "II", "III", "V", "VI"]})
    assert list(declared.levels["stage"][ALL].counts) == ["I", "II", "III", "V", "VI"]
    assert declared.levels["stage"][ALL].counts["V"] is None


def test_a_client_without_any_value_has_an_empty_cell():
    empty = FRAME.assign(age=FRAME["age"].where(FRAME["site"] != "north"))
    found = fb.describe(empty, columns=["age"])
    assert found.numbers["age"]["north"] == found.numbers["age"]["north"]._replace(rows=0, missing=60)
    assert found.hidden == 0


def test_a_column_that_does_not_vary_is_described():
    found = fb.describe({"a": {"x": np.full(20, 3.3) + np.r_[np.zeros(10), np.full(10, 1e-15)]}}, rules=OPEN)
    assert found.rows == {ALL: 20}


def test_what_can_t_be_described_is_left_out_and_said():
    frame = FRAME.assign(name=[f"n{number}" for number in range(ROWS)], when=pd.Timestamp("2020-01-01"))
    clients = tables(frame)
    clients["north"]["own"] = 1.0
    own, name, when = fb.describe(clients).notes
    assert own == "'own' is left out, since not all clients have it."
    assert name.startswith("'name' is left out. It has 300 levels in 300 rows; declare `levels`")
    assert "column 'when' holds dates or times" in when


REFUSED = {
    "a column that is not there": ({"columns": ["agee"]}, r"Client 'north' has no column 'agee'.*'age'"),
    "text with many levels that was asked for": ({"columns": ["name"]}, "It has 300 levels in 300 rows"),
    "an undeclared level": ({"columns": ["sex"], "levels": {"sex": ["f"]}}, "have a level of 'sex' that is none of"),
}


@pytest.mark.parametrize("case", REFUSED)
def test_what_was_asked_for_and_can_t_be_told_is_refused(case):
    options, words = REFUSED[case]
    with pytest.raises(fb.ClientDataError, match=words):
        fb.describe(FRAME.assign(name=[f"n{number}" for number in range(ROWS)]), **options)


def test_another_kind_at_one_client_is_refused():
    clients = tables()
    clients["west"] = clients["west"].assign(age="old")
    with pytest.raises(fb.ClientDataError, match="'age' holds text at client 'west', and numbers at client 'north'"):
        fb.describe(clients, columns=["age"])


def test_a_client_of_the_name_of_all_is_refused():
    with pytest.raises(fb.ClientDataError, match="A client has the name 'all clients'"):
        fb.describe({ALL: FRAME})


def test_rules_are_rules():
    with pytest.raises(TypeError, match="`rules` is 5; write"):
        fb.describe(FRAME, rules=5)


def test_the_sd_of_large_numbers_is_that_of_their_differences():
    clients = {"a": {"x": 1e9 + np.arange(40.0)}, "b": {"x": 1e9 + 7.0 * np.arange(60.0)}}
    together = np.concatenate([each["x"] for each in clients.values()])
    found = fb.describe(clients, rules=OPEN).numbers["x"]
    for name, values in {**{k: v["x"] for k, v in clients.items()}, ALL: together}.items():
        assert found[name].sd == pytest.approx(values.std(ddof=1), rel=1e-9)
        assert found[name].mean == pytest.approx(values.mean(), rel=1e-15)


def test_a_mean_that_tells_of_few_rows_is_hidden_by_client_too():
    """Of 180 rows twelve are not zero: fewer than the limit, over all clients as at each."""
    values = np.zeros(60)
    values[:4] = 400.0 + np.arange(4.0)
    clients = {name: {"x": values + 0.001 * place * (values > 0)} for place, name in enumerate("abc")}
    rules = fb.DisclosureRules(smallest_cell=15)
    for by_client in (True, False):
        found = fb.describe(clients, rules=rules, by_client=by_client).numbers["x"]
        assert all(np.isnan(summary.mean) for summary in found.values())


MISTAKES = {
    "a text for columns": ({"columns": "age"}, r"`columns` is 'age'; write a list, \['age'\]"),
    "levels of no column": ({"levels": {"sexx": ["f", "m"]}}, "`levels` names 'sexx'.*Did you mean 'sex'"),
    "a text for levels": ({"levels": {"sex": "fm"}}, "The levels of 'sex' are 'fm'; write a list"),
    "a level left out": ({"levels": {"sex": ["f"]}}, "sex"),
}


@pytest.mark.parametrize("case", MISTAKES)
def test_mistakes_in_what_is_asked_for(case):
    options, words = MISTAKES[case]
    with pytest.raises(fb.ClientDataError, match=words):
        fb.describe(tables(), **options)


def test_a_level_called_missing_is_no_missing_value():
    clients = {"a": {"x": np.array(["missing"] * 9 + ["z"] * 9 + [None] * 5, object)}}
    frame = fb.describe(clients).to_pandas()
    assert frame.loc[("x", "missing"), ALL] == 9
    assert frame.loc[("x", "(missing)"), ALL] == 5
