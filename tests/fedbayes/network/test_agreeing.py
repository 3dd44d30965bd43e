"""An agreement over a network: by secure sums it is the one of all rows, and no message holds a site's number."""

import json
import re
import struct

import agreements
import jax
import numpy as np
import pandas as pd
import pytest

import fedbayes as fb
from fedbayes.errors import ResultCode
from fedbayes.formula.design.tables import Table
from fedbayes.network.agreeing.everybody import _kinds, flat, layout, nested
from fedbayes.network.agreeing.labels import labels_in, table_of
from fedbayes.network.agreeing.site import AgreeingSite
from fedbayes.network.agreeing.study import FormulaStudy
from fedbayes.network.client.journal import failures_told
from fedbayes.network.client.masks import Masks
from fedbayes.network.fit import fit_over
from fedbayes.network.messages import HIDDEN, pack, unpack
from fedbayes.network.rehearsal import Rehearsal
from fedbayes.network.site import Site
from fedbayes.network.study import Study
from fedbayes.rounds.wire import arrays_of, encode

RNG = np.random.default_rng(4)
ROWS = {"north": 61, "south": 83, "west": 97}
COUNT = sum(ROWS.values())
FRAME = pd.DataFrame({
    "age": RNG.normal(55.0, 9.0, COUNT), "sex": RNG.choice(["f", "m"], COUNT), "sick": RNG.integers(0, 2, COUNT),
    "stage": RNG.choice(["I", "II", "III"], COUNT), "y": RNG.normal(3.0, 2.0, COUNT),
    "days": RNG.exponential(30.0, COUNT) + 0.1, "event": RNG.integers(0, 2, COUNT), "pay": RNG.normal(4e6, 1e6, COUNT),
    "chol": np.where(RNG.random(COUNT) < 0.2, np.nan, RNG.normal(210.0, 30.0, COUNT)),
    "site": np.repeat(list(ROWS), list(ROWS.values())),
})  # fmt: skip
WARDS = np.where(FRAME["site"] == "south", RNG.choice(["b", "a"], COUNT), RNG.choice(["b", "a", "Höngg"], COUNT))
FRAME = FRAME.assign(
    ward=WARDS,
    late=pd.Categorical(WARDS, ["b", "a", "Höngg", "closed"]),
    own=pd.Categorical(WARDS, ["b", "a", "Höngg"]),
)
LEVELS = {"sex": ["f", "m"]}
STUDY = FormulaStudy("sick ~ age + sex", "bernoulli", LEVELS)
CASES = {
    "levels": STUDY,
    "scale": FormulaStudy("scale(y) ~ scale(age) + center(days):sex", levels=LEVELS),
    "spline and polynomial": FormulaStudy("y ~ bs(age, df=4) + poly(days, 2)"),
    "pieces": FormulaStudy("Surv(days, event) ~ age + sex", "piecewise_exponential", LEVELS),
    "partial likelihood": FormulaStudy(
        "Surv(days, event) ~ age + sex + (1 | stage)", "cox", LEVELS | {"stage": ["I", "II", "III"]}
    ),
    "cumulative": FormulaStudy("stage ~ age", "cumulative", {"stage": ["I", "II", "III"]}),
    "groups": FormulaStudy("y ~ age + (1 + age | site) + (1 | stage)", levels={"stage": ["I", "II", "III"]}),
    "two formulas": FormulaStudy({"mu": "y ~ age", "sigma": "~ sex"}, levels=LEVELS),
    "large numbers": FormulaStudy("y ~ pay"),
    "imputed": FormulaStudy("y ~ mi(chol) * sex", levels=LEVELS),
}
UNDECLARED = {
    "text that two of three sites have": FormulaStudy("y ~ age + sex * ward"),
    "a binary outcome of text": FormulaStudy("sex ~ age + ward", "bernoulli"),
    "categories as an outcome": FormulaStudy("ward ~ age", "categorical"),
    "coded numbers": FormulaStudy("y ~ C(event, contr.sum) + C(ward, Treatment('b'))"),
    "declared beside undeclared": FormulaStudy("y ~ sex + C(stage, levels=['III', 'II', 'I']) + ward", levels=LEVELS),
    "the same categories": FormulaStudy("y ~ late"),
    "categories that differ": FormulaStudy("y ~ own"),
    "two formulas with levels": FormulaStudy({"mu": "y ~ ward", "sigma": "~ sex"}),
    "a column that lacks values": FormulaStudy("y ~ holey", missing="drop"),
}
CASES |= UNDECLARED


def tables(frame=FRAME):
    found = dict(iter(frame.drop(columns="site").groupby(frame["site"])))
    found["south"] = found["south"].assign(own=found["south"]["own"].cat.set_categories(["a", "b"]))
    return {name: rows.assign(holey=rows["ward"].where(rows["age"] > 50.0)) for name, rows in found.items()}


def here(study, clients=None):
    return agreements.here(study, clients or tables())


@pytest.fixture
def network(tmp_path):
    def made(study=STUDY, clients=None, policy="", load=None):
        return agreements.network_of(tmp_path, study, clients or tables(), policy, load)

    return made


def over(network, study=STUDY, **options):
    return agreements.over(network, study, **options)


def apart(source):
    """A program's text without its numbers, and these: means in it are exact to a secure sum's resolution."""
    found = re.compile(r"-?\d+\.\d+(?:e-?\d+)?")
    return found.sub("#", source), np.array([float(each) for each in found.findall(source)])


@pytest.mark.parametrize("case", CASES)
def test_over_a_network_the_agreement_is_that_of_all_rows(case, network, tmp_path):
    study = CASES[case]
    found, expected = over(network(study), study), here(study)
    found.save(tmp_path / "agreed.json")
    options = {"family": study.family, **study.options}
    reg = fb.regression(study.formula, agreed=tmp_path / "agreed.json", **options)
    words, numbers = apart(reg.source)
    assert words == apart(expected.source)[0]
    np.testing.assert_allclose(numbers, apart(expected.source)[1], rtol=1e-8, atol=1e-12)
    assert reg.coords == expected.coords
    assert found.columns.counts == expected.agreed.columns.counts
    for name, table in tables().items():
        arrays = reg.arguments(name, table, outcome=True)
        for key, array in expected.clients[name].items():
            np.testing.assert_allclose(arrays[key], array, rtol=1e-8, atol=1e-8)


FITTED = {"levels": ("age", "sex", "Intercept"), "imputed": ("mi(chol)", "mi(chol)_mean", "sigma", "Intercept")}


@pytest.mark.parametrize("case", ["levels", pytest.param("imputed", marks=pytest.mark.slow)])
def test_a_fit_with_it_over_the_network_is_the_fit_in_one_process(case, network, tmp_path):
    agreeing = CASES[case]
    agreed = over(network(agreeing), agreeing)
    reg = fb.regression(agreeing.formula, family=agreeing.family, agreed=agreed)
    method = fb.Laplace(tolerance=1e-9)  # one search begins at the mean of the sites' modes, the other at zero
    study = Study(reg.model, method)
    sites = [
        Site(study, lambda config, rows=rows, name=name: reg.arguments(name, rows, outcome=True),
             {"site-id": name, "state-dir": str(tmp_path / name)})
        for name, rows in tables().items()
    ]  # fmt: skip
    options = {"key": jax.random.key(0), "num_draws": 50, "correct": False, "progress": False}
    there = fit_over(Rehearsal(*sites), study, num_clients=3, join_timeout=2.0, **options)
    alone = fb.fit_federated(here(agreeing).model, here(agreeing).clients, method=method, **options)
    for name in FITTED[case]:
        np.testing.assert_allclose(
            there.idata.posterior[name].to_numpy(), alone.idata.posterior[name].to_numpy(), rtol=1e-6, atol=1e-8
        )
    found, expected = there.summary_table(), alone.summary_table()
    assert found.draws["measure"].equals(expected.draws["measure"])
    np.testing.assert_allclose(found.draws, expected.draws, rtol=1e-6, atol=1e-8)


def told(network):
    """The arrays that sites have told."""
    for answer in network.answered:
        message = unpack(answer)
        if message.header["kind"] == "sum":
            yield message.header, arrays_of(message.body)


def numbers_in(network):
    """Every eight bytes of what was told, as decimals and as whole numbers in fixed point."""
    for _, arrays in told(network):
        for array in arrays.values():
            content = np.ascontiguousarray(array).tobytes()
            yield from struct.unpack(f"<{len(content) // 8}d", content[: len(content) // 8 * 8])
            yield from (
                word / 2.0**4 for word in struct.unpack(f"<{len(content) // 8}Q", content[: len(content) // 8 * 8])
            )


def test_with_secure_sums_no_message_holds_a_sites_count(network):
    recorded = network()
    over(recorded)
    counts = [float(n) for n in ROWS.values()]
    assert all(arrays.keys() == {HIDDEN, "code"} for _, arrays in told(recorded))
    assert len(list(told(recorded))) >= 9
    assert not set(counts) & set(numbers_in(recorded))


def test_the_search_for_counts_finds_them_where_they_leave_singly(network):
    recorded = network(policy="[sums]\nsingle = true\n")
    over(recorded, secure_sums=False)
    assert {float(n) for n in ROWS.values()} <= set(numbers_in(recorded))


def test_the_search_for_counts_finds_them_where_masks_are_left_off(network, monkeypatch):
    """The planted mistake."""
    monkeypatch.setattr(Masks, "hide", lambda masks, term, asked: term)
    recorded = network()
    assert over(recorded).columns.counts == here(STUDY).agreed.columns.counts
    assert {float(n) for n in ROWS.values()} <= set(numbers_in(recorded))


def test_the_same_numbers_come_out_singly_and_hidden(network):
    hidden = over(network())
    single = over(network(policy="[sums]\nsingle = true\n"), secure_sums=False)
    np.testing.assert_allclose(single.predictors[""].means, hidden.predictors[""].means, rtol=1e-14)


def test_a_scale_that_one_site_alone_is_told_leaves_its_mask_on(network):
    """Or the sum's lower digits would be that site's term, and the others' sum its upper ones."""
    recorded = network()
    send = recorded.send

    def tampered(requests, timeout):
        for address, request in requests.items():
            message = unpack(request)
            if address == 1 and message.header["kind"] == "sum":
                arrays = arrays_of(message.body)
                body = encode({"shared": {"scale": np.asarray(40)}})
                assert arrays.keys() == {"shared/scale"}  # the first sum, before any other is known
                request = pack(message.header, body)
            yield from send({address: request}, timeout)

    recorded.send = tampered
    with pytest.raises(fb.FederatedError, match="masks do not cancel"):
        over(recorded)


def test_two_sites_can_t_hide_and_are_asked_only_where_owners_let_them(network):
    clients = dict(list(tables().items())[:2])
    with pytest.raises(fb.FederatedError, match="lets only terms of secure sums leave"):
        over(network(clients=clients))


POLICIES = {
    "a privacy budget": ("[privacy]\nepsilon = 1.0\ndelta = 1e-5\n", "answers with noise alone"),
    "a limit on numbers": ("[answers]\nmost = 3\n", "would tell more numbers about its data"),
    "other methods": ('[answers]\nmethods = ["EP"]\n', "does not answer this study's method"),
    "more sites": ("[sums]\nfewest = 4\n", "wants more sites in a secure sum"),
    "larger cells": ("[disclosure]\nsmallest_cell = 60\n", r"disclosure rules.* \(small cell 1, rare outcome 1\)"),
}


@pytest.mark.parametrize("case", POLICIES)
def test_owners_policies_hold(case, network):
    policy, words = POLICIES[case]
    with pytest.raises(fb.FederatedError, match=words):
        over(network(policy=policy), join_timeout=0.5)


def test_an_owner_may_name_the_agreement_among_the_methods(network):
    assert over(network(policy='[answers]\nmethods = ["agreement"]\n')).num_clients == 3


def test_a_small_cell_at_one_site_keeps_it_out(network):
    clients = tables()
    clients["south"] = clients["south"].assign(sex=["m", "m", *["f"] * 81])
    with pytest.raises(fb.FederatedError, match=r"'south' takes no part: it is kept out .*small cell 1"):
        over(network(clients=clients), join_timeout=0.5)


def test_groups_within_a_site_may_be_small_since_their_labels_stay_there(network):
    study = FormulaStudy("y ~ age + (1 | site:ward)")
    clients = {name: rows.assign(ward=np.arange(len(rows)) // 40) for name, rows in tables().items()}
    clients["south"]["ward"] = np.where(np.arange(83) < 2, 0, 1)
    assert study.told == ("y", "age")
    assert over(network(study, clients), study).num_clients == 3


def test_every_answer_is_in_the_sites_journal(network):
    recorded = network()
    over(recorded)
    entries = list(recorded.sites[1].journal.entries())
    sums = [entry for entry in entries if entry.kind == "sum"]
    assert [entry.update for entry in sums[:2]] == ["kinds of columns", "columns: levels and moments"]
    assert all(entry.result == "hidden" and entry.numbers for entry in sums)


SPOILT = {
    "a missing column": (lambda rows: rows.drop(columns="age"), "its file lacks 'age', which the study reads"),
    "missing values": (lambda rows: rows.assign(age=np.nan), "has data that can't be used"),
    "dates for numbers": (lambda rows: rows.assign(age=pd.Timestamp("2020-01-01")), "has data that can't be used"),
    "an undeclared level": (lambda rows: rows.assign(sex="d"), "has data that can't be used"),
}


@pytest.mark.parametrize("case", SPOILT)
def test_bad_rows_are_the_sites_own_affair(case, network):
    spoil, words = SPOILT[case]
    clients = tables()
    clients["west"] = spoil(clients["west"])
    recorded = network(clients=clients)
    with pytest.raises(fb.FederatedError, match=words):
        over(recorded, join_timeout=0.5)
    (refusal,) = (answer for answer in map(unpack, recorded.answered) if answer.header["kind"] == "refusal")
    missing = {"missing": ["age"]} if case == "a missing column" else {}
    words = {"format": 1, "kind": "refusal", "site": "west", "reason": "DATA", "study": {}, "found": {}} | missing
    assert refusal == (words, b"")  # no row, and not how many there are


@pytest.mark.parametrize("formula", ["y ~ bs(age, df=4)", "y ~ log(age)", "age ~ y"])
def test_text_where_numbers_are_needed_is_the_sites_own_affair(formula, network, caplog):
    study, clients = FormulaStudy(formula), tables()
    clients["west"] = clients["west"].assign(age="old")
    with pytest.raises(fb.FederatedError, match="'west' has data that can't be used"):
        over(network(study, clients), study)
    assert "column 'age' holds text ('old')" in caplog.text


def test_rows_that_lack_a_value_are_left_out_at_each_site(network):
    study = FormulaStudy("y ~ age", missing="drop")
    clients = {name: rows.assign(age=rows["age"].where(rows["age"] > 45.0)) for name, rows in tables().items()}
    found = over(network(study, clients), study)
    assert found.columns.rows == here(study, clients).agreed.columns.rows
    assert found.notes == ("Rows that lack a value are left out; how many, each site knows.",)


def test_a_site_that_is_away_for_once_is_asked_again(network):
    recorded = network()
    sites, count = recorded.sites, []
    send = recorded.send

    def flaky(requests, timeout):
        count.append(1)
        kept, sites[2] = sites[2], None if len(count) == 2 else sites[2]
        yield from send(requests, timeout)
        sites[2] = kept

    recorded.send = flaky
    assert over(recorded).columns.counts == here(STUDY).agreed.columns.counts


def test_what_the_sums_say_is_refused_at_the_server(network):
    study = FormulaStudy("y ~ age + I(age * 2)")
    with pytest.raises(fb.ClientDataError, match="collinear"):
        over(network(study), study)


IMPOSSIBLE = {
    "an undeclared order": (("stage ~ age", "cumulative"), r"levels of 'stage' are not declared.*`levels=\{'stage'"),
    "labels of groups": (("y ~ (1 | ward)",), r"Write `\(... \| site:ward\)` for groups within a site"),
    "missing": (("y ~ age", "gaussian", {}, "site", "ignore"), "`missing` is 'ignore'"),
}


@pytest.mark.parametrize("case", IMPOSSIBLE)
def test_what_is_no_sum_is_refused_when_the_study_is_made(case):
    given, words = IMPOSSIBLE[case]
    with pytest.raises(fb.FormulaError, match=words):
        FormulaStudy(*given)


def test_another_formula_is_another_study(network):
    with pytest.raises(fb.FederatedError, match="built for another model"):
        over(network(), FormulaStudy("sick ~ age", "bernoulli", LEVELS), join_timeout=0.5)


def lying(network, change):
    """A network on which the first site's sums are changed on their way."""
    send = network.send

    def changed(requests, timeout):
        for address, answer in send(requests, timeout):
            message = unpack(answer)
            lies = address == 1 and message.header["kind"] == "sum"
            yield address, change(message) if lies else answer

    network.send = changed
    return network


def with_header(message, **told):
    return pack({**message.header, "told": {**message.header["told"], **told}}, message.body)


LIES = {
    "another layout": (lambda message: with_header(message, layout=[[["rows"], [1]]]), "can't be read"),
    "no shape": (lambda message: with_header(message, layout=[[["rows"], [-1]]]), "can't be read"),
    "more than there is": (
        lambda message: with_header(message, layout=[[["rows"], [1 << 19, 1 << 19]]]),
        "can't be read",
    ),
    "no name": (lambda message: with_header(message, layout=[[[], [7]]]), "can't be read"),
    "other names": (
        lambda message: with_header(
            message, layout=[[[*keys, "x"], n] for keys, n in message.header["told"]["layout"]]
        ),
        "The sites tell different numbers in 'kinds of columns'",
    ),
    "no arrays": (lambda message: pack(message.header), "can't be read"),
    "no bytes of ours": (lambda message: b"hello", "can't be read"),
}


@pytest.mark.parametrize("case", LIES)
def test_a_site_that_tells_nonsense_ends_the_run_with_its_name(case, network):
    change, words = LIES[case]
    with pytest.raises(fb.FederatedError, match=words):
        over(lying(network(), change))


ORDERS = {
    "a sum that is not the next": lambda header: {**header, "update": "outcomes: moments and levels"},
    "an order before its turn": lambda header: {**header, "order": 3},
    "sites without this one": lambda header: {**header, "charter": {**header["charter"], "names": ["a", "b", "c"]}},
}


@pytest.mark.parametrize("case", ORDERS)
def test_a_request_out_of_order_is_refused(case, network):
    recorded = network()
    send = recorded.send

    def changed(requests, timeout):
        for address, request in requests.items():
            message = unpack(request)
            if message.header["kind"] == "sum":
                request = pack(ORDERS[case](message.header), message.body)
            yield from send({address: request}, timeout)

    recorded.send = changed
    with pytest.raises(fb.FederatedError, match="was sent something else"):
        over(recorded)


def test_in_one_run_a_site_answers_to_the_same_others_alone(network):
    """Of sums over different sites the difference is one site's part."""
    recorded = network()
    over(recorded)
    requests = [unpack(each) for each in recorded.sent]
    message = [each for each in requests if each.header["kind"] == "sum"][-1]
    names, keys = message.header["charter"]["names"], message.header["charter"]["mask_keys"]
    fewer = {"names": names[:2], "mask_keys": keys[:2]}
    answer = unpack(
        recorded.sites[1].answer(pack({**message.header, "ticket": "0" * 32, "charter": fewer}, message.body))
    )
    assert answer.header["reason"] == "CHARTER"


def test_a_run_is_one_of_one_study(network):
    """A run that was counted for one study would not be counted for another, which so had more than its number."""
    recorded = network()
    over(recorded)
    message = unpack(next(each for each in recorded.sent if unpack(each).header["kind"] == "sum"))
    site = recorded.sites[1]
    other = AgreeingSite(FormulaStudy("sick ~ age * sex", "bernoulli", LEVELS), site._load_data, site._config)
    header = {**message.header, "study": other.study.digest, "ticket": "0" * 32}
    assert unpack(other.answer(pack(header, message.body))).header["reason"] == "CHARTER"


def test_the_same_masks_are_not_used_twice(network):
    recorded = network()
    over(recorded)
    again = next(each for each in recorded.sent if unpack(each).header["kind"] == "sum")
    assert unpack(recorded.sites[1].answer(again)).header["reason"] == "TICKET"


SPLINE = FormulaStudy("y ~ bs(age, df=4)")


def test_in_one_run_bins_are_placed_once(network):
    """Told another mean and sd, a site would count rows wherever a server likes."""
    recorded = network(SPLINE)
    over(recorded, SPLINE)
    message = next(each for each in map(unpack, recorded.sent) if "binned" in each.header.get("update", ""))
    arrays = {name: np.asarray(values) for name, values in arrays_of(message.body).items()}
    arrays["shared/0"] = arrays["shared/0"] * 1.01
    shared = {name.partition("/")[2]: values for name, values in arrays.items()}
    request = pack({**message.header, "ticket": "0" * 32}, encode({"shared": shared}))
    assert unpack(recorded.sites[1].answer(request)).header["reason"] == "FORMAT"


def test_binned_counts_leave_in_secure_sums_alone(network):
    open_to_single = "[sums]\nsingle = true\n"
    with pytest.raises(fb.FederatedError, match="lets only terms of secure sums leave"):
        over(network(SPLINE, policy=open_to_single), SPLINE, secure_sums=False)
    over(network(policy=open_to_single), secure_sums=False)  # of levels and moments single ones leave


def asked_anew(message, known, arrays, ticket="0" * 32, **header):
    """A request for a sum, with other names of the sums before it, and other sums."""
    told = {**message.header, "known": known, "order": len(known), "ticket": ticket, **header}
    shared = {**{str(place): each for place, each in enumerate(arrays)}, "scale": np.asarray(0)}
    return pack(told, encode({"shared": shared}))


@pytest.fixture
def binned(network):
    """A network, the request for binned counts in it, the name of the sum before it, and that sum."""
    recorded = network(SPLINE)
    over(recorded, SPLINE)
    message = next(each for each in map(unpack, recorded.sent) if "binned" in each.header.get("update", ""))
    (before,) = message.header["known"]
    return recorded, message, before, np.asarray(arrays_of(message.body)["shared/0"])


ATTACKS = {
    "a name that is no sum, before": lambda before, true, false: (["junk", before], [false, true]),
    "a name that is no sum, after": lambda before, true, false: ([before, "junk"], [true, false]),
    "a name twice": lambda before, true, false: ([before, before], [true, false]),
    "made-up sums": lambda before, true, false: ([before], [false]),
}


@pytest.mark.parametrize("case", ATTACKS)
def test_sums_before_are_those_of_the_agreement_alone(case, binned):
    """With further names one site would bin by the true sums and the others by false ones, under masks that cancel."""
    recorded, message, before, true = binned
    known, arrays = ATTACKS[case](before, true, true * 1.5)
    answer = unpack(recorded.sites[1].answer(asked_anew(message, known, arrays)))
    assert answer.header["reason"] == "FORMAT"


def test_masks_depend_on_which_sums_are_told_and_asked_for():
    """The same bytes under other names are another request."""
    from fedbayes.network.client.secure import _digest

    header = {"kind": "sum", "charter": {"names": ["a"]}, "known": ["one", "two"], "update": "three"}
    body = encode({"shared": {"0": np.zeros(2), "1": np.ones(2)}})
    request = unpack(pack(header, body))
    assert _digest(request, "t") == _digest(unpack(pack(header, body)), "t")
    for change in ({"known": ["two", "one"]}, {"update": "four"}):
        assert _digest(unpack(pack({**header, **change}, body)), "t") != _digest(request, "t")


def test_only_so_many_agreements_are_answered(binned, monkeypatch):
    """By bisection with made-up sums a server would find a number of everybody's."""
    monkeypatch.setattr("fedbayes.network.agreeing.site._MOST_RUNS", 3)
    recorded, message, before, true = binned
    reasons = []
    for place in range(4):
        run = f"{place:032x}"
        request = asked_anew(message, [before], [true], f"{place:032x}", run=run)
        reasons.append(unpack(recorded.sites[1].answer(request)).header.get("reason", "answered"))
    assert reasons == ["answered", "answered", "MOST", "MOST"]  # the one of the fixture counts, too


ROOTS = FormulaStudy("y ~ sqrt(center(age) + 100)")


@pytest.fixture
def youngest(network):
    """Asks a site whether its youngest patient is younger than some age, for which a mean is made up.

    Below that the root is no number, and the site refuses its table.
    """
    recorded = network(ROOTS)
    over(recorded, ROOTS)
    message = next(each for each in map(unpack, recorded.sent) if "products" in each.header.get("update", ""))
    (before,) = message.header["known"]
    true = np.asarray(arrays_of(message.body)["shared/0"])  # rows, sum and sum of squares, and rows
    tickets = (f"{number:032x}" for number in range(100))

    def asked(age, run, known=(before, "junk")) -> str:
        mean, rows = age + 100.0, true[0]
        made_up = [np.r_[rows * np.array([1.0, mean, mean**2 + 1.0]), true[3:]], np.zeros(1)][: len(known)]
        request = asked_anew(message, list(known), made_up, next(tickets), run=run)
        return unpack(recorded.sites[1].answer(request)).header["reason"]

    return asked


def test_a_refusal_of_the_table_by_made_up_sums_counts(youngest, monkeypatch):
    """Else a server would have the age of a site's youngest patient by bisection, in as many requests as it likes."""
    monkeypatch.setattr("fedbayes.network.agreeing.site._MOST_RUNS", 3)
    found = [youngest(age, f"{place:032x}") for place, age in enumerate((60.0, 10.0, 30.0, 40.0))]
    assert found == ["DATA", "FORMAT", "MOST", "MOST"]  # the one of the fixture counts, too


def test_a_sum_that_is_too_large_is_a_failure(network):
    """By made-up means a server chooses from where on it is: the site counts how often it tells so."""
    recorded = network(ROOTS)
    over(recorded, ROOTS)
    message = next(each for each in map(unpack, recorded.sent) if "products" in each.header.get("update", ""))
    true = np.asarray(arrays_of(message.body)["shared/0"])
    site, mean = recorded.sites[1], -1e13
    made_up = np.r_[true[0] * np.array([1.0, mean, 2.0 * mean**2]), true[3:]]
    assert failures_told(site.journal.entries()) == 0
    request = asked_anew(message, message.header["known"], [made_up], "0" * 32, run="0" * 32)
    assert arrays_of(unpack(site.answer(request)).body)["code"] == ResultCode.NOT_FINITE
    assert failures_told(site.journal.entries()) == 1


def test_in_one_run_a_sum_is_told_once_also_where_its_answer_is_a_refusal(youngest):
    assert youngest(60.0, "0" * 32) == "DATA"
    assert youngest(61.0, "0" * 32) == "FORMAT"
    assert youngest(60.0, "0" * 32) == "DATA"  # which tells nothing new


TEXT = FormulaStudy("y ~ age + ward")
ALONE = "Wipkingen"  # a label that one site alone has


def with_labels(**labels):
    """The tables with other wards at some sites."""
    found = tables()
    return found | {name: found[name].assign(ward=wards) for name, wards in labels.items()}


def alone():
    return with_labels(west=np.where(np.arange(97) < 30, ALONE, "a"))


def words_of(label, column):
    """The numbers of a label in its table, but for those that others may have as well."""
    return {word for word in table_of([label], column).ravel() if word > 1000.0}


def test_no_message_tells_whose_a_label_is(network):
    recorded = network(TEXT, alone())
    assert over(recorded, TEXT).columns.counts["ward"][ALONE] == (30, 1)
    answers = [unpack(answer) for answer in recorded.answered]
    sums = [message for message in answers if message.header["kind"] == "sum"]
    assert len(sums) == 15
    before = [message for message in answers if message not in sums[6:]]  # kinds, and labels
    assert not any(ALONE in json.dumps(message.header) or ALONE.encode() in message.body for message in before)
    for name in {message.header["order"] for message in sums}:  # all sites tell numbers of the same labels
        layouts = [message.header["told"]["layout"] for message in sums if message.header["order"] == name]
        assert layouts == [layouts[0]] * 3
    assert not words_of(ALONE, "ward") & set(numbers_in(recorded))


def test_the_search_for_a_label_finds_it_where_masks_are_left_off(network, monkeypatch):
    """The planted mistake."""
    monkeypatch.setattr(Masks, "hide", lambda masks, term, asked: term)
    recorded = network(TEXT, alone())
    over(recorded, TEXT)
    assert words_of(ALONE, "ward") & set(numbers_in(recorded))


LACKING = tables()["south"]["chol"].isna().to_numpy()
RARE = {
    "among all rows": (TEXT, np.where(np.arange(83) < 4, "rare", "a")),
    "a binary outcome's": (FormulaStudy("ward ~ age", "bernoulli"), np.where(np.arange(83) < 4, "rare", "a")),
    "among declared ones": (
        FormulaStudy("y ~ C(ward, levels=['a', 'b', 'Höngg', 'rare'])"), np.where(np.arange(83) < 4, "rare", "a")
    ),
    "in rows that lack what is imputed": (
        FormulaStudy("y ~ mi(chol) + ward"), np.where(LACKING & (np.cumsum(LACKING) <= 4), "rare", "a")
    ),
}  # fmt: skip


@pytest.mark.parametrize("case", RARE)
def test_a_site_with_a_label_of_few_rows_keeps_out_before_it_is_told(case, network):
    study, wards = RARE[case]
    recorded = network(study, with_labels(south=wards))
    with pytest.raises(fb.FederatedError, match=r"'south' takes no part: .*disclosure rules.* \((small cell|rare out)"):
        over(recorded, study, join_timeout=0.5)
    assert not any(b"rare" in answer.replace(b"rare outcome", b"") for answer in recorded.answered)
    assert sum(wards == "rare") == 4


UNLIKE = {
    "numbers at one": (TEXT, {"west": 1.0}, "'ward' holds text at 2 of 3 sites, and numbers elsewhere"),
    "text at one": (FormulaStudy("y ~ age + event"), {"west": "yes"}, "'event' holds text at 1 of 3 sites"),
    "words for numbers": (
        FormulaStudy("y ~ age + C(event)"), {"west": True}, "'event' holds True and False at 1 of 3 sites"
    ),
    "one level": (TEXT, dict.fromkeys(ROWS, "a"), "'ward' has the level 'a' in all rows"),
    "many levels": (
        TEXT, {name: [f"{name} {row // 4}" for row in range(rows)] for name, rows in ROWS.items()},
        "'ward' has 62 levels in 241 rows; at most 40",
    ),
}  # fmt: skip


@pytest.mark.parametrize("case", UNLIKE)
def test_columns_on_which_sites_can_t_agree_are_named_with_counts(case, network):
    study, values, words = UNLIKE[case]
    column = study.reads[-1]
    clients = {name: rows.assign(**{column: values.get(name, rows[column])}) for name, rows in tables().items()}
    with pytest.raises(fb.ClientDataError, match=words):
        over(network(study, clients, "[disclosure]\nsmallest_cell = 1\n"), study)


LONG = {
    "a long label": (np.where(np.arange(97) < 50, "x" * 61, "a"), "has the label 'xxx.*of 61 bytes"),
    "more labels than are agreed on": (np.arange(97).astype(str), "has 97 levels; at most 40 are agreed on"),
}


@pytest.mark.parametrize("case", LONG)
def test_labels_that_no_table_has_room_for_stay_at_the_site(case, network, caplog):
    wards, words = LONG[case]
    policy = "[disclosure]\nsmallest_cell = 1\nmost_levels = 1000\nlevels_per_row = 1.0\n"
    with pytest.raises(fb.FederatedError, match="'west' has data that can't be used"):
        over(network(TEXT, with_labels(west=wards), policy), TEXT)
    assert re.search(words + ".*declare its levels in the study, `levels={'ward'", caplog.text)


@pytest.fixture
def unreadable(monkeypatch):
    """Takes the salts with which tables can't be read."""

    def failing(*salts):
        monkeypatch.setattr(
            "fedbayes.network.agreeing.everybody.labels_in",
            lambda summed, salt, num: None if salt in salts else labels_in(summed, salt, num),
        )

    return failing


def test_a_table_that_can_t_be_read_is_asked_for_once_more_with_another_salt(unreadable, network):
    unreadable("ward")
    recorded = network(TEXT)
    assert over(recorded, TEXT).columns.counts == here(TEXT).agreed.columns.counts
    updates = [entry.update for entry in recorded.sites[1].journal.entries()]
    assert updates[1:4] == ["kinds of columns", "labels of 'ward'", "labels of 'ward', again"]


def test_where_it_can_t_be_read_again_levels_are_to_be_declared(unreadable, network):
    unreadable("ward", "ward again")
    with pytest.raises(fb.ClientDataError, match=r"there are too many.*declare its levels in the study, `levels=\{'wa"):
        over(network(TEXT), TEXT)


def test_labels_leave_in_secure_sums_alone(network):
    policy = "[sums]\nsingle = true\n"
    with pytest.raises(fb.FederatedError, match=r"The labels of 'ward' are not declared, and .* from three sites on"):
        over(network(TEXT, policy=policy), TEXT, secure_sums=False)
    recorded = network(TEXT, policy=policy)
    over(recorded, TEXT)
    message = request_for(recorded, "labels of 'ward'")
    (known,) = arrays_of(message.body).keys() - {"shared/scale"}
    told = [np.asarray(arrays_of(message.body)[known])]
    answers = {}
    for name, header in {"hidden": {}, "openly": {"ticket": None}}.items():
        request = asked_anew(message, message.header["known"], told, **header, run=f"{len(name)}" * 32)
        answers[name] = unpack(recorded.sites[1].answer(request)).header.get("reason", "answered")
    assert answers == {"hidden": "answered", "openly": "SINGLE"}


def request_for(network, update):
    """The message in which the server asked for a sum."""
    return next(each for each in map(unpack, network.sent) if each.header.get("update") == update)


def test_numbers_are_not_told_as_labels_where_the_server_says_that_they_are_text(network, caplog):
    """The owner's rules were applied to them as numbers, and their labels would be all values of all sites."""
    study = FormulaStudy("y ~ age + ward")
    recorded = network(study)
    over(recorded, study)
    message = request_for(recorded, "labels of 'ward'")
    text = nested(layout({name: _kinds(Table("", tables()["west"]), name) for name in study.undeclared}),
                  np.asarray(arrays_of(message.body)["shared/0"]))  # fmt: skip
    text["age"]["text"][:] = 3.0
    request = asked_anew(message, message.header["known"], [flat(text)], run="0" * 32, update="labels of 'age'")
    assert unpack(recorded.sites[1].answer(request)).header["reason"] == "DATA"
    assert "The server says of column 'age' what is not so at this site" in caplog.text


def test_in_one_run_a_table_is_told_in_one_way(network):
    """With tables that it makes up a server would ask each site for each label."""
    recorded = network(TEXT)
    over(recorded, TEXT)
    message = request_for(recorded, "columns: levels and moments")
    kinds, labels = (np.asarray(arrays_of(message.body)[f"shared/{place}"]) for place in range(2))
    reasons = [
        unpack(recorded.sites[1].answer(asked_anew(message, message.header["known"], [kinds, table], f"{place:032x}")))
        .header.get("reason", "answered")
        for place, table in enumerate([labels, table_of(["a", "b"], "ward").ravel() * 3.0])
    ]  # fmt: skip
    assert reasons == ["answered", "FORMAT"]
