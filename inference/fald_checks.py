"""What can be wrong with FA-LD's options, said before sampling starts."""

from typing import TYPE_CHECKING

import numpy as np

from fedbayes.errors import ClientDataError, FederatedError
from fedbayes.problem import Problem

if TYPE_CHECKING:
    from fedbayes.federation import Progressing
    from fedbayes.inference.fald import FALD
    from fedbayes.inference.langevin_plan import Plan

_CHOICES = {
    "scheme": ("full", "with_replacement", "without_replacement"),
    "preconditioner": ("dense", "diagonal", "none"),
    "start": ("mode", "zero"),
}
_COUNTS = ("local_steps", "num_active", "batch_size", "refresh", "thinning", "num_chains", "max_rounds")


def check_options(config: "FALD") -> None:
    """Refuse options that make no sense whatever the data are."""
    for name, known in _CHOICES.items():
        if getattr(config, name) not in known:
            raise ValueError(f"`{name}` is {getattr(config, name)!r}; it is one of {list(known)}.")
    for name in _COUNTS:
        value = getattr(config, name)
        if value is not None and (not isinstance(value, int) or isinstance(value, bool) or value < 1):
            raise ValueError(f"`{name}` is {value!r}; it is a whole number, at least 1.")
    if not isinstance(config.num_warmup, int) or config.num_warmup < 0:
        raise ValueError(f"`num_warmup` is {config.num_warmup!r}; it is a number of draws, zero or more.")
    if not 0.0 <= config.noise_correlation <= 1.0:
        raise ValueError(f"`noise_correlation` is {config.noise_correlation}; rho lies in [0, 1].")
    if not config.temperature >= 0.0 or not np.isfinite(config.temperature):
        raise ValueError(f"`temperature` is {config.temperature}; 1 is the posterior, 0 federated averaging.")
    for name in ("bias", "clip"):
        value = getattr(config, name)
        if value is not None and not value > 0.0:
            raise ValueError(f"`{name}` is {value}; it must be positive.")
    _check_step(config)
    _check_scheme(config)
    _check_privacy(config)


def _check_step(config: "FALD") -> None:
    step = config.step_size
    if isinstance(step, str) and step != "decaying":
        raise ValueError(f"`step_size` is {step!r}; write a number, 'decaying', a schedule, or leave it out.")
    if isinstance(step, int | float) and not (step > 0.0 and np.isfinite(step)):
        raise ValueError(f"`step_size` is {step}; a Langevin step needs a positive one.")
    if config.start == "zero" and (step is None or step == "decaying"):
        raise ValueError(
            f"`step_size` is {step!r} with `start='zero'`: nothing is known of the curvature there. Write a number, "
            "such as 0.1 / n for n rows in all, or `start='mode'`."
        )


def _check_scheme(config: "FALD") -> None:
    if config.scheme == "full" and config.num_active is not None:
        raise ValueError(
            f"`num_active` is {config.num_active} with `scheme='full'`; say how they are drawn: "
            "`scheme='with_replacement'` or `scheme='without_replacement'`."
        )
    if config.scheme != "full" and config.num_active is None:
        raise ValueError(f"`scheme` is {config.scheme!r}; say how many clients a round has, `num_active=...`.")
    if config.refresh is not None:
        for reason, wrong in {
            "no control variate": not config.control_variate,
            f"`scheme={config.scheme!r}`": config.scheme != "full",
            "mini-batches": config.batch_size is not None,
        }.items():
            if wrong:
                raise ValueError(
                    f"`refresh` is {config.refresh} with {reason}: the anchor needs every client's whole gradient. "
                    "Leave `refresh` out."
                )


def _check_privacy(config: "FALD") -> None:
    if config.clip is not None and config.control_variate:
        raise ValueError(
            f"`clip` is {config.clip}, but the control variate sends each client's gradient at the anchor, unclipped "
            "and without noise. Write `control_variate=False`."
        )


def client_weights(config: "FALD", problem: Problem) -> np.ndarray:
    """``p_c``, shape ``(N,)``."""
    names, given = problem.names, config.weights
    if isinstance(given, str):
        if given not in ("rows", "equal"):
            raise ValueError(f"`weights` is {given!r}; write 'rows', 'equal', or a number for each client.")
        rows = problem.num_rows() if given == "rows" else np.ones(len(names))
        return rows / rows.sum()
    if set(given) != set(names):
        raise ValueError(f"`weights` names the clients {sorted(given)}; the clients are {sorted(names)}.")
    weights = np.asarray([given[name] for name in names], float)
    if not np.all(weights > 0.0):
        worst = names[int(np.argmin(weights))]
        raise ValueError(f"`weights` of client '{worst}' is {weights.min()}; weights are positive.")
    if abs(weights.sum() - 1.0) > 1e-9:
        raise ValueError(f"`weights` sum to {weights.sum():.6g}; they must sum to 1: divide them by their sum.")
    return weights


def check_problem(config: "FALD", problem: Problem, weights: np.ndarray) -> None:
    """Refuse options that don't fit the clients."""
    num = len(problem.names)
    if config.num_active is not None and config.num_active > num:
        raise ValueError(f"`num_active` is {config.num_active}, but there are {num} clients.")
    uneven = not np.allclose(weights, 1.0 / num, rtol=1e-9)
    if config.scheme == "without_replacement" and uneven and not config.allow_unbalanced:
        raise ValueError(
            f"Scheme 'without_replacement' averages the drawn clients alike, but their weights run from "
            f"{weights.min():.3g} (client '{problem.names[int(np.argmin(weights))]}') to {weights.max():.3g}: its mean "
            "would be biased. Write `scheme='with_replacement'`, `weights='equal'`, or `allow_unbalanced=True`."
        )
    if config.batch_size is not None:
        rows = problem.num_rows()
        if config.batch_size > rows.min():
            raise ClientDataError(
                f"Client '{problem.names[int(np.argmin(rows))]}' has {int(rows.min())} rows, but `batch_size` is "
                f"{config.batch_size}. Write {int(rows.min())} or less."
            )
    if config.clip is not None and any(bucket.clients.num_locals for bucket in problem.buckets):
        raise ValueError(
            f"`clip` is {config.clip}, but the model has local latents: its gradient in the globals is not a sum over "
            "rows, so clipping rows does not bound it. Leave `clip` out."
        )


def check_start(current: "Progressing", problem: Problem, config: "FALD", plan: "Plan") -> None:
    """Refuse chains that can't start: a gradient that is not finite, a mode without curvature, an unstable step."""
    for bucket, private in zip(problem.buckets, current.clients, strict=True):
        good = np.all(np.isfinite(private.own), axis=(1, 2))
        if not np.all(good):
            name = problem.names[bucket.members[int(np.argmin(good))]]
            raise FederatedError(
                f"The gradient of client '{name}' is not finite where the chains start ({config.start}). Give the "
                "globals proper priors, rescale the data, or try the other `start`."
            )
    if not np.all(np.isfinite(current.state.position)):
        raise FederatedError(
            "The Newton rounds found no mode with positive curvature to start from. Give the globals proper priors, or "
            "write `FALD(start='zero', step_size=...)`."
        )
    step, worst = float(plan.step_size), int(np.argmax(plan.curvatures))
    limit = 2.0 / float(np.max(plan.curvatures))
    if step > limit:
        raise ValueError(
            f"`step_size` is {step:.3g}, beyond stability: client '{problem.names[worst]}' has curvature "
            f"{float(plan.curvatures[worst]):.3g} in the shared coordinates, which diverges above {limit:.3g}. Theory "
            f"asks for at most {limit / 4:.3g}."
        )
