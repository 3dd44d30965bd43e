"""What can be wrong with FedPA's options, said before rounds start."""

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import numpy as np

from fedbayes.errors import ClientDataError
from fedbayes.inference.options import (
    HUGE,
    TINY,
    check_batch,
    check_choices,
    check_ranges,
    check_weights,
    check_whole,
)
from fedbayes.problem.problem import Problem

if TYPE_CHECKING:
    from fedbayes.inference.fedpa.method import FedPA

DENSE_LIMIT = 512  # globals up to which clients send matrices
STEPPING = ("iasg", "sgld")
_CHOICES = {
    "sampler": ("auto", "importance", "nuts", "laplace", *STEPPING),
    "covariance": (None, "score", "sample", "shrinkage"),
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


def check_options(config: "FedPA") -> None:
    """Refuse options that make no sense whatever the data are."""
    check_choices(config, _CHOICES)
    check_whole(config, _LEAST, _OPTIONAL)
    check_ranges(config, _RANGES, _OPTIONAL)
    check_weights(config.weights)
    if not isinstance(config.init, Mapping) and not (isinstance(config.init, str) and config.init in ("mode", "zero")):
        raise ValueError(
            f"`init` is {config.init!r}; write 'mode', 'zero', or arrays by global site, in unconstrained space."
        )
    optimizer = config.server_optimizer
    if optimizer is not None and not (hasattr(optimizer, "init") and hasattr(optimizer, "update")):
        raise TypeError(f"`server_optimizer` is {optimizer!r}; write an optax optimiser, such as `optax.adam(0.05)`.")
    if config.init != "mode" and config.preconditioner != "none":
        raise ValueError(
            f"`preconditioner` is {config.preconditioner!r} without `init='mode'`: nothing is known of the curvature "
            "there. Write `preconditioner='none'`."
        )
    _check_steps(config) if config.sampler in STEPPING else _check_draws(config)


def _check_steps(config: "FedPA") -> None:
    left, num = config.local_steps - config.burn_in, config.num_samples or 20
    if left < num:
        raise ValueError(
            f"`local_steps` is {config.local_steps} and `burn_in` throws away {config.burn_in}: {max(left, 0)} steps "
            f"are left for {num} samples, of one step at least. Write `local_steps={config.burn_in + 10 * num}` or "
            "more."
        )
    if config.sampler == "iasg" and config.batch_size is None and num > 1:
        raise ValueError(
            "`batch_size` is None with `sampler='iasg'`, whose samples differ by the noise of mini-batches alone. "
            "Write `batch_size=...`, about a tenth of a client's rows."
        )
    if config.covariance == "score":
        raise ValueError(
            f"`covariance` is 'score' with `sampler='{config.sampler}'`, whose samples are no draws to regress the "
            "score on. Write 'shrinkage' or 'sample'."
        )
    if config.step_size is None and config.init != "mode":
        raise ValueError(
            "`step_size` is None without `init='mode'`: nothing is known of the curvature there. Write a number, such "
            "as 0.1 for the gradient of the mean loss."
        )


def _check_draws(config: "FedPA") -> None:
    for name, wrong in (("batch_size", config.batch_size is not None), ("fedavg_rounds", config.fedavg_rounds > 0)):
        if wrong:
            raise ValueError(
                f"`{name}` is {getattr(config, name)} with `sampler='{config.sampler}'`, which takes no gradient "
                "steps. Write `sampler='iasg'`, or leave it out."
            )
    if config.sampler == "laplace" and config.covariance not in (None, "score"):
        raise ValueError(
            f"`covariance` is {config.covariance!r} with `sampler='laplace'`, which draws nothing: it sends the "
            "curvature at the mode. Leave it out."
        )


def check_problem(config: "FedPA", problem: Problem) -> None:
    """Refuse options that don't fit the clients and the globals."""
    check_batch(config.batch_size, problem)
    rows, size = problem.num_rows(), problem.globals.size
    if config.sampler == "iasg" and config.batch_size is not None and config.batch_size >= rows.min() and size:
        raise ClientDataError(
            f"`batch_size` is {config.batch_size}, all rows of client '{problem.names[int(np.argmin(rows))]}': its "
            "gradients have no noise to average. Write a smaller one."
        )
    most = max(size + bucket.clients.num_locals for bucket in problem.buckets)
    dense = config.sampler not in STEPPING or config.preconditioner == "dense" or config.init == "mode"
    if most > DENSE_LIMIT and (dense or config.covariance == "sample"):
        raise ValueError(
            f"A client has {most} latents, more than the {DENSE_LIMIT} for which matrices are sent or factorised. "
            "Write `FedPA(sampler='iasg', batch_size=..., init='zero', preconditioner='none', step_size=...)`."
        )
    if size > DENSE_LIMIT and most > size:
        raise ValueError(
            f"The model has {size} globals and local latents: above {DENSE_LIMIT} globals local latents can't be "
            "integrated out."
        )


def given_start(given: Mapping[str, Any], problem: Problem) -> np.ndarray:
    """The user's start as a flat vector, shape ``(d,)``."""
    shapes = dict(problem.globals.shapes)
    if {*map(str, given)} != {*shapes}:
        raise ValueError(
            f"`init` has the sites {sorted(map(str, given))}; the globals are {sorted(shapes)}. Give each of them an "
            "array."
        )
    flat = []
    for name, shape in shapes.items():
        try:
            value = np.asarray(given[name], float)
        except (TypeError, ValueError):
            value = np.full(shape, np.nan)
        fine = bool(np.all(np.isfinite(value)))
        if value.shape != shape or not fine:
            seen = f"has shape {value.shape}" if fine else f"is {given[name]!r}"
            raise ValueError(
                f"`init` of '{name}' {seen}; write finite numbers of shape {shape}, in unconstrained space."
            )
        flat.append(value.ravel())
    return np.concatenate(flat)
