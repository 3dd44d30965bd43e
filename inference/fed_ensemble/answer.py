"""What Fed-ensemble ends with: its modes, as draws of one chain."""

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import numpy as np
from jax import Array

from fedbayes.answer import CLIENT, REPLICATE, Diagnostic, Verdict
from fedbayes.inference.fed_ensemble.options import Options
from fedbayes.inference.fedavg.answer import DIAGNOSTICS as MEMBERS
from fedbayes.inference.fedavg.answer import PointAnswer
from fedbayes.problem.roster import Roster
from fedbayes.rounds.state import RunState

if TYPE_CHECKING:
    import xarray as xr

MODE = "mode"  # a dimension of the diagnostics
DIAGNOSTICS: Mapping[str, Diagnostic] = {
    name: about if CLIENT in about.dims else about._replace(dims=(REPLICATE, MODE, *about.dims[1:]))
    for name, about in MEMBERS.items()
    if name != "gap"
} | {"team": Diagnostic((REPLICATE, CLIENT), "the mode that the client trains in this round")}
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
        """See :class:`~fedbayes.answer.Answer`: the modes, whatever ``num``, shape ``(1, K, d)``."""
        return np.asarray(self._run.state.modes.position)

    def log_evidence(self) -> np.ndarray:
        """See :class:`~fedbayes.answer.Answer`: points have none."""
        return np.full(1, np.nan)

    @property
    def spread(self) -> float:
        """Standard deviation over the modes, over that at the start; NaN where they began at one point."""
        before = float(self._run.state.spread[0])
        after = float(np.sqrt(np.mean(np.var(self.draws(None, 0)[0], axis=0))))  # type: ignore[arg-type]
        return after / before if before > 0.0 else float("nan")

    def report(self) -> dict[str, float]:
        """``spread`` of the modes, over that at the start."""
        return {"spread": self.spread}

    def verdict(self, rounds: "xr.Dataset") -> Verdict:
        """Whether all modes have arrived, or the objective has stopped falling, with every client heard."""
        found, config = super().verdict(rounds), self._config
        remarks = [f"{config.num_modes} posterior draws by perturbation" if config.randomised else self._remark()]
        return found._replace(remarks=remarks)

    def _remark(self) -> str:
        num = self._config.num_modes
        if num == 1:
            return "a point estimate"
        if self.spread < _COLLAPSED:
            return (
                f"but its {num} modes are nearly one point ({self.spread:.2g} of their spread at the start): their "
                "spread is no uncertainty; `randomised=True` makes posterior draws of them"
            )
        return f"{num} point estimates"

    def attrs(self) -> dict[str, Any]:
        """What draws and chains are."""
        if self._config.randomised:
            draws = (
                "one for each mode, by perturbation: independent draws of the posterior where the model is linear and "
                "Gaussian, else as far as it is Gaussian around each mode"
            )
        else:
            draws = "one for each mode: point estimates from other starts, and no draws of the posterior"
        return {
            "inference": "ensemble",
            "draws": draws,
            "chains": "one: R-hat and effective draws mean nothing, as modes are neither ordered nor replicated",
        }
