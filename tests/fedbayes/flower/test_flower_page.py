"""The page "From notebook to network": all its commands, word for word and in their order; and its rule for nginx."""

import os
import re
import shlex
import shutil
import signal
import ssl
import subprocess
import sys
import time
import urllib.error
import urllib.request
import uuid
from pathlib import Path

import jax
import numpy as np
import pytest

pytest.importorskip("flwr")
pytest.importorskip("pandas")

import fedbayes as fb
from fedbayes.results.arviz import from_netcdf

ROOT = Path(__file__).resolve().parents[3]
PAGE = ROOT / "docs" / "from-notebook-to-network.md"
MARK = "FEDBAYES_TEST_OF_THE_PAGE"
SITES = ("budapest", "cleveland", "long-beach")
BLOCK = re.compile(r"^```(\w+)\n(.*?)^```$", re.MULTILINE | re.DOTALL)

in_checkout = pytest.mark.skipif(not PAGE.exists(), reason="the page is in the checkout alone")
needs_tools = pytest.mark.skipif(
    not (shutil.which("openssl") and shutil.which("ssh-keygen") and Path("/proc/self/environ").exists()),
    reason="openssl and ssh-keygen are not installed (Debian: apt-get install openssl openssh-client), or no Linux",
)


def blocks(*languages):
    """(language, text) of the page's fenced blocks in these languages, in their order."""
    found = BLOCK.findall(PAGE.read_text())
    return [(language, text) for language, text in found if language in languages]


def script():
    """The page as one script of bash; blocks of Python with nothing between them are one process."""
    parts, python = ["set -eu"], ""
    for language, text in [*blocks("sh", "python"), ("sh", "")]:
        if language == "python":
            python += text
            continue
        if python:
            parts.append(f"python - <<'END_OF_PYTHON'\n{python}END_OF_PYTHON")
            python = ""
        first = shlex.quote(text.partition("\n")[0])
        parts.append(f"echo '--- the page:' {first}\n{text}" if text else "echo the page is done")
    return "\n".join(parts)


def marked(mark):
    """Processes that inherited this mark, but for the test's own."""
    wanted = f"{MARK}={mark}".encode()
    for folder in Path("/proc").glob("[0-9]*"):
        try:
            if wanted in (folder / "environ").read_bytes().split(b"\0"):
                yield int(folder.name)
        except OSError:
            continue


def end_all(mark):
    """SIGKILL until nobody is left who could start another.

    A process that is between `fork` and `exec` shows no environment for a moment: half a second of silence counts, one
    look does not.
    """
    silent = 0
    for _ in range(300):
        pids = list(marked(mark))
        for pid in pids:
            try:
                os.kill(pid, signal.SIGKILL)
            except ProcessLookupError:
                continue
        silent = 0 if pids else silent + 1
        if silent == 5:
            return
        time.sleep(0.1)  # the end of a process takes its time
    raise AssertionError(f"processes are left: {list(marked(mark))}")


@pytest.fixture
def followed(tmp_path):
    """The page, followed in an empty folder; what it printed."""
    from federation import QUICK, free_ports

    bin_, mark = Path(sys.executable).parent, uuid.uuid4().hex
    ports = free_ports(2)
    environment = {name: value for name, value in os.environ.items() if not name.startswith("FLWR")}
    environment |= {"PATH": f"{bin_}{os.pathsep}{environment['PATH']}", MARK: mark, "PYTHONUNBUFFERED": "1"}
    environment |= {"PORT": str(ports[0]), "NODE_PORT": str(ports[1]), **QUICK}
    log = tmp_path / "page.log"
    try:
        with log.open("wb") as output:
            done = subprocess.run(
                ["bash", "-c", script()],
                cwd=tmp_path, env=environment, stdin=subprocess.DEVNULL, stdout=output, stderr=subprocess.STDOUT,
                start_new_session=True, timeout=1800,
            )  # fmt: skip
        assert done.returncode == 0, "the page's commands have failed"
        yield log.read_text(errors="replace")
    finally:
        end_all(mark)
        for path in [log, *sorted((tmp_path / "heart").glob("*.log")), *sorted(tmp_path.glob("heart/sites/*/*.log"))]:
            if path.exists():
                print(f"----- {path.name}\n{path.read_text(errors='replace')[-4000:]}")


def in_one_process(project, monkeypatch, sites, seed):
    """The posterior by `fit_federated` on the files of these sites."""
    monkeypatch.syspath_prepend(str(project))
    from app.study import load_data, method, model

    clients = {site: load_data({"data-path": str(project / "data" / f"{site}.csv")}) for site in sites}
    fit = fb.fit_federated(model, clients, method=method, key=jax.random.key(seed), progress=False)
    return fit.idata["posterior"]


@in_checkout
@needs_tools
@pytest.mark.slow
@pytest.mark.timeout(2200)
def test_the_page_word_for_word(followed, tmp_path, monkeypatch):
    project = tmp_path / "heart"
    assert followed.rstrip().endswith("the page is done")
    runs = {"result": (SITES, 0), "second": (SITES, 1), "four": ((*SITES, "zurich"), 0)}
    for folder, (sites, seed) in runs.items():
        network = from_netcdf(project / folder / "posterior.nc")["posterior"]
        expected = in_one_process(project, monkeypatch, sites, seed)
        for name in ("intercept", "beta"):
            np.testing.assert_allclose(network[name].to_numpy(), expected[name].to_numpy(), rtol=0, atol=1e-10)
    own = from_netcdf(project / "cleveland.nc")["posterior"]
    result = from_netcdf(project / "result" / "posterior.nc")["posterior"]
    np.testing.assert_allclose(own["beta"].to_numpy(), result["beta"].to_numpy(), rtol=0, atol=1e-10)
    for value in ("0.5464307", "2.4094720", "1.830058"):  # of the sexes and of a row: terminals and logs show no data
        assert value not in followed
    sites_folders = [path for path in (project / "sites").rglob("*") if path.is_dir()]
    assert sites_folders
    assert [path for path in sites_folders if path.stat().st_mode & 0o077] == []


@in_checkout
def test_the_page_shows_no_command_in_a_block_that_is_not_run():
    """Other blocks hold what needs another machine, and are few."""
    languages = {language for language, _ in BLOCK.findall(PAGE.read_text())}
    assert languages == {"sh", "python", "console", "nginx"}
    others = "".join(text for _, text in blocks("console"))
    assert {line.split()[0] for line in others.splitlines()} == {"pip", "curl", "cp", "systemctl"}


@in_checkout
def test_the_page_s_rule_for_nginx_is_the_project_s():
    (rule,) = (text for _, text in blocks("nginx"))
    project = Path(fb.__file__).parent / "flower" / "template" / "services" / "nginx.conf"
    assert "".join(line for line in project.read_text().splitlines(True) if not line.startswith("#")) == rule


def test_a_process_that_hides_for_a_moment_is_ended(monkeypatch):
    """A planted `exec`: the first look finds nothing."""
    looks = iter([[], [4711], [4711], []])
    killed = []
    monkeypatch.setitem(globals(), "marked", lambda mark: next(looks, []))
    monkeypatch.setattr(os, "kill", lambda pid, number: killed.append((pid, number)))
    end_all("mark")
    assert killed == [(4711, signal.SIGKILL)] * 2


def test_a_failing_command_ends_the_page(tmp_path):
    """A planted mistake: the harness must not go on after it, nor leave anything running."""
    mark = uuid.uuid4().hex
    planted = "set -eu\nsleep 1000 &\nfalse\necho the page is done"
    environment = {**os.environ, MARK: mark}
    done = subprocess.run(["bash", "-c", planted], env=environment, stdout=subprocess.DEVNULL, timeout=60)
    assert done.returncode != 0
    if Path("/proc/self/environ").exists():
        for _ in range(100):  # a process that has just been started shows its environment a little later
            if found := list(marked(mark)):
                break
            time.sleep(0.1)
        assert len(found) == 1
        end_all(mark)
        assert list(marked(mark)) == []


NGINX = shutil.which("nginx") or shutil.which("nginx", path="/usr/sbin:/usr/local/sbin")


@pytest.fixture
def door(tmp_path):
    """nginx with the project's rule before a server's port; gives the port that nodes call."""
    from federation import Process, free_ports

    made = []

    def open_door(federation):
        (port,) = free_ports(1)
        rule = (Path(fb.__file__).parent / "flower" / "template" / "services" / "nginx.conf").read_text()
        for before, after in {
            "listen 443": f"listen 127.0.0.1:{port}",
            "server_name study.example.org": "server_name localhost",
            "https://127.0.0.1:8000": f"https://127.0.0.1:{federation.port}",
            "/srv/study/certificates": str(federation.folder / "certificates"),
        }.items():
            assert before in rule
            rule = rule.replace(before, after)
        folder = tmp_path / "nginx"
        folder.mkdir()
        kinds = ("client_body", "proxy", "fastcgi", "uwsgi", "scgi")
        paths = "".join(f"{kind}_temp_path {folder / kind};\n" for kind in kinds)
        (folder / "nginx.conf").write_text(
            f"pid {folder}/pid;\ndaemon off;\nmaster_process off;\nerror_log stderr;\nevents {{}}\n"
            f"http {{\naccess_log {folder}/access.log;\n{paths}{rule}}}\n"
        )
        made.append(Process([NGINX, "-p", folder, "-c", "nginx.conf"], folder / "log", {}, folder))
        return port

    yield open_door
    for process in made:
        process.kill()
        print(process.log())


@pytest.mark.slow
@pytest.mark.skipif(
    NGINX is None,
    reason="nginx is not installed (Debian: apt-get install nginx-light). pip can't do that, so CI may go without; "
    "that the project's rule is the page's is tested there all the same",
)
def test_behind_nginx_nodes_work_and_nothing_else_is_reached(federate, echo, rounds, door, tmp_path):
    from federation import wait_until

    federation = federate(sites=2, tls=True, keys=True).start(nodes=False)
    behind = federation.port
    federation.port = door(federation)
    for i in range(2):
        federation.restart(i)
    run = federation.run(echo, {"output": str(tmp_path / "rounds.jsonl"), "num-nodes": 2, "num-rounds": 2})
    assert run.wait(120) == "finished:completed", run.log()
    assert [len(answers) for answers in rounds()] == [2, 2]
    context = ssl.create_default_context(cafile=federation.folder / "certificates" / "ca.crt")

    def status(port, path):
        request = urllib.request.Request(f"https://127.0.0.1:{port}{path}", data=b"", method="POST")
        try:
            return urllib.request.urlopen(request, timeout=20, context=context).status
        except urllib.error.HTTPError as error:
            with error:
                return error.code

    closed = ["/", "/v1/control/start-run", "/v1/control/register-node", "/v1/runtime/get-nodes", "/docs"]
    closed += ["/v1/fleet/../control/start-run", "/v1/fleet/%2e%2e/control/start-run", "//v1/control/start-run"]
    wait_until(lambda: status(federation.port, "/v1/fleet/get-run") not in (403, 502), 20, "nginx answers")
    assert {path: status(federation.port, path) for path in closed} == dict.fromkeys(closed, 403)
    assert status(behind, "/v1/control/start-run") not in (403, 404)  # so that is what has to be closed
