"""What a fit says where its programs ask for more memory than there is."""

import os
import re
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import jax

from fedbayes.errors import FederatedError

# of a container, by version 2 and version 1 of Linux's control groups
_LIMITS = (Path("/sys/fs/cgroup/memory.max"), Path("/sys/fs/cgroup/memory/memory.limit_in_bytes"))


def memory_here() -> float:
    """Bytes of memory of the device that computes; infinite where that is not known."""
    if jax.default_backend() != "cpu":
        return float((jax.local_devices()[0].memory_stats() or {}).get("bytes_limit", float("inf")))
    try:
        physical = float(os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES"))
    except (AttributeError, OSError, ValueError):  # of other systems
        physical = float("inf")
    return min(physical, *map(_limit, _LIMITS))


def _limit(path: Path) -> float:
    """Bytes that a container may take; infinite where nothing limits it."""
    try:
        written = path.read_text().strip()
    except OSError:
        return float("inf")
    return float("inf") if written == "max" else float(written)


@contextmanager
def memory_explained(what: str) -> Iterator[None]:
    """Say what asked for too much memory, for how much, and what takes less.

    Raises
    ------
    FederatedError
        In the place of JAX's own error, which becomes its cause.
    """
    try:
        yield
    except jax.errors.JaxRuntimeError as error:
        if "RESOURCE_EXHAUSTED" not in str(error):
            raise
        asked = re.search(r"allocating (\d+) bytes", str(error))
        much = f"{int(asked[1]) / 2**30:,.1f} GiB of memory at once" if asked else "more memory at once"
        raise FederatedError(
            f"{what} asks for {much}, which this machine does not have. Fewer clients at once take less, "
            "`executor=fedbayes.executors.Batched(chunk=1)`, and so do fewer draws and replicates in the options of "
            "the method; in the model, latents that are summed out or a plate over many rows may be what is so large."
        ) from error
