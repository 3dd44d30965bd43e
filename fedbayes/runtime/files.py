"""Files that are there whole or not at all, and those that only their owner can read."""

import os
import stat
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO


def replace_file(path: Path, content: bytes, mode: int = 0o666) -> None:
    """Write a file: a crash leaves the old one or the new one, never half of either.

    Parameters
    ----------
    path
        Its folder must be there.
    content
        All of it.
    mode
        Who may read it; the process's umask takes from this.
    """
    unfinished = path.with_name(path.name + ".partial")
    unfinished.unlink(missing_ok=True)  # what a crash has left may have another mode
    descriptor = os.open(unfinished, os.O_WRONLY | os.O_CREAT | os.O_EXCL, mode)
    with os.fdopen(descriptor, "wb") as file:
        file.write(content)
        file.flush()
        os.fsync(file.fileno())
    unfinished.replace(path)


def replace_private_file(path: Path, content: bytes) -> None:
    """The same for a file that its owner alone may read."""
    replace_file(path, content, 0o600)


def settle(folder: Path) -> None:
    """Wait until the disk knows of the files that were made or replaced in a folder, where the system can tell."""
    if os.name == "posix":
        descriptor = os.open(folder, os.O_RDONLY)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)


@contextmanager
def alone(file: IO) -> Iterator[None]:
    """Keep other processes from the file meanwhile, where the system can."""
    try:
        import fcntl
    except ModuleNotFoundError:  # Windows
        yield
        return
    fcntl.flock(file, fcntl.LOCK_EX)
    try:
        yield
    finally:
        fcntl.flock(file, fcntl.LOCK_UN)


def _user(status: os.stat_result) -> int:
    """The user of this process; where the system does not tell, the owner of what is asked about."""
    return os.getuid() if hasattr(os, "getuid") else status.st_uid


def private_folder(folder: Path) -> Path:
    """Make a folder where there is none, and close it to everybody but its owner.

    Raises
    ------
    PermissionError
        It is somebody else's, or no folder.
    """
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    status = folder.stat()
    if not stat.S_ISDIR(status.st_mode) or status.st_uid != _user(status):
        raise PermissionError(f"{folder} must be a folder that belongs to the user who runs the node")
    if stat.S_IMODE(status.st_mode) != 0o700:
        folder.chmod(0o700)
    return folder
