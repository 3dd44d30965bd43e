"""A site of a project, opened where its data are, beside the node or without one."""

import re
import sys
import tomllib
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any

from fedbayes.errors import ClientDataError, FederatedError
from fedbayes.network.client.naming import Config, site_folder, site_name

if TYPE_CHECKING:
    from fedbayes.network.site import Site

_PAIR = re.compile(r"(\S+?)=('[^']*'|\"[^\"]*\"|\S+)")  # as Flower splits the text
_EXAMPLE = '--config \'site-id="north" data-path="/srv/study/north.csv"\''


def read_config(text: str) -> Config:
    """A node's configuration from the text that ``flower-supernode --node-config`` takes.

    Parameters
    ----------
    text
        Pairs ``name=value`` with TOML's values, separated by spaces.

    Raises
    ------
    ClientDataError
        It is something else.

    Examples
    --------
    >>> read_config('site-id="north" worker-idle=60')
    {'site-id': 'north', 'worker-idle': 60}
    """
    pairs = _PAIR.findall(text)
    wrong = f"The configuration {text!r} can't be read. Write what the node was started with: {_EXAMPLE}."
    if not pairs or _PAIR.sub("", text).strip():
        raise ClientDataError(wrong)
    try:
        return dict(tomllib.loads("\n".join(f"{name} = {value}" for name, value in pairs)))
    except tomllib.TOMLDecodeError as error:
        raise ClientDataError(f"{wrong} Text needs quotes within: {error}.") from None


def open_site(project: Path, config: Config) -> "Site":
    """The site of a project's client app, with what it has kept.

    Parameters
    ----------
    project
        The project's folder.
    config
        The node's configuration.

    Raises
    ------
    ClientDataError, FederatedError
        The site has kept nothing here, and as :func:`load_site`.
    """
    folder = site_folder(config)
    if not folder.is_dir():
        raise ClientDataError(
            f"Site '{site_name(config)}' has kept nothing on this machine: there is no folder '{folder}'. Give the "
            "configuration with which its node was started (`site-id`, and `state-dir` where it has one), and run this "
            "as the user who runs the node."
        )
    return load_site(project, config)


def load_site(project: Path, config: Config) -> "Site":
    """The site of a project's client app, whether it has taken part before or not.

    Parameters
    ----------
    project, config
        As :func:`open_site`.

    Raises
    ------
    ClientDataError, FederatedError
        The folder holds no project of fedbayes, or its code can't be loaded.
    """
    module, attribute = _client_app(project)
    sys.path.insert(0, str(project.resolve()))
    try:
        app = getattr(import_module(module), attribute)
        site: Site = app.open_site(config)
    except Exception as error:
        raise FederatedError(
            f"The client app '{module}:{attribute}' of the project '{project}' can't be loaded: "
            f"{type(error).__name__}: {error}"
        ) from error
    return site


def modules_of(project: Path) -> tuple[str, ...]:
    """The modules in whose packages a project's study is; its client app was loaded by :func:`load_site`."""
    module, attribute = _client_app(project)
    found: tuple[str, ...] = getattr(import_module(module), attribute).modules
    return found


def _client_app(project: Path) -> tuple[str, str]:
    """The module and the name of a project's client app."""
    file = project / "pyproject.toml"
    try:
        settings: Any = tomllib.loads(file.read_text())
        module, _, attribute = str(settings["tool"]["flwr"]["app"]["components"]["clientapp"]).partition(":")
    except (OSError, KeyError, TypeError, ValueError) as error:
        raise FederatedError(
            f"'{project}' is no project for a fit over a network: '{file}' names no client app "
            f"({type(error).__name__}). Give its folder, `--project FOLDER`; `fedbayes new` makes one."
        ) from None
    return module, attribute
