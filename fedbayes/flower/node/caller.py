"""How the process of one message gets its answer: from the site's worker, which it starts where there is none."""

import contextlib
import json
import logging
import socket
import subprocess
import sys
import time
from dataclasses import dataclass
from multiprocessing.connection import Connection

from fedbayes.flower.codes import NoAnswer, SiteFailure
from fedbayes.flower.node.state import StateFolder
from fedbayes.flower.node.worker import PLACE_TAKEN, READY
from fedbayes.network.client.naming import Config

logger = logging.getLogger(__name__)

_PAUSE = 0.05  # seconds between two looks for a worker that starts
# what runs in the new process: first the same places for modules as here, which may be where this package is found
_START = "import json, sys; sys.path[:] = json.loads(sys.argv[1]); from fedbayes.flower.node.worker import main; main()"


class _Outliving(subprocess.Popen[bytes]):
    """A process that outlives this one, which is nothing to warn of."""

    def __del__(self) -> None:
        pass


@dataclass(frozen=True)
class Caller:
    """Asks a site's worker.

    Parameters
    ----------
    state
        The site's folder.
    module, attribute
        Where the worker finds the client app.
    config
        The node's configuration, for the site.
    fingerprint
        Of code and configuration: a worker with another one is replaced.
    idle
        Seconds without a request after which a worker ends.
    """

    state: StateFolder
    module: str
    attribute: str
    config: Config
    fingerprint: str
    idle: float

    def ask(self, request: bytes, timeout: float) -> bytes:
        """The worker's answer. A worker that dies over the request is replaced once.

        Raises
        ------
        SiteFailure
            No worker could be started, or two have died, or there is no answer after ``timeout`` seconds.
        """
        deadline = time.monotonic() + timeout
        for _ in range(2):
            with self._connect(deadline) as connection:
                try:
                    connection.send_bytes(request)
                    return _receive(connection, deadline)
                except (EOFError, OSError):
                    logger.warning("the worker died over a request; its log is %s", self.state.log)
        raise SiteFailure(NoAnswer.WORKER_DIED, f"Two workers have died over this request: see {self.state.log}")

    def _connect(self, deadline: float) -> Connection:
        """A connection on which a worker waits for the request."""
        started: subprocess.Popen[bytes] | None = None
        while time.monotonic() < deadline:
            if connection := self._greet(deadline):
                return connection
            if started and started.poll() not in (None, 0, PLACE_TAKEN):
                raise SiteFailure(NoAnswer.NO_WORKER, f"The worker did not start: see {self.state.log}")
            if self._place_is_free() and (started is None or started.poll() is not None):
                started = self._start()
            time.sleep(_PAUSE)
        raise _too_late()

    def _greet(self, deadline: float) -> Connection | None:
        """Call the worker; ``None`` where there is none, or an old one, which then ends."""
        line = socket.socket(socket.AF_UNIX)
        try:
            line.connect(self.state.socket)
        except OSError:
            line.close()
            return None
        connection = Connection(line.detach())
        try:
            connection.send_bytes(f"{self.state.token().hex()}:{self.fingerprint}".encode())
            if _receive(connection, deadline) == READY:
                return connection
        except (EOFError, OSError):
            pass
        except SiteFailure:
            connection.close()
            raise
        connection.close()
        return None

    def _place_is_free(self) -> bool:
        with self.state.place() as free:
            return free

    def _start(self) -> "subprocess.Popen[bytes]":
        """A worker in a session of its own, which goes on when this process and the node end."""
        task = {
            "state": str(self.state.path),
            "module": self.module,
            "attribute": self.attribute,
            "config": dict(self.config),
            "fingerprint": self.fingerprint,
            "idle": self.idle,
        }
        with open(self.state.open_log(), "ab") as log:
            process = _Outliving(
                [sys.executable, "-c", _START, json.dumps(sys.path)],
                stdin=subprocess.PIPE,
                stdout=log,
                stderr=log,
                start_new_session=True,
            )
        assert process.stdin  # noqa: S101  (for the type checker: it is a pipe)
        with contextlib.suppress(BrokenPipeError), process.stdin as file:  # it has ended: its exit status says why
            file.write(json.dumps(task).encode())
        return process


def _receive(connection: Connection, deadline: float) -> bytes:
    if not connection.poll(max(0.0, deadline - time.monotonic())):
        raise _too_late()
    return connection.recv_bytes()


def _too_late() -> SiteFailure:
    return SiteFailure(NoAnswer.TOO_LATE, "No answer by the deadline; the worker may still be computing.")
