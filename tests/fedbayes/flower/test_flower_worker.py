"""The worker beside a node: started once, called by each message's process, replaced where it must be. No Flower."""

import json
import os
import signal
import socket
import stat
import sys
import threading
from dataclasses import replace
from multiprocessing.connection import Connection
from pathlib import Path

import pytest

pytest.importorskip("flwr")

from federation import wait_until

from fedbayes.flower.codes import NoAnswer, SiteFailure
from fedbayes.flower.node.caller import Caller
from fedbayes.flower.node.source import fingerprint, locate
from fedbayes.flower.node.state import StateFolder

APP = """
import json, os, time

class Site:
    def __init__(self, config):
        self.calls = 0

    def answer(self, request):
        self.calls += 1
        what = request.decode()
        if what == "raise":
            raise RuntimeError
        if what == "exit":
            os._exit(3)
        if what.startswith("sleep"):
            time.sleep(float(what[5:]))
        return json.dumps({"pid": os.getpid(), "calls": self.calls, "size": len(request)}).encode()

class App:
    open_site = Site

app = App()
"""


@pytest.fixture
def caller(tmp_path, monkeypatch):
    """Calls the worker of a site in a new folder, which is gone when the test ends."""
    (tmp_path / "code").mkdir()
    (tmp_path / "code" / "the_app.py").write_text(APP)
    monkeypatch.syspath_prepend(str(tmp_path / "code"))
    state = StateFolder(tmp_path / "state")
    caller = Caller(state, "the_app", "app", {"site-id": "north"}, "one", 60.0)
    yield caller
    if pid := running(caller):
        os.kill(pid, signal.SIGKILL)
    print(state.log.read_text() if state.log.exists() else "")


def running(caller):
    """The process of the worker; 0 where there is none."""
    with caller.state.place() as free:
        return 0 if free else int((caller.state.path / "worker.pid").read_text())


def ask(caller, what="", timeout=30.0):
    return json.loads(caller.ask(what.encode(), timeout))


def fails(caller, what, timeout=30.0):
    with pytest.raises(SiteFailure) as caught:
        ask(caller, what, timeout)
    return caught.value.code


def test_one_worker_answers_all_callers(caller):
    first = ask(caller)
    assert first["pid"] != os.getpid()
    assert [ask(caller)["calls"] for _ in range(3)] == [2, 3, 4]
    assert ask(replace(caller))["pid"] == first["pid"] == running(caller)


def test_a_large_request_arrives(caller):
    assert ask(caller, "x" * 3_000_000)["size"] == 3_000_000


def test_callers_at_the_same_time_share_one_worker(caller):
    answers = []
    threads = [threading.Thread(target=lambda: answers.append(ask(caller, "sleep0.1"))) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(answer["calls"] for answer in answers) == [1, 2, 3, 4]
    assert len({answer["pid"] for answer in answers}) == 1


def test_other_code_has_another_worker(caller):
    first = ask(caller)
    second = ask(replace(caller, fingerprint="two"))
    assert second["pid"] != first["pid"]
    assert second["calls"] == 1
    assert running(caller) == second["pid"]


def test_a_worker_that_was_killed_is_replaced(caller):
    first = ask(caller)
    os.kill(first["pid"], signal.SIGKILL)
    assert ask(caller)["pid"] != first["pid"]


def test_a_worker_killed_over_a_request_is_replaced_and_the_request_answered(caller):
    first = ask(caller)
    threading.Timer(1.0, os.kill, (first["pid"], signal.SIGKILL)).start()
    second = ask(caller, "sleep2")
    assert second["pid"] != first["pid"]
    assert second["calls"] == 1


@pytest.mark.parametrize("what", ["raise", "exit"])
def test_a_request_that_kills_two_workers_fails(what, caller):
    assert fails(caller, what) == NoAnswer.WORKER_DIED
    assert caller.state.log.read_text().count("worker is ready") == 2
    assert ask(caller)["calls"] == 1


def test_code_that_does_not_load_is_a_failure(caller):
    assert fails(replace(caller, module="no_such_module"), "") == NoAnswer.NO_WORKER
    assert "No module named 'no_such_module'" in caller.state.log.read_text()
    assert ask(caller)["calls"] == 1


def test_a_late_request_fails_and_its_worker_goes_on(caller):
    pid = ask(caller)["pid"]
    assert fails(caller, "sleep3", timeout=1.0) == NoAnswer.TOO_LATE
    assert fails(caller, "", timeout=0.5) == NoAnswer.TOO_LATE  # the worker is still busy
    answer = ask(caller)
    assert (answer["pid"], answer["calls"]) == (pid, 3)  # the one that was too late while it waited was never begun


def test_a_worker_without_work_ends(caller):
    ask(replace(caller, idle=0.5))
    wait_until(lambda: not running(caller), 10, "the end of the worker")
    assert "nobody has called for a while" in caller.state.log.read_text()
    assert not Path(caller.state.socket).exists()


def test_a_worker_whose_socket_is_gone_ends(caller):
    ask(caller)
    os.unlink(caller.state.socket)
    wait_until(lambda: not running(caller), 20, "the end of the worker")
    assert "its socket is gone" in caller.state.log.read_text()


def test_a_caller_without_the_token_is_turned_away(caller):
    ask(caller)
    with socket.socket(socket.AF_UNIX) as line:
        line.connect(caller.state.socket)
        with Connection(line.detach()) as connection:
            connection.send_bytes(b"00:" + caller.fingerprint.encode())
            with pytest.raises(EOFError):
                connection.recv_bytes()
    assert ask(caller)["calls"] == 2


def test_a_caller_that_says_nothing_does_not_stop_the_worker(caller):
    ask(caller)
    with socket.socket(socket.AF_UNIX) as line:
        line.connect(caller.state.socket)
    assert ask(caller)["calls"] == 2


def test_a_long_folder_has_its_socket_elsewhere(caller, tmp_path):
    state = StateFolder(tmp_path / ("long" * 20) / ("long" * 20))
    far = replace(caller, state=state)
    assert len(state.socket) < 100
    try:
        assert ask(far)["calls"] == 1
        assert stat.S_IMODE(Path(state.socket).parent.stat().st_mode) == 0o700
    finally:
        os.kill(running(far), signal.SIGKILL)
        os.unlink(state.socket)


def test_only_the_owner_can_read_what_a_site_keeps(caller):
    ask(caller)
    modes = {path.name: stat.S_IMODE(path.stat().st_mode) for path in caller.state.path.iterdir()}
    assert stat.S_IMODE(caller.state.path.stat().st_mode) == 0o700
    assert {name: mode for name, mode in modes.items() if mode & 0o077} == {}
    assert {"worker.lock", "worker.log", "worker.pid", "worker.socket", "worker.token"} <= set(modes)


def test_an_open_folder_is_closed(tmp_path):
    (tmp_path / "state").mkdir(mode=0o755)
    assert stat.S_IMODE(StateFolder(tmp_path / "state").path.stat().st_mode) == 0o700


@pytest.mark.parametrize("name", ["", ".hidden", "a/b", "../up", "tab\there"])
def test_a_site_needs_a_name(name):
    with pytest.raises(SiteFailure, match=r"does not say whose data it holds|A site is called") as caught:
        StateFolder.of({"site-id": name})
    assert caught.value.code == NoAnswer.NO_SITE_ID


def test_a_folder_that_is_none_is_a_failure(tmp_path):
    (tmp_path / "file").touch()
    with pytest.raises(SiteFailure, match="The state folder can't be used") as caught:
        StateFolder.of({"site-id": "north", "state-dir": str(tmp_path / "file")})
    assert caught.value.code == NoAnswer.NO_STATE_FOLDER


def test_the_folder_is_the_users_by_default(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))
    assert StateFolder.of({"site-id": "north"}).path == tmp_path / "fedbayes" / "sites" / "north"


def test_the_fingerprint_changes_with_sources_and_configuration(tmp_path, monkeypatch):
    package = tmp_path / "some_package"
    (package / "inner").mkdir(parents=True)
    (package / "__init__.py").touch()
    (package / "inner" / "code.py").write_text("x = 1")
    monkeypatch.syspath_prepend(str(tmp_path))
    seen = [fingerprint({"a": 1}, ["some_package.inner.code"])]
    (package / "inner" / "code.py").write_text("x = 2")
    seen.append(fingerprint({"a": 1}, ["some_package.inner.code"]))
    seen.append(fingerprint({"a": 2}, ["some_package.inner.code"]))
    assert len(set(seen)) == 3
    assert fingerprint({"a": 2}, ["some_package.inner.code"]) == seen[-1]
    assert "some_package" not in sys.modules


def test_an_app_is_found_in_its_module(tmp_path, monkeypatch):
    (tmp_path / "holds_app.py").write_text("class A: pass\napp = A()\nhidden = [A()]\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    import holds_app

    assert locate(holds_app.app) == ("holds_app", "app")
    with pytest.raises(LookupError, match="must be a name in its module"):
        locate(holds_app.hidden[0])


def test_the_worker_and_its_caller_import_neither_jax_nor_flower(tmp_path):
    import subprocess

    program = "import sys; from fedbayes.flower.node import caller, worker; print({'jax', 'flwr'} & set(sys.modules))"
    done = subprocess.run([sys.executable, "-c", program], cwd=tmp_path, capture_output=True, text=True)
    assert done.stdout == "set()\n", done.stderr
