"""EP's options, and what can be wrong with them whatever the data are."""

from dataclasses import dataclass
from typing import Literal

import numpy as np

from fedbayes.inference.options import HUGE, TINY, check_choices, check_ranges, check_whole
from fedbayes.problem.roster import Roster

_CHOICES = {
    "solver": ("auto", "importance", "nested", "nuts", "laplace", "variational"),
    "init": ("auto", "laplace", "newton", "mode", "prior"),
    "estimator": ("score", "sample"),
    "family": ("dense", "diagonal"),
}
_RANGES = {
    "damping": (TINY, 1.0, "the step of a round, a number in (0, 1]"),
    "tolerance": (TINY, HUGE, "a change in posterior sds, such as 0.02"),
}


@dataclass(frozen=True, kw_only=True)
class Options:
    """The options of :class:`~fedbayes.EP`, which documents them."""

    num_samples: int | None = None
    solver: Literal["auto", "importance", "nested", "nuts", "laplace", "variational"] = "auto"
    damping: float | None = None
    init: Literal["auto", "laplace", "newton", "mode", "prior"] = "auto"
    estimator: Literal["score", "sample"] = "score"
    family: Literal["dense", "diagonal"] = "dense"
    tolerance: float = 0.02
    num_replicates: int = 4
    num_starts: int = 1

    def __post_init__(self) -> None:
        check_choices(self, _CHOICES)
        check_ranges(self, _RANGES, optional=("damping",))
        check_whole(self, {"num_replicates": 1, "num_starts": 1})
        if self.num_starts > 1 and self.init in ("laplace", "prior"):
            raise ValueError(
                f"`num_starts` is {self.num_starts}, but with `init={self.init!r}` EP does not begin at a mode. Write "
                "`init='auto'`, or leave `num_starts` out."
            )
        if self.num_samples is not None and (
            type(self.num_samples) is not int or self.num_samples < 16 or self.num_samples & (self.num_samples - 1)
        ):
            raise ValueError(
                f"`num_samples` is {self.num_samples!r}; quasi-random draws need a power of two from 16 on, such as "
                "256."
            )

    def draws_for(self, size: int) -> int:
        """Draws per client and round for d globals: well above the ``2 d + 2`` regressors."""
        if self.num_samples is None:
            return max(256, 1 << (8 * (size + 1) - 1).bit_length())
        if self.num_samples <= 2 * size + 2:
            raise ValueError(
                f"`num_samples` is {self.num_samples}, but {size} globals need more than {2 * size + 2} draws to be "
                f"regressed on. Write at least {1 << (4 * size + 7).bit_length()}, or leave it out."
            )
        return self.num_samples

    def start(self, roster: Roster) -> str:
        """Where EP starts: ``init``, and for ``"auto"`` what takes fewer exchanges by all that a server knows.

        That is ``"laplace"`` where most rows are at clients who can find the globals by themselves: there are no local
        latents (a joint mode can be far from the globals' own), and at most half of the rows are at clients with fewer
        than two rows a global, below which a binary outcome's likelihood has no maximum as often as not (Cover 1965).
        Under a flat prior every client must have as many. It is ``"newton"`` elsewhere, and after searches from
        several starts.
        """
        if self.init != "auto":
            return self.init
        if self.num_starts > 1:
            return "newton"
        thin = roster.rows < 2 * roster.size
        needs_all = roster.prior.is_flat() and bool(np.any(thin))
        if np.any(roster.num_locals) or needs_all:
            return "newton"
        return "laplace" if roster.rows[thin].sum() <= 0.5 * roster.rows.sum() else "newton"
