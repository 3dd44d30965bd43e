"""A fit's state on disk after each round: written atomically, without pickle, and resumed bit for bit."""

import io
import json
import os
import re
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
from jax.typing import ArrayLike

from fedbayes.chains import DrawBlock, concatenated
from fedbayes.wire import decode, encode

if TYPE_CHECKING:
    from fedbayes.federation import Progressing


class Checkpoint:
    """One file that always holds the state after the last completed round.

    Parameters
    ----------
    path
        The file; it need not exist.
    fingerprint
        Says what is being fitted. A checkpoint of something else is refused.
    """

    def __init__(self, path: str | os.PathLike, fingerprint: str) -> None:
        self.path = Path(path)
        self.fingerprint = fingerprint

    def write(self, current: "Progressing") -> None:
        """Replace the file by the present state: a crash leaves the old one or the new one, never half of either."""
        meta = {
            "fingerprint": self.fingerprint,
            "phase": current.phase,
            "rounds_in_phase": current.rounds_in_phase,
            "variants": list(current.variants),
            "converged": current.converged,
            "num_records": len(current.history),
        }
        content = {"meta": np.frombuffer(json.dumps(meta).encode(), np.uint8), "quiet": current.quiet}
        content["body"] = np.frombuffer(encode({"state": current.state, "clients": current.clients}), np.uint8)
        content["history"] = np.frombuffer(encode(current.history), np.uint8)
        draws = concatenated(current.draws) if current.draws else DrawBlock(np.zeros(0), [])
        content["draws"] = np.frombuffer(encode({"theta": draws.theta, "private": draws.private}), np.uint8)
        self.path.parent.mkdir(parents=True, exist_ok=True)
        partial = self.path.with_name(self.path.name + ".partial")
        with partial.open("wb") as file:
            file.write(encode(content))
            file.flush()
            os.fsync(file.fileno())
        partial.replace(self.path)

    def read(self, begin: "Callable[[int], Progressing]") -> "Progressing | None":
        """The state in the file, or ``None`` without one.

        Parameters
        ----------
        begin
            Gives a fresh state of a phase: the structure, shapes and dtypes that the file must have.

        Raises
        ------
        ValueError
            The file belongs to another fit.
        """
        if not self.path.exists():
            return None
        with np.load(self.path, allow_pickle=False) as archive:
            content = {name.strip("[']"): archive[name] for name in archive.files}
        meta = json.loads(content["meta"].tobytes())
        if meta["fingerprint"] != self.fingerprint:
            raise ValueError(
                f"The checkpoint '{self.path}' belongs to another fit: it was written for {meta['fingerprint']}, this "
                f"one is "
                f"{self.fingerprint}. Use another path, or delete the file."
            )
        current = begin(meta["phase"])
        body = decode(content["body"].tobytes(), {"state": current.state, "clients": current.clients})
        current.state, current.clients = body["state"], body["clients"]
        current.rounds_in_phase = meta["rounds_in_phase"]
        current.variants, current.converged = meta["variants"], meta["converged"]
        current.quiet = content["quiet"]
        current.history = _read_history(content["history"].tobytes(), meta["num_records"])
        current.draws = _read_draws(content["draws"].tobytes())
        return current


def _read_history(content: bytes, num_records: int) -> list[dict[str, np.ndarray]]:

    history: list[dict[str, np.ndarray]] = [{} for _ in range(num_records)]
    with np.load(io.BytesIO(content), allow_pickle=False) as archive:
        for name in archive.files:
            index, key = name[1:].split("]", 1)
            history[int(index)][key.strip("[']")] = archive[name]
    return history


def _read_draws(content: bytes) -> list[DrawBlock]:
    with np.load(io.BytesIO(content), allow_pickle=False) as archive:
        theta = archive["['theta']"]
        private = [archive[f"['private'][{b}]"] for b in range(len(archive.files) - 1)]
    return [DrawBlock(theta, private)] if theta.ndim > 1 else []


def fingerprint(problem_text: str, method: object, seed: ArrayLike) -> str:
    """What is being fitted, as text: clients, layout, method and key."""
    text = re.sub(r" at 0x[0-9a-f]+", "", repr(method))  # of a schedule: another place every time
    return f"{problem_text}; {text}; key {np.asarray(seed).tolist()}"
