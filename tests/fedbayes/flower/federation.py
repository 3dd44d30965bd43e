"""A federation of real processes on loopback: one SuperLink, its SuperNodes, and runs of an app.

>>> with Federation(tmp_path, sites=3, tls=True, keys=True) as federation:  # doctest: +SKIP
...     run = federation.start().run(app_folder, {"num-rounds": 3})
...     federation.kill(0)
...     assert run.wait(60) == "finished:completed", run.log()
"""

import contextlib
import json
import os
import re
import secrets
import shutil
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Mapping
from pathlib import Path

from certificates import make_certificates, make_node_key
from permissive import PERMISSIVE

BIN = Path(sys.executable).parent
QUICK = {
    "FLWR_SUPEREXEC_TASK_POLL_INTERVAL": "0.25",  # seconds; by default 1
    "JAX_DISABLE_MOST_OPTIMIZATIONS": "1",  # as in tests: each process compiles, and runs for a moment
}
QUIET = {
    **QUICK,
    "FLWR_TELEMETRY_ENABLED": "0",
    "FLWR_DISABLE_UPDATE_CHECK": "1",
    "FLWR_DISABLE_RUNTIME_DEPENDENCY_INSTALLATION": "1",
    "PYTHONUNBUFFERED": "1",
}
Value = str | int | float | bool


def wait_until(condition: Callable[[], bool], timeout: float, what: str, pause: float = 0.1) -> None:
    """Look again and again; after ``timeout`` seconds it is an error."""
    deadline = time.monotonic() + timeout
    while not condition():
        if time.monotonic() > deadline:
            raise TimeoutError(f"after {timeout} seconds still not: {what}")
        time.sleep(pause)


def free_ports(count: int) -> list[int]:
    sockets = [socket.socket() for _ in range(count)]
    try:
        for each in sockets:
            each.bind(("127.0.0.1", 0))
        return [each.getsockname()[1] for each in sockets]
    finally:
        for each in sockets:
            each.close()


def as_config(values: Mapping[str, Value]) -> str:
    """Settings as Flower reads them on a command line: TOML's values, separated by spaces."""
    return " ".join(f"{name}={json.dumps(value)}" for name, value in values.items())


def command_line(pid: str) -> bytes:
    """Empty where there is no such process."""
    try:
        return Path(f"/proc/{pid}/cmdline").read_bytes()
    except OSError:
        return b""


def processes_with(variable: str) -> list[int]:
    """Processes that have this among their environment variables."""
    found = []
    for folder in Path("/proc").iterdir():
        with contextlib.suppress(OSError):
            if folder.name.isdigit() and variable.encode() in (folder / "environ").read_bytes().split(b"\0"):
                found.append(int(folder.name))
    return found


class Process:
    """A process in a session of its own, so that all it has started ends with it; its output is in a file."""

    def __init__(self, command: list[str | Path], log: Path, environment: Mapping[str, str], cwd: Path) -> None:
        self.path = log
        with log.open("ab") as output:
            self.popen = subprocess.Popen(
                [str(word) for word in command],
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
                env={**os.environ, **environment},
                cwd=cwd,
                start_new_session=True,
            )

    @property
    def running(self) -> bool:
        return self.popen.poll() is None

    def log(self) -> str:
        return self.path.read_text(errors="replace")

    def kill(self) -> None:
        """SIGKILL to the whole session, which may outlive the process that led it."""
        try:
            os.killpg(self.popen.pid, signal.SIGKILL)
        except ProcessLookupError:
            pass
        self.popen.wait(60)


class Run:
    """One ``flwr run``, which shows the server app's log until that ends."""

    def __init__(self, process: Process, flwr: Callable[..., str]) -> None:
        self._process, self._flwr = process, flwr

    @property
    def running(self) -> bool:
        return self._process.running

    def log(self) -> str:
        return self._process.log()

    def wait_for(self, text: str, timeout: float) -> None:
        """Until the log holds the text."""
        found = lambda: text in self.log() or not self._process.running  # noqa: E731
        wait_until(found, timeout, f"{text!r} in the log of the run")
        if text not in self.log():
            raise AssertionError(f"the run ended without {text!r}:\n{self.log()}")

    def wait(self, timeout: float) -> str:
        """Until the run has ended; its status, for instance ``finished:completed``."""
        wait_until(lambda: not self._process.running, timeout, f"the end of the run\n{self.log()}")
        return self.status()

    def number(self) -> str:
        """Its name at the server."""
        found = re.search(r"started run (\d+)", self.log())
        assert found, f"no run has started:\n{self.log()}"
        return found[1]

    def status(self) -> str:
        """As the server sees it."""
        (run,) = json.loads(self._flwr("list", "loopback", "--run-id", self.number(), "--format", "json"))["runs"]
        return run["status"]

    def leave(self) -> None:
        """End ``flwr run`` alone, which only shows the log."""
        self._process.kill()


class Federation:
    """A SuperLink with its SuperNodes on loopback. Everything ends with the ``with``, whatever happens.

    Parameters
    ----------
    folder
        Where all files go: certificates, keys, logs, Flower's homes, the sites' state folders.
    sites
        How many, or their names, each perhaps with settings of its own (``--node-config``).
    tls, keys
        Whether connections are encrypted and nodes have keys that the server knows. Keys need TLS.
    environment
        More environment variables, for all processes.
    """

    def __init__(
        self,
        folder: Path,
        sites: int | Mapping[str, Mapping[str, Value]] = 3,
        *,
        tls: bool = False,
        keys: bool = False,
        environment: Mapping[str, str] | None = None,
    ) -> None:
        self.folder, self.tls, self.keys = Path(folder), tls, keys
        configs = {f"site-{i}": {} for i in range(sites)} if isinstance(sites, int) else sites
        self.names = list(configs)
        self.configs = [self._config(name, config) for name, config in configs.items()]
        self._mark = f"FEDBAYES_TEST_FEDERATION={secrets.token_hex(8)}"
        self.environment = {**QUIET, **(environment or {}), **dict([self._mark.split("=")])}
        self.port, *self._node_ports = free_ports(1 + len(configs))
        self._server: Process | None = None
        self._nodes: dict[int, Process] = {}
        self._others: list[Process] = []
        self._runs = 0
        for part in ("logs", "certificates", "server"):
            (self.folder / part).mkdir(parents=True, exist_ok=True)
        if tls:
            make_certificates(self.folder / "certificates")
        if keys:
            for name in self.names:
                make_node_key(self.folder / "certificates" / name)

    def _config(self, name: str, config: Mapping[str, Value]) -> dict[str, Value]:
        return {"site-id": name, "state-dir": str(self.folder / "state" / name), **PERMISSIVE, **config}

    def __enter__(self) -> "Federation":
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()

    # starting

    def start(self, nodes: bool = True) -> "Federation":
        """Start the server and all nodes."""
        self.start_server()
        if self.keys:
            for name in self.names:
                key = self.folder / "certificates" / f"{name}.pub"
                self.flwr("supernode", "register", key, "loopback", "--name", name)
        if nodes:
            for i in range(len(self.names)):
                self.restart(i)
        return self

    def start_server(self) -> None:
        self._write_connection()
        options = ["--disable-runtime-dependency-installation", "--database", self.folder / "server" / "state.db"]
        options += ["--enable-supernode-auth"] if self.keys else []
        command = [BIN / "flower-superlink", *self._server_security(), "--host", "127.0.0.1", "--port", self.port]
        self._server = self._process("server", [*command, *options])
        self._wait_for_port(self._server, self.port)

    def restart(self, i: int) -> None:
        """Start node ``i``, again or for the first time; with keys a supervisor restarts it until it is let in."""
        node = [BIN / "fedbayes", "start-node", *self._client_security(), "--superlink", f"127.0.0.1:{self.port}"]
        node += ["--host", "127.0.0.1", "--port", self._node_ports[i], "--node-config", as_config(self.configs[i])]
        if self.keys:
            node += ["--auth-supernode-private-key", self.folder / "certificates" / self.names[i]]
            node = ["/bin/sh", "-c", 'while true; do "$@"; sleep 5; done', "supervisor", *node]
        self._nodes[i] = self._process(self.names[i], node)

    # faults

    def kill(self, i: int) -> None:
        """SIGKILL to node ``i`` and all that Flower has started for it."""
        self._nodes.pop(i).kill()

    def kill_client_app(self, i: int) -> None:
        """SIGKILL to the process in which node ``i`` handles a message."""
        session = str(self._nodes[i].popen.pid)
        for folder in Path("/proc").iterdir():
            if folder.name.isdigit() and b"multiprocessing.forkserver" in command_line(folder.name):
                # after the name in brackets: state, parent, group, session
                _, parent, _, of = (folder / "stat").read_text().rpartition(")")[2].split()[:4]
                if of == session and b"multiprocessing.forkserver" in command_line(parent):
                    os.kill(int(folder.name), signal.SIGKILL)
                    return
        raise AssertionError(f"node {i} handles no message")

    def kill_server(self) -> None:
        """SIGKILL to the SuperLink and to what it has started: a server app may else hang for ever (Flower 1.41)."""
        self._server.kill()
        self._server = None
        for pid in self.processes():
            if re.search(rb"flwr-serverapp|flower-superexec.*:%d\b" % self.port, command_line(str(pid))):
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)

    def stop(self) -> None:
        """End every process that this federation has started, and all that these have: in whatever session."""
        for process in [*self._others, *self._nodes.values(), *([self._server] if self._server else [])]:
            process.kill()
        for _ in range(100):  # one that is being started while the others end is found the next time
            for pid in self.processes():
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)
            if not self.processes():
                return
            time.sleep(0.1)

    def processes(self) -> list[int]:
        """All that this federation has started and that still run."""
        return processes_with(self._mark)

    def workers(self) -> dict[str, int]:
        """The process of each site's worker, where there is one."""
        found = {}
        for name, config in zip(self.names, self.configs, strict=True):
            path = Path(config["state-dir"]) / "worker.pid"
            pid = path.read_text().strip() if path.exists() else ""
            if pid and b"fedbayes.flower.node.worker" in command_line(pid):
                found[name] = int(pid)
        return found

    # running

    def run(self, app: Path, config: Mapping[str, Value] | None = None) -> Run:
        """``flwr run`` of the app in a folder."""
        self._runs += 1
        command = [BIN / "flwr", "run", app, "loopback", "--stream"]
        command += ["--run-config", as_config(config)] if config else []
        process = self._process(f"run-{self._runs}", command, home="server")
        self._others.append(process)
        return Run(process, self.flwr)

    def flwr(self, *words: object, timeout: float = 60) -> str:
        """One command of Flower's, to its end; what it prints."""
        command = [str(BIN / "flwr"), *map(str, words)]
        environment = {**os.environ, **self.environment, "FLWR_HOME": str(self._home("server"))}
        done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=timeout)
        assert done.returncode == 0, f"{command} failed:\n{done.stdout}{done.stderr}"
        return done.stdout

    def approve(self, app: Path) -> None:
        """As each site's owner does: ``fedbayes approve``, but for its dry run."""
        for config in self.configs:
            command = [BIN / "fedbayes", "approve", "--yes", "--no-dry-run", "--project", app]
            command += ["--config", as_config(config)]
            environment = {**os.environ, **self.environment}
            done = subprocess.run(list(map(str, command)), env=environment, capture_output=True, text=True, timeout=300)
            assert done.returncode == 0, f"{command} failed:\n{done.stdout}{done.stderr}"

    def log(self, name: str = "server") -> str:
        """The log of the server or of a site's node."""
        return (self.folder / "logs" / f"{name}.log").read_text(errors="replace")

    def worker_log(self, name: str) -> str:
        """The log of a site's worker; empty before it has one."""
        path = self.folder / "state" / name / "worker.log"
        return path.read_text(errors="replace") if path.exists() else ""

    def logs(self, last: int = 4000) -> str:
        """The ends of all logs, the workers' included, for the report of a failed test."""
        paths = [*sorted((self.folder / "logs").glob("*.log")), *sorted((self.folder / "state").glob("*/*.log"))]
        return "\n".join(f"----- {path.name}\n{path.read_text(errors='replace')[-last:]}" for path in paths)

    # details

    def _process(self, name: str, command: list, home: str | None = None) -> Process:
        environment = {**self.environment, "FLWR_HOME": str(self._home(home or name))}
        environment["PATH"] = f"{BIN}{os.pathsep}{os.environ['PATH']}"
        return Process(command, self.folder / "logs" / f"{name}.log", environment, self.folder / "server")

    def _home(self, name: str) -> Path:
        home = self.folder / "homes" / name
        home.mkdir(parents=True, exist_ok=True)
        return home

    def _write_connection(self) -> None:
        certificate = json.dumps(str(self.folder / "certificates" / "ca.crt"))
        security = f"root-certificates = {certificate}" if self.tls else "insecure = true"
        text = f'[superlink.loopback]\naddress = "127.0.0.1:{self.port}"\n{security}\n'
        (self._home("server") / "config.toml").write_text(text)

    def _server_security(self) -> list:
        folder = self.folder / "certificates"
        if not self.tls:
            return ["--insecure"]
        names = {"ssl-ca-certfile": "ca.crt", "ssl-certfile": "server.pem", "ssl-keyfile": "server.key"}
        return [word for option, name in names.items() for word in (f"--{option}", folder / name)]

    def _client_security(self) -> list:
        return ["--root-certificates", self.folder / "certificates" / "ca.crt"] if self.tls else ["--insecure"]

    def _wait_for_port(self, process: Process, port: int) -> None:
        def listening() -> bool:
            assert process.running, f"the server ended:\n{process.log()}"
            with socket.socket() as each:
                return each.connect_ex(("127.0.0.1", port)) == 0

        wait_until(listening, 60, f"a server on port {port}\n{process.log()}")


def copy_app(source: Path, target: Path) -> Path:
    """An app's folder for one test, which may change it."""
    return Path(shutil.copytree(source, target, ignore=shutil.ignore_patterns("__pycache__")))
