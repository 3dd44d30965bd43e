"""What EP ends with, and what its diagnostics mean."""

from collections.abc import Mapping
from typing import TYPE_CHECKING

from fedbayes.answer import CLIENT, REPLICATE, Diagnostic, GaussianAnswer, cavities_of, product_of
from fedbayes.inference.ep.step import EPState
from fedbayes.inference.merging.answer import DIAGNOSTICS as MERGING
from fedbayes.rounds.state import RunState

if TYPE_CHECKING:
    import xarray as xr

# a start may be a merge, whose diagnostics are then those of its round
DIAGNOSTICS: Mapping[str, Diagnostic] = {
    **MERGING,
    "kl": Diagnostic((REPLICATE,), "KL divergence of the new global from the old one", "nats"),
    "change": Diagnostic(
        (REPLICATE,), "undamped change of the global, root mean square over the globals", "posterior sds"
    ),
    "monte_carlo_noise": Diagnostic(
        (REPLICATE,), "expected Monte Carlo error of the global, root mean square over the globals", "posterior sds"
    ),
    "step": Diagnostic((REPLICATE,), "step taken towards the clients' new sites"),
    "smallest_cavity_eigenvalue": Diagnostic(
        (REPLICATE, CLIENT), "smallest eigenvalue of the cavity's precision", "units of the global's precision"
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


class EPAnswer(GaussianAnswer):
    """Prior times sites, one Gaussian per replicate.

    Parameters
    ----------
    run
        How the rounds went.
    tolerance
        Change of the global that counts as none, in posterior sds.
    """

    def __init__(self, run: RunState, tolerance: float) -> None:
        state: EPState = run.state
        self._tolerance = tolerance
        super().__init__(product_of(state.prior, state.sites), cavities_of(state.prior, state.sites), run)

    def _remarks(self, rounds: "xr.Dataset") -> list[str]:
        """Whether the tolerance was met, or the Monte Carlo noise stands in the way of it."""
        last = rounds.isel(round=-1)
        noisy = float(last["change"].max()) > self._tolerance
        noise = float(last["monte_carlo_noise"].max())
        at_noise = f"to its Monte Carlo noise of {noise:.2g} posterior sds, not to the tolerance {self._tolerance:g}"
        return [*([at_noise] if noisy else []), *super()._remarks(rounds)]

    def _advice(self, last: "xr.Dataset") -> list[str]:
        """See :class:`~fedbayes.answer.GaussianAnswer`."""
        parts = []
        if float(last["step"].min()) == 0.0:
            parts.append("No step kept the global and every cavity proper: try `EP(damping=0.2)` or proper priors.")
        return [*parts, "Raise `num_rounds`, or `EP(num_samples=...)` if `fit.rounds.monte_carlo_noise` is large."]
