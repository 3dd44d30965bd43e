"""What can be wrong with FA-LD's options, said before sampling starts."""

from typing import TYPE_CHECKING

import jax.numpy as jnp
import numpy as np

from fedbayes.errors import FederatedError, ResultCode
from fedbayes.inference.options import (
    HUGE,
    TINY,
    check_batch,
    check_choices,
    check_ranges,
    check_weights,
    check_whole,
    is_number,
)
from fedbayes.problem.problem import Problem

if TYPE_CHECKING:
    from fedbayes.inference.fald.method import FALD
    from fedbayes.inference.fald.plan import Plan
    from fedbayes.rounds.loop import Progressing

_CHOICES = {
    "scheme": ("full", "with_replacement", "without_replacement"),
    "preconditioner": ("dense", "diagonal", "none"),
    "init": ("mode", "zero"),
    "control_variate": (True, False),
    "allow_unbalanced": (True, False),
}
_LEAST = {
    "local_steps": 1,
    "num_active": 1,
    "batch_size": 1,
    "refresh": 1,
    "thinning": 1,
    "num_chains": 1,
    "max_rounds": 1,
    "num_warmup": 0,
}
_OPTIONAL = ("local_steps", "num_active", "batch_size", "refresh", "thinning", "clip")
_RANGES = {
    "noise_correlation": (0.0, 1.0, "a number in [0, 1]: 1 shares all noise, 0 none"),
    "temperature": (0.0, HUGE, "a finite number, zero or more: 1 is the posterior, 0 federated averaging"),
    "bias": (TINY, np.inf, "a positive number, such as 0.02"),
    "clip": (TINY, np.inf, "a positive number, or leave it out"),
}
_DIVERGED = {True: 1e6, False: 1e30}  # in posterior sds where coordinates are whitened, else in the model's units


def check_options(config: "FALD") -> None:
    """Refuse options that make no sense whatever the data are."""
    check_choices(config, _CHOICES)
    check_whole(config, _LEAST, _OPTIONAL)
    check_ranges(config, _RANGES, _OPTIONAL)
    if config.max_rounds <= config.num_warmup:
        raise ValueError(
            f"`max_rounds` is {config.max_rounds}, but `num_warmup` throws away {config.num_warmup} draws, a round or "
            "more each: none would be left. Raise `max_rounds` or lower `num_warmup`."
        )
    _check_step(config)
    check_weights(config.weights)
    _check_scheme(config)
    _check_privacy(config)


def _check_step(config: "FALD") -> None:
    step = config.step_size
    named = step is None or (isinstance(step, str) and step == "decaying")
    if not (named or is_number(step) or callable(step)):
        raise ValueError(
            f"`step_size` is {step!r}; write a number (an `int` or `float`), 'decaying', a function of the local "
            "iteration, or leave it out."
        )
    if isinstance(step, int | float) and not 0.0 < step < np.inf:
        raise ValueError(
            f"`step_size` is {step}; a Langevin step is positive and finite. Leave it out for the default."
        )
    if config.init == "zero" and named:
        raise ValueError(
            f"`step_size` is {step!r} with `init='zero'`: nothing is known of the curvature there. Write a number, "
            "such as 0.1 / n for n rows in all, or `init='mode'`."
        )


def _check_scheme(config: "FALD") -> None:
    if config.scheme == "full" and config.num_active is not None:
        raise ValueError(
            f"`num_active` is {config.num_active} with `scheme='full'`; say how they are drawn: "
            "`scheme='with_replacement'` or `scheme='without_replacement'`."
        )
    if config.scheme != "full" and config.num_active is None:
        raise ValueError(f"`scheme` is {config.scheme!r}; say how many clients a round has, `num_active=...`.")
    if config.control_variate and config.init == "zero" and config.refresh is None:
        raise ValueError(
            "`control_variate=True` with `init='zero'` anchors the clients far from the mode, where it biases the "
            "mean. Write `init='mode'`, `refresh=1`, or leave it out."
        )
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


def check_problem(config: "FALD", problem: Problem, weights: np.ndarray) -> None:
    """Refuse options that don't fit the clients."""
    num = len(problem.names)
    if config.num_active is not None and config.num_active > num:
        raise ValueError(f"`num_active` is {config.num_active}, but there are {num} clients. Write {num} or less.")
    uneven = not np.allclose(weights, 1.0 / num, rtol=1e-9)
    if config.scheme == "without_replacement" and uneven and not config.allow_unbalanced:
        raise ValueError(
            f"Scheme 'without_replacement' averages the drawn clients alike, but their weights run from "
            f"{weights.min():.3g} (client '{problem.names[int(np.argmin(weights))]}') to {weights.max():.3g}: its mean "
            "would be biased. Write `scheme='with_replacement'`, `weights='equal'`, or `allow_unbalanced=True`."
        )
    check_batch(config.batch_size, problem)
    if config.clip is not None and any(bucket.clients.num_locals for bucket in problem.buckets):
        raise ValueError(
            f"`clip` is {config.clip}, but the model has local latents: its gradient in the globals is not a sum over "
            "rows, so clipping rows does not bound it. Leave `clip` out."
        )


def check_start(current: "Progressing", problem: Problem, config: "FALD", plan: "Plan") -> None:
    """Refuse chains that can't start: a mode without curvature, a gradient that is not finite, an unstable step."""
    _check_curvature(current, config, plan)
    for bucket, private in zip(problem.buckets, current.clients, strict=True):
        good = np.all(np.isfinite(private.own), axis=(1, 2))
        if not np.all(good):
            name = problem.names[bucket.members[int(np.argmin(good))]]
            raise FederatedError(
                f"The gradient of client '{name}' is not finite where the chains start ({config.init}). Give the "
                "globals proper priors, rescale the data, or try the other `init`."
            )
    step, worst = _step_at(config, plan, 0.0), int(np.argmax(plan.curvatures))
    if not 0.0 <= step < np.inf:
        raise ValueError(f"`step_size` gives {step} at iteration 0; a schedule gives positive numbers.")
    limit = 2.0 / float(np.max(plan.curvatures))
    if step > limit:
        raise ValueError(
            f"`step_size` is {step:.3g}, beyond stability: client '{problem.names[worst]}' has curvature "
            f"{float(plan.curvatures[worst]):.3g} in the shared coordinates, which diverges above {limit:.3g}. Theory "
            f"asks for at most {limit / 4:.3g}."
        )


def _check_curvature(current: "Progressing", config: "FALD", plan: "Plan") -> None:
    known = (current.state.coordinates.white, current.state.position, plan.rounds_per_draw)
    if not all(np.all(np.isfinite(value)) for value in known):
        raise FederatedError(
            "The Newton rounds found no mode with positive curvature to start from. Give the globals proper priors, or "
            "write `FALD(init='zero', step_size=...)`."
        )
    if config.thinning is None and plan.rounds_per_draw > config.max_rounds:
        raise FederatedError(
            f"One draw would take {float(plan.rounds_per_draw):.2g} rounds, more than `max_rounds`, "
            f"{config.max_rounds}: some direction has next to no curvature. Write `preconditioner='dense'`, rescale "
            "the globals, or write `thinning=...`."
        )


def _step_at(config: "FALD", plan: "Plan", iteration: float) -> float:
    """The step size at a local iteration; of the default and of ``"decaying"`` the first."""
    if not callable(config.step_size):
        return float(plan.step_size)
    step = np.asarray(config.step_size(jnp.asarray(iteration)))
    if step.shape != ():
        raise ValueError(
            f"`step_size` gives shape {step.shape} at iteration {iteration:g}; a schedule gives one number."
        )
    return float(step)


def check_alive(current: "Progressing", problem: Problem, config: "FALD", plan: "Plan") -> None:
    """Refuse to go on with chains that have diverged."""
    lost = np.any(np.all(current.history[-1]["code"] == ResultCode.NOT_FINITE, axis=0))
    far = _DIVERGED[config.init == "mode" and config.preconditioner != "none"]
    if not lost and np.all(np.abs(np.nan_to_num(current.state.position, nan=np.inf)) < far):
        return
    done = current.rounds_in_phase
    step = _step_at(config, plan, float(done * plan.local_steps))
    advice = "Write a smaller schedule" if callable(config.step_size) else f"Try `FALD(step_size={step / 4:.2g})`"
    worst = problem.names[int(np.argmax(plan.curvatures))]
    known = f"the client with the largest curvature is '{worst}'" if config.init == "mode" else "or `init='mode'`"
    raise FederatedError(f"The chain diverged by round {done}, with step size {step:.3g}. {advice}; {known}.")
