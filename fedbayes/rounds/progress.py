"""Progress of a fit: one bar in a terminal and in a notebook, and lines now and then in a log."""

import sys
import time
from typing import Protocol

import numpy as np
from tqdm.auto import tqdm
from tqdm.std import tqdm as plain

_SECONDS = 10.0  # between two lines of a log


class Progress(Protocol):
    """Told of each round."""

    def start(self, phase: str, total: int | None, done: int = 0) -> None:
        """A phase begins, or goes on after ``done`` rounds; ``total`` is their number, where that is known.

        Its first round compiles.
        """
        ...

    def after_round(self, record: dict[str, np.ndarray]) -> None:
        """One round is done."""
        ...

    def say(self, words: str) -> None:
        """What has to be said of the rounds to come; over a network nothing is."""
        return

    def close(self) -> None:
        """The fit is over."""
        ...


class Silent:
    """No progress shown."""

    def start(self, phase: str, total: int | None, done: int = 0) -> None:
        """See :class:`Progress`."""

    def after_round(self, record: dict[str, np.ndarray]) -> None:
        """See :class:`Progress`."""

    def say(self, words: str) -> None:
        """See :class:`Progress`."""

    def close(self) -> None:
        """See :class:`Progress`."""


class Bar:
    """A line per phase: rounds so far, the change of the global in posterior sds, and the largest k-hat."""

    def __init__(self) -> None:
        self._bar: tqdm | None = None

    def start(self, phase: str, total: int | None, done: int = 0) -> None:
        """See :class:`Progress`."""
        self.close()
        self._bar = tqdm(desc=phase, total=total, initial=done, unit=" rounds", postfix="compiling")

    def after_round(self, record: dict[str, np.ndarray]) -> None:
        """See :class:`Progress`."""
        if self._bar is not None:
            self._bar.set_postfix_str(_news(record), refresh=False)
            self._bar.update(int(record.get("rounds", 1)))

    def say(self, words: str) -> None:
        """See :class:`Progress`; above the bar."""
        tqdm.write(words, file=sys.stderr)

    def close(self) -> None:
        """See :class:`Progress`."""
        if self._bar is not None:
            self._bar.close()
        self._bar = None


class Lines:
    """A line per phase, and one every ten seconds, for a log or a file: a bar would fill it with its own remains."""

    def __init__(self) -> None:
        self._phase, self._done, self._told = "", 0, -np.inf

    def start(self, phase: str, total: int | None, done: int = 0) -> None:
        """See :class:`Progress`."""
        self._phase, self._done, self._told = phase, done, time.monotonic()
        self._tell(f"{phase}: compiling")

    def after_round(self, record: dict[str, np.ndarray]) -> None:
        """See :class:`Progress`."""
        self._done += int(record.get("rounds", 1))
        if time.monotonic() - self._told >= _SECONDS:
            self._told = time.monotonic()
            self._tell(", ".join(filter(None, (f"{self._phase}: {self._done:,} rounds", _news(record)))))

    def say(self, words: str) -> None:
        """See :class:`Progress`."""
        self._tell(words)

    def close(self) -> None:
        """See :class:`Progress`."""

    def _tell(self, line: str) -> None:
        print(line, file=sys.stderr, flush=True)


def show(progress: bool) -> Progress:
    """What shows it: a bar for somebody who looks on, lines where nobody may, nothing if it was not asked for."""
    if not progress:
        return Silent()
    return Bar() if sys.stderr.isatty() or not _is_plain() else Lines()


def _is_plain() -> bool:
    """Whether a bar would be one of text: there is no notebook."""
    from tqdm.autonotebook import tqdm as chosen

    return chosen is plain


def _news(record: dict[str, np.ndarray]) -> str:
    news = []
    if "change" in record:
        news.append(f"change {np.max(record['change']):.3g} sd")
    if "k_hat" in record and np.any(np.isfinite(record["k_hat"])):
        news.append(f"k-hat {np.nanmax(record['k_hat']):.2f}")
    if "drift" in record:
        news.append(f"drift {np.max(record['drift']):.2g}")
    return ", ".join(news)
