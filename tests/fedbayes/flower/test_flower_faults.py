"""Faults of real processes: late, failed, killed and restarted."""

import os
import signal

import pytest

pytest.importorskip("flwr")

from echoes import by_site, failures, wait_for_sleep
from federation import wait_until

pytestmark = pytest.mark.slow


def test_a_round_goes_on_without_sites_that_fail_or_are_late(federate, echo, rounds, output):
    federation = federate(sites=3).start()
    order = "0:site-0:raise 0:site-1:exit 1:site-2:16.0"
    run = federation.run(echo, output | {"num-rounds": 3, "shorter": "1:12.0", "order": order})
    assert run.wait(300) == "finished:completed", run.log()
    first, second, third = rounds()
    assert failures(first) == ["FAILED", "FAILED"]
    assert "site-2" not in by_site(second)
    assert set(failures(second)) == {"LATE"}
    assert failures(third) == []
    assert by_site(first)["site-2"]["pid"] == by_site(third)["site-2"]["pid"]  # late, but alive
    database = (federation.folder / "server" / "state.db").read_bytes().decode("latin-1")
    assert "secret 42042" in federation.worker_log("site-0")
    assert [told for told in (run.log(), federation.log(), database) if "secret 42042" in told] == []


def test_processes_killed_over_a_request(federate, echo, rounds, output):
    """The worker: it is replaced, and its successor answers. The process of the message: that site is late for a while.

    Flower's node waits 60 seconds for a sign of life of that process, and takes no other message meanwhile.
    """
    federation = federate(sites=2).start()
    order, shorter = "1:site-0:3.0 2:site-1:6.0", " ".join(f"{i}:20.0" for i in range(2, 40))
    run = federation.run(echo, output | {"num-nodes": 2, "num-rounds": 40, "shorter": shorter, "order": order})
    wait_for_sleep(federation, "site-0", 1)
    before = federation.workers()
    os.kill(before["site-0"], signal.SIGKILL)
    wait_for_sleep(federation, "site-1", 2)
    federation.kill_client_app(1)
    wait_until(lambda: any("site-1" in by_site(answers) for answers in rounds()[3:]), 300, "site-1 is back")
    run.stop()
    second, third = rounds()[1:3]
    again = next(by_site(answers) for answers in rounds()[3:] if "site-1" in by_site(answers))
    assert by_site(second)["site-0"]["pid"] != before["site-0"]
    assert by_site(second)["site-0"]["calls"] == 1
    assert "site-1" not in by_site(third)
    assert federation.workers()["site-0"] == by_site(second)["site-0"]["pid"]
    assert again["site-1"]["pid"] == before["site-1"]


def test_a_node_killed_and_restarted_is_served_by_its_worker(federate, echo, rounds, output):
    """Without a key of its own it comes back under another address; with one see the fits."""
    federation = federate(sites=2).start()
    shorter = " ".join(f"{i}:12.0" for i in range(1, 40))
    settings = {"num-nodes": 2, "num-rounds": 40, "shorter": shorter, "order": "1:site-1:4.0"}
    run = federation.run(echo, output | settings)
    wait_for_sleep(federation, "site-1", 1)
    worker = federation.workers()["site-1"]
    federation.kill(1)
    federation.restart(1)
    wait_until(lambda: any("site-1" in by_site(answers) for answers in rounds()[2:]), 300, "site-1 is back")
    run.stop()
    first, second = rounds()[:2]
    again = next(answers for answers in rounds()[2:] if "site-1" in by_site(answers))
    assert failures(second)
    assert by_site(again)["site-1"]["pid"] == worker  # it has outlived the node
    nodes = [by_site(answers)["site-1"]["node"] for answers in (first, again)]
    assert nodes[0] != nodes[1]
