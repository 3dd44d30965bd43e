"""What a site is told before its node starts, and what its node logs of a refusal. Another file has the real server."""

import datetime
import json
import logging
from email.utils import format_datetime

import httpx
import pytest
from typer.testing import CliRunner

pytest.importorskip("flwr")

from certificates import make_certificates, make_node_key
from federation import free_ports

from fedbayes.cli.main import app
from fedbayes.errors import ClientDataError, FederatedError
from fedbayes.flower.node import admission
from fedbayes.flower.node.admission import Admission
from fedbayes.flower.node.refusals import tell_refusal
from fedbayes.flower.programs import optional
from fedbayes.network.messages import pack


@pytest.fixture
def node(tmp_path):
    """A node of site north, whose server nobody has started."""
    make_certificates(tmp_path)
    make_node_key(tmp_path / "north")
    (port,) = free_ports(1)
    return Admission("north", f"127.0.0.1:{port}", tmp_path / "ca.crt", tmp_path / "north")


def answers(monkeypatch, *told):
    """A server that answers so, one request after the other; the intervals that it is asked with."""
    given, asked = iter(told), []
    monkeypatch.setattr(admission, "_activate", lambda client, public, interval: asked.append(interval) or next(given))
    return asked


def answer(status, code=0, seconds=0):
    """With a clock that is so many seconds behind this machine's."""
    date = datetime.datetime.now(datetime.UTC) - datetime.timedelta(seconds=seconds)
    body = json.dumps({"code": code, "detail": "text"})
    return admission._read(httpx.Response(status, headers={"date": format_datetime(date, usegmt=True)}, text=body))


REGISTERED, REFUSED = (412, 2003), (412, 2004)


def test_a_node_that_is_let_in_is_told_nothing(node, monkeypatch):
    asked = answers(monkeypatch, answer(*REGISTERED), admission._Answer(200, 0, None))
    node.ask()
    assert asked == [0.0, 30.0]  # an interval that every server refuses, and then Flower's own


@pytest.mark.parametrize(
    ("told", "sentence"),
    [
        ([(*REFUSED,)], r"does not know the key of site 'north': '.*north', with the fingerprint SHA256:"),
        ([(*REGISTERED,), (*REFUSED,)], r"still counts an earlier node of site 'north' as alive"),
        ([(401, 0, 60)], r"clock of this machine is (59|60|61) seconds ahead of the server's"),
        ([(401, 0, 6)], r"clock of this machine is [567] seconds ahead of the server's"),
        ([(401, 0, -3600)], r"clock of this machine is 3,(599|600|601) seconds behind the server's"),
        ([(401, 0, 0)], r"can't check the signature of the node of site 'north' \(status 401\)"),
        ([(403,)], r"is not the server of site 'north', .* \(status 403, Flower's code none\)"),
        ([(412, 1010)], r"is not the server of site 'north', .* Flower's code 1010"),
    ],
)
def test_each_cause_has_its_own_sentence(node, monkeypatch, told, sentence):
    answers(monkeypatch, *(answer(*each) for each in told))
    with pytest.raises(FederatedError, match=sentence):
        node.ask()


def test_a_server_without_a_clock_and_with_another_page_is_no_server(node, monkeypatch):
    answers(monkeypatch, admission._read(httpx.Response(404, text="<html>")))
    with pytest.raises(FederatedError, match=r"status 404, Flower's code none"):
        node.ask()


def test_nobody_answers(node):
    with pytest.raises(FederatedError, match=rf"Nobody answers at {node.server}, where the node of site 'north'"):
        node.ask()


def test_a_certificate_of_somebody_else(node, monkeypatch):
    def fail(*_):
        raise httpx.ConnectError("[SSL: CERTIFICATE_VERIFY_FAILED] certificate is not yet valid (_ssl.c:1006)")

    monkeypatch.setattr(admission, "_activate", fail)
    with pytest.raises(FederatedError, match=r"does not vouch for: certificate is not yet valid\. Get `ca\.crt`"):
        node.ask()


def test_files_that_are_not_there_or_hold_something_else(node, tmp_path):
    with pytest.raises(ClientDataError, match=r"The node's key, '.*nobody', can't be read \(No such file"):
        node._replace(key=tmp_path / "nobody").ask()
    with pytest.raises(ClientDataError, match=r"north\.pub' is no private key of a node"):
        node._replace(key=tmp_path / "north.pub").ask()
    with pytest.raises(ClientDataError, match=r"The server's authority, '.*nobody', can't be read \(.*No such file"):
        node._replace(certificate=tmp_path / "nobody").ask()
    with pytest.raises(ClientDataError, match=r"The server's authority, '.*north', can't be read \("):
        node._replace(certificate=tmp_path / "north").ask()


def test_the_command_ends_with_the_sentence_alone(node):
    words = ["check-node", "north", "--server", node.server, "--key", node.key, "--certificate", node.certificate]
    result = CliRunner().invoke(app, [str(word) for word in words])
    assert result.exit_code == 1
    assert result.output.startswith(f"Nobody answers at {node.server}")
    assert "Traceback" not in result.output


def test_a_refusal_is_in_the_node_s_log_with_the_path_of_the_worker_s(tmp_path, caplog):
    caplog.set_level(logging.INFO)
    log = tmp_path / "worker.log"
    for quiet in (pack({"kind": "hello", "site": "north"}), b"", b"echo", pack({"kind": "refusal", "reason": "DRAWS"})):
        tell_refusal(quiet, log)
    assert caplog.text == ""
    tell_refusal(pack({"kind": "refusal", "site": "north", "reason": "DATA"}), log)
    assert f"Site north has data that can't be used; its own log says why. Its worker's log is '{log}'." in caplog.text


def test_a_study_may_name_its_coordinates(tmp_path, monkeypatch):
    (tmp_path / "study_with_names.py").write_text('coords = {"coefficient": ["age"]}\n')
    monkeypatch.syspath_prepend(tmp_path)
    assert optional("study_with_names", "coords", None) == {"coefficient": ["age"]}
    assert optional("study_with_names", "coords", {}) == {}
    assert optional("study_with_names", "dims", None) is None
    assert optional(lambda: None, "coords", None) is None
