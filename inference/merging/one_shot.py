"""One-shot combinations of the clients' subposteriors: one round, and one more that measures their error.

Client k sums up its factor with a share of the prior, ``f_k(theta) p(theta)^s_k`` with ``s_k = 1 / K`` by default, its
local latents integrated out, and the server combines:

    consensus          theta_s = (sum W_k)^-1 sum W_k theta_ks        Scott et al. 2016
    gaussian_product   Q = sum Q_k,  Q mean = sum Q_k mean_k          the parametric product of Neiswanger et al. 2014
    laplace            the same with modes and Hessians               Jonker, Pazira and Coolen 2024 (BFI)
    wasserstein        barycentre of N(mean_k, s_k Sigma_k)           Srivastava, Li and Dunson 2018
    density_product    product of semiparametric densities            Neiswanger, Wang and Xing 2014

The barycentre's shares are the clients' shares of the rows. All merge in unconstrained space. For Gaussian clients all
but the barycentre are exact, up to the Monte Carlo error of consensus and the density product. For other clients only
the density product becomes exact, as the number of draws increases.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar, Literal

import jax.numpy as jnp
import numpy as np
from jax import Array

from fedbayes.algorithm import Method, Phase
from fedbayes.answer import Diagnostic
from fedbayes.inference.local.subposterior import Sampler, Subposterior, Summary, samplers
from fedbayes.inference.local.tilted import cold_start
from fedbayes.inference.merging.answer import DIAGNOSTICS, MergedAnswer
from fedbayes.inference.merging.check import check_phase
from fedbayes.inference.merging.combinations import COMBINATIONS
from fedbayes.inference.merging.estimators import ESTIMATORS, affordable, check_subposteriors
from fedbayes.inference.merging.merge import LocalSummary, merging
from fedbayes.inference.options import check_choices, check_whole, client_weights
from fedbayes.problem.clients import Client
from fedbayes.problem.roster import Roster
from fedbayes.rounds.state import RunState

_CHOICES = {
    "combine": tuple(COMBINATIONS),
    "solver": ("auto", "importance", "nuts"),
    "covariance": ("score", "sample", "shrinkage"),
    "prior": (None, "split", "whole"),
    "check": (True, False),
}


@dataclass(frozen=True, kw_only=True)
class OneShot(Method):
    """One-shot combination of the clients' subposteriors.

    Parameters
    ----------
    combine
        ``"consensus"``, ``"gaussian_product"``, ``"laplace"``, ``"wasserstein"`` or ``"density_product"``, see the
        module. Merging happens in unconstrained space: a standard deviation is merged on its log scale.
    num_samples
        Draws per client and replicate.
    solver
        ``"auto"`` (importance sampling from the Laplace approximation; NUTS in a second round for clients whose k-hat
        exceeds 0.7), ``"importance"`` or ``"nuts"``. ``combine="laplace"`` draws nothing.
    covariance
        The clients' precisions: ``"score"`` (regression of the score on the draws, exact for Gaussian clients),
        ``"sample"`` (inverse of the sample covariance, corrected for its bias) or ``"shrinkage"`` (the sample
        covariance shrunk towards the Laplace approximation's), which is what too few draws for the others get, with a
        warning.
    prior
        ``"split"``: every client has the K-th root of the prior; ``"whole"``: every client has all of it, and the
        server divides the copies out, for Gaussian priors and products of Gaussians. ``None``: whole for
        ``"laplace"``, as in BFI, where the prior allows it, else split.
    check
        Add the round that measures the error of the merge (:mod:`fedbayes.inference.merging.check`).
    num_replicates
        Independent runs, which become the chains of the posterior.
    """

    combine: Literal["consensus", "gaussian_product", "laplace", "wasserstein", "density_product"] = "consensus"
    num_samples: int = 1024
    solver: Literal["auto", "importance", "nuts"] = "auto"
    covariance: Literal["score", "sample", "shrinkage"] = "score"
    prior: Literal["split", "whole"] | None = None
    check: bool = True
    num_replicates: int = 4
    needs_rows: ClassVar[bool] = False
    diagnostics: ClassVar[Mapping[str, Diagnostic]] = DIAGNOSTICS

    def __post_init__(self) -> None:
        check_choices(self, _CHOICES)
        check_whole(self, {"num_samples": 4, "num_replicates": 1})
        dividing = [name for name, combination in COMBINATIONS.items() if combination.divides_prior]
        if self.prior == "whole" and self.combine not in dividing:
            raise ValueError(
                f"`prior` is 'whole' with `combine='{self.combine}'`, from which the prior's copies can't be divided "
                f"out. Write `prior='split'`, or one of {dividing}."
            )

    def phases(self, roster: Roster) -> list[Phase]:
        """The merge, and its check."""
        merge = one_shot(self, roster)
        return [merge, *([check_phase(roster, merge.algorithm)] if self.check else [])]

    def answer(self, roster: Roster, run: RunState) -> MergedAnswer:
        """The merged posterior."""
        return MergedAnswer(roster, run, run.state.merged)


def one_shot(config: OneShot, roster: Roster) -> Phase:
    """The phase that merges."""
    shares = _shares(config, roster)
    check_subposteriors(roster)

    def summary(sampler: Sampler) -> LocalSummary:
        def run(shared: Any, start: Array, client: Client, inputs: Any) -> tuple[Summary, Array]:
            found = sampler.run(Subposterior(client, roster.prior, jnp.asarray(shares)[client.index]), start, inputs)
            return found, found.mode

        return LocalSummary(run, lambda key, shared, num_locals: sampler.inputs(key, roster.size + num_locals))

    algorithm = merging(
        roster,
        shares,
        {name: summary(sampler) for name, sampler in _samplers(config, roster).items()},
        name=config.combine,
        combination=COMBINATIONS[config.combine],
        num_draws=_kept(config),
        init_shared=lambda previous: (),
        init_client=lambda client, shared, key: cold_start(roster.size + client.num_locals),
        retry="nuts" if config.solver == "auto" and config.combine != "laplace" else None,
    )
    return Phase(algorithm=algorithm, max_rounds=2, full_participation=True)


def _shares(config: OneShot, roster: Roster) -> np.ndarray:
    """Power of the prior in each client's subposterior; of a barycentre also the clients' weights."""
    gaussian = roster.prior.gaussian is not None
    if config.prior == "whole" and not gaussian:
        raise ValueError(
            "`prior` is 'whole', but the prior of the globals is not Gaussian in unconstrained space, and its copies "
            "can't be divided out. Write `prior='split'`."
        )
    if config.prior == "whole" or (config.prior is None and config.combine == "laplace" and gaussian):
        return np.ones(roster.num_clients)
    return client_weights(COMBINATIONS[config.combine].shares, roster)


def _samplers(config: OneShot, roster: Roster) -> dict[str, Sampler]:
    if config.combine == "laplace":
        return samplers("laplace", 0, 0, ESTIMATORS["score"])
    estimator = ESTIMATORS[affordable(config.covariance, config.num_samples, roster.size)]
    return samplers(config.solver, config.num_samples, _kept(config), estimator)


def _kept(config: OneShot) -> int:
    """Draws that the combination merges."""
    return config.num_samples if COMBINATIONS[config.combine].needs_draws else 0
