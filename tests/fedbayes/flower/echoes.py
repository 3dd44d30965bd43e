"""Runs of the echo app, and what its server has written down, read."""

import stat
from pathlib import Path

from federation import wait_until


def by_site(answers):
    """The answers of one round."""
    return {answer["site"]: answer for answer in answers if "site" in answer}


def failures(answers):
    """How the others failed."""
    return sorted(answer["failure"] for answer in answers if "failure" in answer)


def wait_for_sleep(federation, output, site, number):
    """Until the site works on the request of that round of that run: workers of earlier runs wrote the same log."""
    asleep = f"asleep in round {number} of {output['output']}"
    wait_until(lambda: asleep in federation.worker_log(site), 300, f"{site} is {asleep}")


def assert_one_worker_answers_each_site(federation, echo, rounds, output):
    """In three rounds, of which one is slow at the first site; and what they leave there is its owner's alone."""
    run = federation.run(echo, output | {"num-nodes": len(federation.names), "num-rounds": 3, "order": "1:site-0:3.5"})
    assert run.wait(300) == "finished:completed", run.log()
    assert len(rounds()) == 3
    for number, answers in enumerate(rounds()):
        sites = by_site(answers)
        assert sorted(sites) == federation.names
        assert {(answer["round"], answer["calls"]) for answer in answers} == {(number, number + 1)}
        assert {site: answer["pid"] for site, answer in sites.items()} == federation.workers()
    assert rounds()[1][-1]["site"] == "site-0"  # answers come in as they are given
    for config in federation.configs:
        paths = [Path(config["state-dir"]), *Path(config["state-dir"]).rglob("*")]
        assert [path for path in paths if stat.S_IMODE(path.stat().st_mode) & 0o077] == []
