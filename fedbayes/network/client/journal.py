"""The site's log of what it was asked: one line a request, written before the answer leaves, and never rewritten."""

import json
import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, NamedTuple

from fedbayes.owner.text import aligned

JOURNAL = "requests.jsonl"
ANSWERED, HIDDEN, NOISY, BOTH = "answered", "hidden", "noisy", "noisy and hidden"  # results that are no refusal
_LONGEST = 80  # characters of a word that came from the server
_DIGITS = 12  # of a digest


class Entry(NamedTuple):
    """One request, and what became of it.

    Attributes
    ----------
    time
        When it was answered, UTC, to the second.
    kind
        ``hello``, ``join``, ``round``, ``after``, ``conclude``, ``sum``; empty where the request can't be read.
    study, run
        The first digits of the study's digest, and of the run's name.
    order
        The request's number in the run.
    update
        What was to be computed.
    data
        The first digits of the digest of the site's data; empty before they are read.
    numbers
        How many numbers have left.
    result
        ``answered``; ``hidden``: answered, the numbers as a term of a secure sum; ``noisy``: with noise within the
        owner's privacy budget; ``noisy and hidden``; or the name of the refusal.
    failures
        How many of the numbers and result codes have said that something is not finite, too large or improper; one
        where the answer was refused for that.
    """

    time: str
    kind: str
    study: str
    run: str
    order: int
    update: str
    data: str
    numbers: int
    result: str
    failures: int = 0


def result_of(*, hidden: bool, noisy: bool) -> str:
    """What became of a request that was answered."""
    return (BOTH if hidden else NOISY) if noisy else (HIDDEN if hidden else ANSWERED)


class Journal:
    """The log of a site, in its state folder, which its owner alone can read.

    Parameters
    ----------
    folder
        Of the site.
    """

    def __init__(self, folder: Path) -> None:
        self.path = folder / JOURNAL

    def write(self, asked: Mapping[str, Any], data: str, numbers: int, result: str, failures: int = 0) -> None:
        """Append a line.

        Parameters
        ----------
        asked
            The request's header; of its words no more is kept than a name needs.
        data
            Digest of the site's data.
        numbers
            Numbers in the answer.
        result
            What became of it.
        failures
            See :class:`Entry`; where there are none the line does not speak of them.

        Raises
        ------
        OSError
            It can't be written: then nothing must leave.
        """
        words = {name: _plain(str(asked.get(name, ""))) for name in ("kind", "study", "run", "update")}
        order = asked.get("order")
        entry = Entry(
            datetime.now(UTC).strftime("%Y-%m-%d %H:%M:%S"),
            words["kind"],
            words["study"][:_DIGITS],
            words["run"][:_DIGITS],
            order if isinstance(order, int) else -1,
            words["update"],
            data[:_DIGITS],
            numbers,
            result,
            failures,
        )
        words = {name: value for name, value in entry._asdict().items() if name != "failures" or value}
        line = json.dumps(words).encode() + b"\n"
        descriptor = os.open(self.path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
        with os.fdopen(descriptor, "ab") as file:
            file.write(line)

    def entries(self) -> Iterator[Entry]:
        """What was written, the oldest first; a line that a crash has cut short is left out."""
        if not self.path.exists():
            return
        with self.path.open() as file:
            for line in file:
                try:
                    yield Entry(**json.loads(line))
                except (ValueError, TypeError):
                    continue


def _plain(word: str) -> str:
    """A word of the server's that a terminal can show."""
    return "".join(each if each.isascii() and each.isprintable() else "?" for each in word[:_LONGEST])


def as_text(entries: Sequence[Entry], last: int) -> str:
    """The latest requests as a table, and what has left in all.

    Parameters
    ----------
    entries
        All of them.
    last
        How many are shown.
    """
    head = ("time, UTC", "request", "run", "order", "update", "numbers", "answer")
    rows = [
        (
            e.time,
            e.kind or "unreadable",
            e.run,
            str(e.order) if e.order >= 0 else "",
            e.update,
            f"{e.numbers:,}",
            e.result,
        )
        for e in entries[max(0, len(entries) - last) :]
    ]
    return "\n".join([*aligned([head, *rows]), *_totals(entries)])


def _totals(entries: Sequence[Entry]) -> Iterator[str]:
    """For each data set that was asked about, how many numbers have left, and in how many runs."""
    for data in dict.fromkeys(entry.data for entry in entries if entry.numbers or entry.failures):
        about = [entry for entry in entries if entry.data == data]
        numbers, runs = sum(entry.numbers for entry in about), len({entry.run for entry in about if entry.run})
        hidden = sum(entry.numbers for entry in about if entry.result in (HIDDEN, BOTH))
        noisy = sum(entry.numbers for entry in about if entry.result in (NOISY, BOTH))
        how = f", {hidden:,} of them hidden in sums" if hidden else ""
        how += f", {noisy:,} with noise" if noisy else ""
        yield f"{numbers:,} numbers about the data {data} have left in {runs} run{'s' * (runs != 1)}{how}."
        if failed := failures_told(about):
            yield f"{failed:,} times a number was not finite or too large for a sum, or a density was improper."
    num, refused = len(entries), sum(entry.result not in (ANSWERED, HIDDEN, NOISY, BOTH) for entry in entries)
    yield f"{num:,} request{'s' * (num != 1)} in all, {refused:,} of them refused."


def exact_numbers(entries: Iterable[Entry], data: str | None = None) -> int:
    """How many numbers about any data, or about those of a digest, have left without noise."""
    about = (entry for entry in entries if data is None or entry.data == data[:_DIGITS])
    return sum(entry.numbers for entry in about if entry.result in (ANSWERED, HIDDEN))


def failures_told(entries: Iterable[Entry], data: str | None = None) -> int:
    """How many failures were told about any data, or about those of a digest; a refusal for that is one."""
    return sum(entry.failures for entry in entries if data is None or entry.data == data[:_DIGITS])
