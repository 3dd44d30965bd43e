"""The same fit over a network of real clients, on Flower: a client app, a server app, and what carries their messages.

This is the only folder that imports Flower (``pip install 'fedbayes[flower]'``), and nothing of it is loaded before it
is used: the worker that computes beside a node never needs it.
"""

import importlib
import importlib.util
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from fedbayes.flower.client import client_app
    from fedbayes.flower.server import server_app

if importlib.util.find_spec("flwr") is None:
    raise ModuleNotFoundError("fedbayes.flower needs Flower: pip install 'fedbayes[flower]'", name="flwr")

__all__ = ["client_app", "server_app"]

_HOME = {"client_app": "fedbayes.flower.client", "server_app": "fedbayes.flower.server"}


def __getattr__(name: str) -> Any:
    if name not in _HOME:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(importlib.import_module(_HOME[name]), name)
