"""The settings of a run, from ``[tool.flwr.app.config]`` of the project and ``flwr run --run-config``."""

from collections.abc import Mapping
from dataclasses import MISSING, dataclass, fields
from typing import Any


@dataclass(frozen=True)
class Settings:
    """How the server runs a fit; in a configuration, ``num_clients`` is called ``num-clients``.

    Parameters
    ----------
    num_clients
        Sites that take part.
    min_clients
        Sites without which a round does not count; 0: all of them.
    timeout
        Seconds after which a round goes on without those that have not answered.
    seed
        Of all randomness.
    output
        Folder for the fit, and for the checkpoint with which an interrupted run goes on. The server app runs where the
        SuperLink was started.
    node_keys
        ``"yes"``: nodes have keys that outlive a restart; ``"no"``: they have none; ``"named"``: those have one that
        were registered under a name.
    """

    num_clients: int
    min_clients: int = 0
    timeout: float = 600.0
    seed: int = 0
    output: str = "fedbayes-fit"
    node_keys: str = "named"

    def __post_init__(self) -> None:
        if self.node_keys not in _KEYS:
            raise ValueError(f"node-keys must be one of {', '.join(_KEYS)}; it is {self.node_keys!r}")

    @property
    def keys(self) -> bool | None:
        """As :class:`~fedbayes.flower.grid.GridTransport` wants to know it."""
        return _KEYS[self.node_keys]

    @classmethod
    def of(cls, config: Mapping[str, Any]) -> "Settings":
        """Read those settings that a configuration has; what else it holds is the user's own.

        Raises
        ------
        ValueError
            A setting is missing or of another type.
        """
        values = {}
        for field in fields(cls):
            name = field.name.replace("_", "-")
            if name in config:
                values[field.name] = _as(config[name], field.type, name)
            elif field.default is MISSING:
                raise ValueError(f"the run needs a setting {name}: add it to [tool.flwr.app.config] in pyproject.toml")
        return cls(**values)


_KEYS = {"yes": True, "no": False, "named": None}


def _as(value: Any, kind: Any, name: str) -> Any:
    if kind is float and type(value) is int:
        return float(value)
    if type(value) is not kind:
        raise ValueError(f"the setting {name} must be of type {kind.__name__}; it is {value!r}")
    return value
