"""Requests and answers over a grid that is none: what the transport makes of whatever Flower may say."""

import time
from types import SimpleNamespace

import numpy as np
import pytest

pytest.importorskip("flwr")

from flwr.app import Array, ArrayRecord, ConfigRecord, Error, Message, MetricRecord, RecordDict
from flwr.supercore.task_identity import TaskIdentity

import fedbayes.flower.grid
from fedbayes.flower import messages
from fedbayes.flower.codes import NoAnswer
from fedbayes.flower.grid import GridTransport
from fedbayes.flower.messages import pack, unpack
from fedbayes.network.transport import Failure


@pytest.fixture(autouse=True)
def _as_in_a_run(monkeypatch):
    """Messages can be made in a run only."""
    for name, value in {"_run_id": 7, "_node_id": 1, "_task_id": 3}.items():
        monkeypatch.setattr(TaskIdentity, name, value)


class FakeGrid:
    """Answers each message after some seconds, as told: by bytes, an error or other content."""

    def __init__(self, answers, names=None, refuse=()):
        self.answers, self.names, self.refuse = answers, names or {}, set(refuse)
        self.sent, self.extra, self.pulls = {}, [], 0
        self.nodes = list(answers)

    def get_nodes(self):
        return [
            SimpleNamespace(node_id=node, name=self.names.get(node, ""), public_key=f"key {node}".encode())
            for node in self.nodes
        ]

    def push_messages(self, messages):
        ids = []
        for message in messages:
            name = "" if message.metadata.dst_node_id in self.refuse else f"message {len(self.sent)}"
            message.metadata.__dict__["_message_id"] = name
            if name:
                self.sent[name] = (message, time.monotonic())
            ids.append(name)
        return ids

    def pull_messages(self, names):
        self.pulls += 1
        found, self.extra = self.extra, []
        for name in names:
            message, when = self.sent[name]
            delay, content = self.answers[message.metadata.dst_node_id]
            if time.monotonic() - when >= delay:
                found.append(reply(message, content))
        return found


def reply(message, content):
    return Message(pack(content) if isinstance(content, bytes) else content, reply_to=message)


def collect(grid, timeout=5.0, **options):
    transport = GridTransport(grid, pause=0.01, **options)
    return dict(transport.send({node: b"request" for node in grid.answers}, timeout))


@pytest.mark.parametrize("payload", [b"", b"\0", b"text", bytes(range(256)) * 100])
def test_bytes_travel_as_they_are(payload):
    content = pack(payload)
    assert unpack(Message(content, 1, "query.fedbayes")) == payload
    assert len(content) == 1


def test_long_bytes_travel_in_pieces(monkeypatch):
    monkeypatch.setattr(messages, "_LONGEST", 3)
    for payload in (b"abc", b"abcdefg", bytes(range(40))):
        content = pack(payload)
        assert len(content) == -(-len(payload) // 3)
        shuffled = RecordDict({name: content[name] for name in reversed(list(content))})
        assert unpack(Message(shuffled, 1, "query.fedbayes")) == payload


def test_answers_come_as_they_are_given():
    grid = FakeGrid({1: (0.3, b"one"), 2: (0.0, b"two"), 3: (0.15, b"three")})
    transport = GridTransport(grid, pause=0.01)
    answers = transport.send({1: b"a", 2: b"b", 3: b"c"}, 5.0)
    assert len(grid.sent) == 3  # they are on their way before anybody waits for them
    assert list(answers) == [(2, b"two"), (3, b"three"), (1, b"one")]
    assert [unpack(message) for message, _ in grid.sent.values()] == [b"a", b"b", b"c"]


def test_looks_are_rarer_the_longer_nothing_has_come(monkeypatch):
    """A twentieth of the time later at most, and a second; after an answer they are as frequent as at first."""
    now, pauses = [0.0], {}

    def sleep(seconds):
        pauses[now[0]] = seconds
        now[0] += seconds

    clock = SimpleNamespace(monotonic=lambda: now[0], sleep=sleep)
    monkeypatch.setattr(fedbayes.flower.grid, "time", clock)
    monkeypatch.setitem(globals(), "time", clock)
    answers = GridTransport(FakeGrid({1: (50.0, b"one"), 2: (60.0, b"two")})).send({1: b"a", 2: b"b"}, 600.0)
    first = next(answers)
    came = now[0]
    assert first == (1, b"one")
    assert came < 51.0
    assert list(answers) == [(2, b"two")]
    assert all(
        pause == pytest.approx(np.clip(0.05 * (at - came if at >= came else at), 0.1, 1.0))
        for at, pause in pauses.items()
    )
    assert len(pauses) < 250  # of 600


@pytest.mark.parametrize(
    ("code", "failure"),
    [
        (1, Failure.FAILED),
        (2, Failure.FAILED),
        (3, Failure.LATE),
        (4, Failure.LATE),
        (5, Failure.GONE),
        (8, Failure.FAILED),
        (999, Failure.FAILED),
        (NoAnswer.WORKER_DIED, Failure.FAILED),
        (NoAnswer.TOO_LATE, Failure.LATE),
    ],
)
def test_errors_become_failures(code, failure):
    assert collect(FakeGrid({1: (0.0, Error(code, "reason")), 2: (0.0, b"two")})) == {1: failure, 2: b"two"}


def test_the_text_of_an_error_is_not_written_down(caplog):
    collect(FakeGrid({1: (0.0, Error(2, "a secret")), 2: (0.0, Error(NoAnswer.NO_SITE_ID, "a secret"))}))
    assert "secret" not in caplog.text
    assert "node 1: Flower's error 2" in caplog.text
    assert "node 2: the node's configuration does not name its site" in caplog.text


@pytest.mark.parametrize(
    "content",
    [
        RecordDict(),
        RecordDict({"0": ConfigRecord()}),
        RecordDict({"0": ConfigRecord({"bytes": "text"})}),
        RecordDict({"0": ConfigRecord({"bytes": [b"x", b"y"]})}),
        RecordDict({"0": ConfigRecord({"other": b"x"})}),
        RecordDict({"0": ConfigRecord({"bytes": b"x", "other": b"y"})}),
        RecordDict({"1": ConfigRecord({"bytes": b"x"})}),
        RecordDict({"0": ConfigRecord({"bytes": b"x"}), "2": ConfigRecord({"bytes": b"y"})}),
        RecordDict({"0": ConfigRecord({"bytes": b"x"}), "more": ArrayRecord({"bytes": Array(np.zeros(3))})}),
        RecordDict({"0": ArrayRecord({"bytes": Array("uint8", (1,), "pickle", b"\x80\x04K\x01.")})}),
        RecordDict({"0": MetricRecord({"bytes": 3})}),
    ],
    ids=[
        "nothing", "no entry", "text", "a list", "another name", "one entry more", "no first", "a gap", "an array more",
        "a pickle", "a number",
    ],
)  # fmt: skip
def test_other_content_is_a_failure(content):
    assert collect(FakeGrid({1: (0.0, content)})) == {1: Failure.FAILED}


def test_no_answer_by_the_deadline_is_late_or_gone():
    grid = FakeGrid({1: (60.0, b"one"), 2: (60.0, b"two"), 3: (0.0, b"three")})
    grid.nodes = [1, 3]
    started = time.monotonic()
    assert collect(grid, timeout=0.3) == {1: Failure.LATE, 2: Failure.GONE, 3: b"three"}
    assert time.monotonic() - started < 5


def test_a_node_that_flower_does_not_know_is_gone():
    assert collect(FakeGrid({1: (0.0, b"one"), 2: (0.0, b"two")}, refuse=[1])) == {1: Failure.GONE, 2: b"two"}


def test_answers_of_earlier_rounds_are_ignored():
    grid = FakeGrid({1: (60.0, b"old")})
    transport = GridTransport(grid, pause=0.01)
    assert dict(transport.send({1: b"first"}, 0.1)) == {1: Failure.LATE}
    ((first, _),) = grid.sent.values()
    grid.answers, grid.extra = {1: (0.1, b"new")}, [reply(first, b"old")]
    assert dict(transport.send({1: b"second"}, 5.0)) == {1: b"new"}


def test_no_request_is_no_message():
    assert collect(FakeGrid({})) == {}


def test_messages_live_as_long_as_the_round():
    grid = FakeGrid({1: (0.0, b"")})
    collect(grid, timeout=17.0)
    ((message, _),) = grid.sent.values()
    assert 17.0 <= message.metadata.ttl <= 20.0
    assert message.metadata.message_type == "query.fedbayes"


def test_only_nodes_with_a_name_take_part(caplog):
    grid = FakeGrid({1: (0.0, b""), 2: (0.0, b"")}, names={1: "north"})
    addresses = GridTransport(grid).addresses()
    assert addresses[1].fingerprint.startswith("SHA256:")
    assert addresses[1].name == "north"
    assert addresses.keys() == {1}  # whoever has a key and no name could claim any site
    assert "Node 2 is registered under no name and takes no part." in caplog.text
    assert set(GridTransport(grid, keys=False).addresses().values()) == {None}
    assert len(set(GridTransport(grid, keys=True).addresses().values()) - {None}) == 2


def test_what_flower_can_not_read_itself_costs_no_other_node_its_answer(caplog):
    """Flower raises while it reads all answers of one look."""
    grid = FakeGrid({1: (0.0, b"one"), 2: (0.0, b"bad"), 3: (0.0, b"three")})
    pull = grid.pull_messages

    def raises(names):
        if any(grid.sent[name][0].metadata.dst_node_id == 2 for name in names):
            raise KeyError("arraychunk_ids")
        return pull(names)

    grid.pull_messages = raises
    assert collect(grid) == {1: b"one", 2: Failure.FAILED, 3: b"three"}
    assert "node 2: Flower can't read its answer (KeyError)" in caplog.text


def test_an_error_of_the_connection_is_told():
    """It is no node's doing."""
    grid = FakeGrid({1: (0.0, b"one")})

    def broken(names):
        raise ConnectionError

    grid.pull_messages = broken
    with pytest.raises(ConnectionError):
        collect(grid)


def test_a_node_that_is_one_answer_behind_is_nudged(monkeypatch):
    """It sends an answer once the next message has come."""
    grid = FakeGrid({1: (0.0, b"one"), 2: (0.0, b"two")})
    look = grid.pull_messages

    def behind(names):
        """The second node's answers, if it was sent something later."""
        last = {message.metadata.dst_node_id: name for name, (message, _) in grid.sent.items()}
        return look([name for name in names if grid.sent[name][0].metadata.dst_node_id == 1 or name != last[2]])

    monkeypatch.setattr(grid, "pull_messages", behind)
    assert collect(grid, timeout=0.3) == {1: b"one", 2: Failure.LATE}
    before = len(grid.sent)
    assert collect(grid, timeout=5.0, nudge_after=0.1) == {1: b"one", 2: b"two"}
    nudges = [message for message, _ in list(grid.sent.values())[before + 2 :]]
    assert [(each.metadata.dst_node_id, unpack(each)) for each in nudges] == [(2, b"")]


def test_a_node_can_not_answer_for_another():
    grid = FakeGrid({1: (0.2, b"one"), 2: (0.0, b"two")})
    transport = GridTransport(grid, pause=0.01)
    pull = grid.pull_messages

    def forged(names):
        found = pull(names)
        for message in list(found):
            if message.metadata.src_node_id == 2:
                copy = reply(grid.sent["message 0"][0], b"forged")
                copy.metadata.__dict__["_src_node_id"] = 2
                found += [copy, message]
        return found

    grid.pull_messages = forged
    assert sorted(transport.send({1: b"a", 2: b"b"}, 5.0)) == [(1, b"one"), (2, b"two")]
