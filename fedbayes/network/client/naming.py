"""Who a site is and where it keeps its things, by its node's configuration. JAX is not needed to know that."""

from collections.abc import Mapping
from pathlib import Path

import platformdirs

from fedbayes.errors import ClientDataError

Config = Mapping[str, str | int | float | bool]

_LONGEST = 200  # characters of a name; servers refuse longer ones


def site_name(config: Config) -> str:
    """The holder of the data, by the node's configuration.

    Raises
    ------
    ClientDataError
        It has no name, or one that can't be that of a folder.
    """
    name = str(config.get("site-id", "")).strip()
    if not name:
        raise ClientDataError(
            "This node's configuration does not say whose data it holds. Write a name that stays the same as long as "
            "the data do, `--node-config 'site-id=\"north\"'`: a node that is restarted is then known again."
        )
    if name.startswith(".") or "/" in name or not name.isprintable() or len(name) > _LONGEST:
        raise ClientDataError(
            f"A site is called {name[:_LONGEST]!r}. A name does not begin with a dot, holds no slash, and has at most "
            f"{_LONGEST} characters."
        )
    return name


def site_folder(config: Config) -> Path:
    """Where a client keeps its private states: ``state-dir`` of its configuration, or the user's state folder."""
    if given := config.get("state-dir"):
        return Path(str(given)).expanduser()
    return platformdirs.user_state_path("fedbayes") / "sites" / site_name(config)
