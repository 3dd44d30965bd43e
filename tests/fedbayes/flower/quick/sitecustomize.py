"""Nodes look for messages twice a second, where Flower's own loop sleeps for three seconds each time.

Python runs this file when it starts, where PYTHONPATH names this folder. It changes Flower's program for nodes alone,
and in that the length of a sleep: tests wait less and prove the same.
"""

import sys
import time

LOOP, LONGEST = "flwr.supernode.start_client_internal", 0.5  # seconds
_sleep = time.sleep


def sleep(seconds: float) -> None:
    _sleep(min(seconds, LONGEST) if sys._getframe(1).f_globals["__name__"] == LOOP else seconds)


if any(word.endswith("flower-supernode") for word in sys.orig_argv):
    time.sleep = sleep
