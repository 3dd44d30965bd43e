"""One-shot combinations of the clients' subposteriors: one round, and one more that says how far off it is.

Client k sums up its factor with a share of the prior, ``f_k(theta) p(theta)^s_k`` with ``s_k = 1 / K`` by default, its
local latents integrated out, and the server combines:

    consensus          theta_s = (sum W_k)^-1 sum W_k theta_ks        Scott et al. 2016
    gaussian_product   Q = sum Q_k,  Q mean = sum Q_k mean_k          the parametric product of Neiswanger et al. 2014
    laplace            the same with modes and Hessians               Jonker, Pazira and Coolen 2024 (BFI)
    wasserstein        barycentre of N(mean_k, s_k Sigma_k)           Srivastava, Li and Dunson 2018
    density_product    product of semiparametric densities            Neiswanger, Wang and Xing 2014

The barycentre's shares are the clients' shares of the rows. All merge in unconstrained space. For Gaussian clients all
but the barycentre are exact, up to the Monte Carlo error of consensus and the density product; for others none is, the
density product excepted as the draws increase.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any, Literal

import jax.numpy as jnp
import numpy as np
from jax import Array

from fedbayes.algorithm import Phase
from fedbayes.inference.local.subposterior import Subposterior, Summariser, Summary, samplers
from fedbayes.inference.local.tilted import cold_start
from fedbayes.inference.merging import merge
from fedbayes.inference.merging.check import checked
from fedbayes.inference.merging.options import ESTIMATORS, affordable, check_subposteriors
from fedbayes.inference.options import check_choices, check_whole, client_weights
from fedbayes.problem.clients import Client
from fedbayes.problem.problem import Problem

COMBINATIONS: Mapping[str, merge.Combine] = {
    "consensus": merge.consensus,
    "gaussian_product": merge.gaussian_product,
    "laplace": merge.gaussian_product,
    "wasserstein": merge.wasserstein,
    "density_product": merge.density_product,
}
_OF_PRODUCTS = ("gaussian_product", "laplace")
_OF_DRAWS = ("consensus", "density_product")
_CHOICES = {
    "combine": tuple(COMBINATIONS),
    "sampler": ("auto", "importance", "nuts"),
    "covariance": ("score", "sample", "shrinkage"),
    "prior": (None, "split", "whole"),
    "check": (True, False),
}


@dataclass(frozen=True, kw_only=True)
class OneShot:
    """One-shot combination of the clients' subposteriors.

    Parameters
    ----------
    combine
        ``"consensus"``, ``"gaussian_product"``, ``"laplace"``, ``"wasserstein"`` or ``"density_product"``, see the
        module. Merging happens in unconstrained space: a standard deviation is merged on its log scale.
    num_samples
        Draws per client and replicate.
    sampler
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
    sampler: Literal["auto", "importance", "nuts"] = "auto"
    covariance: Literal["score", "sample", "shrinkage"] = "score"
    prior: Literal["split", "whole"] | None = None
    check: bool = True
    num_replicates: int = 4
    needs_rows = False

    def __post_init__(self) -> None:
        check_choices(self, _CHOICES)
        check_whole(self, {"num_samples": 4, "num_replicates": 1})
        if self.prior == "whole" and self.combine not in _OF_PRODUCTS:
            raise ValueError(
                f"`prior` is 'whole' with `combine='{self.combine}'`, from which the prior's copies can't be divided "
                f"out. Write `prior='split'`, or one of {list(_OF_PRODUCTS)}."
            )

    def phases(self, problem: Problem) -> list[Phase]:
        """The merge, and its check."""
        merging = one_shot(self, problem)
        return [merging, *checked(problem, merging.algorithm, self.check)]


def one_shot(config: OneShot, problem: Problem) -> Phase:
    """The phase that merges."""
    shares = _shares(config, problem)
    check_subposteriors(problem)

    def update(sampler: Summariser, shared: Array, start: Array, client: Client, key: Array) -> tuple[Summary, Array]:
        found = sampler(Subposterior(client, problem.prior, jnp.asarray(shares)[client.index]), start, key)
        return found, found.mode

    algorithm = merge.merging(
        problem,
        shares,
        {name: partial(update, sampler) for name, sampler in _samplers(config, problem).items()},
        name=config.combine,
        combine=COMBINATIONS[config.combine],
        num_draws=_kept(config),
        init_shared=lambda previous: jnp.zeros(0),
        init_client=_cold,
        retry="nuts" if config.sampler == "auto" and config.combine != "laplace" else None,
    )
    return Phase(algorithm, 2, True)


def _shares(config: OneShot, problem: Problem) -> np.ndarray:
    """Power of the prior in each client's subposterior; of a barycentre also the clients' weights."""
    num, gaussian = len(problem.names), problem.prior.gaussian is not None
    if config.prior == "whole" and not gaussian:
        raise ValueError(
            "`prior` is 'whole', but the prior of the globals is not Gaussian in unconstrained space, and its copies "
            "can't be divided out. Write `prior='split'`."
        )
    if config.prior == "whole" or (config.prior is None and config.combine == "laplace" and gaussian):
        return np.ones(num)
    return client_weights("rows" if config.combine == "wasserstein" else "equal", problem)


def _cold(client: Client, shared: Any, key: Array) -> Array:
    return cold_start(client.program.globals.size + client.num_locals)


def _samplers(config: OneShot, problem: Problem) -> dict[str, Summariser]:
    if config.combine == "laplace":
        return samplers("laplace", 0, 0, ESTIMATORS["score"])
    estimator = ESTIMATORS[affordable(config.covariance, config.num_samples, problem.globals.size)]
    return samplers(config.sampler, config.num_samples, _kept(config), estimator)


def _kept(config: OneShot) -> int:
    """Draws that the combination merges."""
    return config.num_samples if config.combine in _OF_DRAWS else 0
