"""The settings of a run, from ``[tool.flwr.app.config]`` of the project and ``flwr run --run-config``."""

from collections.abc import Mapping
from dataclasses import dataclass, fields
from typing import Any


@dataclass(frozen=True)
class Settings:
    """How the server runs a fit. In a configuration ``num_clients`` is called ``num-clients``, and so on.

    Parameters
    ----------
    num_clients
        Holders of data with whom the run begins; 0 where ``sites`` names them.
    sites
        Their names, with commas between them.
    join_timeout
        Seconds to wait for them.
    round_timeout
        Seconds that a client has for one answer.
    min_clients
        A round that fewer have answered is not used, and asked for again.
    give_up_after
        Seconds after which the server stops to ask again; the state is in the checkpoint.
    num_rounds
        The most rounds; 0: as the method says.
    num_draws
        Posterior draws of each chain.
    correct
        Whether the clients are asked after the rounds for their log-likelihoods at draws of a Gaussian answer, by which
        its error is known and its draws are corrected. Without it they are asked at the posterior's draws alone.
    seed
        Of all randomness.
    output
        Folder for the fit and its checkpoint, from which the same run goes on when it is started again. A relative one
        lies where the SuperLink was started.
    node_keys
        ``"named"``: only nodes take part whose keys were registered under a name, and they are bound to its site;
        ``"yes"``: all nodes have keys that outlive a restart, named or not; ``"no"``: they have none.
    secure_sums
        Whether sites hide their terms of sums from the server, where there are at least three. Such a round needs all
        sites, whatever ``min_clients`` is.
    """

    num_clients: int = 0
    sites: str = ""
    join_timeout: float = 600.0
    round_timeout: float = 600.0
    min_clients: int = 1
    give_up_after: float = 3600.0
    num_rounds: int = 0
    num_draws: int = 1000
    correct: bool = True
    seed: int = 0
    output: str = "fedbayes-fit"
    node_keys: str = "named"
    secure_sums: bool = True

    def __post_init__(self) -> None:
        if bool(self.num_clients) == bool(self.sites):
            raise ValueError(
                "A run needs to know when it begins: set either num-clients or sites in [tool.flwr.app.config] of "
                "pyproject.toml, or by `flwr run --run-config`."
            )
        if self.node_keys not in _KEYS:
            raise ValueError(f"The setting node-keys must be one of {', '.join(_KEYS)}; it is {self.node_keys!r}.")

    @property
    def names(self) -> list[str]:
        """Of the sites; empty where they are not named."""
        return [name.strip() for name in self.sites.split(",") if name.strip()]

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
            A setting is of another type.
        """
        values = {}
        for field in fields(cls):
            name = field.name.replace("_", "-")
            if name in config:
                values[field.name] = _as(config[name], field.type, name)
        return cls(**values)


_KEYS = {"yes": True, "no": False, "named": None}


def _as(value: Any, kind: Any, name: str) -> Any:
    if kind is float and type(value) is int:
        return float(value)
    if type(value) is not kind:
        raise ValueError(f"The setting {name} must be of type {kind.__name__}; it is {value!r}.")
    return value
