"""Progress on a server's terminal: lines that name rounds and sites, never data."""

import logging

import numpy as np

from fedbayes.errors import usable
from fedbayes.rounds.progress import Progress

log = logging.getLogger(__name__)

_LONG = 1800.0  # seconds that are worth a warning


class Terminal(Progress):
    """Tells of rounds in the log.

    Parameters
    ----------
    seconds_a_round
        Seconds that the transport needs per round, used to estimate the run time in advance.
    """

    def __init__(self, seconds_a_round: float = 0.0) -> None:
        self._seconds, self._phase, self._rounds = seconds_a_round, "", 0

    def start(self, phase: str, total: int | None, done: int = 0) -> None:
        """See :class:`~fedbayes.rounds.progress.Progress`; says what many rounds will take."""
        self._phase, self._rounds = phase, done
        begins = "begins" if not done else f"goes on after {done:,} rounds"
        rounds = "" if total is None else f": {total:,} rounds"
        log.info(
            "Phase %s %s%s. The sites are compiling its first one, which takes about a minute.", phase, begins, rounds
        )
        least = ((total or 0) - done) * self._seconds
        if least > _LONG:
            log.warning(
                "Over this network %s rounds take at least %s, as each takes %.0f s or more. More local steps between "
                "exchanges (`local_steps`), fewer draws, or a method with few rounds cost less.",
                f"{total:,}",
                f"{least / 3600.0:.1f} hours",
                self._seconds,
            )

    def after_round(self, record: dict[str, np.ndarray]) -> None:
        """See :class:`~fedbayes.rounds.progress.Progress`."""
        self._rounds += int(record.get("rounds", 1))
        codes, active = np.asarray(record["code"]), np.asarray(record["active"])
        used = usable(codes).reshape(len(codes), -1).any(axis=1)
        change = f", change {np.max(record['change']):.3g} posterior sds" if "change" in record else ""
        log.info(
            "Phase %s, round %d: %d of %d clients, %.1f s%s.",
            self._phase,
            self._rounds,
            np.sum(used & active),
            len(active),
            float(record["seconds"]),
            change,
        )

    def close(self) -> None:
        """See :class:`~fedbayes.rounds.progress.Progress`."""
