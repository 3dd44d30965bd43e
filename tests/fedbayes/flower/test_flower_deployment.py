"""The adapter over real processes: a SuperLink, its SuperNodes, a client process for every message."""

import stat
from pathlib import Path

import pytest

pytest.importorskip("flwr")

from echoes import by_site, failures

pytestmark = pytest.mark.slow


@pytest.mark.parametrize("secure", [False, True], ids=["open", "TLS and keys"])
def test_every_site_answers_every_round_by_one_worker(secure, federate, echo, rounds, output):
    federation = federate(sites=3, tls=secure, keys=secure).start()
    run = federation.run(echo, output | {"num-rounds": 3, "order": "1:site-0:3.5"})
    assert run.wait(300) == "finished:completed", run.log()
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


def test_a_new_app_has_new_workers(federate, echo, rounds, output):
    federation = federate(sites=1).start()
    settings = output | {"num-nodes": 1, "num-rounds": 1}
    for _ in range(2):
        run = federation.run(echo, settings)
        assert run.wait(300) == "finished:completed", run.log()
    with (echo / "echo" / "client.py").open("a") as file:
        file.write("\n# changed\n")
    run = federation.run(echo, settings)
    assert run.wait(300) == "finished:completed", run.log()
    (one,), (two,), (three,) = rounds()
    assert one["pid"] == two["pid"] != three["pid"]
    assert (one["calls"], two["calls"], three["calls"]) == (1, 2, 1)


@pytest.mark.parametrize("config", [{"site-id": ""}, {"state-dir": "/proc/nowhere"}], ids=["no name", "no folder"])
def test_a_site_that_is_set_up_wrongly_fails_at_once(config, federate, echo, rounds, output):
    federation = federate(sites={"site-0": config}).start()
    run = federation.run(echo, output | {"num-nodes": 1, "num-rounds": 1})
    assert run.wait(300) == "finished:completed", run.log()
    assert failures(rounds()[0]) == ["FAILED"]
    assert "does not name its site" in run.log() or "state folder can't be used" in run.log()
