"""``flower-supernode`` that looks for messages twice a second, where Flower's own sleeps for three seconds each time.

Tests wait less for it and prove the same: it is Flower's program otherwise. The page is followed with Flower's own.
"""

import importlib
import time
from types import SimpleNamespace

from flwr.supernode.cli import flower_supernode

LONGEST = 0.5  # seconds


def sleep(seconds: float) -> None:
    time.sleep(min(seconds, LONGEST))


if __name__ == "__main__":
    node = importlib.import_module("flwr.supernode.start_client_internal")  # by its name: a function is called so, too
    node.time = SimpleNamespace(**{**vars(time), "sleep": sleep})
    flower_supernode()
