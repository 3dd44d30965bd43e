"""The process beside a node that does a site's work, message after message, so that JAX compiles each program once.

Flower starts a new process for every message. That process hands the request to this one, by a socket in the site's
state folder, and gets the answer back (:mod:`fedbayes.flower.node.caller`). A worker ends when nobody has called for a
while, when it is called by other code than its own, or when its state folder is gone.
"""

import hmac
import json
import logging
import os
import socket
import sys
import time
from collections.abc import Callable
from importlib import import_module
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

from fedbayes.flower.node.state import StateFolder

logger = logging.getLogger(__name__)

READY, OUTDATED = b"ready", b"outdated"
PLACE_TAKEN = 75  # exit status: another worker is there already
_TICK = 5.0  # seconds between two looks whether the worker is still wanted
_PATIENCE = 30.0  # seconds for a caller to say what it wants


def main() -> None:
    """Do the work that is described on the standard input."""
    os.umask(0o077)
    logging.basicConfig(format="%(asctime)s %(process)d %(message)s")
    logging.getLogger("fedbayes").setLevel(logging.INFO)
    task = json.load(sys.stdin)
    state = StateFolder(Path(task["state"]))
    with state.place() as free:
        if not free:
            sys.exit(PLACE_TAKEN)
        work(state, task)


def work(state: StateFolder, task: dict[str, Any]) -> None:
    """Open the site and answer its requests until nobody wants that any more."""
    logger.info("worker of %s starts", task["config"]["site-id"])
    (state.path / "worker.pid").write_text(f"{os.getpid()}\n")
    os.environ.setdefault("JAX_COMPILATION_CACHE_DIR", str(state.path / "programs"))
    os.environ.setdefault("JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS", "0")
    app = getattr(import_module(task["module"]), task["attribute"])
    site = app.open_site(task["config"])
    with Desk(state, task["fingerprint"]) as desk:
        logger.info("worker is ready")
        why = desk.serve(site.answer, task["idle"])
    logger.info("worker ends: %s", why)


class Desk:
    """The socket at which a worker is called.

    Parameters
    ----------
    state
        The site's folder.
    fingerprint
        Of the worker's code and configuration; a caller must have the same.
    """

    def __init__(self, state: StateFolder, fingerprint: str) -> None:
        self._path, self._fingerprint = state.socket, fingerprint.encode()
        self._token = state.new_token()
        Path(self._path).unlink(missing_ok=True)  # of a worker that was killed; the place is ours
        self._listener = socket.socket(socket.AF_UNIX)
        self._listener.bind(self._path)
        self._file = os.stat(self._path).st_ino
        self._listener.listen(16)

    def __enter__(self) -> "Desk":
        return self

    def __exit__(self, *_: object) -> None:
        if self._in_place():
            os.unlink(self._path)
        self._listener.close()

    def serve(self, answer: Callable[[bytes], bytes], idle: float) -> str:
        """Answer one caller after the other; says why it has stopped.

        Parameters
        ----------
        answer
            From request to answer.
        idle
            Seconds without a call after which to stop.
        """
        self._listener.settimeout(min(_TICK, idle))
        last = time.monotonic()
        while time.monotonic() - last < idle:
            if not self._in_place():
                return "its socket is gone"
            try:
                caller, _ = self._listener.accept()
            except TimeoutError:
                continue
            with Connection(caller.detach()) as connection:
                try:
                    if not self._serve_one(connection, answer):
                        return "its code or configuration has changed"
                except (EOFError, OSError) as error:  # the caller has gone; its request was too late or it was stopped
                    logger.info("a caller went away: %s", type(error).__name__)
            last = time.monotonic()
        return "nobody has called for a while"

    def _serve_one(self, connection: Connection, answer: Callable[[bytes], bytes]) -> bool:
        """Whether the caller has the same code as the worker."""
        token, _, fingerprint = _receive(connection).partition(b":")
        if not hmac.compare_digest(token, self._token.hex().encode()):
            logger.warning("a caller without the token was turned away")
            return True
        if fingerprint != self._fingerprint:
            connection.send_bytes(OUTDATED)
            return False
        connection.send_bytes(READY)
        connection.send_bytes(answer(_receive(connection)))
        return True

    def _in_place(self) -> bool:
        try:
            return os.stat(self._path).st_ino == self._file
        except FileNotFoundError:
            return False


def _receive(connection: Connection) -> bytes:
    if not connection.poll(_PATIENCE):
        raise EOFError
    return connection.recv_bytes()
