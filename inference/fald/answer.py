"""An answer made of the draws of Markov chains."""

from functools import cached_property
from typing import TYPE_CHECKING, Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array

from fedbayes.algorithm import Sampling
from fedbayes.answer import shortened
from fedbayes.errors import ResultCode
from fedbayes.gaussian import Gaussian, gaussian_from_moments
from fedbayes.problem.problem import Problem
from fedbayes.results import arviz as output
from fedbayes.rounds.chains import DrawBlock, concatenated
from fedbayes.rounds.loop import Progressing

if TYPE_CHECKING:
    import xarray as xr

R_HAT_LIMIT = 1.01
BIAS_LIMIT = 0.1  # of an sd, measured by the chains themselves


class SampledAnswer:
    """Draws of Markov chains, after warm-up.

    Attributes
    ----------
    block
        All draws: globals ``(draw, chain, d)``, and the clients' own parts per bucket ``(draw, client, chain, m)``.
    """

    def __init__(self, problem: Problem, current: Progressing, sampling: Sampling) -> None:
        everything, num_warmup = concatenated(current.draws), sampling.num_warmup
        self.block: DrawBlock = jax.tree.map(lambda leaf: leaf[num_warmup:], everything)
        self._problem, self._temperature = problem, sampling.temperature or 1.0
        records = [record for record in current.history if "slope_position" in record]
        done = np.cumsum([int(record["rounds"]) for record in records])
        late = done > done[-1] * num_warmup / len(everything.theta)
        self._records = [record for record, counts in zip(records, late, strict=True) if counts]

    @cached_property
    def gaussian(self) -> Gaussian:
        """The Gaussians with each chain's moments."""
        means = self.block.theta.mean(axis=0)
        size = means.shape[1]
        covariances = [np.atleast_2d(np.cov(chain.T)) for chain in np.swapaxes(self.block.theta, 0, 1)]
        if len(self.block.theta) <= 2 * size:  # too few draws for one chain's covariance, or for any
            flat = self.block.theta.reshape(-1, size)
            pooled = np.atleast_2d(np.cov(flat.T)) if len(flat) > 2 * size else np.diag(flat.var(axis=0))
            covariances = [pooled] * len(means)
        return jax.vmap(gaussian_from_moments)(jnp.asarray(means), jnp.asarray(np.stack(covariances)))

    def draws(self, key: Array, num: int) -> Array:
        """See :class:`Answer`: all there are."""
        return jnp.swapaxes(jnp.asarray(self.block.theta), 0, 1)

    def sample_stats(self, theta: Array, log_likelihood: np.ndarray, problem: Problem) -> dict[str, np.ndarray]:
        """``lp`` and ``energy = -lp`` of the joint posterior, unnormalised, in unconstrained space."""
        prior = jax.jit(lambda flat: jax.lax.map(problem.prior.log_density, flat, batch_size=256))
        lp = np.asarray(prior(theta.reshape(-1, theta.shape[-1]))).reshape(theta.shape[:2]) + log_likelihood.sum(
            axis=-1
        )
        return {"lp": lp, "energy": -lp}

    def others(self, num_clients: int) -> Gaussian:
        """The chains' own Gaussians: wide enough to look for a client's locals."""
        return jax.tree.map(lambda leaf: jnp.repeat(leaf[:, None], num_clients, axis=1), self.gaussian)

    def joint(self, place: int) -> Array:
        """One client's joint draws of globals and locals, ``(chain, draw, d + m)``."""
        theta = np.swapaxes(self.block.theta, 0, 1)
        if not self.block.private:
            return jnp.asarray(theta)
        bucket, at = self._problem.locate(place)
        z = np.swapaxes(self.block.private[bucket][:, at], 0, 1)
        return jnp.concatenate([theta, z], axis=-1)

    @cached_property
    def diagnostics(self) -> "xr.Dataset":
        """R-hat and bulk effective sample size of each unconstrained global, by ArviZ."""
        return output.chain_diagnostics(np.swapaxes(self.block.theta, 0, 1))

    @cached_property
    def measured_sd_bias(self) -> tuple[float, float]:
        """Relative bias of the sds by Stein's identity: the mean over coordinates, and what is sure of the worst.

        ``Cov(u_i, grad_i U) = tau`` under the target; of a Gaussian law that is too wide, ``tau`` times the inflation
        of its variance. "Sure" is four standard errors below the estimate. NaN where no gradients were sent (``clip``).
        """
        names = ("slope_position", "position", "slope")
        product, position, slope = (np.stack([record[name] for record in self._records]) for name in names)
        mean, level = position.mean(axis=(0, 1)), slope.mean(axis=(0, 1)) / self._temperature
        centred = product - mean * slope / self._temperature - level * position + mean * level
        flat = centred.reshape(-1, centred.shape[-1])
        error = flat.std(axis=0, ddof=1) / np.sqrt(len(flat)) if len(flat) > 1 else np.full(flat.shape[1], np.inf)
        sure = np.max(flat.mean(axis=0) - 4.0 * error)
        return float(np.sqrt(np.maximum(flat.mean(), 0.0)) - 1.0), float(np.sqrt(np.maximum(sure, 0.0)) - 1.0)

    @property
    def dropped(self) -> list[str]:
        """Clients whose steps were not finite in some round after warm-up, and so are missing from the posterior."""
        worst = np.max([record["code"] for record in self._records], axis=(0, 2))
        return [name for name, code in zip(self._problem.names, worst, strict=True) if code == ResultCode.NOT_FINITE]

    @property
    def converged(self) -> bool:
        """Whether no R-hat exceeds 1.01, no client was dropped, and no bias above ten percent of an sd is measured."""
        mixed = bool(self.diagnostics["r_hat"].max() < R_HAT_LIMIT)  # NaN is no
        return mixed and not self.dropped and not self.measured_sd_bias[1] > BIAS_LIMIT

    @property
    def monte_carlo_error(self) -> float:
        """Root mean square of ``1 / sqrt(effective sample size)``."""
        return float(np.sqrt(np.mean(1.0 / self.diagnostics["ess"])))

    def headline(self, rounds: "xr.Dataset") -> list[str]:
        """R-hat, effective draws, and the bias that theory predicts."""
        draws, chains = self.block.theta.shape[:2]
        worst, least = float(self.diagnostics["r_hat"].max()), float(self.diagnostics["ess"].min())
        lines = [
            f"  chains    {chains} of {draws} draws: R-hat at most {worst:.3f}, effective draws at least {least:.0f}",
            f"  error     Monte Carlo {self.monte_carlo_error:.2g} posterior sds",
        ]
        known, measured = rounds.attrs, self.measured_sd_bias[0]
        predicted = [f"sds {known['sd_bias']:+.1%}"] if np.isfinite(known["sd_bias"]) else []
        if known["participation_bias"]:
            predicted.append(f"{known['participation_bias']:+.1%} by participation")
        if np.isfinite(known["mean_bias"]):
            predicted.append(f"means {known['mean_bias']:.2g} sds")
        shown = f"sds {measured:+.1%}" if np.isfinite(measured) else "not with clipping"
        lines.append(f"  bias      predicted {', '.join(predicted) or 'nothing'}; measured {shown}")
        lines.append(
            f"  steps     {known['step_size']:.2g}, {known['local_steps']:.0f} local ones a round, "
            f"{known['rounds_per_draw']:.0f} rounds a draw"
        )
        return lines

    def trouble(self, rounds: "xr.Dataset") -> str:
        """R-hat, bias, and the clients that were dropped."""
        worst, least = float(self.diagnostics["r_hat"].max()), float(self.diagnostics["ess"].min())
        parts = []
        if self.block.theta.shape[1] == 1:
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
        # not of chains on their way from far off, whose transient is no bias
        arrived = worst < R_HAT_LIMIT or np.isfinite(rounds.attrs["sd_bias"])
        if arrived and (bias := self.measured_sd_bias[1]) > BIAS_LIMIT:
            smaller = float(rounds.attrs["step_size"]) / 4.0
            parts.append(
                f"The chains are too wide: by Stein's identity the sds are off by {bias:.0%} or more somewhere. "
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
