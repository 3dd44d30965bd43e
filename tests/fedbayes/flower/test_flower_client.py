"""The client app, called as Flower calls it for a message: what the server is told where there is no answer."""

import pytest

pytest.importorskip("flwr")

from flwr.app import Context, Message, RecordDict
from flwr.supercore.task_identity import TaskIdentity

from fedbayes.flower import client_app
from fedbayes.flower.codes import NoAnswer
from fedbayes.flower.messages import MESSAGE_TYPE, NUDGE, pack, unpack


@pytest.fixture(autouse=True)
def _as_in_a_run(monkeypatch):
    """Messages can be made in a run only."""
    for name, value in {"_run_id": 7, "_node_id": 1, "_task_id": 3}.items():
        monkeypatch.setattr(TaskIdentity, name, value)


app = client_app("a_study_that_is_not_there")


def test_a_nudge_is_answered_without_a_site():
    message = Message(pack(NUDGE), 1, MESSAGE_TYPE)
    answer = app(message, Context(run_id=7, node_id=1, node_config={}, state=RecordDict(), run_config={}))
    assert not answer.has_error()
    assert unpack(answer) == NUDGE


@pytest.mark.parametrize(
    ("config", "code", "told"),
    [
        ({"site-id": ""}, NoAnswer.NO_SITE_ID, "does not name its site"),
        ({"site-id": "north", "state-dir": "/proc/nowhere"}, NoAnswer.NO_STATE_FOLDER, "state folder can't be used"),
    ],
    ids=["no name", "no folder"],
)
def test_a_site_that_is_set_up_wrongly_fails_at_once(config, code, told):
    """With a code and its meaning alone. That codes reach the server's log is shown with the grid."""
    message = Message(pack(b"request"), 1, MESSAGE_TYPE)
    answer = app(message, Context(run_id=7, node_id=1, node_config=config, state=RecordDict(), run_config={}))
    assert answer.error.code == code
    assert told in answer.error.reason == code.meaning
