"""The two kinds of answer a fit can have: a Gaussian over the unconstrained globals, or draws of Markov chains."""

from collections.abc import Sequence
from functools import cached_property
from typing import TYPE_CHECKING, Any, Protocol

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array

from fedbayes import output
from fedbayes.algorithm import Phase, Sampling
from fedbayes.chains import DrawBlock, concatenated
from fedbayes.errors import ResultCode
from fedbayes.federation import Progressing
from fedbayes.gaussian import Gaussian, gaussian_from_moments
from fedbayes.problem import Problem

if TYPE_CHECKING:
    import xarray as xr

R_HAT_LIMIT = 1.01
BIAS_LIMIT = 0.1  # of an sd, measured by the chains themselves


class Answer(Protocol):
    """What a fit found out about the unconstrained globals."""

    gaussian: Gaussian
    """The Gaussian, or the one with the draws' moments; leading axis of replicates or chains."""

    def draws(self, key: Array, num: int) -> Array:
        """Draws of the globals, shape ``(chain, draw, d)``."""
        ...

    def sample_stats(self, theta: Array, log_likelihood: np.ndarray, problem: Problem) -> dict[str, np.ndarray]:
        """ArviZ's group of that name; ``log_likelihood`` has the shape ``(chain, draw, client)``."""
        ...

    def others(self, num_clients: int) -> Gaussian:
        """What everybody but one client knows, leading axes replicate and client: where its locals are looked for."""
        ...

    @property
    def converged(self) -> bool:
        """Whether the answer can be trusted, as far as the fit can tell."""
        ...

    @property
    def monte_carlo_error(self) -> float:
        """Of the means, in posterior sds (root mean square over coordinates)."""
        ...

    def headline(self, rounds: "xr.Dataset") -> list[str]:
        """Lines for ``repr``."""
        ...

    def trouble(self, rounds: "xr.Dataset") -> str:
        """What to say where the fit did not converge."""
        ...

    def attrs(self) -> dict[str, Any]:
        """For every ArviZ object."""
        ...


class GaussianAnswer:
    """One Gaussian per replicate of the fit: what EP and Laplace end with."""

    def __init__(self, gaussian: Gaussian, current: Progressing) -> None:
        self.gaussian = gaussian
        self._current = current

    def draws(self, key: Array, num: int) -> Array:
        """See :class:`Answer`."""
        keys = jax.vmap(jax.random.fold_in, (None, 0))(key, np.arange(self.gaussian.shift.shape[0]))
        return jax.vmap(lambda q, key: q.sample(key, num))(self.gaussian, keys)

    def sample_stats(self, theta: Array, log_likelihood: np.ndarray, problem: Problem) -> dict[str, np.ndarray]:
        """``lp``: log density of the Gaussian."""
        lp = jax.vmap(lambda q, draws: jax.vmap(q.normalised().log_value)(draws))(self.gaussian, theta)
        return {"lp": np.asarray(lp)}

    def others(self, num_clients: int) -> Gaussian:
        """The cavities."""
        sites = self._current.state.sites
        return jax.vmap(lambda q, site: jax.vmap(lambda one: (q - one).symmetrised())(site))(self.gaussian, sites)

    @property
    def converged(self) -> bool:
        """Whether the tolerance was met with every client heard."""
        return self._current.converged

    @property
    def monte_carlo_error(self) -> float:
        """Spread of the replicates' means; NaN with one replicate."""
        with jax.enable_x64(True):
            mean, covariance = jax.tree.map(np.asarray, jax.vmap(Gaussian.moments)(self.gaussian))
        if len(mean) < 2:
            return float("nan")
        sd = np.sqrt(np.diagonal(covariance.mean(axis=0)))
        return float(np.sqrt(np.mean((mean.std(axis=0, ddof=1) / sd) ** 2)))

    def headline(self, rounds: "xr.Dataset") -> list[str]:
        """The last change, the error, the solvers."""
        lines = [f"  last      changed the global by {float(rounds['change'][-1].max()):.2g} posterior sds"]
        if (num := self.gaussian.shift.shape[0]) > 1:
            lines.append(f"  error     Monte Carlo {self.monte_carlo_error:.2g} posterior sds, from {num} replicates")
        if (k_hat := rounds["k_hat"][-1]).notnull().any():
            worst = str(k_hat.max("replicate").idxmax("client").item())
            solvers, counts = np.unique(rounds["solver"][-1].values, return_counts=True)
            used = ", ".join(f"{count} {name}" for name, count in zip(solvers, counts, strict=True))
            unreliable = (rounds["code"][-1] == ResultCode.UNRELIABLE).any()
            warning = "; above 0.7, so not to be trusted" if unreliable else ""
            lines.append(f"  solvers   {used}; k-hat at most {float(k_hat.max()):.2f} (client '{worst}'){warning}")
        return lines

    def trouble(self, rounds: "xr.Dataset") -> str:
        """The last round's change, and the clients whose messages were no good."""
        changes = rounds["change"].max("replicate").dropna("round")
        if not changes.size:
            return "The fit did not converge: no client took part in any round. Check `participation`."
        last = rounds.sel(round=changes["round"][-1])
        parts = [
            f"The fit did not converge in {rounds.sizes['round']} rounds: the last one changed the global by "
            f"{float(last['change'].max()):.3g} posterior sds.",
            *bad_clients(last),
        ]
        if float(last["step"].min()) == 0.0:
            parts.append("No step kept the global and every cavity proper: try `EP(damping=0.2)` or proper priors.")
        parts.append("Raise `num_rounds`, or `EP(num_draws=...)` if `fit.rounds.monte_carlo_noise` is large.")
        return " ".join(parts)

    def attrs(self) -> dict[str, Any]:
        """What draws and chains are."""
        return {
            "inference": "gaussian-sites",
            "draws": "independent draws of a Gaussian in unconstrained space",
            "chains": "replicates of the whole fit with other keys: R-hat and MCSE measure its Monte Carlo error, "
            "not the error of the Gaussian approximation",
        }


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


def make_answer(problem: Problem, phase: Phase, current: Progressing) -> GaussianAnswer | SampledAnswer:
    """The answer of a fit's last phase."""
    if phase.sampling is not None:
        return SampledAnswer(problem, current, phase.sampling)
    if phase.algorithm.posterior is None:
        raise TypeError(f"The algorithm '{phase.algorithm.name}' has neither a `posterior` nor draws.")
    return GaussianAnswer(phase.algorithm.posterior(current.state), current)


def bad_clients(last: "xr.Dataset") -> list[str]:
    """The clients with other codes than OK in the last round, in words."""
    codes = last["code"].max("replicate").to_series()
    parts = []
    for code in (ResultCode.NOT_FINITE, ResultCode.IMPROPER, ResultCode.UNRELIABLE):
        if clients := list(codes.index[codes == code]):
            parts.append(f"Clients {shortened(clients)}: {code.meaning}.")
    return parts


def shortened(names: Sequence[str], most: int = 6) -> str:
    """The first few names, and how many more there are."""
    shown = ", ".join(names[:most])
    return shown if len(names) <= most else f"{shown}, ... ({len(names) - most} more)"
