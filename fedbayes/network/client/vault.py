"""What a client keeps on its own disk, readable by its owner only: its secret, and per run its private states.

Losing it costs time and not correctness: a client without its state starts from the broadcast, as in its first round.
"""

import hashlib
import json
import os
import re
import secrets
import shutil
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path

import numpy as np

from fedbayes.errors import ClientDataError
from fedbayes.runtime.files import alone, private_folder, replace_private_file

_STATE = re.compile(r"state-(\d+)-(\d+)\.npz")
_DRAW = re.compile(r"draw-(\d+)-(\d+)\.npz")
_KEPT_RUNS = 20  # folders of earlier runs
_KNOWN_KEYS = "known-keys.json"
_AGREEMENTS = "agreements.json"
_IMPLAUSIBLE = "implausible.json"
_ROWS, _KEPT_DATA = "rows", 100  # data sets about which answers have left


class Vault:
    """A client's folder.

    Parameters
    ----------
    folder
        It is made where there is none, with mode 0700.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = private_folder(folder)
        self._tickets: set[str] = set()  # of the file, as far as it was read
        self._tickets_read = 0

    def claim(self, site: str) -> None:
        """Make the folder that of one site.

        Raises
        ------
        ClientDataError
            It is another's.
        """
        file = self.folder / "site"
        if not file.exists():
            replace_private_file(file, site.encode())
        if (owner := file.read_text()) != site:
            raise ClientDataError(
                f"The folder '{self.folder}' keeps the private states of site '{owner}', and this is site '{site}'. "
                "Give each site a `state-dir` of its own."
            )

    def secret(self, run: str, data: str) -> str:
        """The client's secret for a run and its present data, as hexadecimal digits; nobody else knows it.

        Another run, or other data, have another one: noise that hides the data is never used twice.
        """
        return hashlib.sha256(f"{self._random('secret')} {run} {data}".encode()).hexdigest()

    def mask_key(self) -> str:
        """The site's private key for secure sums, as hexadecimal digits."""
        return self._random("mask-key")

    def _random(self, name: str) -> str:
        """64 hexadecimal digits that were drawn once."""
        file = self.folder / name
        if not file.exists():
            replace_private_file(file, secrets.token_hex(32).encode())
        return file.read_text()

    def known_keys(self) -> dict[str, str]:
        """Fingerprints of the keys that other sites have had in secure sums, by name."""
        file = self.folder / _KNOWN_KEYS
        return dict(json.loads(file.read_text())) if file.exists() else {}

    def use_ticket(self, ticket: str) -> bool:
        """Whether a ticket is new. It is written down for good, so that its masks are used once, even after a crash."""
        descriptor = os.open(self.folder / "tickets", os.O_RDWR | os.O_CREAT | os.O_APPEND, 0o600)
        with os.fdopen(descriptor, "a+") as used:
            with alone(used):
                used.seek(self._tickets_read)
                self._tickets.update(line.strip() for line in used)
                fresh = ticket not in self._tickets
                if fresh:
                    used.write(f"\n{ticket}\n")  # a line that a crash has cut short stays by itself
                    used.flush()
                    os.fsync(used.fileno())
                    self._tickets.add(ticket)
                self._tickets_read = used.seek(0, os.SEEK_END)
        return fresh

    def count_run(self, about: str, most: int) -> bool:
        """Whether one more run about these data may have an answer; it is counted before that is computed.

        A server that makes up what it tells would find a number of the site's by bisection, run after run.
        """
        file = self.folder / _AGREEMENTS
        told = json.loads(file.read_text()) if file.exists() else {}
        if (before := int(told.get(about, 0))) >= most:
            return False
        replace_private_file(file, json.dumps({**told, about: before + 1}).encode())
        return True

    def use_implausible(self, data: str, answer: str, share: float, most: float) -> bool:
        """Whether an answer at implausible values may leave, written down before it does.

        Parameters
        ----------
        data
            Digest of the data that it is about.
        answer
            What stands for its numbers: the same ones count once.
        share
            How much of an answer it is: of the numbers that an expansion to second order has.
        most
            How many answers may leave about these data.
        """
        file = self.folder / _IMPLAUSIBLE
        descriptor = os.open(file.with_suffix(".lock"), os.O_RDWR | os.O_CREAT, 0o600)
        with os.fdopen(descriptor, "r+") as lock, alone(lock):
            kept = json.loads(file.read_text()) if file.exists() else {}
            told: dict[str, float] = kept.get(data, {})
            if answer not in told:
                if sum(told.values()) + share > most:
                    return False
                replace_private_file(file, json.dumps({**kept, data: {**told, answer: share}}).encode())
        return True

    def keep_rows(self, data: str, rows: np.ndarray) -> None:
        """Remember the digests of the rows about which an answer leaves; the oldest of many data sets make room."""
        folder = private_folder(self.folder / _ROWS)
        file = folder / data
        if len(rows) and not file.exists():
            replace_private_file(file, rows.tobytes())
            kept = [(each.stat().st_mtime, each) for each in self._files_of_rows() if each.exists()]
            for _, old in sorted(kept)[:-_KEPT_DATA]:
                old.unlink(missing_ok=True)

    def rows_before(self, data: str) -> Iterator[tuple[str, np.ndarray]]:
        """Digests of the rows of other data, about which answers have left, each with the digest of these data."""
        for file in self._files_of_rows():
            if file.name != data:
                yield file.name, np.frombuffer(file.read_bytes(), np.uint64)

    def _files_of_rows(self) -> list[Path]:
        """Those that are whole: a crash may have left another."""
        return sorted(each for each in (self.folder / _ROWS).glob("*") if re.fullmatch("[0-9a-f]{64}", each.name))

    def keep_keys(self, known: Mapping[str, str]) -> None:
        """Remember them."""
        replace_private_file(self.folder / _KNOWN_KEYS, json.dumps(dict(known), indent=1, sort_keys=True).encode())

    def run(self, name: str) -> "RunVault":
        """What belongs to one run; the folders of the oldest runs make room."""
        if not re.fullmatch(r"[0-9a-f]{1,64}", name):
            raise ValueError(f"A run is called {name!r}; expected hexadecimal digits.")
        folder = private_folder(private_folder(self.folder / "runs") / name)
        for old in self.runs()[_KEPT_RUNS:]:
            shutil.rmtree(old.folder, ignore_errors=True)
        return RunVault(folder)

    def runs(self) -> list["RunVault"]:
        """The runs that are kept, the latest first."""
        folders = [each for each in (self.folder / "runs").glob("*") if each.is_dir()]
        return [RunVault(each) for each in sorted(folders, key=lambda each: each.stat().st_mtime, reverse=True)]


class RunVault:
    """The part of a vault that belongs to one run.

    Orders are numbered, and each state is kept under the number of the order that it came from: an order that comes
    again, since the server was restarted, finds the state before it.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def last_order(self, phase: int, order: int) -> int | None:
        """The last order of a phase before this one, whose state is kept; ``None`` where there is none."""
        return max((seq for at, seq, _ in self._states() if at == phase and seq < order), default=None)

    def state_before(self, phase: int, order: int) -> bytes | None:
        """The private state of a phase before an order; ``None`` where there is none."""
        last = self.last_order(phase, order)
        return None if last is None else (self.folder / f"state-{phase}-{last}.npz").read_bytes()

    def keep_state(self, phase: int, order: int, content: bytes, oldest: int) -> None:
        """Write the state after an order.

        States from which no order can be asked for again are removed: those of a future that was given up, and those
        before the last one at ``oldest``, the earliest order to which the server may go back.
        """
        replace_private_file(self.folder / f"state-{phase}-{order}.npz", content)
        before = max(((at, seq) for at, seq, _ in self._states() if seq <= oldest), default=(0, 0))
        for at, seq, file in self._states():
            if seq > order or (at, seq) < before:
                file.unlink(missing_ok=True)

    def forget_orders(self, orders: Sequence[int]) -> None:
        """Forget the states after some orders, as if they had not been given."""
        void = set(orders)
        for _, order, file in self._states() if void else ():
            if order in void:
                file.unlink(missing_ok=True)

    def forget_from(self, order: int) -> None:
        """Forget the states after an order and those that follow it."""
        self.forget_orders([seq for _, seq, _ in self._states() if seq >= order])

    def history_before(self, phase: int, order: int) -> str:
        """What stands for all that the state before an order comes from; empty where there is no state."""
        last = self.last_order(phase, order)
        if last is None:
            return self.history_before(phase - 1, order) if phase > 0 else ""
        return str(self._histories().get(f"{phase}-{last}", ""))

    def keep_history(self, phase: int, order: int, digest: str) -> None:
        """The same for the state after an order; written before that is, and after an earlier one of this number went.

        A state that a crash has left would else stand beside what another one comes from.
        """
        (self.folder / f"state-{phase}-{order}.npz").unlink(missing_ok=True)
        kept = {f"{at}-{seq}" for at, seq, _ in self._states()}
        found = {name: each for name, each in self._histories().items() if name in kept}
        content = json.dumps({**found, f"{phase}-{order}": digest})
        replace_private_file(self.folder / "history", content.encode())

    def _histories(self) -> dict[str, str]:
        file = self.folder / "history"
        return dict(json.loads(file.read_text())) if file.exists() else {}

    def keep_draw(self, number: int, order: int, content: bytes) -> None:
        """Write the client's own part of a draw, of which an order has told; what an earlier one has told of stays."""
        if all(known != number for known, _, _ in self._draws()):
            replace_private_file(self.folder / f"draw-{number}-{order}.npz", content)

    def forget_draws(self, order: int) -> None:
        """Forget the draws that were recorded from an order on: it is asked for again."""
        for _, told, file in self._draws():
            if told >= order:
                file.unlink(missing_ok=True)

    def draws(self) -> list[bytes]:
        """The client's own parts of all draws."""
        return [file.read_bytes() for _, _, file in sorted(self._draws())]

    def same_data(self, digest: str) -> bool:
        """Whether the client's data are those with which it came into the run."""
        return self._same("data", digest)

    def same_charter(self, digest: str) -> bool:
        """Whether the server tells of the same sites as at first in the run."""
        return self._same("charter", digest)

    def same_sum(self, name: str, digest: str) -> bool:
        """Whether a sum of an agreement is told as it was at first in the run."""
        return self._same(f"sum-{hashlib.sha256(name.encode()).hexdigest()}", digest)

    def _same(self, name: str, digest: str) -> bool:
        file = self.folder / name
        if not file.exists():
            replace_private_file(file, digest.encode())
        return file.read_text() == digest

    def conclude(self, content: bytes) -> None:
        """Keep the server's last message, from which the client computes its own posterior."""
        replace_private_file(self.folder / "conclusion", content)

    def once(self, test: Callable[[], bool | None], name: str = "agrees") -> bool | None:
        """What a test has found when it was made first in this run: asked again, a server learns nothing new."""
        file = self.folder / name
        if not file.exists():
            replace_private_file(file, json.dumps(test()).encode())
        found: bool | None = json.loads(file.read_text())
        return found

    def conclusion(self) -> bytes | None:
        """The server's last message; ``None`` before it has come."""
        file = self.folder / "conclusion"
        return file.read_bytes() if file.exists() else None

    def _states(self) -> Iterator[tuple[int, int, Path]]:
        for file in self.folder.glob("state-*"):
            if found := _STATE.fullmatch(file.name):
                yield int(found[1]), int(found[2]), file

    def _draws(self) -> Iterator[tuple[int, int, Path]]:
        for file in self.folder.glob("draw-*"):
            if found := _DRAW.fullmatch(file.name):
                yield int(found[1]), int(found[2]), file
