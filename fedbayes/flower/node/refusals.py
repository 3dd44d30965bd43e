"""What a site's node logs of a refusal: the reason, and the path of the log that explains it."""

import io
import json
import logging
import zipfile
from pathlib import Path

from fedbayes.runtime.npy import read_array

logger = logging.getLogger(__name__)


def tell_refusal(answer: bytes, log: Path) -> None:
    """Say in the node's own log that its site has refused a request; of other answers nothing is said.

    The reason is explained in the worker's log alone, at which nobody looks who watches the node.

    Parameters
    ----------
    answer
        Of the site's worker.
    log
        The worker's.
    """
    header = _header(answer)
    if header.get("kind") != "refusal":
        return
    from fedbayes.network.messages import Refusal  # imports JAX, which the answers to other requests need not

    reason = Refusal[header["reason"]]
    if reason is Refusal.DRAWS:  # is settled with the server
        return
    logger.error("Site %s %s. Its worker's log is '%s'.", header["site"], reason.value, log)


def _header(answer: bytes) -> dict[str, str]:
    """The header of an answer, read without JAX; empty where there is none, as in answers of other apps."""
    try:
        with zipfile.ZipFile(io.BytesIO(answer)) as parts:
            header = json.loads(read_array(parts.read("header.npy")).tobytes())
    except (ValueError, KeyError, zipfile.BadZipFile):
        return {}
    return header if isinstance(header, dict) else {}
