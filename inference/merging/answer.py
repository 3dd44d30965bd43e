"""What a merge ends with: the merged posterior, how the clients' own differ, and what the merge has got wrong."""

from collections.abc import Mapping
from functools import cached_property
from typing import TYPE_CHECKING, Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array

from fedbayes.contract.answer import (
    CLIENT,
    COORDINATE,
    ERROR_LIMIT,
    REPLICATE,
    Diagnostic,
    Verdict,
    bad_clients,
    shortened,
)
from fedbayes.contract.client_locals import FromCavity, FromStart
from fedbayes.contract.locals_from import LocalsFrom
from fedbayes.contract.state import RunState
from fedbayes.errors import K_HAT_LIMIT
from fedbayes.numerics.gaussian import Gaussian
from fedbayes.numerics.host import cavities_of, gaussian_draws, gaussian_log_density, log_integrals, spread_of_means
from fedbayes.numerics.low_rank import LowRankGaussian
from fedbayes.problem.roster import Roster

if TYPE_CHECKING:
    import xarray as xr

DIAGNOSTICS: Mapping[str, Diagnostic] = {
    "k_hat": Diagnostic((CLIENT, REPLICATE), "Pareto tail shape of the importance weights"),
    "effective_draws": Diagnostic((CLIENT, REPLICATE), "effective number of draws"),
    "client_mean": Diagnostic(
        (REPLICATE, CLIENT, COORDINATE), "mean of the client's own posterior, unconstrained space"
    ),
    "client_sd": Diagnostic((REPLICATE, CLIENT, COORDINATE), "sd of the client's own posterior, unconstrained space"),
    "shift": Diagnostic(
        (REPLICATE, CLIENT, COORDINATE),
        "mean of the client's own posterior less that of all the others' together",
        "sds of the merged posterior",
    ),
    "overlap": Diagnostic(
        (REPLICATE, CLIENT, COORDINATE),
        "Bhattacharyya coefficient of the client's own posterior and all the others' together, per coordinate",
    ),
    "distance": Diagnostic(
        (REPLICATE, CLIENT),
        "of the merged mean from the client's own, root mean square; about 1 where clients agree",
        "the client's own sds",
    ),
    "effective_clients": Diagnostic(
        (REPLICATE, COORDINATE), "effective number of clients that decide the merged mean, per coordinate"
    ),
    "misfit": Diagnostic(
        (REPLICATE, CLIENT),
        "sd of the client's log density about its Gaussian over the merged posterior; 0 if it is Gaussian",
        "nats",
    ),
    "gap": Diagnostic(
        (REPLICATE,), "between where the rounds ended and the merged mean, root mean square", "posterior sds"
    ),
    "merge_error": Diagnostic(
        (REPLICATE,), "of the merged mean, measured by importance weights, root mean square", "posterior sds"
    ),
    "merge_k_hat": Diagnostic((REPLICATE,), "Pareto tail shape of the merged Gaussian's importance weights"),
}
_MISFIT = 0.1  # nats by which a client's Gaussian may be off without being named
_GAP_LIMIT = 0.25  # between where the rounds ended and the merged mean, in posterior sds: their noise, but no more


class MergedAnswer:
    """The merged posterior: a Gaussian, dense or of low rank, or the Gaussian with the merged draws' moments.

    Parameters
    ----------
    roster
        Of the clients.
    run
        How the rounds went; its state is that of a merge, or of a phase that has ``heard`` the clients' Gaussians.
    posterior
        Leading axis of replicates.
    """

    def __init__(self, roster: Roster, run: RunState, posterior: Gaussian | LowRankGaussian) -> None:
        self.posterior = posterior
        self._names, self._run = roster.names, run
        self._num_replicates = jax.tree.leaves(posterior)[0].shape[0]

    def draws(self, key: Array, num: int) -> np.ndarray:
        """See :class:`~fedbayes.contract.answer.Answer`; where draws were merged, no more than there are."""
        if isinstance(self.posterior, LowRankGaussian):
            return np.asarray(_sample_low_rank(self.posterior, key, num))
        merged = np.asarray(self._run.state.draws)
        if merged.shape[1] == 0:
            return gaussian_draws(self.posterior, key, num)
        rng = np.random.default_rng(np.asarray(jax.random.key_data(key)))
        return np.stack([mine[rng.permutation(len(mine))[:num]] for mine in merged])

    @cached_property
    def locals_from(self) -> LocalsFrom:
        """See :class:`~fedbayes.contract.answer.Answer`; if the posterior has low rank its clients have no locals."""
        if isinstance(self.posterior, LowRankGaussian):
            return FromStart(None)
        state = self._run.state
        powers = np.asarray(state.heard) * np.asarray(state.shares)  # of the prior in the clients' subposteriors

        def site(client: np.ndarray, prior: np.ndarray) -> np.ndarray:
            return client - powers.reshape(powers.shape + (1,) * (client.ndim - 2)) * prior[:, None]

        cavities = cavities_of(state.prior, jax.tree.map(site, state.clients, state.prior))
        return FromCavity.known(cavities, self.posterior)

    def sample_stats(self, theta: np.ndarray, log_likelihood: np.ndarray) -> dict[str, np.ndarray]:
        """``lp``: log density of the Gaussian with the posterior's moments."""
        if isinstance(self.posterior, LowRankGaussian):
            return {"lp": np.asarray(_low_rank_log_density(self.posterior, theta))}
        return {"lp": gaussian_log_density(self.posterior, theta)}

    def log_evidence(self) -> np.ndarray:
        """See :class:`~fedbayes.contract.answer.Answer`."""
        if isinstance(self.posterior, LowRankGaussian):
            return np.full(self._num_replicates, np.nan)
        return log_integrals(self.posterior)

    def report(self) -> dict[str, float]:
        """See :class:`~fedbayes.contract.answer.Answer`."""
        return {}

    def verdict(self, rounds: "xr.Dataset") -> Verdict:
        """Whether every client was heard, and the measured error of the merge is small."""
        converged, error = self._converged, self._monte_carlo_error
        trouble = "" if converged else self._trouble(rounds)
        return Verdict(converged, error, self._headline(rounds, error), trouble)

    @property
    def error(self) -> float:
        """Measured error of the merged means, in posterior sds: the replicates' worst; NaN without a check."""
        return self._run.last("merge_error")

    @property
    def k_hat(self) -> float:
        """Tail of the importance weights from which the error is known; NaN without a check."""
        return self._run.last("merge_k_hat")

    @property
    def _measured(self) -> str:
        """The measured error in words, as precisely as the importance weights allow."""
        if self.k_hat > 1.0:  # the weights' tail has no mean
            return f"larger than the merged Gaussian's own draws can tell (k-hat {self.k_hat:.2f})"
        rough = "" if self.k_hat <= K_HAT_LIMIT else "roughly "
        return f"{rough}{self.error:.2g} posterior sds (root mean square, k-hat {self.k_hat:.2f})"

    @property
    def _converged(self) -> bool:
        off = self.error > ERROR_LIMIT or self.k_hat > K_HAT_LIMIT
        return self._run.converged and not off and not self._run.last("gap") > _GAP_LIMIT

    @property
    def _monte_carlo_error(self) -> float:
        """Spread of the replicates' means; NaN with one replicate."""
        if isinstance(self.posterior, Gaussian):
            return spread_of_means(self.posterior)
        if self._num_replicates < 2:
            return float("nan")
        mean, variance = map(np.asarray, _low_rank_marginals(self.posterior))
        return float(np.sqrt(np.mean(mean.var(axis=0, ddof=1) / variance.mean(axis=0))))

    def _headline(self, rounds: "xr.Dataset", error: float) -> list[str]:
        """The measured error, the Monte Carlo error, and how far the clients' own posteriors overlap."""
        lines = []
        if np.isfinite(self.error):
            lines.append(f"  error     of the merge {self._measured}")
        if (num := self._num_replicates) > 1 and error > 1e-8:
            lines.append(f"            Monte Carlo {error:.2g} posterior sds, from {num} replicates of the fit")
        if isinstance(self.posterior, LowRankGaussian):
            num, size = self.posterior.basis.shape[1:]
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

    def _trouble(self, rounds: "xr.Dataset") -> str:
        """Clients that are missing, and what the merge has got wrong."""
        parts = []
        merge = _merge_round(rounds)
        heard = self._run.state.heard.min(axis=0)
        missing = [name for name, known in zip(self._names, heard, strict=True) if known < 1]
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
        if (gap := self._run.last("gap")) > _GAP_LIMIT:
            parts.append(
                f"The rounds ended {gap:.2g} posterior sds from the merged mean: raise `num_rounds`, take more "
                "samples, or give the server smaller steps, `FedPA(server_optimizer=optax.sgd(0.3))`."
            )
        if not parts:
            pull = self._run.last("pull")
            still = f", and the clients pulled by {pull:.2g} (the limit is {ERROR_LIMIT})" if pull > ERROR_LIMIT else ""
            parts.append(
                f"The last round still moved the server by {self._run.last('change'):.2g} in shared "
                f"coordinates{still}: raise `num_rounds`, or give the server other steps, such as "
                "`FedPA(server_optimizer=optax.sgd(0.3))`."
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


@jax.jit
def _low_rank_marginals(posterior: LowRankGaussian) -> tuple[Array, Array]:
    return jax.vmap(lambda q: (q.mean_of_globals(), q.variances()))(posterior)


def _sample_low_rank(posterior: LowRankGaussian, key: Array, num: int) -> Array:
    keys = jax.vmap(jax.random.fold_in, (None, 0))(key, np.arange(posterior.basis.shape[0]))
    return jax.vmap(lambda q, own: q.sample(own, num))(posterior, keys)


def _low_rank_log_density(posterior: LowRankGaussian, theta: np.ndarray) -> Array:
    one = lambda r: jax.tree.map(lambda leaf: leaf[r], posterior)  # noqa: E731
    return jnp.stack([jax.vmap(one(r).log_value)(mine) for r, mine in enumerate(theta)])


def _merge_round(rounds: "xr.Dataset") -> "xr.Dataset":
    """The last round in which clients sent their posteriors."""
    return rounds.isel(round=int(np.flatnonzero(rounds["phase"].values != "check")[-1]))
