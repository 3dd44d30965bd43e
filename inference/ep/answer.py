"""What EP ends with, and what its diagnostics mean."""

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

import numpy as np

from fedbayes.contract.answer import CLIENT, REPLICATE, Diagnostic, GaussianAnswer
from fedbayes.contract.client_locals import FromCavity
from fedbayes.contract.state import Record, RunState
from fedbayes.errors import ResultCode
from fedbayes.inference.ep.step import HOPELESS, EPState, posterior_of
from fedbayes.inference.own_site import told_everybody

if TYPE_CHECKING:
    import xarray as xr

DIAGNOSTICS: Mapping[str, Diagnostic] = {
    "kl": Diagnostic((REPLICATE,), "KL divergence of the new global from the old one", "nats"),
    "change": Diagnostic(
        (REPLICATE,), "undamped change of the global, root mean square over the globals", "posterior sds"
    ),
    "monte_carlo_noise": Diagnostic(
        (REPLICATE,), "expected Monte Carlo error of the global, root mean square over the globals", "posterior sds"
    ),
    "step": Diagnostic((REPLICATE,), "step taken towards the clients' new sites"),
    "stuck": Diagnostic((REPLICATE,), "rounds without progress, up to this one"),
    "smallest_cavity_eigenvalue": Diagnostic(
        (CLIENT, REPLICATE), "smallest eigenvalue of the cavity's precision", "units of the global's precision"
    ),
    "k_hat": Diagnostic((CLIENT, REPLICATE), "Pareto tail shape of the importance weights"),
    "heavy_tailed": Diagnostic((CLIENT, REPLICATE), "1 where the importance weights can't be trusted"),
    "effective_draws": Diagnostic((CLIENT, REPLICATE), "effective number of draws"),
    "influence": Diagnostic(
        (CLIENT, REPLICATE), "how far the client moves the others' mean, root mean square over the globals", "their sds"
    ),
    "noise": Diagnostic(
        (CLIENT, REPLICATE), "expected squared Monte Carlo error of the global that this client causes, summed over it"
    ),
}


_UNLIKELY = 4.0  # a change of so many times its noise is not noise


def fixed_point_error(history: Sequence[Record]) -> float:
    """Distance of the last global from the fixed point, in posterior sds, from the last two rounds.

    At distance ``e`` from a fixed point with contraction ``rho`` an undamped round changes the global by ``c = (1 -
    rho) e``, and a step ``eta`` leaves ``r e`` with ``r = 1 - eta (1 - rho)``. The changes of two rounds have the ratio
    ``r``, hence ``r e = eta c r / (1 - r)``. From the changes goes what noise alone would cause. The largest of the
    replicates; NaN before the second round, and where changes near the noise do not shrink, so that two of them tell
    nothing.
    """
    rounds = [record for record in history if "monte_carlo_noise" in record][-2:]
    if len(rounds) < 2:
        return float("nan")
    with np.errstate(invalid="ignore"):  # a round without a usable client has infinite noise: its ratio is not known
        before, last = (np.sqrt(np.maximum(r["change"] ** 2 - 2.0 * r["monte_carlo_noise"] ** 2, 0.0)) for r in rounds)
        ratio = np.divide(last, before, out=np.ones_like(last), where=before > 0.0)
    known = (last == 0.0) | (ratio < 0.95) | (last > _UNLIKELY * rounds[-1]["monte_carlo_noise"])
    slow = np.clip(ratio, 0.0, 0.95)
    with np.errstate(invalid="ignore"):  # no step could be taken: the change is infinite
        distance = np.where(last == 0.0, 0.0, rounds[-1]["step"] * last * slow / (1.0 - slow))
    return float(np.max(distance[known])) if np.any(known) else float("nan")


class EPAnswer(GaussianAnswer):
    """Prior times sites, one Gaussian per replicate.

    Parameters
    ----------
    run
        How the rounds went.
    tolerance
        Change of the global that counts as none, in posterior sds.
    has_locals
        Whether some client has locals, for the advice after a fit that went wrong.
    """

    def __init__(self, run: RunState, tolerance: float, *, has_locals: bool) -> None:
        state: EPState = run.state
        self._tolerance, self._has_locals = tolerance, has_locals
        posterior = posterior_of(state)
        told = told_everybody(posterior, state.counted.round, state.counted.step)
        super().__init__(posterior, FromCavity(told, posterior), run)

    def report(self) -> dict[str, float]:
        """``fixed_point_error``: how far the last round has left the fixed point, estimated; NaN after one round."""
        return {"fixed_point_error": fixed_point_error(self._run.history)}

    def _headline(self, rounds: "xr.Dataset", error: float) -> list[str]:
        """The Monte Carlo error says nothing of rounds that were left out: beside it stands what they would change."""
        lines, distance = super()._headline(rounds, error), fixed_point_error(self._run.history)
        if distance > 0.0:
            lines.insert(-1, f"  rounds    more of them would move the global by about {distance:.1g} posterior sds")
        return lines

    def _remarks(self, rounds: "xr.Dataset") -> list[str]:
        """Whether the tolerance was met, or the Monte Carlo noise stands in the way of it."""
        last = rounds.isel(round=-1)
        noisy = float(last["change"].max()) > self._tolerance
        noise = float(last["monte_carlo_noise"].max())
        limit = f"short of the tolerance {self._tolerance:g}"
        at_noise = f"as far as Monte Carlo noise of {noise:.2g} posterior sds lets see, {limit}"
        return [*([at_noise] if noisy else []), *super()._remarks(rounds)]

    def _advice(self, last: "xr.Dataset") -> list[str]:
        """See :class:`~fedbayes.contract.answer.GaussianAnswer`."""
        change, noise = float(last["change"].max()), float(last["monte_carlo_noise"].max())
        if np.any(last["code"] == ResultCode.LOST):
            return ["A client keeps its site between rounds: give it a folder that stays (`state-dir` of its node)."]
        if float(last["stuck"].max()) >= HOPELESS:
            stopped = f"It stopped because the last {HOPELESS} rounds brought it no nearer to a fixed point."
            return [stopped, _PARAMETRISATION if self._has_locals else _PRIORS]
        if float(last["step"].min()) == 0.0:
            return ["No step kept the global and every cavity proper.", _PRIORS]
        if noise >= 0.5 * change:
            more = "`EP(num_samples=...)`, a power of two, for more draws a client"
            return [f"Most of the change is Monte Carlo noise, {noise:.2g} posterior sds: give {more}."]
        return ["It was still on its way: raise `num_rounds`."]


_PARAMETRISATION = (
    "Write the locals in the other parametrisation: non-centred, for instance by `numpyro.handlers.reparam` with "
    "`LocScaleReparam(0)`, where a client's groups have few rows each, and centred where they have many."
)
_PRIORS = "Give the globals proper priors, or scale the covariates to unit size, or try `fedbayes.EP(damping=0.2)`."
