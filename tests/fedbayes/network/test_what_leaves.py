"""What the page "What leaves a client" says: every byte that a client sends is looked at."""

from functools import cache
from types import SimpleNamespace

import numpy as np
import pytest
from scipy import stats
from seen import KINDS, METHODS, NAMES, PAGE, ROWS, D, data, read_table, rehearse, sizes, table

from fedbayes.network.messages import pack, unpack
from fedbayes.network.site import Site
from fedbayes.network.study import Study
from fedbayes.rounds.wire import arrays_of, encode


@pytest.fixture(scope="module")
def rehearsed(tmp_path_factory):
    """The network of a method after its fit, and the sites' folder: one fit for all tests that look at what it sent."""

    @cache
    def of(which):
        folder = tmp_path_factory.mktemp("sites")
        return rehearse(folder, data(), which), folder

    return of


ALARM = 1e-6  # of a search in which nothing has leaked


def forms_of(value):
    """A number as eight bytes, and as texts of about six digits or more."""
    for kind in ("<f8", ">f8"):
        yield np.asarray(value).astype(kind).tobytes()
    for text in (repr(float(value)), f"{abs(value):.6f}", f"{abs(value):.6g}", repr(np.float32(value).item())):
        yield text.encode()


def met_as_four_bytes(sent, values):
    """Which values stand among the bytes as float32, in either order of bytes, and how many would do so by chance.

    At each place of the bytes a value's sign, exponent and first seven binary digits are there or not: that is counted,
    since numbers that are sent are often of the data's size. The other sixteen digits are those of a number that has
    nothing to do with it, and agree with a probability of 2^-16.
    """
    stream = np.frombuffer(sent, np.uint8).astype(np.uint32)
    words = stream[:-3] << 24 | stream[1:-2] << 16 | stream[2:-1] << 8 | stream[3:]  # at each place
    big = values.astype(">f4").view(">u4").astype(np.uint32)
    little = big.byteswap()
    first, last = (np.bincount(half, minlength=1 << 16) for half in (words >> 16, words & 0xFFFF))
    mean = (first[big >> 16].sum() + last[little & 0xFFFF].sum()) / 2.0**16
    begins = np.zeros(1 << 16, bool)
    begins[big >> 16] = begins[little >> 16] = True
    there = words[begins[words >> 16]]  # few, of which the rest is compared
    return values[np.isin(big, there) | np.isin(little, there)], mean


def few_enough(num, mean):
    """Whether so many may be there by chance: their number is at most Poisson."""
    return stats.poisson.sf(num - 1, mean) >= ALARM


def values_in(answers, clients):
    """Numbers of the data that are somewhere among the bytes, as numbers of either size or as text.

    None may be there as eight bytes or as text. In random bytes a form of n bytes stands at a given place with a
    probability of 256^-n: 2^-64 for a number of eight bytes, 2^-56 for most texts. Over all places and forms that is
    bounded below, where a few texts are shorter, since they end with a zero. (The messages' own text holds no decimal
    point, and so none of them.) Four bytes are there by chance: 360 numbers, in either order, once in about 6 MB, or
    somewhat sooner. A value counts once, however often it is sent. Of so many numbers as float32 a leak is seen that
    has at least 2 in 8 kB, 3 in 100 kB (as EP sends), 4 in 400 kB, 5 in 900 kB, 8 in 4 MB; one alone is never.
    """
    sent = b"".join(answers)
    values = np.concatenate([np.ravel(array) for client in clients.values() for array in client.values()])
    assert not np.isin(values, [0.0, 1.0]).any()
    assert sum(len(sent) * 256.0 ** -len(form) for value in values for form in forms_of(value)) < ALARM
    surely = [float(value) for value in values if any(form in sent for form in forms_of(value))]
    short, mean = met_as_four_bytes(sent, values)
    return surely if few_enough(len(short), mean) else sorted({*surely, *short.tolist()})


def test_numbers_of_four_bytes_are_told_from_chance():
    """In 20 MB of random bytes 3.4 of 360 numbers are to be expected, and 16 raise the alarm."""
    values = np.random.default_rng(0).normal(size=360)
    sent = np.random.default_rng(1).bytes(20_000_000)
    met, mean = met_as_four_bytes(sent, values)
    assert mean == pytest.approx(720 * 20e6 / 2.0**32, rel=0.05)
    assert 0 < len(met) < 16
    assert few_enough(len(met), mean)
    leaked = sent[:777] + values[-16:].astype("<f4").tobytes() + sent[777:]
    found, mean = met_as_four_bytes(leaked, values)
    assert set(values[-16:]) <= set(found)
    assert not few_enough(len(found), mean)


@pytest.mark.parametrize(
    ("num", "length"), [(2, 8_000), (3, 100_000), (4, 400_000), (5, 900_000), (8, 4_000_000), (16, 20_000_000)]
)
def test_so_many_numbers_of_four_bytes_are_a_leak(num, length):
    mean = 720 * length / 2.0**32
    assert not few_enough(num, mean)
    assert few_enough(num - 1, mean)


@pytest.mark.parametrize("kind", ["<f4", ">f4"])
def test_numbers_of_four_bytes_are_found_in_either_order(kind):
    values = np.random.default_rng(0).normal(size=360)
    sent = np.random.default_rng(1).bytes(50_000)
    assert values_in([sent], {"a": {"y": values}}) == []
    leaked = [sent[:777], values[:3].astype(kind).tobytes(), sent[777:]]
    assert values_in(leaked, {"a": {"y": values}}) == sorted(values[:3])


@pytest.mark.statistical(key="0, and the sites' own secrets", alarm=2.0 * ALARM)
@pytest.mark.parametrize("which", METHODS)
def test_no_number_of_the_data_leaves(which, rehearsed):
    network, _ = rehearsed(which)
    assert {unpack(answer).header["kind"] for answer in network.answered} == set(KINDS)
    assert values_in(network.answered, data()) == []


def test_the_size_of_answers_depends_on_the_dimension_and_not_on_rows(rehearsed, tmp_path):
    few = sizes(rehearsed("EP")[0].answered)
    many, narrow = (
        sizes(rehearse(tmp_path / f"{rows}-{dim}", data(rows, dim)).answered) for rows, dim in ((3000, D), (ROWS, 2))
    )
    assert few == many
    two, five = ({kind: {size for name, size in found if name == kind} for kind in KINDS} for found in (narrow, few))
    assert all(len(found) == 1 for found in two.values())  # whatever is in them
    assert max(two["round"]) < min(five["round"])
    assert two["after"] == five["after"]  # which depends on the number of draws alone


TRIANGLE, REPLICATES = 15, 2
MODE = D + TRIANGLE + 3
NUMBERS = {  # of the page's table, for each kind of round that a fit has
    "EP": {REPLICATES * (D + TRIANGLE + 4)},
    "EP, hidden": {REPLICATES * (2 * (D + TRIANGLE + 3) + 1)},  # of two words, but for the codes
    "EP with locals": {2 * MODE - 2, REPLICATES * (D + TRIANGLE + 4)},
    "FA-LD": {MODE, D * D + D + 1284, REPLICATES * (3 * D + 2)},
    "FedAvg": {642, 2 * D + 3, MODE - 1},
    "one shot": {4 * (1024 * D + D + TRIANGLE + 2), 4 * 513},
}


@pytest.mark.parametrize("which", NUMBERS)
def test_a_round_carries_as_many_numbers_as_the_page_says(which, rehearsed):
    network, _ = rehearsed(which)
    rounds = [unpack(answer) for answer in network.answered if unpack(answer).header["kind"] == "round"]
    assert {sum(array.size for array in arrays_of(message.body).values()) for message in rounds} == NUMBERS[which]
    assert all(set(message.header) == {"format", "kind", "study", "run", "order", "site", "told"} for message in rounds)
    if which == "EP":
        sizes_of = {len(answer) for answer in network.answered if unpack(answer).header["kind"] == "round"}
        (least,) = sizes_of
        assert 2200 < least - 8 * max(NUMBERS[which]) < 2300  # the names of the arrays


@pytest.mark.skipif(not PAGE.exists(), reason="the page is in the checkout alone")
def test_the_page_s_table_is_what_was_recorded(rehearsed):
    """Of each message what a server sees, and what it does not."""
    assert read_table() == table(lambda which: rehearsed(which)[0]), (
        "The table of docs/what-leaves-a-client.md is not what was recorded. Look at what has changed, and write it "
        "anew by `python tests/fedbayes/network/seen.py`."
    )


def test_the_last_answers_and_those_after_the_rounds_are_counted(rehearsed):
    network, _ = rehearsed("EP")
    for answer in network.answered:
        message = unpack(answer)
        if message.header["kind"] == "conclude":
            assert message.header["told"] == {"agrees": True}  # one bit
            assert message.body == b""
        if message.header["kind"] == "after":
            arrays = arrays_of(message.body)
            draws = max(array.size for array in arrays.values())
            assert sum(array.size for array in arrays.values()) <= 2 * draws + 1


@pytest.mark.parametrize("which", ["EP", "EP with locals"])
def test_secrets_and_private_states_stay(which, rehearsed):
    network, folder = rehearsed(which)
    sent = b"".join(network.answered)
    for name in NAMES:
        secret = (folder / name / "secret").read_text()
        assert secret.encode() not in sent
        assert bytes.fromhex(secret) not in sent
        files = [path for path in (folder / name).rglob("*") if path.is_file()]
        assert [path for path in [folder / name, *files] if path.stat().st_mode & 0o077] == []
    if which == "EP with locals":
        from fedbayes.network.conclusion import client_posterior

        for site in network.sites.values():
            theta = client_posterior(site)["posterior"]["theta"].to_numpy().ravel()
            assert [value for value in theta if value.tobytes() in sent] == []


@pytest.mark.statistical(key="the site's own secret", alarm=2.0 * ALARM)
def test_an_error_leaves_as_a_code(tmp_path):
    clients = data()
    value = float(clients["east"]["x"][0, 0])

    def load_data(config):
        raise ValueError(f"patient 17 has {value!r}")

    site = Site(Study(*METHODS["EP"]), load_data, {"site-id": "east", "state-dir": str(tmp_path)})
    answer = site.answer(pack({"kind": "hello", "study": site.study.digest}))
    assert unpack(answer).header["reason"] == "DATA"
    assert values_in([answer], clients) == []
    assert b"patient" not in answer


class SendsARow(Site):
    """Planted: the first row goes along, among the diagnostics."""

    def _reply(self, header, told, body=b""):
        return super()._reply(header, told, body + self._client().arrays["x"][0].tobytes() * (header["kind"] == "join"))


class SendsFourBytes(Site):
    """Planted: the first row goes along as float32, two numbers of each of three sites."""

    def _reply(self, header, told, body=b""):
        row = self._client().arrays["x"][0, :2].astype(np.float32).tobytes()
        return super()._reply(header, told, body + row * (header["kind"] == "join"))


class SendsText(Site):
    """Planted: an innocent sentence with a number in it."""

    def _reply(self, header, told, body=b""):
        told = (
            {**told, "note": f"largest {self._client().arrays['y'].max():.6g}"}
            if header["kind"] == "conclude"
            else told
        )
        return super()._reply(header, told, body)


class SendsMore(Site):
    """Planted: something for every row, of which none is a number of the data."""

    def _reply(self, header, told, body=b""):
        more = np.square(self._client().arrays["y"]).tobytes() if header["kind"] == "conclude" else b""
        return super()._reply(header, told, body + more)


@pytest.mark.parametrize("leak", [SendsARow, SendsFourBytes, SendsText])
def test_a_planted_leak_of_a_number_is_found(leak, tmp_path):
    clients = data()
    assert values_in(rehearse(tmp_path, clients, site=leak).answered, clients) != []


def test_a_planted_leak_by_size_is_found(tmp_path):
    few, many = (sizes(rehearse(tmp_path / str(rows), data(rows), site=SendsMore).answered) for rows in (ROWS, 3000))
    assert few != many


def planted(network, kind, change):
    """The same, but for what is planted in each answer of a kind."""
    messages = map(unpack, network.answered)
    told = [change(each) if each.header["kind"] == kind else pack(each.header, each.body) for each in messages]
    return SimpleNamespace(sent=network.sent, answered=told)


def test_a_number_more_is_not_what_the_page_s_table_says(rehearsed):
    network = planted(
        rehearsed("EP")[0],
        "round",
        lambda answer: pack(answer.header, encode({**arrays_of(answer.body), "more": np.ones(1)})),
    )
    with pytest.raises(AssertionError, match="laplace"):
        table(lambda which: network if which == "EP" else rehearsed(which)[0])


def test_nor_is_a_number_that_was_to_be_hidden(rehearsed):
    with pytest.raises(AssertionError, match="laplace"):
        table(lambda which: rehearsed("EP" if which == "EP, hidden" else which)[0])


def test_nor_is_a_byte_more(rehearsed):
    network = planted(rehearsed("EP")[0], "join", lambda answer: pack({**answer.header, "more": 1}, answer.body))
    found = table(lambda which: network if which == "EP" else rehearsed(which)[0])
    (line,) = set(found.splitlines()) - set(read_table().splitlines())
    assert line.startswith("| every method | `join` |")
