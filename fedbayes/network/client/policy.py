"""A site's policy: a file of its owner, and not of the study, that says what may leave."""

import tomllib
from collections.abc import Mapping
from dataclasses import fields
from pathlib import Path
from typing import Any, NamedTuple

from fedbayes.errors import ClientDataError, did_you_mean
from fedbayes.network.client.naming import Config, site_folder
from fedbayes.owner.rules import DisclosureRules

POLICY = "policy.toml"
_LIMITS = [field.name for field in fields(DisclosureRules)]


class Policy(NamedTuple):
    """What a site's owner allows.

    Attributes
    ----------
    path
        The file; it need not be there, and then everything is as by default.
    rules
        Disclosure rules, from the table ``[disclosure]``.
    """

    path: Path
    rules: DisclosureRules


def read_policy(config: Config) -> Policy:
    """A site's policy: the file that ``policy`` of its configuration names, or ``policy.toml`` in its state folder.

    Raises
    ------
    ClientDataError
        The file can't be read, or holds what no policy has. Nothing leaves a site whose policy can't be read.
    """
    given = config.get("policy")
    if given is not None and not str(given).strip():
        raise ClientDataError("`policy` of the node's configuration is empty: name the owner's file, or leave it out.")
    path = Path(str(given)).expanduser() if given else site_folder(config) / POLICY
    try:
        told = tomllib.loads(path.read_text(encoding="utf-8-sig"))  # as an editor may have written it
    except FileNotFoundError:
        if given:
            raise ClientDataError(
                f"The site's policy, '{path}', is not there: the node's configuration names it."
            ) from None
        return Policy(path, DisclosureRules())
    except (OSError, ValueError) as error:
        raise ClientDataError(f"The site's policy, '{path}', can't be read: {error}.") from None
    if loose := [name for name in told if name in _LIMITS]:
        raise ClientDataError(f"The site's policy, '{path}': write '{loose[0]}' below a line `[disclosure]`.")
    _check_known(path, told, ["disclosure"], "")
    return Policy(path, _rules(path, told.get("disclosure", {})))


def _rules(path: Path, told: Any) -> DisclosureRules:
    if not isinstance(told, Mapping):
        raise ClientDataError(f"The site's policy, '{path}': write the rules as a table, [disclosure].")
    _check_known(path, told, _LIMITS, " of [disclosure]")
    try:
        return DisclosureRules(**told)
    except (TypeError, ValueError) as error:
        raise ClientDataError(f"The site's policy, '{path}': {error}") from None


def _check_known(path: Path, told: Mapping[str, Any], known: list[str], where: str) -> None:
    """A misspelt limit would leave the default in its place, and nobody would know."""
    for name in told:
        if name not in known:
            raise ClientDataError(
                f"The site's policy, '{path}', has '{name}', which is none of the settings{where}: {known}."
                f"{did_you_mean(name, known)}"
            )
