"""Progress of a fit: one bar in a terminal and in a notebook."""

from typing import Protocol

import numpy as np
from tqdm.auto import tqdm


class Progress(Protocol):
    """Told of each round."""

    def after_round(self, phase: str, record: dict[str, np.ndarray], budget: int) -> None:
        """One round is done."""
        ...

    def close(self) -> None:
        """The fit is over."""
        ...


class Silent:
    """No progress shown."""

    def after_round(self, phase: str, record: dict[str, np.ndarray], budget: int) -> None:
        """See :class:`Progress`."""

    def close(self) -> None:
        """See :class:`Progress`."""


class Bar:
    """A bar per phase, with the change of the global in posterior sds and the slowest news: the largest k-hat."""

    def __init__(self) -> None:
        self._bar: tqdm | None = None
        self._phase = ""

    def after_round(self, phase: str, record: dict[str, np.ndarray], budget: int) -> None:
        """See :class:`Progress`."""
        if phase != self._phase:
            self.close()
            self._phase = phase
            self._bar = tqdm(total=budget, desc=phase, unit="round")
        assert self._bar is not None
        self._bar.set_postfix_str(_news(record))
        self._bar.update()

    def close(self) -> None:
        """See :class:`Progress`."""
        if self._bar is not None:
            self._bar.total = self._bar.n
            self._bar.refresh()
            self._bar.close()
        self._bar = None


def _news(record: dict[str, np.ndarray]) -> str:
    news = []
    if "change" in record:
        news.append(f"change {np.max(record['change']):.3g} sd")
    if "k_hat" in record and np.any(np.isfinite(record["k_hat"])):
        news.append(f"k-hat {np.nanmax(record['k_hat']):.2f}")
    return ", ".join(news)
