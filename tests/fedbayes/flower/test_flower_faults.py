"""Real processes without TLS and keys: each site's worker, and what happens where things fail, are late, are killed.

The tests use one federation in turn. The last one leaves the server with a node that is gone.
"""

import os
import signal
from pathlib import Path

import pytest

pytest.importorskip("flwr")

from echoes import assert_one_worker_answers_each_site, by_site, failures, wait_for_sleep
from federation import wait_until
from fits import EP, LONG, app_with, assert_same_file, here, nodes, settings

pytestmark = [pytest.mark.slow, pytest.mark.timeout(2400)]
THREE = 3  # sites


@pytest.fixture
def federation(shared, tmp_path_factory):
    return shared(lambda: {"sites": nodes(tmp_path_factory.mktemp("open") / "data", THREE)})


def test_every_site_answers_every_round_by_one_worker(federation, echo, rounds, output):
    assert_one_worker_answers_each_site(federation, echo, rounds, output)
    assert {answer["key"] for answers in rounds() for answer in answers} == {None}


def test_a_new_app_has_new_workers(federation, echo, rounds, output):
    for changed in ("", "", "\n# changed\n"):
        with (echo / "echo" / "client.py").open("a") as file:
            file.write(changed)
        run = federation.run(echo, output | {"num-rounds": 1})
        assert run.wait(300) == "finished:completed", run.log()
    one, two, three = (by_site(answers) for answers in rounds())
    assert sorted(one) == sorted(two) == sorted(three) == federation.names
    for site in one:
        assert one[site]["pid"] == two[site]["pid"] != three[site]["pid"]
        assert (one[site]["calls"], two[site]["calls"], three[site]["calls"]) == (1, 2, 1)


def test_a_round_goes_on_without_sites_that_fail_or_are_late(federation, echo, rounds, output):
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


def test_processes_killed_over_a_request(federation, echo, rounds, output):
    """The worker: it is replaced, and its successor answers. The process of the message: that site is late for a while.

    Flower's node waits 60 seconds for a sign of life of that process, and takes no other message meanwhile.
    """
    order, shorter = "1:site-0:3.0 2:site-1:6.0", " ".join(f"{i}:20.0" for i in range(2, 40))
    run = federation.run(echo, output | {"num-rounds": 40, "shorter": shorter, "order": order})
    wait_for_sleep(federation, output, "site-0", 1)
    before = federation.workers()
    os.kill(before["site-0"], signal.SIGKILL)
    wait_for_sleep(federation, output, "site-1", 2)
    federation.kill_client_app(1)
    wait_until(lambda: any("site-1" in by_site(answers) for answers in rounds()[3:]), 300, "site-1 is back")
    Path(output["output"] + ".enough").touch()
    assert run.wait(300) == "finished:completed", run.log()
    second, third = rounds()[1:3]
    again = next(by_site(answers) for answers in rounds()[3:] if "site-1" in by_site(answers))
    assert by_site(second)["site-0"]["pid"] != before["site-0"]
    assert by_site(second)["site-0"]["calls"] == 1
    assert "site-1" not in by_site(third)
    assert federation.workers()["site-0"] == by_site(second)["site-0"]["pid"]
    assert again["site-1"]["pid"] == before["site-1"]


@pytest.mark.filterwarnings("ignore::fedbayes.errors.NotConvergedWarning")
def test_a_node_killed_in_mid_run_comes_back_under_another_address(federation, tmp_path):
    """Without a key of its own: its data count once all the same. See the fits for one with a key."""
    run = federation.run(
        app_with(EP, tmp_path / "app"), settings(THREE, tmp_path / "fit", **{"round-timeout": 40.0, "node-keys": "no"})
    )
    run.wait_for("Phase EP, round 1", LONG)
    worker = federation.workers()["site-1"]
    federation.kill(1)
    federation.restart(1)
    assert run.wait(LONG) == "finished:completed", run.log()
    assert "Site site-1 is back as another node" in run.log()
    assert federation.workers()["site-1"] == worker  # it has outlived the node
    assert_same_file(tmp_path / "fit", here(EP, THREE), rtol=1e-10, atol=1e-10)
