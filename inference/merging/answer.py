"""An answer merged from the clients' own posteriors: how they lie to each other, and what the merge has got wrong."""

from typing import TYPE_CHECKING, Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array

from fedbayes.algorithm import FederatedAlgorithm
from fedbayes.answer import GaussianAnswer, bad_clients, shortened
from fedbayes.gaussian import Gaussian
from fedbayes.inference.local.importance import K_HAT_LIMIT
from fedbayes.low_rank import LowRankGaussian
from fedbayes.problem.problem import Problem
from fedbayes.rounds.loop import Progressing

if TYPE_CHECKING:
    import xarray as xr

ERROR_LIMIT = 0.1  # of the merged means, in posterior sds
_MISFIT = 0.1  # nats by which a client's Gaussian may be off without being named
_GAP_LIMIT = 0.25  # between where the rounds ended and the merged mean, in posterior sds: their noise, but no more


class MergedAnswer(GaussianAnswer):
    """The merged posterior: a Gaussian, dense or of low rank, or the Gaussian with the merged draws' moments."""

    gaussian: Any

    def __init__(self, algorithm: FederatedAlgorithm, problem: Problem, current: Progressing) -> None:
        if algorithm.posterior is None or algorithm.sample is None:
            raise TypeError(f"The algorithm '{algorithm.name}' has no merged posterior to sample from.")
        super().__init__(jax.jit(algorithm.posterior)(current.state), current)
        self._sample, self._names = algorithm.sample, problem.names

    @property
    def _num_replicates(self) -> int:
        return jax.tree.leaves(self.gaussian)[0].shape[0]

    def draws(self, key: Array, num: int) -> Array:
        """See :class:`~fedbayes.answer.Answer`; of merged draws all there are, if fewer."""
        keys = jax.vmap(jax.random.fold_in, (None, 0))(key, np.arange(self._num_replicates))
        return self._sample(self._current.state, keys, num)

    def sample_stats(self, theta: Array, log_likelihood: np.ndarray, problem: Problem) -> dict[str, np.ndarray]:
        """``lp``: log density of the Gaussian with the posterior's moments."""
        if isinstance(self.gaussian, Gaussian):
            return super().sample_stats(theta, log_likelihood, problem)
        lp = [
            jax.vmap(jax.tree.map(lambda leaf, r=r: leaf[r], self.gaussian).log_value)(mine)
            for r, mine in enumerate(theta)
        ]
        return {"lp": np.asarray(jnp.stack(lp))}

    def others(self, num_clients: int) -> Gaussian:
        """What all other clients know; nothing of a posterior of low rank, whose clients have no locals."""
        if isinstance(self.gaussian, Gaussian):
            return super().others(num_clients)
        return Gaussian.neutral(0, (self._num_replicates, num_clients))

    @property
    def error(self) -> float:
        """Measured error of the merged means, in posterior sds: the replicates' worst; NaN without a check."""
        return float(np.max(np.asarray(getattr(self._current.state, "error", np.nan))))

    @property
    def k_hat(self) -> float:
        """Tail of the importance weights from which the error is known; NaN without a check."""
        return float(np.max(np.asarray(getattr(self._current.state, "k_hat", np.nan))))

    @property
    def _measured(self) -> str:
        """The error in words, no more of it than the importance weights can tell."""
        if self.k_hat > 1.0:  # the weights' tail has no mean
            return f"too large to be measured (k-hat {self.k_hat:.2f})"
        rough = "" if self.k_hat <= K_HAT_LIMIT else "roughly "
        return f"{rough}{self.error:.2g} posterior sds (root mean square, k-hat {self.k_hat:.2f})"

    @property
    def converged(self) -> bool:
        """Whether every client was heard, and no error of the merge was measured that matters."""
        off = self.error > ERROR_LIMIT or self.k_hat > K_HAT_LIMIT
        return self._current.converged and not off and not _last(self._current, "gap") > _GAP_LIMIT

    @property
    def monte_carlo_error(self) -> float:
        """Spread of the replicates' means; NaN with one replicate."""
        if isinstance(self.gaussian, Gaussian):
            return super().monte_carlo_error
        if self._num_replicates < 2:
            return float("nan")
        with jax.enable_x64(True):
            mean, variance = jax.tree.map(np.asarray, jax.vmap(_marginals)(self.gaussian))
        return float(np.sqrt(np.mean(mean.var(axis=0, ddof=1) / variance.mean(axis=0))))

    def headline(self, rounds: "xr.Dataset") -> list[str]:
        """The measured error, the Monte Carlo error, and how the clients lie to each other."""
        lines = []
        if np.isfinite(self.error):
            lines.append(f"  error     of the merge {self._measured}")
        if (num := self._num_replicates) > 1 and self.monte_carlo_error > 1e-8:
            lines.append(f"            Monte Carlo {self.monte_carlo_error:.2g} posterior sds, from {num} replicates")
        if isinstance(self.gaussian, LowRankGaussian):
            num, size = self.gaussian.basis.shape[1:]
            lines.append(
                f"            not measured: precision of rank {num:,} in {size:,} dimensions, too narrow beyond"
            )
        if "overlap" in rounds:
            merge = _merge_round(rounds)
            overlap = merge["overlap"].mean(("replicate", "coordinate")).dropna("client")
            effective = merge["effective_clients"].mean("replicate")
            if overlap.size:
                lines.append(
                    f"  clients'  posteriors overlap least with the rest at '{overlap.idxmin('client').item()}' "
                    f"({float(overlap.min()):.2f} of 1); {float(effective.min()):.1f} to {float(effective.max()):.1f} "
                    "effective clients per parameter"
                )
        return lines

    def trouble(self, rounds: "xr.Dataset") -> str:
        """Clients that are missing, and what the merge has got wrong."""
        parts = []
        merge = _merge_round(rounds)
        missing = [
            name for name, heard in zip(self._names, self._current.state.heard.min(axis=0), strict=True) if heard < 1
        ]
        if missing:
            parts.append(f"The posterior lacks the data of clients {shortened(missing)}.")
            parts += bad_clients(merge)
        if self.error > ERROR_LIMIT or self.k_hat > K_HAT_LIMIT:
            misfit = rounds["misfit"][-1].mean("replicate")
            name, most = misfit.idxmax("client").item(), float(misfit.max())
            worst = (
                f"The Gaussian of client '{name}' fits worst, by {most:.2g} nats."
                if most > _MISFIT
                else "The clients' Gaussians fit: it is the combination that is approximate."
            )
            parts.append(
                f"The merge is off: by importance weights the error of its means is {self._measured}. {worst} "
                "Merging can't mend that: use `method='ep'`, in which clients see the others' knowledge."
            )
        if (gap := _last(self._current, "gap")) > _GAP_LIMIT:
            parts.append(
                f"The rounds ended {gap:.2g} posterior sds from the merged mean: raise `num_rounds`, take more "
                "samples, or give the server smaller steps, `FedPA(server_optimizer=optax.sgd(0.3))`."
            )
        if not parts:
            parts.append(
                f"The last round still moved the server by {_last(self._current, 'change'):.2g} in shared coordinates: "
                "raise `num_rounds`, or give the server smaller steps, `FedPA(server_optimizer=optax.sgd(0.3))`."
            )
        return " ".join(parts)

    def attrs(self) -> dict[str, Any]:
        """What draws and chains are."""
        return {
            "inference": "merged-posteriors",
            "draws": "of the merged posterior, independent or nearly so; merged in unconstrained space",
            "chains": "replicates of the whole fit with other keys: R-hat and MCSE measure its Monte Carlo error, "
            "not the error of the merge",
        }


def _marginals(gaussian: LowRankGaussian) -> tuple[Array, Array]:
    return gaussian.mean_of_globals(), gaussian.variances()


def _last(current: Progressing, name: str) -> float:
    """The last value of a diagnostic, the replicates' worst; NaN where there is none."""
    found = [record[name] for record in current.history if name in record]
    return float(np.max(found[-1])) if found else float("nan")


def _merge_round(rounds: "xr.Dataset") -> "xr.Dataset":
    """The last round in which clients sent their posteriors."""
    return rounds.isel(round=int(np.flatnonzero(rounds["phase"].values != "check")[-1]))
