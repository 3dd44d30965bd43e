"""OneShot's options, and what can be wrong with them: whatever the data are, or for given clients."""

from dataclasses import dataclass
from typing import Literal

import numpy as np

from fedbayes.inference.merging.combinations import COMBINATIONS
from fedbayes.inference.options import check_choices, check_whole, client_weights
from fedbayes.problem.roster import Roster

_CHOICES = {
    "combine": tuple(COMBINATIONS),
    "solver": ("auto", "importance", "nuts"),
    "estimator": ("score", "sample", "shrinkage"),
    "prior": (None, "split", "whole"),
    "check": (True, False),
}


@dataclass(frozen=True, kw_only=True)
class Options:
    """The options of :class:`~fedbayes.OneShot`, which documents them."""

    combine: Literal["consensus", "gaussian_product", "laplace", "wasserstein", "density_product"] = "consensus"
    num_samples: int = 1024
    solver: Literal["auto", "importance", "nuts"] = "auto"
    estimator: Literal["score", "sample", "shrinkage"] = "score"
    prior: Literal["split", "whole"] | None = None
    check: bool = True
    num_replicates: int = 4

    def __post_init__(self) -> None:
        check_choices(self, _CHOICES)
        check_whole(self, {"num_samples": 4, "num_replicates": 1})
        dividing = [name for name, combination in COMBINATIONS.items() if combination.divides_prior]
        if self.prior == "whole" and self.combine not in dividing:
            raise ValueError(
                f"`prior` is 'whole' with `combine='{self.combine}'`, from which the prior's copies can't be divided "
                f"out. Write `prior='split'`, or one of {dividing}."
            )


def shares_of(config: Options, roster: Roster) -> np.ndarray:
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


def num_kept(config: Options) -> int:
    """Draws that the combination merges."""
    return config.num_samples if COMBINATIONS[config.combine].needs_draws else 0
