"""What Fed-ensemble ends with: its modes, as draws of one chain."""

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import numpy as np
from jax import Array

from fedbayes.contract.answer import CLIENT, REPLICATE, Diagnostic, Verdict, shortened
from fedbayes.contract.state import RunState
from fedbayes.inference.fed_ensemble.options import Options
from fedbayes.inference.fedavg.answer import DIAGNOSTICS as MEMBERS
from fedbayes.inference.fedavg.answer import PointAnswer
from fedbayes.problem.roster import Roster

if TYPE_CHECKING:
    import xarray as xr

MODE = "mode"  # a dimension of the diagnostics
DIAGNOSTICS: Mapping[str, Diagnostic] = {
    name: about if CLIENT in about.dims else about._replace(dims=(REPLICATE, MODE, *about.dims[1:]))
    for name, about in MEMBERS.items()
    if name != "gap"
} | {"team": Diagnostic((REPLICATE, CLIENT), "the mode that the client trains in this round")}
_PARTLY = (
    "Clients were missing from some rounds, which moves all perturbed modes alike, so that they are no draws of the "
    "posterior: leave `participation` out, and look for clients that failed in `fit.rounds['code']`."
)
_NO_SPREAD = 1e-9  # at the start: rounding
_COLLAPSED = 0.05  # spread of the modes, over that at the start, that counts as none


class EnsembleAnswer(PointAnswer):
    """Several points.

    Parameters
    ----------
    config
        The method.
    roster
        Of the clients.
    run
        How the rounds went.
    """

    def __init__(self, config: Options, roster: Roster, run: RunState) -> None:
        super().__init__(roster, run, config.tolerance, steady=config.assignment == "all" or config.num_modes == 1)
        self._config = config

    def draws(self, key: Array, num: int) -> np.ndarray:
        """See :class:`~fedbayes.contract.answer.Answer`: the modes, whatever ``num``, shape ``(1, K, d)``."""
        return np.asarray(self._run.state.modes.position)

    def log_evidence(self) -> np.ndarray:
        """See :class:`~fedbayes.contract.answer.Answer`: points have none."""
        return np.full(1, np.nan)

    @property
    def spread(self) -> float:
        """Standard deviation over the modes, over that at the start; NaN where they began at one point."""
        before = float(self._run.state.spread[0])
        after = float(np.sqrt(np.mean(np.var(self.draws(None, 0)[0], axis=0))))  # type: ignore[arg-type]
        return after / before if before > _NO_SPREAD else float("nan")

    def report(self) -> dict[str, float]:
        """``spread`` of the modes, over that at the start."""
        return {"spread": self.spread}

    def verdict(self, rounds: "xr.Dataset") -> Verdict:
        """Whether all modes have arrived, or the objective has stopped falling, with every client heard."""
        found = super().verdict(rounds)
        if self._config.randomised and not self._ended.steady:
            found = found._replace(converged=False, trouble=_PARTLY)
        late = [] if found.converged else self._late()
        trouble = " ".join([*late, found.trouble]) if late else found.trouble
        return found._replace(trouble=trouble, headline=[*found.headline, *self._spread_line()])

    def _late(self) -> list[str]:
        """Which modes have not arrived, where that is known."""
        left, moved = (np.ravel(self._ended.rounds[-1][name]) for name in ("left", "moved"))
        failed = np.flatnonzero(np.isnan(moved))
        lines = [f"Modes {shortened([str(k) for k in failed])} could take no finite step."] if len(failed) else []
        late = int(np.sum(~(left <= self._config.tolerance)))
        if self._ended.steady and late > 0:
            lines.append(f"{late} of {len(left)} modes have not arrived.")
            if self._config.randomised:
                lines.append(
                    "If more rounds don't help, they run away: the posterior is too far from Gaussian for perturbed "
                    "modes to be its draws, as with scales that few rows inform. `method='ep'` or `'fald'` fit it."
                )
        return lines

    def _spread_line(self) -> list[str]:
        if self._config.randomised or self._config.num_modes == 1 or not self.spread < _COLLAPSED:
            return []
        advice = "" if self._roster.num_locals.any() else "; `randomised=True` makes posterior draws of them"
        return [
            f"  modes     nearly one point, {self.spread:.2g} of their spread at the start: that is no "
            f"uncertainty{advice}"
        ]

    def _points(self) -> str:
        num = self._config.num_modes
        if self._config.randomised:
            return f"{num} posterior draws, of perturbed modes"
        return super()._points() if num == 1 else f"{num} point estimates"

    def attrs(self) -> dict[str, Any]:
        """What draws and chains are."""
        if self._config.randomised:
            draws = (
                "one for each perturbed mode: independent draws of the posterior where the model is linear and "
                "Gaussian, else as far as it is Gaussian around each mode"
            )
        else:
            draws = "one for each mode: point estimates from other starts, and no draws of the posterior"
        return {
            "inference": "ensemble",
            "draws": draws,
            "chains": "one: R-hat and effective draws mean nothing, as modes are neither ordered nor replicated",
        }
