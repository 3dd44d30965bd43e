"""The adapter over real processes: a SuperLink, its SuperNodes, a client process for every message."""

import pytest

pytestmark = pytest.mark.slow


@pytest.mark.parametrize("secure", [False, True], ids=["open", "TLS and keys"])
def test_every_site_answers_every_round(secure, federate, echo, rounds, tmp_path):
    federation = federate(sites=3, tls=secure, keys=secure).start()
    run = federation.run(echo, {"output": str(tmp_path / "rounds.jsonl"), "num-rounds": 3})
    assert run.wait(120) == "finished:completed", run.log()
    assert len(rounds()) == 3
    for number, answers in enumerate(rounds()):
        assert sorted(answer["site"] for answer in answers) == ["site-0", "site-1", "site-2"]
        assert {answer["round"] for answer in answers} == {number}
        keys = {answer["key"] for answer in answers}
        assert len(keys) == 3 if secure else keys == {None}
