"""The adapter over real processes: a SuperLink, its SuperNodes, a client process for every message."""

import os
import signal
import stat
from pathlib import Path

import pytest

pytest.importorskip("flwr")

from federation import wait_until

pytestmark = pytest.mark.slow


@pytest.fixture
def output(tmp_path):
    """Where the echo app's server writes."""
    return {"output": str(tmp_path / "rounds.jsonl")}


def by_site(answers):
    return {answer["site"]: answer for answer in answers if "site" in answer}


def failures(answers):
    return sorted(answer["failure"] for answer in answers if "failure" in answer)


def worker_log(federation, site):
    path = federation.folder / "state" / site / "worker.log"
    return path.read_text() if path.exists() else ""


def wait_for_sleep(federation, site, number):
    """Until the site works on that round's request."""
    wait_until(lambda: f"asleep in round {number}" in worker_log(federation, site), 60, f"{site} in round {number}")


@pytest.mark.parametrize("secure", [False, True], ids=["open", "TLS and keys"])
def test_every_site_answers_every_round_by_one_worker(secure, federate, echo, rounds, output):
    federation = federate(sites=3, tls=secure, keys=secure).start()
    run = federation.run(echo, output | {"num-rounds": 3, "order": "1:site-0:3.5"})
    assert run.wait(120) == "finished:completed", run.log()
    assert len(rounds()) == 3
    for number, answers in enumerate(rounds()):
        sites = by_site(answers)
        assert sorted(sites) == ["site-0", "site-1", "site-2"]
        assert {(answer["round"], answer["calls"]) for answer in answers} == {(number, number + 1)}
        assert {site: answer["pid"] for site, answer in sites.items()} == federation.workers()
        keys = {answer["key"] for answer in answers}
        assert len(keys) == 3 if secure else keys == {None}
    assert rounds()[1][-1]["site"] == "site-0"  # answers come in as they are given
    for config in federation.configs:
        paths = [Path(config["state-dir"]), *Path(config["state-dir"]).rglob("*")]
        assert [path for path in paths if stat.S_IMODE(path.stat().st_mode) & 0o077] == []


def test_a_round_goes_on_without_sites_that_fail_or_are_late(federate, echo, rounds, output):
    federation = federate(sites=3).start()
    order = "0:site-0:raise 0:site-1:exit 1:site-2:14.0"
    run = federation.run(echo, output | {"num-rounds": 3, "timeout": 10.0, "order": order})
    assert run.wait(180) == "finished:completed", run.log()
    first, second, third = rounds()
    assert failures(first) == ["FAILED", "FAILED"]
    assert failures(second) == ["LATE"]
    assert failures(third) == []
    assert by_site(first)["site-2"]["pid"] == by_site(third)["site-2"]["pid"]  # late, but alive
    database = (federation.folder / "server" / "state.db").read_bytes().decode("latin-1")
    assert "secret 42042" in worker_log(federation, "site-0")
    assert [told for told in (run.log(), federation.log(), database) if "secret 42042" in told] == []


def test_processes_killed_over_a_request(federate, echo, rounds, output):
    """The worker: it is replaced, and its successor answers. The process of the message: that site is late for a while.

    Flower's node waits 60 seconds for a sign of life of that process, and takes no other message meanwhile.
    """
    federation = federate(sites=2).start()
    order = "1:site-0:3.0 2:site-1:6.0"
    run = federation.run(echo, output | {"num-nodes": 2, "num-rounds": 20, "timeout": 20.0, "order": order})
    wait_for_sleep(federation, "site-0", 1)
    before = federation.workers()
    os.kill(before["site-0"], signal.SIGKILL)
    wait_for_sleep(federation, "site-1", 2)
    federation.kill_client_app(1)
    wait_until(lambda: any("site-1" in by_site(answers) for answers in rounds()[3:]), 150, "site-1 is back")
    run.stop()
    second, third = rounds()[1:3]
    again = next(by_site(answers) for answers in rounds()[3:] if "site-1" in by_site(answers))
    assert by_site(second)["site-0"]["pid"] != before["site-0"]
    assert by_site(second)["site-0"]["calls"] == 1
    assert failures(third) == ["LATE"]
    assert again["site-0"]["pid"] == by_site(second)["site-0"]["pid"]
    assert again["site-1"]["pid"] == before["site-1"]


@pytest.mark.parametrize("secure", [False, True], ids=["open", "TLS and keys"])
def test_a_node_killed_and_restarted_is_served_by_its_worker(secure, federate, echo, rounds, output):
    federation = federate(sites=2, tls=secure, keys=secure).start()
    settings = {"num-nodes": 2, "num-rounds": 12, "timeout": 12.0, "order": "1:site-1:4.0"}
    run = federation.run(echo, output | settings)
    wait_for_sleep(federation, "site-1", 1)
    worker = federation.workers()["site-1"]
    federation.kill(1)
    federation.restart(1)
    wait_until(lambda: any("site-1" in by_site(answers) for answers in rounds()[2:]), 150, "site-1 is back")
    run.stop()
    first, second = rounds()[:2]
    again = next(answers for answers in rounds()[2:] if "site-1" in by_site(answers))
    assert failures(second)
    assert by_site(again)["site-1"]["pid"] == worker  # it has outlived the node
    nodes = [by_site(answers)["site-1"]["node"] for answers in (first, again)]
    assert (nodes[0] == nodes[1]) == secure  # without a key of its own the node is a new one
    assert (by_site(first)["site-1"]["key"] == by_site(again)["site-1"]["key"]) or not secure


def test_the_workers_outlive_the_server(federate, echo, rounds, output):
    federation = federate(sites=2).start()
    settings = output | {"num-nodes": 2, "num-rounds": 3, "order": "1:site-0:4.0"}
    run = federation.run(echo, settings)
    wait_for_sleep(federation, "site-0", 1)
    workers = federation.workers()
    federation.kill_server()
    wait_until(lambda: not run.running, 60, "the end of the run")
    assert len(rounds()) == 1
    federation.start_server()
    again = federation.run(echo, settings | {"order": ""})
    assert again.wait(120) == "finished:completed", again.log()
    assert len(rounds()) == 4
    assert federation.workers() == workers


def test_a_new_app_has_new_workers(federate, echo, rounds, output):
    federation = federate(sites=1).start()
    settings = output | {"num-nodes": 1, "num-rounds": 1}
    for _ in range(2):
        run = federation.run(echo, settings)
        assert run.wait(60) == "finished:completed", run.log()
    with (echo / "echo" / "client.py").open("a") as file:
        file.write("\n# changed\n")
    run = federation.run(echo, settings)
    assert run.wait(60) == "finished:completed", run.log()
    (one,), (two,), (three,) = rounds()
    assert one["pid"] == two["pid"] != three["pid"]
    assert (one["calls"], two["calls"], three["calls"]) == (1, 2, 1)


@pytest.mark.parametrize("config", [{"site-id": ""}, {"state-dir": "/proc/nowhere"}], ids=["no name", "no folder"])
def test_a_site_that_is_set_up_wrongly_fails_at_once(config, federate, echo, rounds, output):
    federation = federate(sites={"site-0": config}).start()
    run = federation.run(echo, output | {"num-nodes": 1, "num-rounds": 1})
    assert run.wait(60) == "finished:completed", run.log()
    assert failures(rounds()[0]) == ["FAILED"]
    assert "does not name its site" in run.log() or "state folder can't be used" in run.log()
