"""What Flower's processes spend on nothing is left out: tests wait less and prove the same.

Python runs this file when it starts, where PYTHONPATH names this folder. Nodes look for messages twice a second, where
Flower's own loop sleeps for three seconds each time. The process of each message doesn't import the node's program,
with a database's and a web server's, which stands beside its own and takes nearly half of its start.
"""

import sys
import time
from types import ModuleType

LOOP, LONGEST = "flwr.supernode.start_client_internal", 0.5  # seconds
_sleep = time.sleep


def sleep(seconds: float) -> None:
    _sleep(min(seconds, LONGEST) if sys._getframe(1).f_globals["__name__"] == LOOP else seconds)


if any(word.endswith("flower-supernode") for word in sys.orig_argv):
    time.sleep = sleep
if any(word.endswith("flwr-clientapp") for word in sys.orig_argv):
    node = ModuleType("flwr.supernode.cli.flower_supernode")
    node.flower_supernode = None
    sys.modules[node.__name__] = node
