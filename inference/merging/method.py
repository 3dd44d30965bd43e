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
from typing import Any, ClassVar

import jax.numpy as jnp
from jax import Array

from fedbayes.contract.algorithm import Method, Phase
from fedbayes.contract.answer import Diagnostic
from fedbayes.contract.renamed import refused_names
from fedbayes.contract.state import RunState
from fedbayes.inference.local.density.tilted import cold_start
from fedbayes.inference.local.subposterior import Sampler, Subposterior, Summary, samplers
from fedbayes.inference.merging.answer import DIAGNOSTICS, MergedAnswer
from fedbayes.inference.merging.check import check_phase
from fedbayes.inference.merging.client import LocalSummary
from fedbayes.inference.merging.combinations import COMBINATIONS
from fedbayes.inference.merging.estimators import ESTIMATORS, affordable, check_subposteriors
from fedbayes.inference.merging.options import Options, num_kept, shares_of
from fedbayes.inference.merging.server import merging
from fedbayes.problem.client import Client
from fedbayes.problem.roster import Roster


@refused_names(covariance="estimator", num_chains="num_replicates")
@dataclass(frozen=True, kw_only=True)
class OneShot(Options, Method):
    """One-shot combination of the clients' subposteriors: a round, and one more that measures the merge's error.

    Client k sums up ``f_k(theta) p(theta)^(1 / K)``, its locals integrated out, and the server merges: draws by
    ``theta_s = (sum_k W_k)^-1 sum_k W_k theta_ks`` for ``"consensus"`` (Scott et al. 2016), Gaussians by
    ``Q = sum_k Q_k, Q mean = sum_k Q_k mean_k`` for ``"gaussian_product"``; the module has all five with their sources.
    All but the barycentre are exact where clients are linear-Gaussian, up to Monte Carlo error.

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
    estimator
        Of the clients' precisions: ``"score"`` (regression of the score on the draws, exact for Gaussian clients),
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

    See Also
    --------
    FedPA : The same average in rounds.
    EP : What rounds add.
    plots.plot_merge : The clients' posteriors beside the merged one.
    MergeWarning : What it says of too few draws.

    Examples
    --------
    >>> import fedbayes as fb
    >>> method = fb.OneShot(combine="laplace")  # BFI: modes and Hessians, for `fb.fit_federated(..., method=method)`
    >>> method.check
    True
    """

    single_messages: ClassVar[str] = (
        "A merge weighs each client's own posterior by its covariance or its draws, and the check compares "
        "their densities."
    )
    needs_rows: ClassVar[bool] = False
    diagnostics: ClassVar[Mapping[str, Diagnostic]] = DIAGNOSTICS

    def phases(self, roster: Roster) -> list[Phase]:
        """The merge, and its check."""
        merge = one_shot(self, roster)
        return [merge, *([check_phase(roster, merge.algorithm)] if self.check else [])]

    def answer(self, roster: Roster, run: RunState) -> MergedAnswer:
        """The merged posterior."""
        return MergedAnswer(roster, run, run.state.merged)


def one_shot(config: Options, roster: Roster) -> Phase:
    """The phase that merges."""
    shares = shares_of(config, roster)
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
        num_draws=num_kept(config),
        init_shared=lambda previous: (),
        init_client=lambda client, shared, key: cold_start(roster.size + client.num_locals),
        retry="nuts" if config.solver == "auto" and config.combine != "laplace" else None,
    )
    return Phase(algorithm=algorithm, max_rounds=2, full_participation=True)


def _samplers(config: Options, roster: Roster) -> dict[str, Sampler]:
    if config.combine == "laplace":
        return samplers("laplace", 0, 0, ESTIMATORS["score"])
    estimator = ESTIMATORS[affordable(config.estimator, config.num_samples, roster.size)]
    return samplers(config.solver, config.num_samples, num_kept(config), estimator)
