"""What EP ends with, and what its diagnostics mean."""

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

import numpy as np

from fedbayes.contract.answer import (
    CLIENT,
    ERROR_LIMIT,
    REPLICATE,
    Diagnostic,
    GaussianAnswer,
    Verdict,
    shortened,
)
from fedbayes.contract.client_locals import FromCavity
from fedbayes.contract.state import Record, RunState
from fedbayes.errors import ResultCode
from fedbayes.inference.ep.step import HOPELESS, EPState, posterior_of, remaining
from fedbayes.inference.own_site import told_everybody
from fedbayes.problem.program.hierarchy import without_funnel
from fedbayes.problem.program.prior import Prior

if TYPE_CHECKING:
    import xarray as xr

_SMALLEST = "smallest_cavity_eigenvalue"

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
    _SMALLEST: Diagnostic(
        (CLIENT, REPLICATE),
        "smallest eigenvalue of the cavity's precision, negative where the cavity is improper",
        "units of the global's precision",
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


def fixed_point_error(history: Sequence[Record]) -> float:
    """Distance of the last global from the fixed point, in posterior sds, from the last two rounds.

    See :func:`~fedbayes.inference.ep.step.remaining`. The largest of the replicates; NaN before the second round, and
    where two rounds tell nothing.
    """
    rounds = [record for record in history if "monte_carlo_noise" in record][-2:]
    if len(rounds) < 2:
        return float("nan")
    before, last = rounds
    changes = last["change"], before["change"], last["monte_carlo_noise"], before["monte_carlo_noise"]
    with np.errstate(invalid="ignore"):  # a round without a usable client has infinite noise, and its change is, too
        distance = remaining(*changes, last["step"], np)
    return float(np.nanmax(distance)) if np.any(np.isfinite(distance)) else float("nan")


class EPAnswer(GaussianAnswer):
    """Prior times sites, one Gaussian per replicate.

    Parameters
    ----------
    run
        How the rounds went.
    tolerance
        Change of the global that counts as none, in posterior sds.
    has_locals, prior
        Whether some client has locals, and the prior of the globals: for the advice after a fit that went wrong.
    """

    def __init__(self, run: RunState, tolerance: float, *, has_locals: bool, prior: Prior) -> None:
        state: EPState = run.state
        self._tolerance, self._has_locals, self._prior = tolerance, has_locals, prior
        posterior = posterior_of(state)
        told = told_everybody(posterior, state.counted.round, state.counted.step)
        super().__init__(posterior, FromCavity(told, posterior), run, state.modes)

    def report(self) -> dict[str, float]:
        """``fixed_point_error``: how far the last round has left the fixed point, estimated; NaN after one round."""
        return {"fixed_point_error": fixed_point_error(self._run.history)}

    def verdict(self, rounds: "xr.Dataset") -> Verdict:
        """As for any Gaussian answer; and the fixed point is near, as far as the last two rounds tell."""
        found, distance = super().verdict(rounds), fixed_point_error(self._run.history)
        if not found.converged:
            return found._replace(ask_who_disagrees=self._asks_who(rounds))
        if not distance > ERROR_LIMIT:
            return found
        trouble = (
            f"The rounds ended about {distance:.1g} posterior sds from their fixed point (the limit is {ERROR_LIMIT}). "
            f"Write a smaller tolerance, such as `EP(tolerance={self._tolerance / 10.0:.1g})`."
        )
        return found._replace(converged=False, trouble=trouble, remarks=[])

    def _headline(self, rounds: "xr.Dataset", error: float) -> list[str]:
        """The Monte Carlo error says nothing of rounds that were left out: above it stands what they would change."""
        lines, distance = super()._headline(rounds, error), fixed_point_error(self._run.history)
        if distance > 0.0:
            lines[0] += f"; more of them would move it by about {distance:.1g}"
        return lines

    def _remarks(self, rounds: "xr.Dataset") -> list[str]:
        """Whether the tolerance was met, or the Monte Carlo noise stands in the way of it."""
        last = rounds.isel(round=-1)
        noisy = float(last["change"].max()) > self._tolerance
        noise = float(last["monte_carlo_noise"].max())
        limit = f"the tolerance {self._tolerance:g} was not reached"
        at_noise = f"to Monte Carlo noise of {noise:.2g} posterior sds ({limit})"
        return [*([at_noise] if noisy else []), *super()._remarks(rounds)]

    def _advice(self, last: "xr.Dataset") -> list[str]:
        """See :class:`~fedbayes.contract.answer.GaussianAnswer`."""
        change, noise = float(last["change"].max()), float(last["monte_carlo_noise"].max())
        if np.any(last["code"] == ResultCode.LOST):
            return ["A client keeps its site between rounds: give it a folder that stays (`state-dir` of its node)."]
        if float(last["stuck"].max()) >= HOPELESS:
            stopped = f"It stopped because the last {HOPELESS} rounds brought it no nearer to a fixed point."
            return [stopped, self._remedy(last)]
        if float(last["step"].min()) == 0.0:
            return ["No step kept the global proper.", self._remedy(last)]
        if self._far(last):
            return [self._remedy(last), "Or it was still on its way: raise `num_rounds`."]
        if noise >= 0.5 * change:
            more = "`EP(num_samples=...)`, a power of two, for more draws a client"
            return [f"Most of the change is Monte Carlo noise, {noise:.2g} posterior sds: give {more}."]
        return ["It was still on its way: raise `num_rounds`."]

    def _remedy(self, last: "xr.Dataset") -> str:
        """What to write; a hierarchy among the globals explains more than anything else would."""
        if self._prior.hierarchy:
            return without_funnel(self._prior.hierarchy)
        if not self._prior.is_proper:
            return _PARAMETRISATION if self._has_locals else _PRIORS
        if far := self._far(last):
            return _FAR.format(shortened([f"'{name}'" for name in far]))
        return _PARAMETRISATION if self._has_locals else _SCALES

    def _far(self, last: "xr.Dataset") -> list[str]:
        """Clients that are left an improper cavity though the prior is proper; over a network only they know.

        The others' sites have then lost precision: so far from this client that each finds the data less likely, and
        the globals less known, with it than without. Monte Carlo noise alone seldom does it to one client in half of
        the replicates, rather than to many in some.
        """
        if not self._prior.is_proper or _SMALLEST not in last:
            return []
        names = last[CLIENT].values
        found = names[(last[_SMALLEST] < 0.0).mean(REPLICATE).values >= _OFTEN]
        return list(found) if len(found) < 0.5 * len(names) else []

    def _asks_who(self, rounds: "xr.Dataset") -> bool:
        """Whether a client that is far from all the others may be what keeps a long fit from converging."""
        last = rounds.isel(round=-1)
        long = int(rounds["change"].notnull().any(REPLICATE).sum()) >= HOPELESS
        return long and self._prior.is_proper and not self._prior.hierarchy and not self._far(last)


_PARAMETRISATION = (
    "Write the locals in the other parametrisation: non-centred, for instance by `numpyro.handlers.reparam` with "
    "`LocScaleReparam(0)`, where a client's groups have few rows each, and centred where they have many."
)
_OFTEN = 0.5  # of the replicates
_SCALES = "Scale the covariates to unit size, or try `fedbayes.EP(damping=0.2)`."
_FAR = (
    "Without the data of {} the others' sites leave some global undetermined: few clients share a scale, or that one "
    'is far from all the others, as by other units or codes. Fit by `method="laplace"`, which needs no cavities; '
    "look at those data; or let coefficients differ between clients, by `(1 + x | site)` in a formula or effects "
    "inside `with fedbayes.local():`."
)
_PRIORS = "Give the globals proper priors, or scale the covariates to unit size, or try `fedbayes.EP(damping=0.2)`."
