"""A site's log: one line a request, whatever becomes of it; what can't be logged does not leave."""

import json
import stat

import numpy as np
import pytest
from typer.testing import CliRunner

from fedbayes.cli import app
from fedbayes.network.client.journal import Entry, Journal, as_text
from fedbayes.network.messages import pack, unpack
from fedbayes.rounds.wire import arrays_of


@pytest.mark.parametrize("hidden", [False, True])
def test_every_request_has_its_line(federation, hidden):
    world = federation()
    network = world.network()
    world.fit(network, correct=True, secure_sums=hidden)
    told = [unpack(content) for content in network.answered]
    for site in network.sites.values():
        mine = [message for message in told if message.header["site"] == site.name]
        entries = list(site.journal.entries())
        assert [entry.kind for entry in entries] == [message.header["kind"] for message in mine]
        arrays = [arrays_of(each.body) if each.body else {} for each in mine]
        words = [sum(np.size(array) for array in each.values()) for each in arrays]
        numbers = [
            num - len(each["masked"]) if "masked" in each else num for num, each in zip(words, arrays, strict=True)
        ]
        assert [entry.numbers for entry in entries] == numbers
        assert sum(numbers) > 0
        assert {entry.result for entry in entries} == ({"answered", "hidden"} if hidden else {"answered"})
        assert (f"{sum(numbers):,} of them hidden in sums." in as_text(entries, 40)) == hidden
        assert stat.S_IMODE(site.journal.path.stat().st_mode) == 0o600


def test_refusals_and_rubbish_have_a_line(federation):
    site = federation().site("ada")
    site.answer(b"rubbish")
    site.answer(pack({"kind": "hello", "study": "another"}))
    site.answer(pack({"kind": "\n\x1b[2J" * 50, "study": site.study.digest, "run": "f" * 500, "order": "7"}))
    entries = list(site.journal.entries())
    assert [entry.result for entry in entries] == ["FORMAT", "STUDY", "FAILED"]
    lines = site.journal.path.read_text().splitlines()
    assert len(lines) == 3
    assert all(line.isascii() and line.isprintable() and len(line) < 1000 for line in lines)
    assert entries[2].order == -1
    shown = as_text(entries, 40)
    assert all(line.isascii() and line.isprintable() for line in shown.splitlines())


def test_what_can_not_be_logged_does_not_leave(federation):
    site = federation().site("ada")
    request = pack({"kind": "hello", "study": site.study.digest})
    assert unpack(site.answer(request)).header["kind"] == "hello"
    site.journal.path.unlink()
    site.journal.path.mkdir()
    answer = unpack(site.answer(request)).header
    assert (answer["kind"], answer["reason"]) == ("refusal", "FAILED")
    assert "told" not in answer


def entry(**changes) -> Entry:
    return Entry("2026-01-01 00:00:00", "after", "s", "r1", 3, "log_likelihood_sum", "d1", 1000, "answered")._replace(
        **changes
    )


def test_the_table_counts_what_has_left_of_each_data_set(tmp_path):
    journal = Journal(tmp_path)
    journal.write({"kind": "after", "run": "r1", "order": 3}, "d1", 1000, "answered")
    with journal.path.open("a") as file:
        file.write('{"time": "cut sho')
    assert [each.numbers for each in journal.entries()] == [1000]
    told = as_text([entry(), entry(run="r2"), entry(data="d2", numbers=5), entry(result="DISCLOSURE", numbers=0)], 2)
    lines = told.splitlines()
    assert lines[0].split() == ["time,", "UTC", "request", "run", "order", "update", "numbers", "answer"]
    assert len(lines) == 6
    assert lines[3:] == [
        "2,000 numbers about the data d1 have left in 2 runs.",
        "5 numbers about the data d2 have left in 1 run.",
        "4 requests in all, 1 of them refused.",
    ]


@pytest.mark.parametrize("asked", [True, False])
def test_the_command_reads_it(federation, asked):
    world = federation()
    if asked:
        world.site("ada").answer(pack({"kind": "hello", "study": world.study.digest}))
    config = f'site-id="ada" state-dir="{world.folder / "ada"}"'
    result = CliRunner().invoke(app, ["log", "--config", config])
    assert result.exit_code == 0
    assert ("1 request in all, 0 of them refused." if asked else "Site ada was asked nothing yet") in result.output


def test_a_line_is_json(tmp_path):
    journal = Journal(tmp_path)
    journal.write(
        {"kind": "round", "study": "a" * 64, "run": "b" * 32, "order": 4, "update": "newton"}, "c" * 64, 7, "answered"
    )
    (line,) = journal.path.read_text().splitlines()
    told = json.loads(line)
    assert told.pop("time").count(":") == 2
    assert told == {
        "kind": "round", "study": "a" * 12, "run": "b" * 12, "order": 4, "update": "newton", "data": "c" * 12,
        "numbers": 7, "result": "answered",
    }  # fmt: skip
