"""A site's node, ``fedbayes start-node``: Flower's SuperNode, which looks for messages sooner.

Flower's own node (1.41) sleeps for three seconds whenever it has found no message, and so between any two messages of a
run. This one looks again after a tenth of the time for which nothing has come: at least a quarter of a second, so that
rounds follow each other closely, and at most Flower's three, so that an idle node asks its server no more than Flower's
does. Processes of messages come from :mod:`fedbayes.flower.node.tasks`.

Both are done by handing other functions to the module of Flower's loop. A later Flower whose loop calls others goes on
as it does by itself, slower.
"""

import subprocess
import sys
import time
from collections.abc import Sequence
from importlib import import_module
from types import SimpleNamespace
from typing import Any

from fedbayes.flower.waits import ask_sooner

_LOOP = "flwr.supernode.start_client_internal"
_SOONEST = 0.25  # seconds between two looks for a message
_ANSWER = 0.05  # seconds between two looks, within the node, whether a message is answered
_SHARE = 0.1  # of the time without a message
# -P: nothing is imported from the working directory
_TASKS = [sys.executable, "-P", "-c", "from fedbayes.flower.node.tasks import main; main()"]


class Waits:
    """In place of ``time.sleep`` in a node's loop."""

    def __init__(self) -> None:
        self._last = time.monotonic()

    def __call__(self, seconds: float) -> None:
        """Wait for at most so long."""
        time.sleep(min(seconds, self.pause(seconds, time.monotonic())))

    def pause(self, seconds: float, now: float) -> float:
        """Seconds until the next look, where Flower would wait for ``seconds``: below one if it has a message."""
        if seconds < 1.0:
            self._last = now
            return _ANSWER
        return max(_SOONEST, _SHARE * (now - self._last))


def popen(command: Sequence[str], *args: Any, **options: Any) -> "subprocess.Popen[Any]":
    """Start a command; in place of ``flower-superexec``, which starts the process of each message, our own."""
    if command[0] == "flower-superexec":
        command = [*_TASKS, *command[1:]]
    return subprocess.Popen(command, *args, **options)  # noqa: S603


def start(flags: Sequence[str]) -> None:
    """Run a node until it ends.

    Parameters
    ----------
    flags
        Those of ``flower-supernode``.
    """
    from flwr.supernode.cli import flower_supernode

    ask_sooner()
    loop = import_module(_LOOP)
    loop.time = SimpleNamespace(**{**vars(time), "sleep": Waits()})  # type: ignore[attr-defined]
    loop.subprocess = SimpleNamespace(**{**vars(subprocess), "Popen": popen})  # type: ignore[attr-defined]
    sys.argv = ["flower-supernode", *flags]
    flower_supernode()
