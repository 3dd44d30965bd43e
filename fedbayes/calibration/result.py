"""``Calibration``: ranks of the truth, and what they say of a pipeline."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from fedbayes.calibration.uniformity import p_value
from fedbayes.errors import K_HAT_LIMIT
from fedbayes.numerics.p_values import holm

if TYPE_CHECKING:
    import xarray as xr
    from matplotlib.figure import Figure


@dataclass(frozen=True, eq=False, repr=False)
class Calibration:
    """Simulated fits and where the truth lies in their posteriors.

    Attributes
    ----------
    dataset
        Over ``simulation`` and ``parameter`` (the constrained globals, scalar by scalar): ``rank`` of the truth among
        the draws, from 0 to ``num_draws`` and NaN where a fit has no posterior; ``truth``; ``mean`` and ``sd`` of the
        posterior; ``z_score``, ``(mean - truth) / sd``; ``contraction``, one less posterior over prior variance, the
        latter that of the truths. Over ``simulation``: ``converged``, ``rounds`` and ``k_hat``, the tail shape of the
        correction's weights (NaN without correction).
    num_draws
        Draws of each posterior.
    method
        What was calibrated, in words.

    See Also
    --------
    calibrate : Makes it.

    Examples
    --------
    >>> import numpy as np, xarray as xr, fedbayes as fb
    >>> over = ("simulation", "parameter")
    >>> ranks = xr.DataArray(np.arange(8.0).reshape(8, 1), dims=over, coords={"parameter": ["mu"]})
    >>> dataset = xr.Dataset({"rank": ranks, "k_hat": ("simulation", np.full(8, 0.1))})
    >>> found = fb.Calibration(dataset, num_draws=7, method="made up")
    >>> found.unreliable
    0.0
    """

    dataset: "xr.Dataset"
    num_draws: int
    method: str

    @property
    def ranks(self) -> "xr.DataArray":
        """Ranks of the truth, dimensions ``simulation`` and ``parameter``."""
        return self.dataset["rank"]

    @property
    def converged(self) -> "xr.DataArray":
        """Which fits converged: side by side by the rule of their rounds, one by one by ``fit.converged``.

        Ranks of all fits are used: without the others, a selection would be calibrated.
        """
        return self.dataset["converged"]

    @property
    def unreliable(self) -> float:
        """Share of the fits whose weights are not to be trusted; NaN without correction."""
        k_hat = self.dataset["k_hat"].values
        return float("nan") if np.isnan(k_hat).all() else float(np.mean(~(k_hat <= K_HAT_LIMIT)))

    @property
    def corrected(self) -> bool:
        """Whether draws were corrected by importance weights."""
        return not np.isnan(self.unreliable)

    def used(self) -> "xr.Dataset":
        """The fits that have a posterior, and so ranks."""
        return self.dataset.isel(simulation=np.flatnonzero(self.ranks.notnull().all("parameter").values))

    def coverage(self, levels: Sequence[float] = (0.5, 0.8, 0.9, 0.95)) -> "xr.Dataset":
        """How often central intervals hold the truth.

        Parameters
        ----------
        levels
            Probabilities of the intervals.

        Returns
        -------
        xarray.Dataset
            ``observed`` over ``level`` and ``parameter``; over ``level`` alone ``nominal``, the probability of the
            interval of whole ranks next to the level, and ``se``, the binomial standard error of ``observed`` where
            that is met.

        Raises
        ------
        ValueError
            A level is not between 0 and 1.
        """
        import xarray as xr

        wanted = np.asarray(levels, float)
        if wanted.ndim != 1 or not np.all((wanted > 0.0) & (wanted < 1.0)):
            raise ValueError(f"`levels` is {levels}; write probabilities between 0 and 1, such as `(0.5, 0.9)`.")
        ranks, places = self.used()["rank"], self.num_draws + 1
        tail = np.clip(np.rint(0.5 * (1.0 - wanted) * places), 0, (places - 1) // 2)
        inside = [((ranks >= cut) & (ranks < places - cut)).mean("simulation") for cut in tail]
        nominal = 1.0 - 2.0 * tail / places
        observed = xr.concat(inside, dim="level").assign_coords(level=wanted)
        error = np.sqrt(nominal * (1.0 - nominal) / ranks.sizes["simulation"])
        return xr.Dataset({"observed": observed, "nominal": ("level", nominal), "se": ("level", error)})

    def test(self) -> "xr.Dataset":
        """Whether each parameter's ranks are uniform, by the simultaneous band of their distribution function.

        The statistic is that of Säilynoja, Bürkner and Vehtari (2022), its law under uniform ranks simulated, see
        :mod:`fedbayes.calibration.uniformity`. Whether all parameters together pass is a matter of the adjusted
        p-values.

        Returns
        -------
        xarray.Dataset
            Over ``parameter``: ``p_value``, and ``adjusted`` for the number of parameters (Holm 1979).
        """
        import xarray as xr

        ranks = self.used()["rank"]
        found = np.array([p_value(ranks.values[:, place], self.num_draws) for place in range(ranks.shape[1])])
        values = {"p_value": ("parameter", found), "adjusted": ("parameter", holm(found))}
        words = "simultaneous band of the empirical distribution function (Säilynoja, Bürkner and Vehtari 2022)"
        return xr.Dataset(values, coords={"parameter": ranks["parameter"].values}, attrs={"test": words})

    def plot(self, parameters: Sequence[str] | None = None, *, level: float = 0.95) -> "Figure":
        """The ranks' distribution function less the uniform one, with its simultaneous band, for each parameter.

        A curve that leaves the band tells of bias (one bow, above zero where the posterior lies too high), of
        posteriors that are too narrow (above zero first, then below) or too wide (the other way round).

        Parameters
        ----------
        parameters
            Names; ``None``: all.
        level
            Of the band, for each parameter by itself.

        Raises
        ------
        KeyError
            An unknown parameter.
        """
        from fedbayes.calibration.plots import plot_ranks

        return plot_ranks(self, parameters, level)

    def to_arviz(self) -> Any:
        """The truth's places in the posteriors for ArviZ: group ``prior_sbc``, one chain whose draws are simulations.

        Ranks are given as ``(rank + 1/2) / (num_draws + 1)``, which is uniform between 0 and 1 but for its steps.
        """
        from fedbayes.results.arviz import group_of_its_own

        used = self.used()["rank"]
        places = (used.values + 0.5) / (self.num_draws + 1)
        values = {str(name): places[None, :, at] for at, name in enumerate(used["parameter"].values)}
        return group_of_its_own("prior_sbc", values)

    def __repr__(self) -> str:
        data, used = self.dataset, self.used().sizes["simulation"]
        num, tested, held = data.sizes["simulation"], self.test(), self.coverage((0.5, 0.9))
        worst = int(np.argmin(tested["adjusted"].values))
        adjusted = float(tested["adjusted"][worst])
        lines = [
            f"Calibration of {num} fits by {self.method}, {self.num_draws} draws each",
            f"  fits      {int(data['converged'].sum())} converged, {num - used} without a posterior",
        ]
        if self.corrected:
            lines.append(f"  weights   not to be trusted in {self.unreliable:.1%} of the fits")
        verdict = "not uniform" if adjusted < 0.05 else "no sign against uniform ranks"
        name = str(tested["parameter"].values[worst])
        lines.append(f"  ranks     {verdict}: smallest adjusted p-value {adjusted:.2g} ('{name}')")
        for at, level in enumerate(held["level"].values):
            low, high = float(held["observed"][at].min()), float(held["observed"][at].max())
            error = f"standard error {float(held['se'][at]):.3f}"
            lines.append(f"  coverage  of {level:.0%} intervals: {low:.3f} to {high:.3f} ({error})")
        return "\n".join(lines)
