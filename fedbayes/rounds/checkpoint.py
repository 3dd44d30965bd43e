"""A fit's state on disk after each round: written atomically, without pickle, and resumed bit for bit."""

import hashlib
import io
import json
import os
import re
from collections.abc import Callable, Mapping
from dataclasses import fields, is_dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from jax.typing import ArrayLike

from fedbayes.rounds.chains import DrawBlock, concatenated
from fedbayes.rounds.wire import decode, encode

if TYPE_CHECKING:
    from fedbayes.rounds.loop import Progressing

_DEEPEST = 40  # functions within functions that a fingerprint looks into


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
        unfinished = self.path.with_name(self.path.name + ".partial")
        with unfinished.open("wb") as file:
            file.write(encode(content))
            file.flush()
            os.fsync(file.fileno())
        unfinished.replace(self.path)

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
    inside = hashlib.sha256(_described(method).encode()).hexdigest()[:16]
    return f"{problem_text}; {_without_places(method)} {inside}; key {np.asarray(seed).tolist()}"


def _described(value: Any, depth: int = 0) -> str:
    """All that a method is made of: two schedules or optimisers of one name differ in what they close over."""
    deeper = partial(_described, depth=depth + 1)
    if depth > _DEEPEST:
        return "..."
    if is_dataclass(value):
        return str([deeper(getattr(value, field.name)) for field in fields(value)])
    if isinstance(value, Mapping):
        return str([(str(name), deeper(each)) for name, each in value.items()])
    if isinstance(value, tuple | list):
        return str([deeper(each) for each in value])
    if isinstance(value, partial):
        return deeper((value.func, value.args, value.keywords))
    if code := getattr(value, "__code__", None):
        numbers = [each for each in code.co_consts if isinstance(each, int | float | str)]
        inside = [cell.cell_contents for cell in value.__closure__ or ()]
        return f"{value.__qualname__} {code.co_code.hex()} {numbers} {deeper((value.__defaults__, inside))}"
    if hasattr(value, "__array__"):
        array = np.asarray(value)
        return f"{array.shape} {array.dtype} {hashlib.sha256(array.tobytes()).hexdigest()}"
    return _without_places(value)


def _without_places(value: object) -> str:
    """Its ``repr``, without the addresses that are others every time."""
    return re.sub(r" at 0x[0-9a-f]+", "", repr(value))
