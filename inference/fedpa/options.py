"""FedPA's options, and what can be wrong with them: whatever the data are, or for given clients."""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, Literal, Self

import numpy as np
import optax

from fedbayes.errors import ClientDataError
from fedbayes.inference.options import (
    DENSE_LIMIT,
    HUGE,
    TINY,
    check_batch,
    check_choices,
    check_optimizer,
    check_ranges,
    check_start,
    check_weights,
    check_whole,
)
from fedbayes.problem.roster import Roster

STEPPING = ("iasg", "sgld")
_CHOICES = {
    "solver": ("auto", "importance", "nuts", "laplace", *STEPPING),
    "estimator": (None, "score", "sample", "shrinkage"),
    "preconditioner": ("dense", "diagonal", "none"),
    "check": (True, False),
}
_LEAST = {
    "num_samples": 1,
    "fedavg_rounds": 0,
    "local_steps": 1,
    "burn_in": 0,
    "batch_size": 1,
    "max_rounds": 1,
    "num_replicates": 1,
}
_RANGES = {
    "shrinkage": (0.0, HUGE, "a finite number, zero or more: zero leaves the identity"),
    "step_size": (TINY, HUGE, "a positive number, or leave it out"),
    "tolerance": (TINY, HUGE, "a change in shared coordinates, such as 0.02"),
}
_OPTIONAL = ("num_samples", "batch_size", "step_size")


@dataclass(frozen=True, kw_only=True)
class Options:
    """The options of :class:`~fedbayes.FedPA`, which documents them."""

    num_samples: int | None = None
    solver: Literal["auto", "importance", "nuts", "laplace", "iasg", "sgld"] = "auto"
    estimator: Literal["score", "sample", "shrinkage"] | None = None
    shrinkage: float = 0.01
    server_optimizer: optax.GradientTransformation | None = None
    fedavg_rounds: int = 0
    local_steps: int = 220
    burn_in: int = 20
    step_size: float | None = None
    batch_size: int | None = None
    weights: str | Mapping[str, float] = "rows"
    preconditioner: Literal["dense", "diagonal", "none"] = "dense"
    init: str | Mapping[str, Any] = "mode"
    tolerance: float = 0.02
    max_rounds: int = 30
    check: bool = True
    num_replicates: int = 4

    def __post_init__(self) -> None:
        check_options(self)

    def for_one_client(self) -> Self:
        """The same method for one client alone: without what names other clients, their weights."""
        return replace(self, weights="rows")

    def samples_for(self, size: int) -> int:
        """Samples l per client and round for d globals."""
        if self.num_samples is not None:
            return self.num_samples
        return 20 if self.solver in STEPPING else max(1024, 1 << (8 * (size + 1) - 1).bit_length())


def check_options(config: Options) -> None:
    """Refuse options that make no sense whatever the data are."""
    check_choices(config, _CHOICES)
    check_whole(config, _LEAST, _OPTIONAL)
    check_ranges(config, _RANGES, _OPTIONAL)
    check_weights(config.weights)
    check_start(config.init, ("mode", "zero"))
    check_optimizer("server_optimizer", config.server_optimizer)
    if config.init != "mode" and config.preconditioner != "none":
        raise ValueError(
            f"`preconditioner` is {config.preconditioner!r} without `init='mode'`: nothing is known of the curvature "
            "there. Write `preconditioner='none'`."
        )
    _check_steps(config) if config.solver in STEPPING else _check_draws(config)


def _check_steps(config: Options) -> None:
    left, num = config.local_steps - config.burn_in, config.num_samples or 20
    if left < num:
        raise ValueError(
            f"`local_steps` is {config.local_steps} and `burn_in` throws away {config.burn_in}: {max(left, 0)} steps "
            f"are left for {num} samples, of one step at least. Write `local_steps={config.burn_in + 10 * num}` or "
            "more."
        )
    if config.solver == "iasg" and config.batch_size is None and num > 1:
        raise ValueError(
            "`batch_size` is None with `solver='iasg'`, whose samples differ by the noise of mini-batches alone. "
            "Write `batch_size=...`, about a tenth of a client's rows."
        )
    if config.estimator == "score":
        raise ValueError(
            f"`estimator` is 'score' with `solver='{config.solver}'`, whose samples are no draws to regress the "
            "score on. Write 'shrinkage' or 'sample'."
        )
    if config.step_size is None and config.init != "mode":
        raise ValueError(
            "`step_size` is None without `init='mode'`: nothing is known of the curvature there. Write a number, such "
            "as 0.1 for the gradient of the mean loss."
        )


def _check_draws(config: Options) -> None:
    for name, wrong in (("batch_size", config.batch_size is not None), ("fedavg_rounds", config.fedavg_rounds > 0)):
        if wrong:
            raise ValueError(
                f"`{name}` is {getattr(config, name)} with `solver='{config.solver}'`, which takes no gradient "
                "steps. Write `solver='iasg'`, or leave it out."
            )
    if config.solver == "laplace" and config.estimator not in (None, "score"):
        raise ValueError(
            f"`estimator` is {config.estimator!r} with `solver='laplace'`, which draws nothing: it sends the "
            "curvature at the mode. Leave it out."
        )


def check_roster(config: Options, roster: Roster) -> None:
    """Refuse options that don't fit the clients and the globals."""
    check_batch(config.batch_size, roster)
    rows, size = roster.rows, roster.size
    if config.solver == "iasg" and config.batch_size is not None and config.batch_size >= rows.min() and size:
        raise ClientDataError(
            f"`batch_size` is {config.batch_size}, all rows of client '{roster.names[int(np.argmin(rows))]}': its "
            "gradients have no noise to average. Write a smaller one."
        )
    most = size + int(roster.num_locals.max())
    dense = config.solver not in STEPPING or config.preconditioner == "dense" or config.init == "mode"
    if most > DENSE_LIMIT and (dense or config.estimator == "sample"):
        raise ValueError(
            f"A client has {most} latents, more than the {DENSE_LIMIT} for which matrices are sent or factorised. "
            "Write `FedPA(solver='iasg', batch_size=..., init='zero', preconditioner='none', step_size=...)`."
        )
    if size > DENSE_LIMIT and most > size:
        raise ValueError(
            f"The model has {size} globals and local latents: above {DENSE_LIMIT} globals local latents can't be "
            "integrated out."
        )
