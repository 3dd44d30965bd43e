"""What chains end with: their draws, whether they have mixed, and the bias that they measure themselves."""

from collections.abc import Mapping
from functools import cached_property
from typing import TYPE_CHECKING, Any

import jax
import numpy as np
from jax import Array

from fedbayes.contract.answer import (
    CLIENT,
    COORDINATE,
    ERROR_LIMIT,
    R_HAT_LIMIT,
    REPLICATE,
    Diagnostic,
    Verdict,
    shortened,
)
from fedbayes.contract.client_locals import FromRecord
from fedbayes.contract.state import RunState
from fedbayes.errors import ResultCode
from fedbayes.inference.fald.bias import predicted_too_large
from fedbayes.inference.fald.differences import DIAGNOSTICS as DIFFERENCES
from fedbayes.inference.fald.options import Options
from fedbayes.inference.mode import DIAGNOSTICS as MODE
from fedbayes.numerics.chains import chain_diagnostics
from fedbayes.numerics.gaussian import Gaussian
from fedbayes.numerics.host import log_joint, normal_from_moments
from fedbayes.problem.roster import Roster

if TYPE_CHECKING:
    import xarray as xr

DIAGNOSTICS: Mapping[str, Diagnostic] = {
    **MODE,
    **DIFFERENCES,
    "gradient_norm": Diagnostic(
        (CLIENT, REPLICATE),
        "norm of the gradient of the client's energy where its steps begin",
        "shared coordinates",
    ),
    "drift": Diagnostic(
        (CLIENT, REPLICATE), "how far the client moves in one round, root mean square", "shared coordinates"
    ),
    "participation": Diagnostic((CLIENT, REPLICATE), "fraction of the rounds in which the client was drawn"),
    "position": Diagnostic((REPLICATE, COORDINATE), "position at the synchronisations", "shared coordinates"),
    "slope": Diagnostic(
        (REPLICATE, COORDINATE),
        "gradient of the joint energy at the synchronisations; its mean is zero without bias",
        "shared coordinates",
    ),
    "slope_position": Diagnostic(
        (REPLICATE, COORDINATE),
        "position times that gradient over the temperature; without bias its mean exceeds the product of the two means "
        "by one (Stein's identity)",
    ),
}


class ChainsAnswer:
    """Draws of Markov chains, after warm-up.

    Parameters
    ----------
    roster
        Of the clients.
    run
        How the rounds went.
    options
        Of the sampler.
    numbers
        What the sampler has chosen, and what theory predicts of it.

    Attributes
    ----------
    theta
        Draws of the globals, shape ``(draw, chain, d)``.
    """

    def __init__(self, roster: Roster, run: RunState, *, options: Options, numbers: Mapping[str, float]) -> None:
        everything, num_warmup = np.concatenate(run.draws), options.num_warmup
        self.theta = everything[num_warmup:]
        self._roster, self._options, self._temperature = roster, options, options.temperature or 1.0
        self._numbers = {**numbers, "rounds_per_draw": run.rounds_in_phase / len(everything)}
        records = [record for record in run.history if "slope_position" in record]
        done = np.cumsum([int(record["rounds"]) for record in records])
        late = done > done[-1] * num_warmup / len(everything)
        self._records = [record for record, counts in zip(records, late, strict=True) if counts]

    @cached_property
    def posterior(self) -> Gaussian:
        """The Gaussians with each chain's moments."""
        means = self.theta.mean(axis=0)
        size = means.shape[1]
        covariances = [np.atleast_2d(np.cov(chain.T)) for chain in np.swapaxes(self.theta, 0, 1)]
        if len(self.theta) <= 2 * size:  # too few draws for one chain's covariance, or for any
            flat = self.theta.reshape(-1, size)
            pooled = np.atleast_2d(np.cov(flat.T)) if len(flat) > 2 * size else np.diag(flat.var(axis=0))
            covariances = [pooled] * len(means)
        return normal_from_moments(means, np.stack(covariances))

    def draws(self, key: Array, num: int) -> np.ndarray:
        """See :class:`~fedbayes.contract.answer.Answer`: all draws of the chains, whatever ``num``."""
        return np.swapaxes(self.theta, 0, 1)

    @cached_property
    def locals_from(self) -> FromRecord:
        """See :class:`~fedbayes.contract.answer.Answer`: the chains' Gaussians are wide enough to look for locals."""

        def for_each(leaf: np.ndarray) -> np.ndarray:
            return np.broadcast_to(leaf[:, None], (len(leaf), self._roster.num_clients, *leaf.shape[1:]))

        return FromRecord(jax.tree.map(for_each, self.posterior))

    def sample_stats(self, theta: np.ndarray, log_likelihood: np.ndarray) -> dict[str, np.ndarray]:
        """``lp`` and ``energy = -lp`` of the joint posterior, unnormalised, in unconstrained space."""
        lp = log_joint(self._roster.prior.log_densities, theta, log_likelihood)
        return {"lp": lp, "energy": -lp}

    def log_evidence(self) -> np.ndarray:
        """See :class:`~fedbayes.contract.answer.Answer`: chains don't estimate it."""
        return np.full(self.theta.shape[1], np.nan)

    def report(self) -> dict[str, float]:
        """See :class:`~fedbayes.contract.answer.Answer`."""
        return dict(self._numbers)

    def verdict(self, rounds: "xr.Dataset") -> Verdict:
        """Whether R-hat is below 1.01, no client was dropped, and no predicted or measured bias is above the limit."""
        mixed = bool(self.diagnostics["r_hat"].max() < R_HAT_LIMIT)  # false for NaN
        biased = bool(self._predicted) or self.measured_sd_bias[1] > ERROR_LIMIT
        converged = mixed and not self.dropped and not biased
        trouble = "" if converged else self._trouble()
        return Verdict(converged, self.monte_carlo_error, self._headline(), trouble)

    @cached_property
    def diagnostics(self) -> "xr.Dataset":
        """R-hat and bulk effective sample size of each unconstrained global, by ArviZ."""
        return chain_diagnostics(np.swapaxes(self.theta, 0, 1))

    @cached_property
    def measured_sd_bias(self) -> tuple[float, float]:
        """Relative bias of the sds by Stein's identity: the mean over coordinates, and a lower bound for the worst.

        ``Cov(u_i, grad_i U) = tau`` under the target; for a Gaussian law that is too wide it is ``tau`` times the
        inflation of its variance. The lower bound is four standard errors below the estimate. NaN where no gradients
        were sent (``clip``).
        """
        if self._options.clip is not None:
            return np.nan, np.nan
        names = ("slope_position", "position", "slope")
        product, position, slope = (np.stack([record[name] for record in self._records]) for name in names)
        mean, level = position.mean(axis=(0, 1)), slope.mean(axis=(0, 1)) / self._temperature
        centred = product - mean * slope / self._temperature - level * position + mean * level
        flat = centred.reshape(-1, centred.shape[-1])
        error = flat.std(axis=0, ddof=1) / np.sqrt(len(flat)) if len(flat) > 1 else np.full(flat.shape[1], np.inf)
        lower = np.max(flat.mean(axis=0) - 4.0 * error)
        return float(np.sqrt(np.maximum(flat.mean(), 0.0)) - 1.0), float(np.sqrt(np.maximum(lower, 0.0)) - 1.0)

    @property
    def _predicted(self) -> list[str]:
        """What theory predicts to be off by more than the limit, or can't predict, in words."""
        return predicted_too_large(self._options, self._numbers)

    @property
    def dropped(self) -> list[str]:
        """Clients whose steps were not finite in some round after warm-up, and so are missing from the posterior."""
        worst = np.max([record["code"] for record in self._records], axis=(0, 2))
        return [name for name, code in zip(self._roster.names, worst, strict=True) if code == ResultCode.NOT_FINITE]

    @property
    def monte_carlo_error(self) -> float:
        """Root mean square of ``1 / sqrt(effective sample size)``."""
        return float(np.sqrt(np.mean(1.0 / self.diagnostics["ess"])))

    def _headline(self) -> list[str]:
        """R-hat, effective draws, and the bias that theory predicts."""
        draws, chains = self.theta.shape[:2]
        worst, least = float(self.diagnostics["r_hat"].max()), float(self.diagnostics["ess"].min())
        lines = [
            f"  chains    {chains} of {draws} draws: R-hat at most {worst:.3f}, effective draws at least {least:.0f}",
            f"  error     Monte Carlo {self.monte_carlo_error:.2g} posterior sds",
        ]
        known, measured = self._numbers, self.measured_sd_bias[0]
        predicted = [f"sds {known['sd_bias']:+.1%}"] if np.isfinite(known["sd_bias"]) else []
        if np.isnan(known["participation_bias"]):
            predicted.append("not that by participation")
        elif known["participation_bias"]:
            predicted.append(f"{known['participation_bias']:+.1%} by participation")
        if np.isfinite(known["mean_bias"]):
            predicted.append(f"means {known['mean_bias']:.2g} sds")
        shown = f"sds {measured:+.1%}" if np.isfinite(measured) else "not with clipping, whose own bias is not known"
        lines.append(f"  bias      predicted {', '.join(predicted) or 'nothing'}; measured {shown}")
        lines.append(
            f"  steps     {known['step_size']:.2g}, {known['local_steps']:.0f} local ones a round, "
            f"{known['rounds_per_draw']:.0f} rounds a draw"
        )
        return lines

    def _trouble(self) -> str:
        """R-hat, bias, and the clients that were dropped."""
        worst, least = float(self.diagnostics["r_hat"].max()), float(self.diagnostics["ess"].min())
        parts = []
        if self.theta.shape[1] == 1:
            parts.append("R-hat needs two chains at least: write `FALD(num_chains=4)`.")
        elif not worst < R_HAT_LIMIT:
            parts.append(
                f"The chains have not mixed: R-hat is {worst:.3f} (below {R_HAT_LIMIT} is wanted) and the fewest "
                f"effective draws are {least:.0f}. Raise `thinning`, `num_draws` or `num_warmup`."
            )
        if self.dropped:
            parts.append(
                f"The steps of clients {shortened(self.dropped)} were not finite in some rounds, which then went on "
                "without them: the posterior lacks part of their data. Write a smaller `step_size`."
            )
        # chains that start far off and have not arrived yet have a transient, which is not a bias
        arrived = worst < R_HAT_LIMIT or np.isfinite(self._numbers["sd_bias"])
        parts += self._predicted
        if arrived and (bias := self.measured_sd_bias[1]) > ERROR_LIMIT:
            smaller = self._numbers["step_size"] / 4.0
            parts.append(
                f"The chains are too wide: by Stein's identity the sds are off by {bias:.0%} or more somewhere "
                f"(the limit is {ERROR_LIMIT:.0%}). "
                "Mini-batches and partial participation widen them, and so does a step too large for the curvature "
                f"away from the mode: try `FALD(step_size={smaller:.2g})`."
            )
        return " ".join(parts)

    def attrs(self) -> dict[str, Any]:
        """What draws and chains are."""
        return {
            "inference": "langevin",
            "draws": "positions of Markov chains at synchronisations, after warm-up",
            "chains": "independent chains; R-hat and MCSE do not see the bias of a finite step, see fit.rounds.attrs",
        }
