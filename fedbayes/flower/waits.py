"""Flower's waits for parts of a message that are still on their way, shortened.

Flower sends a message as several objects, and tells of it before they have arrived. Whoever looks at once asks for an
object in vain, and asks again after one second, then two, four, up to ten (Flower 1.41). Nodes, their messages'
processes and the server all look sooner than Flower's own, and so wait there for nearly every message.
"""

from importlib import import_module

_PULLS = "flwr.supercore.inflatable.inflatable_utils"
_FIRST = 0.05  # seconds before an object is asked for again; they double


def ask_sooner() -> None:
    """Ask for an object again after a twentieth of a second; another Flower, without this setting, stays as it is."""
    pulls = import_module(_PULLS)
    for name in ("pull_objects", "pull_and_inflate_object_from_tree"):
        defaults = getattr(getattr(pulls, name, None), "__kwdefaults__", None) or {}
        if "initial_backoff" in defaults:
            defaults["initial_backoff"] = _FIRST
