"""Bytes that mean harm: nothing raises or takes memory that was not sent, and who sent them is put out by name."""

import json
import logging
import resource
import tracemalloc
from collections import Counter
from dataclasses import asdict, replace

import jax.numpy as jnp
import numpy as np
import numpyro
import numpyro.distributions as dist
import pytest
from attacks import JUNK, Mutations, known_archives, known_headers

import fedbayes as fb
from fedbayes.errors import FederatedError, ResultCode
from fedbayes.network.charter import ArrayKind, Hello, Seat, most_rows
from fedbayes.network.client.naming import site_name
from fedbayes.network.client.reading import own_problem
from fedbayes.network.messages import Refused, pack, unpack
from fedbayes.network.rehearsal import Rehearsal
from fedbayes.network.server.described import seats
from fedbayes.network.server.register import Register
from fedbayes.network.server.remote import Remote
from fedbayes.network.study import Study, difference
from fedbayes.problem.data.padding import bucket_lengths
from fedbayes.problem.data.reading import ClientArrays
from fedbayes.rounds.wire import arrays_of, encode
from fedbayes.runtime.lru import Kept
from fedbayes.runtime.precision import computing

ARCHIVES, HEADERS = known_archives(), known_headers()
CY = 3  # an address
JOIN = 2  # the exchange in which sites read the model


def peak(read, content) -> int:
    """Bytes that reading takes beside the content; what there was before is not counted, and needs no collection."""
    tracemalloc.start()
    try:
        with pytest.raises(ValueError):  # noqa: PT011
            read(content)
        return tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()


@pytest.mark.parametrize("attack", ARCHIVES)
def test_no_archive_raises_anything_but_a_value_error_or_takes_more_than_it_has(attack):
    content = ARCHIVES[attack]
    assert peak(arrays_of, content) < 4_000_000 + 40 * len(content)


@pytest.mark.parametrize("attack", ARCHIVES)
def test_nor_does_a_message(attack):
    assert peak(unpack, ARCHIVES[attack]) < 4_000_000 + 40 * len(ARCHIVES[attack])


@pytest.mark.parametrize("attack", HEADERS)
def test_no_header_raises_anything_but_a_value_error(attack):
    assert peak(unpack, HEADERS[attack]) < 4_000_000 + 40 * len(HEADERS[attack])


@pytest.mark.parametrize(
    "array",
    [
        np.zeros(()), np.arange(6.0).reshape(2, 3), np.asfortranarray(np.arange(6).reshape(2, 3)), np.zeros((0, 3)),
        np.array([True]), np.arange(3, dtype=">u2"), np.array(["a", "bc"]), np.zeros((1,) * 32), np.float16([1, 2]),
    ],
    ids=lambda array: f"{array.dtype}{array.shape}",
)  # fmt: skip
def test_what_is_sent_arrives(array):
    """Controls: the checks refuse nothing that is written."""
    (found,) = arrays_of(encode(array)).values()
    assert found.dtype == array.dtype
    assert found.flags.writeable
    np.testing.assert_array_equal(found, array)


def hello_of(name="mal", rows=5, **changes) -> dict:
    told = {"site": name, "arrays": {"y": [[rows], "<f8", None]}, "static": {}}
    return told | changes


def told_arrays(*kind) -> dict:
    return hello_of(arrays={"y": list(kind)})


BAD_HELLOS = {
    "no rows": told_arrays([0], "<f8", None),
    "a negative size": told_arrays([-1], "<f8", None),
    "half a row": told_arrays([2.5], "<f8", None),
    "a flag": told_arrays([True], "<f8", None),
    "an infinite size": told_arrays([float("inf")], "<f8", None),
    "more rows than anybody has": told_arrays([10**9], "<f8", None),
    "more columns than anybody has": told_arrays([10, 10**8, 10**8], "<f8", None),
    "a size of 40 digits": told_arrays([10**40], "<f8", None),
    "a hundred axes": told_arrays([1] * 100, "<f8", None),
    "objects": told_arrays([5], "|O", None),
    "records": told_arrays([5], [["a", "<f8"]], None),
    "a large item": told_arrays([5], "|V1000000", None),
    "long text": told_arrays([5], "<U100000", None),
    "a number of three bytes": told_arrays([5], "<f3", None),
    "columns that are no names": told_arrays([5, 1], "<f8", [5]),
    "a column of a megabyte": told_arrays([5, 1], "<f8", ["x" * 10**6]),
    "an array without a kind": told_arrays([5]),
    "no arrays": hello_of(arrays={}),
    "a list of arrays": hello_of(arrays=[1, 2]),
    "arrays that are text": hello_of(arrays="y"),
    "a list as a setting": hello_of(static={"flag": [1]}),
    "a decimal as a setting": hello_of(static={"flag": 1.5}),
    "a size of a trillion": hello_of(static={"groups": 10**12}),
    "no settings": hello_of(static=None),
    "an argument twice": hello_of(static={"y": 1}),
    "no site": {"arrays": {"y": [[5], "<f8", None]}, "static": {}},
    "a number for a name": hello_of(name=5),
    "an empty name": hello_of(name=""),
    "a name of two lines": hello_of(name="mal\n2026-01-01 ERROR Site ada has lost its data"),
    "a name that colours a terminal": hello_of(name="\x1b[31mmal"),
    "half a letter": hello_of(name="\ud800"),
    "a name of a megabyte": hello_of(name="m" * 10**6),
    "an argument that can't be printed": hello_of(arrays={"y\n": [[5], "<f8", None]}),
    "nothing": None,
    "text": "hello",
    "a list": [1, 2, 3],
}


@pytest.fixture
def register(federation):
    return Register(Rehearsal(), federation().study, 1.0)


@pytest.mark.parametrize("attack", BAD_HELLOS)
def test_a_first_message_that_can_not_be_read_puts_its_node_out(register, attack, caplog):
    answer = pack({"kind": "hello", "told": BAD_HELLOS[attack]})
    assert register._understood(7, answer) is None
    assert "The first message of node 7 can't be read; it takes no part" in caplog.text
    assert len(caplog.text) < 1000
    assert not register._may_be_greeted(7)


@pytest.mark.parametrize("attack", [*ARCHIVES, *HEADERS])
def test_so_do_bytes_that_are_no_message(register, attack):
    assert register._understood(7, (ARCHIVES | HEADERS)[attack]) is None
    assert not register._may_be_greeted(7)


@pytest.mark.parametrize("field", ["kind", "site", "reason", "study", "found", "told"])
@pytest.mark.parametrize("reason", ["STUDY", "DISCLOSURE"])
def test_a_refusal_with_fields_of_other_types_or_without_them(register, field, reason):
    header = {"kind": "refusal", "site": "mal", "reason": reason, "study": {}, "found": {}}
    assert register._understood(7, pack({name: value for name, value in header.items() if name != field})) is None
    for junk in JUNK:
        assert register._understood(7, pack(header | {field: junk})) is None
        assert register._understood(7, pack(header | {"found": {"small cell": junk}})) is None


def test_what_a_site_refuses_with_can_not_forge_the_log_or_take_long(register, caplog):
    study = {name: f"\x1b[31m{'x' * 10**5}\n" * 20 for name in register.study.description}
    assert register._understood(7, pack({"kind": "refusal", "site": "mal", "reason": "STUDY", "study": study})) is None
    assert "\x1b" not in caplog.text
    assert len(caplog.text) < 200_000
    assert len(difference({"model": "a\nb"}, {"model": "\n" * 10**7}, "mal")) < 10_000


def test_a_column_with_a_line_break_is_no_attack():
    """It is anybody's table; logs show an escape."""
    found = Hello.read(told_arrays([5, 2], "<f8", ["age\n(years)", "sex"]))
    assert found.arrays["y"].labels == ("age\\n(years)", "sex")
    assert Hello.read(json.loads(json.dumps(found.written()))) == found


def test_a_name_that_a_server_would_refuse_is_refused_at_home():
    with pytest.raises(fb.ClientDataError, match="at most 200 characters"):
        site_name({"site-id": "n" * 201})
    assert Hello.read(hello_of(name=site_name({"site-id": "n" * 200}))).site == "n" * 200


BAD_JOINS = {
    "no bytes": b"",
    "no message": b"junk",
    "a refusal without a reason": pack({"kind": "refusal"}),
    "a refusal with an unknown reason": pack({"kind": "refusal", "reason": "BECAUSE"}),
    "a refusal with a list": pack({"kind": "refusal", "reason": [1]}),
    "nothing told": pack({"kind": "join"}),
    "text told": pack({"kind": "join", "told": "text"}),
    "no kind": pack({"told": {}}),
    "rows of unknown arguments": pack(
        {"kind": "join", "told": {"row_axes": {"y": 0}, "row_arguments": ["z"], "row_locals": [], "independent": True}}
    ),
    "rows without arguments": pack(
        {"kind": "join", "told": {"row_axes": {"y": 0}, "row_arguments": [], "row_locals": [], "independent": True}}
    ),
    "no flag": pack(
        {"kind": "join", "told": {"row_axes": None, "row_arguments": [], "row_locals": [], "independent": 5}}
    ),
    "an axis of a billion": pack(
        {
            "kind": "join",
            "told": {"row_axes": {"y": 10**9}, "row_arguments": ["y"], "row_locals": [], "independent": True},
        }
    ),
}


@pytest.mark.parametrize("attack", BAD_JOINS)
def test_what_a_site_answers_of_the_model_ends_the_run_with_its_name(federation, attack):
    network = federation().network(disturb=lambda n, at, answer: BAD_JOINS[attack] if (n, at) == (JOIN, CY) else answer)
    with pytest.raises(FederatedError, match="ite 'cy'"):
        federation().fit(network)


@pytest.mark.filterwarnings("ignore::fedbayes.errors.NotConvergedWarning")
def test_a_second_answer_counts_for_nothing(federation):
    """The first one is read, whatever comes after it."""
    network = federation().network(disturb=lambda n, at, answer: [answer, b"junk"] if n <= JOIN else answer)
    fit = federation().fit(network, num_rounds=2)
    assert fit.client_names == ("ada", "bo", "cy")


class Liar:
    """A site that claims to have very many rows, and then says no more."""

    def __init__(self, rows: int, name: str = "liar") -> None:
        self.name, self.rows = name, rows

    def answer(self, request: bytes) -> bytes:
        kind = unpack(request).header["kind"]
        if kind == "hello":
            return pack({"kind": kind, "told": hello_of(self.name, self.rows)})
        joined = {"row_axes": {"y": 0}, "row_arguments": ["y"], "row_locals": [], "independent": False}
        return pack({"kind": kind, "told": joined}) if kind == "join" else b""


def resident() -> int:
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss << 10


@pytest.mark.filterwarnings("ignore::fedbayes.errors.NotConvergedWarning")
def test_rows_that_a_site_only_claims_cost_nobody_memory(small_federation):
    """2 GB of them: the server would have made them, and each honest site a copy of its data as long."""
    world, before = small_federation(), resident()
    network = world.network()
    network.sites[4] = Liar(250_000_000)
    fit = world.fit(network, num_clients=4, num_rounds=2)
    assert resident() - before < 1.2e9
    codes = fit.rounds["code"].sel(client=["ada", "bo", "cy"]).values
    assert np.all(codes == ResultCode.OK)


@pytest.mark.filterwarnings("ignore::fedbayes.errors.NotConvergedWarning")
def test_who_claims_more_than_anybody_has_takes_no_part(federation, caplog):
    world = federation()
    network = world.network()
    network.sites[4] = Liar(10**9)
    assert world.fit(network, num_rounds=2).client_names == ("ada", "bo", "cy")
    assert "The first message of node 4 can't be read" in caplog.text


def hellos_of(*rows) -> list[Hello]:
    return [Hello(f"site {place}", {"y": ArrayKind((num,), "<f8")}, {}) for place, num in enumerate(rows)]


def test_no_site_is_padded_far_beyond_its_own_rows_by_what_others_claim():
    """Three liars leave the honest no bucket of their own."""
    honest, liars = [20, 30], [2 * 10**7, 12 * 10**7, 2**28]
    assert bucket_lengths([*honest, *liars])[0] == liars[0]
    found = seats(hellos_of(*honest, *liars), np.dtype(float))
    assert [seat.padded for seat in found[:2]] == honest
    for rows, seat in zip(honest, found, strict=False):
        assert seat.padded <= most_rows({"y": ArrayKind((rows,), "<f8")}, ["y"])


@pytest.mark.parametrize("rows", [[20, 30], [20, 5000, 400_000], [10, 2_000_000], [1] * 9 + [4096]])
def test_sites_that_have_the_rows_are_padded_as_ever(rows):
    """Control: nothing but absurd paddings is changed."""
    lengths = bucket_lengths(rows)
    expected = [lengths[int(np.searchsorted(lengths, num))] for num in rows]
    assert [seat.padded for seat in seats(hellos_of(*rows), np.dtype(float))] == expected


def test_a_site_finds_the_same_program_however_many_rows_others_claim(federation):
    study, client = federation().study, ClientArrays({"y": np.arange(5.0)}, {})
    template = {"y": ((8,), "<f8")}
    seat = Seat(0, {"y": "<f8"}, template, ("y",), padded=8)
    with computing():
        few = own_problem(study, "ada", client, seat)
        before = resident()
        many = own_problem(study, "ada", client, replace(seat, padded=16))
    assert resident() - before < 5e8
    assert many.joined == few.joined
    assert many.bucket.clients.data["y"].shape == (1, 16)
    with pytest.raises(Refused):
        own_problem(study, "ada", client, replace(seat, padded=2**28))


def test_a_study_in_single_precision_has_its_seats_in_it():
    """Whose kind of decimals the site knows itself; in another one nothing is cast."""
    study = Study(line, fb.EP(), dtype=np.float32)
    seat = Seat(0, {"y": "<f4"}, {"y": ((8,), "<f4")}, ("y",), padded=8)
    client = ClientArrays({"y": np.arange(5.0)}, {})
    with computing():
        assert own_problem(study, "ada", client, seat).bucket.clients.data["y"].dtype == np.float32
        with pytest.raises(Refused):
            own_problem(Study(line, fb.EP()), "ada", client, seat)


def line(y):
    mu = numpyro.sample("mu", dist.Normal(0.0, 2.0))
    numpyro.sample("y", dist.Normal(mu, 1.0), obs=y)


def test_what_a_site_says_of_its_program_hangs_on_no_row_of_the_server_s_choice(monkeypatch):
    """A row at which the program overflows can't be masked out. A server that chose how many rows a copy of the data
    had, whose last row is repeated under a mask, heard whether it was that row: old messages had such numbers."""
    x = np.linspace(0.1, 1.0, 6)
    seat = Seat(0, {"x": "<f8", "y": "<f8"}, {"x": ((8,), "<f8"), "y": ((8,), "<f8")}, ("x", "y"), padded=8)

    def model(x, y):
        slope = numpyro.sample("slope", dist.Normal(0.0, 1.0))
        numpyro.sample("y", dist.Poisson(jnp.exp(slope * x)), obs=y)

    def joined(x):
        monkeypatch.setattr("fedbayes.problem.problem._PADDED", Kept(1))  # as in another process
        with computing():
            return own_problem(Study(model, fb.EP()), "ada", ClientArrays({"x": x, "y": np.ones(6)}, {}), seat).joined

    assert joined(x).row_axes == {"y": 0}
    wild = [joined(np.where(np.arange(6) == row, 1e300, x)) for row in (0, 2, 5)]
    assert wild[:2] == [joined(x)] * 2
    assert wild[2].row_axes is None  # so there is something to hear, and of the last row alone
    with pytest.raises(TypeError, match="shortest"):
        Seat.read({**asdict(seat), "shortest": 3})


class Recorder(Rehearsal):
    """Keeps what goes over it."""

    def __init__(self, *sites) -> None:
        super().__init__(*sites)
        self.requests, self.answers = [], []

    def send(self, requests, timeout):
        self.requests += requests.values()
        for address, answer in super().send(requests, timeout):
            self.answers.append(answer)
            yield address, answer


class Server:
    """A server's reading of answers, as it stood when it read each of them in a fit."""

    def __init__(self, world, patch) -> None:
        self.network, self.reads, self.sums = Recorder(*world.sites()), {}, []
        reply, read = Remote._reply, Remote._read

        def noted(remote, place, content, templates, order):
            self.reads.setdefault(order.phase, (remote, remote._order, place, templates, order))
            self.answers.setdefault(order.phase, content)
            return reply(remote, place, content, templates, order)

        def noted_sum(remote, place, content, templates):
            self.sums = self.sums or [(remote, remote._order, place, templates)]
            self.answers.setdefault("sum", content)
            return read(remote, place, content, templates)

        self.answers: dict = {}
        with patch.context() as single:
            single.setattr(Remote, "_reply", noted)
            world.fit(self.network, secure_sums=False, correct=True)
        with patch.context() as hidden:
            hidden.setattr(Remote, "_read", noted_sum)
            world.fit(self.network)
        self.register = Register(Rehearsal(), world.study, 1.0)

    def read(self, content) -> list:
        """What becomes of these bytes, wherever an answer is read; one reading of each kind."""
        found = [self.register._understood(7, content) is not None]
        for remote, number, place, templates, order in self.reads.values():
            remote._order = number
            found.append(not isinstance(remote._reply(place, content, templates, order), ResultCode))
        for remote, number, place, templates in self.sums:
            remote._order = number
            found.append(not isinstance(remote._read(place, content, templates), ResultCode))
        return found


@pytest.fixture
def server(federation, monkeypatch):
    return Server(federation(), monkeypatch)


def distinct(messages) -> list[bytes]:
    """One message of each kind and size."""
    found = {}
    for message in messages:
        header = unpack(message).header
        found.setdefault((header["kind"], header.get("update"), len(message)), message)
    return list(found.values())


def is_let_in(server, content) -> bool:
    """Whether any of the places where answers are read takes these bytes for one."""
    found = any(server.read(content))
    server.register._not_before.clear()
    return found


def read_many(server, seed: int, num: int) -> Counter:
    """How many mutated answers were let in, at the places where answers are read."""
    logging.disable(logging.CRITICAL)
    try:
        mutations, let_in = Mutations(distinct(server.network.answers), seed), Counter(read=0)
        for _ in range(num):
            let_in["read"] += is_let_in(server, mutations.one())
        return let_in
    finally:
        logging.disable(logging.NOTSET)


def test_mutated_answers_never_raise_at_the_server(server):
    """Controls: unchanged ones are read, and a few of the mutated ones, whose changes mean nothing, are too."""
    for answer in server.answers.values():
        assert any(server.read(answer))
    before = resident()
    let_in = read_many(server, seed=0, num=3000)
    assert 0 < let_in["read"] < 2000
    assert resident() - before < 3e8


@pytest.mark.slow
def test_many_mutated_answers_never_raise_at_the_server(server):
    before = resident()
    let_in = read_many(server, seed=1, num=100_000)
    assert let_in["read"] > 0
    assert resident() - before < 5e8


def test_mutated_requests_never_raise_at_a_site(server, caplog):
    """A site answers each with a message."""
    site = server.network.sites[1]
    good = distinct(server.network.requests)
    mutations = Mutations(good, 2)
    kinds = Counter()
    logging.disable(logging.CRITICAL)
    for _ in range(600):
        kinds[unpack(site.answer(mutations.one())).header["kind"]] += 1
    logging.disable(logging.NOTSET)
    assert kinds["refusal"] > 300
    for attack in (ARCHIVES | HEADERS).values():
        assert unpack(site.answer(attack)).header["reason"] == "FORMAT"
    assert unpack(site.answer(good[0])).header["kind"] == "hello"
