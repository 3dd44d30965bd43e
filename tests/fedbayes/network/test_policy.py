"""A site's policy: its disclosure rules are asked before anything leaves, and its owner alone can change them.

The attack is real: a server that follows the protocol reads a patient off a site's first answer, where the patient is
the only one with some finding.
"""

import logging
from contextlib import nullcontext
from dataclasses import asdict, replace
from pathlib import Path

import jax
import numpy as np
import pytest
from permissive import PERMISSIVE

import fedbayes as fb
from fedbayes.errors import ClientDataError, FederatedError
from fedbayes.models import heart_disease
from fedbayes.network.charter import Seat
from fedbayes.network.client.journal import Journal, exact_numbers
from fedbayes.network.client.policy import read_policy
from fedbayes.network.client.reading import digests_of, num_changed, rows_as_bytes
from fedbayes.network.fit import fit_over
from fedbayes.network.fixed_point import to_numbers
from fedbayes.network.messages import pack, unpack
from fedbayes.network.rehearsal import Rehearsal
from fedbayes.network.server.remote import Patience
from fedbayes.network.site import Site
from fedbayes.network.study import Study
from fedbayes.numerics.gaussian import Gaussian, unpacked
from fedbayes.problem.data.reading import ClientArrays
from fedbayes.rounds.wire import arrays_of

LENIENT = "[disclosure]\nsmallest_cell = 1\nseparation = false\n"
SINGLE = LENIENT + "[sums]\nsingle = true\n"
STUDY = Study(heart_disease.model, fb.Laplace())


def site_of(folder, name="switzerland", policy="", data=None, study=STUDY) -> Site:
    data = heart_disease.clients()[name] if data is None else data
    folder = folder / name
    folder.mkdir(exist_ok=True)
    if policy:
        (folder / "policy.toml").write_text(policy)
    return Site(study, lambda config: data, {"site-id": name, "state-dir": str(folder)})


def greeted(site) -> dict:
    """The header of the answer to a first message."""
    return unpack(site.answer(pack({"kind": "hello", "study": site.study.digest}))).header


def test_a_site_refuses_before_anything_leaves(tmp_path, caplog):
    answer = greeted(site_of(tmp_path))
    assert {name: answer[name] for name in ("kind", "reason", "found")} == {
        "kind": "refusal", "reason": "DISCLOSURE", "found": {"small cell": 7, "rare outcome": 1},
    }  # fmt: skip
    assert answer.keys() == {"format", "kind", "site", "reason", "study", "found"}
    assert answer["study"] == {}
    assert "switzerland  46    small cell    x[2]                  1 row" in caplog.text
    assert f"The owner sets the limits in '{tmp_path}/switzerland/policy.toml', under [disclosure]." in caplog.text


def test_its_owner_can_let_the_study_out(tmp_path):
    assert greeted(site_of(tmp_path, policy=LENIENT))["kind"] == "hello"


def test_a_policy_is_where_the_configuration_says(tmp_path):
    (tmp_path / "own.toml").write_text("[disclosure]\nsmallest_cell = 7\n")
    assert read_policy({"site-id": "a", "policy": str(tmp_path / "own.toml")}).rules.smallest_cell == 7
    assert read_policy({"site-id": "a", "state-dir": str(tmp_path)}).rules == fb.DisclosureRules()


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("[disclosure]\nsmalest_cell = 3\n", r"has 'smalest_cell', which is none .* Did you mean 'smallest_cell'\?"),
        (
            "[disclosures]\n",
            r"has 'disclosures', which is none of the settings: \['disclosure', 'sums', 'poi",
        ),
        ("disclosure = 5\n", r"write the rules as a table, \[disclosure\]"),
        ("[disclosure]\nsmallest_cell = 0\n", r"`smallest_cell` is 0; write a whole number from 1 on"),
        ("[disclosure\n", r"can't be read: "),
        ("smallest_cell = 3\n", r"write 'smallest_cell' below a line `\[disclosure\]`"),
        ("[disclosure]\nexcept_columns = 5\n", r'`except_columns` is 5; write names in a list, \["x\[sex\]"'),
        ("[disclosure]\nlevels_per_row = inf\n", r"`levels_per_row` is inf; write a positive number"),
        ("[points]\nfarthest = 0\n", r"`farthest` is 0; write a number of prior sds, such as 50.0"),
        ("[studies]\nany = 1\n", r"`any` is 1; write true or false"),
        ("[answers]\nmost = 0\n", r"`most` is 0; write a whole number of numbers, such as 100000"),
        ("[answers]\nmost = 1e5\n", r"`most` is 100000.0; write a whole number"),
        ("[answers]\nfailures = -1\n", r"`failures` is -1; write a whole number, such as 256, or 0"),
        ("[answers]\nfailures = true\n", r"`failures` is True; write a whole number, such as 256, or 0"),
        ("[answers]\nfailures = inf\n", r"`failures` is inf; write a whole number, such as 256, or 0"),
        ("[answers]\nmethods = 'EP'\n", r"`methods` is 'EP'; write the names of methods in a list"),
        ("[answers]\nquestions = ['loo']\n", r"`questions` is \['loo'\]; .* some of \['check', 'log-l"),
        ("[answers]\nnats = 2.0\n", r"`nats` is 2.0; write to how many nats"),
        ("[answers]\nagreement = 1\n", r"`agreement` is 1; write true or false"),
        ("[answers]\nlocal_steps = 1\n", r"`local_steps` is 1; write true or false"),
        ("sums = 5\n", r"write the rules as a table, \[sums\]"),
        ("[points]\nfurthest = 5\n", r"has 'furthest', which is none of the settings of \[points\].*'farthest'"),
        ("single = true\n", r"write 'single' below a line `\[sums\]`"),
        ("[sums]\nsingle = 1\n", r"`single` is 1; write true or false"),
        ("[sums]\nfewest = 2\n", r"`fewest` is 2; write a whole number of sites from 3 on"),
        ("[sums]\nfewer = 4\n", r"has 'fewer', which is none of the settings of \[sums\]"),
        ("[sums.partners]\nva = 5\n", r"fingerprints of their keys as a table \[sums.partners\]"),
    ],
)
def test_a_policy_that_can_not_be_read_lets_nothing_out(tmp_path, text, told):
    site = site_of(tmp_path, "cleveland", policy=text)
    with pytest.raises(ClientDataError, match=told):
        read_policy({"site-id": "cleveland", "state-dir": str(tmp_path / "cleveland")})
    assert greeted(site)["reason"] == "POLICY"


def test_a_policy_may_begin_with_a_mark_of_its_encoding(tmp_path):
    (tmp_path / "policy.toml").write_text("[disclosure]\nsmallest_cell = 7\n", encoding="utf-8-sig")
    assert read_policy({"site-id": "a", "state-dir": str(tmp_path)}).rules.smallest_cell == 7
    with pytest.raises(ClientDataError, match="`policy` of the node's configuration is empty"):
        read_policy({"site-id": "a", "state-dir": str(tmp_path), "policy": " "})


def test_a_seat_can_not_turn_the_data_into_others_that_pass(tmp_path):
    """A server that wants the columns as true or false: all patients then have the same, and no cell is small."""
    site = site_of(tmp_path)
    template = {"x": ((46, 13), "<f8"), "y": ((46,), "<i4")}
    seat = Seat(0, {"x": "|b1", "y": "<i4"}, template)
    for kinds in ({"x": "|b1", "y": "<i4"}, {"x": "<f8", "y": "<i4"}):
        asked = {"kind": "join", "study": STUDY.digest, "seat": asdict(replace(seat, kinds=kinds))}
        assert unpack(site.answer(pack(asked))).header["reason"] == "DISCLOSURE"
    fine = site_of(tmp_path, "cleveland", data=heart_disease.coarse_clients()["cleveland"])
    asked = {"kind": "join", "study": STUDY.digest, "seat": asdict(seat)}
    assert unpack(fine.answer(pack(asked))).header["reason"] == "FORMAT"


def test_what_fails_in_the_rules_lets_nothing_out(tmp_path, monkeypatch):
    def broken(*_):
        raise OverflowError("planted")

    site = site_of(tmp_path, "cleveland", data=heart_disease.coarse_clients()["cleveland"])
    monkeypatch.setattr("fedbayes.network.site.disclosure_of_client", broken)
    assert greeted(site)["kind"] == "refusal"


def test_a_policy_that_is_named_must_be_there(tmp_path):
    with pytest.raises(ClientDataError, match=r"nowhere\.toml', is not there: the node's configuration names it"):
        read_policy({"site-id": "a", "policy": str(tmp_path / "nowhere.toml")})


def test_the_rules_are_asked_again_when_the_data_change(tmp_path):
    data = dict(heart_disease.coarse_clients()["cleveland"])
    site = site_of(tmp_path, "cleveland", data=data)
    assert greeted(site)["kind"] == "hello"
    x = data["x"].copy()
    x[:, 1] = np.arange(len(x)) < 2  # two patients differ from all others in the sex
    data["x"] = x
    assert greeted(site)["found"] == {"small cell": 1}


def test_a_policy_that_becomes_stricter_holds_in_the_next_message(tmp_path):
    names = ("cleveland", "hungarian", "va")
    data = heart_disease.coarse_clients()
    sites = [site_of(tmp_path, name, data=data[name]) for name in names]

    class Interrupted(Rehearsal):
        def send(self, requests, timeout):
            for address, answer in super().send(requests, timeout):
                if unpack(answer).header["kind"] == "round":
                    (tmp_path / "va" / "policy.toml").write_text("[disclosure]\nsmallest_cell = 30\n")
                yield address, answer

    network = Interrupted(*sites)
    patience = Patience(round_timeout=5.0, min_clients=3, give_up_after=0.5)
    with pytest.raises(FederatedError):
        fit_over(network, STUDY, key=jax.random.key(0), num_clients=3, progress=False, patience=patience)
    refused = [unpack(each).header for each in network.answered if unpack(each).header["kind"] == "refusal"]
    assert {(each["site"], each["reason"]) for each in refused} == {("va", "DISCLOSURE")}


def test_the_server_s_log_says_how_many_columns(tmp_path, caplog):
    caplog.set_level(logging.INFO)
    data = heart_disease.coarse_clients()
    sites = [site_of(tmp_path, name, data=data[name]) for name in heart_disease.HOSPITALS]
    fit = fit_over(Rehearsal(*sites), STUDY, key=jax.random.key(0), num_clients=3, progress=False, join_timeout=20.0)
    assert set(fit.client_names) == {"cleveland", "hungarian", "va"}
    told = "it is kept out of this study by its owner's disclosure rules; its own log says where"
    assert f"Site switzerland takes no part: {told} (small cell 2, rare outcome 1)." in caplog.text


def covariates_read_off(answer, column: int) -> np.ndarray:
    """The row of a site's Hessian for one global, over its diagonal.

    Where one patient alone has the finding that the global stands for, ``(X'WX)_j / (X'WX)_jj`` is that patient's row.
    """
    told = arrays_of(answer.body)
    if "masked" in told:  # the numbers that the bits would be: in this order, after the value
        numbers = to_numbers(told["masked"])
        parts = (numbers[1:15], numbers[15:-1], numbers[-1])
    else:
        parts = (told[f"total/site/{name}"][0] for name in ("shift", "precision", "log_scale"))
    hessian = np.asarray(unpacked(Gaussian(*parts)).precision)
    return hessian[column] / hessian[column, column]


def uncentred(name: str) -> dict[str, np.ndarray]:
    """A hospital whose dummies are zero for patients without the finding."""
    data = heart_disease.clients()[name]
    return {**data, "x": np.where(np.arange(13) == 2, data["x"] > 0.0, data["x"])}


@pytest.mark.parametrize("hidden", [False, True])
@pytest.mark.parametrize("policy", [SINGLE, ""])
def test_a_patient_who_alone_has_a_finding_is_read_off_the_first_answer_unless_something_stops_that(
    tmp_path, policy, hidden
):
    """The rules do, and so does a secure sum: of the site's own numbers the server then sees uniform bits."""
    site = site_of(tmp_path, data=uncentred("switzerland"), policy=policy)
    others = [site_of(tmp_path, name, data=uncentred(name), policy=SINGLE) for name in ("cleveland", "hungarian", "va")]
    network = Rehearsal(site, *others)
    options = {"num_clients": 4 if policy else 3, "progress": False, "correct": False, "join_timeout": 5.0}
    fit_over(network, STUDY, key=jax.random.key(0), secure_sums=hidden, **options)
    answers = [message for message in map(unpack, network.answered) if message.header["site"] == "switzerland"]
    kinds = {message.header["kind"] for message in answers}
    if not policy:
        assert kinds == {"refusal"}
        return
    first = next(message for message in answers if message.header["kind"] == "round")
    x = uncentred("switzerland")["x"]
    (patient,) = np.flatnonzero(x[:, 2])
    error = np.abs(covariates_read_off(first, 3)[1:] - x[patient]).max()
    assert error < 1e-9 if not hidden else not error < 0.1


def test_no_more_numbers_about_the_same_data_leave_than_the_owner_allows(tmp_path):
    """Over all runs together, and whatever process has answered."""
    data = heart_disease.coarse_clients()
    names = [name for name in heart_disease.HOSPITALS if name != "switzerland"]

    def fit(most):
        sites = [site_of(tmp_path, name, policy=f"[answers]\nmost = {most}\n", data=data[name]) for name in names]
        options = {"num_clients": 3, "progress": False, "correct": False, "join_timeout": 5.0}
        fit_over(Rehearsal(*sites), STUDY, key=jax.random.key(0), secure_sums=True, **options)
        return [exact_numbers(site.journal.entries()) for site in sites]

    (once,) = set(fit(10**6))
    assert set(fit(2 * once)) == {2 * once}  # to the number
    with pytest.raises(fb.FederatedError, match="would tell more numbers about its data than its owner allows"):
        fit(2 * once)
    told = [exact_numbers(Journal(tmp_path / name).entries()) for name in names]
    assert told == [2 * once] * 3
    data = {name: {**each, "y": 1 - each["y"]} for name, each in data.items()}
    assert set(fit(2 * once)) == {3 * once}  # other data


@pytest.mark.parametrize("few", [np.float64, np.int64])
def test_rows_that_two_tables_do_not_share_are_counted(few):
    def digests(*arrays):
        return digests_of(rows_as_bytes(ClientArrays(dict(zip("xyz", arrays, strict=False)), {})), "ab" * 32)

    x, y = np.arange(12).reshape(6, 2).astype(few), np.array([1.0, 0.0, 1.0, 1.0, 0.0, 0.0])
    before, order = digests(x, y), np.array([5, 1, 2, 0, 4, 3])
    assert num_changed(before, digests(x[order], y[order])) == 0
    assert num_changed(before, digests(x[1:], y[1:])) == 1
    assert num_changed(before, digests(np.repeat(x, 2, axis=0), np.repeat(y, 2))) == 6
    assert num_changed(before, digests(np.where(x > 9, 0, x), y)) == 1
    assert num_changed(before, digests(x, y, np.array(3.0))) == 0  # a number of the whole table is no row's
    knots = np.linspace(0.0, 1.0, 9)
    assert num_changed(digests(x, y, knots), digests(x[1:], y[1:], knots)) == 1
    assert num_changed(before, digests(x, 1.0 - y)) == 6


def test_data_that_differ_by_few_rows_from_others_are_kept_back(small_federation):
    """Planted: one patient more. The difference of the two sums would be about that patient alone."""
    world = small_federation()
    policy = world.folder / "policy.toml"
    policy.parent.mkdir(parents=True)
    policy.write_text(Path(PERMISSIVE["policy"]).read_text().replace("smallest_cell = 1", "smallest_cell = 5"))
    own = world.data["ada"]["y"]

    def site(name):
        config = {"site-id": name, "state-dir": str(world.folder / name), "policy": str(policy)}
        return Site(world.study, lambda config: world.data[name], config)

    world.site = site
    world.fit()
    for more, refused in ((1, True), (5, False), (0, False), (4, True)):
        world.data["ada"] = {"y": np.append(own, np.linspace(0.0, 1.0, more))}
        with pytest.raises(FederatedError, match="few rows changed") if refused else nullcontext():
            world.fit()
