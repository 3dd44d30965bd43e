"""A site's state folder: what stays on the site's disk, readable by its owner only."""

import contextlib
import fcntl
import hashlib
import os
import secrets
import tempfile
from collections.abc import Iterator
from pathlib import Path

from fedbayes.errors import ClientDataError
from fedbayes.flower.codes import NoAnswer, SiteFailure
from fedbayes.network.client.naming import Config, site_folder, site_name
from fedbayes.runtime.files import private_folder, replace_private_file

_LONGEST_SOCKET = 100  # bytes of a socket's path; systems allow 104 or 108
_LARGEST_LOG = 10_000_000  # bytes; a longer one is begun anew with the next worker


class StateFolder:
    """The files of one site and its worker.

    Parameters
    ----------
    path
        The folder. It is made where there is none, and closed to everybody but its owner.
    """

    def __init__(self, path: Path) -> None:
        self.path = private_folder(path.expanduser().absolute())

    @classmethod
    def of(cls, config: Config) -> "StateFolder":
        """The folder of a node, by its configuration.

        Raises
        ------
        SiteFailure
            The configuration names no site, or the folder can't be used.
        """
        try:
            site_name(config)
            return cls(site_folder(config))
        except ClientDataError as error:
            raise SiteFailure(NoAnswer.NO_SITE_ID, str(error)) from error
        except OSError as error:
            raise SiteFailure(NoAnswer.NO_STATE_FOLDER, f"The state folder can't be used: {error}") from error

    @property
    def socket(self) -> str:
        """Where the worker listens. A path too long for a socket is replaced by one among the temporary files."""
        path = str(self.path / "worker.socket")
        if len(os.fsencode(path)) <= _LONGEST_SOCKET:
            return path
        folder = private_folder(Path(tempfile.gettempdir()) / f"fedbayes-{os.getuid()}")
        return str(folder / (hashlib.sha256(path.encode()).hexdigest()[:24] + ".socket"))

    @property
    def log(self) -> Path:
        """What the worker says."""
        return self.path / "worker.log"

    def open_log(self) -> int:
        """A descriptor that appends to the log."""
        large = self.log.exists() and self.log.stat().st_size > _LARGEST_LOG
        return os.open(self.log, os.O_WRONLY | os.O_CREAT | os.O_APPEND | (os.O_TRUNC if large else 0), 0o600)

    def new_token(self) -> bytes:
        """A new secret that callers must know; it replaces the one before."""
        token = secrets.token_bytes(32)
        replace_private_file(self.path / "worker.token", token)
        return token

    def token(self) -> bytes:
        """The secret of the worker that started last; empty where none ever did."""
        try:
            return (self.path / "worker.token").read_bytes()
        except FileNotFoundError:
            return b""

    @contextlib.contextmanager
    def place(self) -> Iterator[bool]:
        """The place of the site's one worker: whether it was free, and so is ours for a while."""
        descriptor = os.open(self.path / "worker.lock", os.O_RDWR | os.O_CREAT, 0o600)
        try:
            try:
                fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                yield False
            else:
                yield True
        finally:
            os.close(descriptor)
