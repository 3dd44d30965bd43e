"""What goes wrong at hospitals, as they meet it: the project's own scripts, real processes, and mistakes in turn.

Each is told within seconds, in a sentence that names the site, the cause, and what to write.
"""

import json
import os
import re
import secrets
import shutil
import signal
import subprocess
import time
from contextlib import contextmanager, suppress
from pathlib import Path

import pytest

pytest.importorskip("flwr")
pytest.importorskip("pandas")

from federation import BIN, QUIET, Process, free_ports, processes_with, wait_until

SITES = ("budapest", "cleveland", "long-beach")
SOON = 120.0  # seconds: a fifth of the join timeout; a site's worker takes most of them to start, on a busy machine
SKEW = """
import os, sys

if any(word.endswith("fedbayes") for word in sys.orig_argv):
    import datetime
    import flwr.supercore.date as date
    now = date.now
    date.now = lambda: now() + datetime.timedelta(seconds=float(os.environ["SKEW"]))
"""

pytestmark = [
    pytest.mark.slow,
    pytest.mark.timeout(900),
    pytest.mark.skipif(
        not (shutil.which("openssl") and shutil.which("ssh-keygen") and Path("/proc/self/environ").exists()),
        reason="openssl and ssh-keygen are not installed (Debian: apt-get install openssl openssh-client), or no Linux",
    ),
]


class Study:
    """A project as `fedbayes new` writes it, with its server; nodes and runs on demand."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder / "heart"
        self._mark = f"FEDBAYES_TEST_OF_MISTAKES={secrets.token_hex(8)}"
        self.server_port, *node_ports = free_ports(1 + len(SITES))
        self.ports = dict(zip(SITES, node_ports, strict=True))
        self.environment = {**QUIET, **dict([self._mark.split("=")]), "FLWR_HOME": str(self.folder / ".flwr")}
        # where a study may find more of its code; in the test of another model one site has other code there
        self.environment["PYTHONPATH"] = os.pathsep.join(
            [str(self.folder / "ours"), *filter(None, [os.environ.get("PYTHONPATH")])]
        )
        self.environment["PATH"] = f"{BIN}{os.pathsep}{os.environ['PATH']}"
        self.nodes: dict[str, Process] = {}
        self.processes: list[Process] = []
        self.runs = 0

    def open(self):
        self.command("fedbayes", "new", self.folder, cwd=self.folder.parent)
        self.command("./certificates.sh", "server", "127.0.0.1", self.server_port)
        for site in SITES:
            self.command("./certificates.sh", "node", site)
        self.process(["./server.sh", self.server_port], "server")
        wait_until(self._listens, 60, "the server")

    def command(self, *words, cwd=None):
        """A command to its end."""
        done = subprocess.run(
            [str(word) for word in words],
            cwd=cwd or self.folder,
            env={**os.environ, **self.environment},
            capture_output=True, text=True, timeout=120,
        )  # fmt: skip
        assert done.returncode == 0, done.stdout + done.stderr
        return done.stdout

    def process(self, words, log, **environment):
        environment = {**self.environment, **environment}
        self.processes.append(Process(words, self.folder / f"{log}.log", environment, self.folder))
        return self.processes[-1]

    def register(self, site):
        self.command("flwr", "supernode", "register", f"certificates/{site}.pub", "server", "--name", site)

    def start(self, site, code=None, **environment):
        """A site's node, as a supervisor starts it again and again; with a folder of code of its own."""
        if code:
            environment["PYTHONPATH"] = f"{code}{os.pathsep}{self.environment['PYTHONPATH']}"
        node = ["./node.sh", site, f"data/{site}.csv", f"127.0.0.1:{self.server_port}", self.ports[site]]
        words = ["/bin/sh", "-c", 'while true; do "$@"; sleep 2; done', "supervisor", *node]
        self.nodes[site] = self.process(words, site, **environment)

    def approve(self, site):
        config = f'site-id="{site}" data-path="data/{site}.csv" state-dir="sites/{site}"'
        self.command("fedbayes", "approve", "--yes", "--no-dry-run", "--config", config)

    def run(self):
        """A run to its end: what the terminal shows as one line, and how many seconds it took."""
        self.runs += 1
        began, settings = time.monotonic(), f'output="result-{self.runs}"'
        words = ["flwr", "run", ".", "server", "--stream", "--run-config", settings]
        process = self.process(words, f"run-{self.runs}")
        wait_until(lambda: not process.running, 10 * SOON, f"the end of the run\n{process.log()}")
        seconds = time.monotonic() - began
        print(f"run {self.runs} has ended after {seconds:.0f} s")
        (run, *_) = json.loads(self.command("flwr", "list", "server", "--format", "json"))["runs"]
        assert run["status"] == "finished:failed"
        return " ".join(process.log().split()), seconds

    def says(self, site, sentence, after=0):
        """Wait until a node's log has a sentence, in what has come after so many characters."""
        found = lambda: sentence in self.log(site)[after:]  # noqa: E731
        wait_until(found, SOON, f"{sentence!r} in the log of {site}:\n{self.log(site)[after:]}")

    def log(self, name):
        path = self.folder / f"{name}.log"
        return path.read_text(errors="replace") if path.exists() else ""

    def worker_log(self, site):
        path = self.folder / "sites" / site / "worker.log"
        return path.read_text(errors="replace") if path.exists() else ""

    def stop(self):
        for process in self.processes:
            process.kill()
        silent = 0
        for _ in range(300):
            pids = processes_with(self._mark)
            for pid in pids:
                with suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)
            silent = 0 if pids else silent + 1
            if silent == 5:
                return
            time.sleep(0.1)
        raise AssertionError(f"processes are left: {processes_with(self._mark)}")

    def _listens(self):
        words = [BIN / "flwr", "supernode", "list", "server"]
        return subprocess.run(words, env={**os.environ, **self.environment}, capture_output=True).returncode == 0


@contextmanager
def changed(path, before, after):
    """A file with a mistake in it, for a while."""
    text = path.read_text()
    assert before in text
    path.write_text(text.replace(before, after, 1))
    yield
    path.write_text(text)


@pytest.fixture
def study(tmp_path):
    made = Study(tmp_path)
    try:
        made.open()
        yield made
    finally:
        for path in [*sorted(tmp_path.glob("heart/*.log")), *sorted(tmp_path.glob("heart/sites/*/worker.log"))]:
            print(f"----- {path}\n{path.read_text(errors='replace')[-3000:]}")
        made.stop()


def test_what_keeps_a_node_out_is_one_of_three_sentences(study, tmp_path):
    study.start("budapest")
    study.says("budapest", "does not know the key of site 'budapest'")
    assert "`flwr supernode register certificates/budapest.pub server --name budapest`" in study.log("budapest")
    fingerprint = study.command("ssh-keygen", "-lf", "certificates/budapest.pub").split()[1]
    assert fingerprint in study.log("budapest")
    study.register("budapest")
    study.says("budapest", "lets the node of site budapest in")
    study.says("budapest", "SuperNode ID")
    seen = len(study.log("budapest"))
    study.nodes["budapest"].kill()  # nothing is said to the server
    study.start("budapest")
    study.says("budapest", "still counts an earlier node of site 'budapest' as alive", after=seen)
    assert "does not know the key" not in study.log("budapest")[seen:]

    study.register("cleveland")
    (tmp_path / "skew").mkdir()
    (tmp_path / "skew" / "sitecustomize.py").write_text(SKEW)
    for seconds, side in ((60, "ahead of"), (-600, "behind")):
        seen = len(study.log("cleveland"))
        study.start("cleveland", tmp_path / "skew", SKEW=str(seconds))
        study.says("cleveland", "timedatectl set-ntp true", after=seen)
        study.nodes["cleveland"].kill()
        told = study.log("cleveland")[seen:]
        off = re.search(rf"The clock of this machine is (\d+) seconds {side} the server's", told)
        assert off, told
        assert abs(int(off[1]) - abs(seconds)) <= 5
        assert "refuses the node of site 'cleveland'" in told
    study.start("cleveland", tmp_path / "skew", SKEW="-200")
    study.says("cleveland", "lets the node of site cleveland in")


def test_mistakes_are_told_within_seconds(study):
    for site in SITES:
        study.register(site)
        study.approve(site)
        study.start(site)
    for site in SITES:
        study.says(site, "SuperNode ID")
    source, settings = study.folder / "app" / "study.py", study.folder / "sites" / "long-beach" / "policy.toml"

    with changed(study.folder / "data" / "budapest.csv", "chol", "cholesterol"):
        told, seconds = study.run()
    assert seconds < SOON
    assert "Site 'budapest' takes no part: it has data that can't be used; its own log says why" in told
    assert "(its file lacks 'chol', which the study reads)" in told
    assert "cholesterol" not in told  # what else the file has stays there
    assert "`worker.log` in the site's state folder" in told
    where = study.folder / "sites" / "budapest" / "worker.log"
    study.says("budapest", f"Its worker's log is '{where}'.")
    assert "has no column 'chol'; it has ['age'," in study.worker_log("budapest")

    with changed(source, "Normal(0.0, 5.0)", "Normal(0.0, 2.5)"):
        told, seconds = study.run()
    assert seconds < SOON
    for site in SITES:
        assert f"Site '{site}' takes no part: it has an owner who has not approved this study's code" in told
        study.says(site, f"was approved by nobody at site {site}. Look at it with `fedbayes approve`")
    assert "at the site, `fedbayes approve` shows it and asks" in told

    settings.write_text("[disclosure]\nsmalest_cell = 3\n")
    told, seconds = study.run()
    settings.unlink()
    assert seconds < SOON
    assert "Site 'long-beach' takes no part: it has a policy that can't be read" in told
    where = study.folder / "sites" / "long-beach" / "worker.log"
    study.says("long-beach", f"Its worker's log is '{where}'.")
    assert f"The site's policy, '{settings}', has 'smalest_cell'" in study.worker_log("long-beach")
    assert "Did you mean 'smallest_cell'?" in study.worker_log("long-beach")


def test_a_site_with_another_model_is_shown_the_difference_within_seconds(study):
    source = study.folder / "app" / "study.py"
    text = source.read_text()
    begin, end = text.index("def model"), text.index("# Deterministic")
    head = "import jax\nimport numpyro\nimport numpyro.distributions as dist\n\n\n"
    for folder, scale in (("ours", "5.0"), ("theirs", "2.5")):
        (study.folder / folder).mkdir()
        ward = head + text[begin:end].replace("Normal(0.0, 5.0)", f"Normal(0.0, {scale})")
        (study.folder / folder / "ward.py").write_text(ward)
    source.write_text(f"from ward import model\n{text[:begin]}{text[end:]}")
    for site in SITES:
        study.register(site)
        state = study.folder / "sites" / site
        state.mkdir(parents=True)
        (state / "policy.toml").write_text("[studies]\nany = true\n")
        study.start(site, study.folder / "theirs" if site == "budapest" else None)
    for site in SITES:
        study.says(site, "SuperNode ID")
    told, seconds = study.run()
    assert seconds < SOON
    assert "Site 'budapest' takes no part: it was built for another model, method or version of fedbayes." in told
    assert '- intercept = numpyro.sample("intercept", dist.Normal(0.0, 5.0))' in told
    assert '+ intercept = numpyro.sample("intercept", dist.Normal(0.0, 2.5))' in told
