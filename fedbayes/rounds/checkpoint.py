"""A fit's state on disk after each round: written atomically, without pickle, and resumed bit for bit."""

import hashlib
import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from jax.typing import ArrayLike

from fedbayes.contract.state import Record, RunState
from fedbayes.rounds.description import described, without_places
from fedbayes.rounds.executors import Executor
from fedbayes.rounds.wire import arrays_of, decode, encode
from fedbayes.runtime.files import replace_file

_META = {"fingerprint", "phase", "rounds_in_phase", "updates", "converged", "num_records"}
_CONTENT = {"meta", "settled", "state", "private", "history", "draws"}


class Advice(NamedTuple):
    """What to say of a file that can't be used.

    Attributes
    ----------
    other
        It belongs to something else.
    broken
        It can't be read.
    """

    other: str
    broken: str


class Checkpoint:
    """One file that always holds the state after the last completed round.

    Parameters
    ----------
    path
        The file; it need not exist.
    fingerprint
        Says what is being fitted. A checkpoint of something else is refused.
    advice
        What to say of a file that can't be used; a checkpoint's own words if left out.
    writes
        Whether it is this process that writes the file. Of several that fit together one does, and all read it.

    Raises
    ------
    ValueError
        The path is a folder.
    """

    def __init__(
        self, path: str | os.PathLike, fingerprint: str, advice: Advice | None = None, *, writes: bool = True
    ) -> None:
        self.path = Path(path)
        self.fingerprint = fingerprint
        self.advice = advice
        self.writes = writes
        if self.path.is_dir():
            raise ValueError(f"`checkpoint` is '{self.path}', a folder; name a file in it, such as 'fit.npz'.")

    def write(self, current: RunState, executor: Executor) -> None:
        """Replace the file by the present state: a crash leaves the old one or the new one, never half of either."""
        if not self.writes:
            return
        meta = {
            "fingerprint": self.fingerprint,
            "phase": current.phase,
            "rounds_in_phase": current.rounds_in_phase,
            "updates": list(current.updates),
            "converged": current.converged,
            "num_records": len(current.history),
        }
        content = {
            "meta": _bytes(json.dumps(meta).encode()),
            "settled": current.settled,
            "state": _bytes(encode(current.state)),
            "private": _bytes(executor.snapshot()),
            "history": _bytes(encode(current.history)),
            "draws": np.concatenate(current.draws) if current.draws else np.zeros(0),
        }
        self.path.parent.mkdir(parents=True, exist_ok=True)
        replace_file(self.path, encode(content))

    def digest(self) -> str | None:
        """Tells the file's content from others; ``None`` without a file."""
        return hashlib.sha256(self.path.read_bytes()).hexdigest() if self.path.exists() else None

    def read(self, begin: Callable[[int], RunState], executor: Executor) -> RunState | None:
        """The state in the file, or ``None`` without one.

        Parameters
        ----------
        begin
            Gives a fresh state of a phase: the structure, shapes and dtypes that the file must have.
        executor
            Takes its clients' private states back.

        Raises
        ------
        ValueError
            The file belongs to another fit or another version, or is cut short.
        """
        if not self.path.exists():
            return None
        content, meta = self._content()
        if meta["fingerprint"] != self.fingerprint:
            raise ValueError(
                self.advice.other
                if self.advice
                else f"The checkpoint '{self.path}' belongs to another fit: it was written for {meta['fingerprint']}, "
                f"this one is {self.fingerprint}. Use another path, or delete the file."
            )
        current = begin(meta["phase"])
        try:
            executor.restore(content["private"].tobytes())
            current.state = decode(content["state"].tobytes(), current.state)
        except ValueError as error:
            raise ValueError(
                f"'{self.path}' holds the state of another version of fedbayes, whose rounds kept other numbers. Go on "
                "with that version, or begin anew. What ArviZ reads of a saved fit, 'posterior.nc' and 'rounds.nc', "
                "does not depend on the version."
            ) from error
        current.rounds_in_phase = meta["rounds_in_phase"]
        current.updates, current.converged = meta["updates"], meta["converged"]
        current.settled = content["settled"]
        current.history = _records(content["history"].tobytes(), meta["num_records"])
        current.draws = [content["draws"]] if content["draws"].ndim > 1 else []
        return current

    def _content(self) -> tuple[dict[str, np.ndarray], dict[str, Any]]:
        """The arrays in the file, checked for being whole, and what it says about itself."""
        try:
            content = arrays_of(self.path.read_bytes())
            meta = json.loads(content["meta"].tobytes())
            complete = meta.keys() >= _META and content.keys() >= _CONTENT
        except OSError:
            raise  # it names the file
        except Exception as error:  # of NumPy, the archive, or JSON
            raise ValueError(self._broken()) from error
        if not complete:
            raise ValueError(self._broken())
        return content, meta

    def _broken(self) -> str:
        own = (
            f"The checkpoint '{self.path}' can't be read: it is cut short, or no checkpoint of fedbayes. Delete it, "
            "and the fit begins anew; or name another file."
        )
        return self.advice.broken if self.advice else own


def _bytes(content: bytes) -> np.ndarray:
    return np.frombuffer(content, np.uint8)


def _records(content: bytes, num_records: int) -> list[Record]:
    history: list[Record] = [{} for _ in range(num_records)]
    for path, array in arrays_of(content).items():
        index, name = path.split("/", 1)
        history[int(index)][name] = array
    return history


def fingerprint(problem_text: str, method: object, seed: ArrayLike) -> str:
    """What is being fitted, as text: clients, layout, method and key."""
    inside = hashlib.sha256(described(method).encode()).hexdigest()[:16]
    return f"{problem_text}; {without_places(method)} {inside}; key {np.asarray(seed).tolist()}"
