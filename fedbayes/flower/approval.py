"""Which code may run on a site's data: what a person at the site has approved, by a digest of the study's own files.

It is asked in the process of a message, before the study is imported in the worker. The module that holds the app has
been imported by Flower by then: against code that was written to do harm Flower's trusted entities help, which check
who has signed a run's package before any of it runs.
"""

import hashlib
import json
import logging
from collections.abc import Iterable
from contextlib import suppress
from datetime import UTC, datetime
from pathlib import Path

from fedbayes.errors import ClientDataError
from fedbayes.flower.node.source import sources_of
from fedbayes.network.client.naming import Config, site_folder, site_name
from fedbayes.network.client.policy import read_policy
from fedbayes.runtime.files import private_folder, replace_private_file

logger = logging.getLogger(__name__)

_FILE = "approved.json"


def code_digest(modules: Iterable[str]) -> str:
    """Of the files of the packages that hold these modules, wherever they lie."""
    digest = hashlib.sha256()
    for name, path in sources_of(modules):
        digest.update(f"{name} {hashlib.sha256(path.read_bytes()).hexdigest()}\n".encode())
    return digest.hexdigest()


class Approvals:
    """What was approved at a site.

    Parameters
    ----------
    folder
        Of the site.
    """

    def __init__(self, folder: Path) -> None:
        self._file = folder / _FILE

    def when(self, digest: str) -> str:
        """When some code was approved; empty if it was not."""
        return str(self._read().get(digest, ""))

    def add(self, digest: str) -> None:
        """Approve it from now on."""
        private_folder(self._file.parent)
        found = {**self._read(), digest: datetime.now(UTC).strftime("%Y-%m-%d %H:%M:%S")}
        replace_private_file(self._file, json.dumps(found, indent=1).encode())

    def _read(self) -> dict[str, str]:
        return dict(json.loads(self._file.read_text())) if self._file.exists() else {}


def is_approved(config: Config, modules: Iterable[str]) -> bool:
    """Whether a site's owner lets this code run on its data."""
    with suppress(ClientDataError):  # of what was approved the worker refuses all while the policy can't be read
        if read_policy(config).studies.any:
            return True
    digest = code_digest(modules)
    if Approvals(site_folder(config)).when(digest):
        return True
    logger.error(
        "The code of this run, %s, was approved by nobody at site %s. Look at it with `fedbayes approve`, which asks "
        "whether it may run.",
        digest[:12],
        site_name(config),
    )
    return False


def refusal(config: Config, request: bytes) -> bytes:
    """The answer to a request for code that was not approved, and its line in the site's log."""
    from fedbayes.network.client.journal import Journal
    from fedbayes.network.messages import Refusal, pack, unpack

    try:
        asked = unpack(request).header
    except ValueError:
        asked = {}
    Journal(private_folder(site_folder(config))).write(asked, "", 0, Refusal.APPROVAL.name)
    told = {"reason": Refusal.APPROVAL.name, "study": {}, "found": {}}
    return pack({"kind": "refusal", "site": site_name(config), **told})
