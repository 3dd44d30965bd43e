"""FA-LD's options, and what can be wrong with them: whatever the data are, or for given clients."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any, Literal, Self

import numpy as np

from fedbayes.errors import ModelError
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
from fedbayes.problem.roster import Roster

Schedule = Callable[[Any], Any]

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
LEAST_STEP = 1e-250
"""Of a private step, times the temperature: what is below 2e-308 is zero on a processor, noise and all."""
_RANGES = {
    "noise_correlation": (0.0, 1.0, "a number in [0, 1]: 1 shares all noise, 0 none"),
    "temperature": (0.0, HUGE, "a finite number, zero or more: 1 is the posterior, 0 federated averaging"),
    "max_bias": (TINY, np.inf, "a positive number, such as 0.02"),
    "clip": (TINY, np.inf, "a positive number, or leave it out"),
}


@dataclass(frozen=True, kw_only=True)
class Options:
    """The options of :class:`~fedbayes.FALD`, which documents them."""

    local_steps: int | None = None
    step_size: float | str | Schedule | None = None
    noise_correlation: float = 1.0
    temperature: float = 1.0
    weights: str | Mapping[str, float] = "rows"
    scheme: Literal["full", "with_replacement", "without_replacement"] = "full"
    num_active: int | None = None
    allow_unbalanced: bool = False
    batch_size: int | None = None
    clip: float | None = None
    control_variate: bool | None = None
    refresh: int | None = None
    preconditioner: Literal["dense", "diagonal", "none"] = "dense"
    init: Literal["mode", "zero"] = "mode"
    max_bias: float = 0.02
    num_chains: int = 4
    num_warmup: int = 100
    thinning: int | None = None
    max_rounds: int = 1_000_000

    def __post_init__(self) -> None:
        if self.control_variate is None:
            object.__setattr__(self, "control_variate", self.init == "mode" and self.clip is None)
        check_options(self)

    def for_one_client(self) -> Self:
        """The same method for one client alone: without the other clients' weights, and drawing none of them."""
        return replace(self, weights="rows", scheme="full", num_active=None)


def is_private(config: Options) -> bool:
    """Whether a client's steps hide single records: their gradients are clipped, and it adds noise of its own."""
    return config.clip is not None and config.noise_correlation < 1.0 and config.temperature > 0.0


def check_options(config: Options) -> None:
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


def _check_step(config: Options) -> None:
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


def _check_scheme(config: Options) -> None:
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


def _check_privacy(config: Options) -> None:
    if config.clip is not None and config.control_variate:
        raise ValueError(
            f"`clip` is {config.clip}, but the control variate sends each client's gradient at the anchor, unclipped "
            "and without noise. Write `control_variate=False`."
        )


def check_roster(config: Options, roster: Roster, weights: np.ndarray) -> None:
    """Refuse options that don't fit the clients."""
    num = roster.num_clients
    if config.num_active is not None and config.num_active > num:
        raise ValueError(f"`num_active` is {config.num_active}, but there are {num} clients. Write {num} or less.")
    uneven = not np.allclose(weights, 1.0 / num, rtol=1e-9)
    if config.scheme == "without_replacement" and uneven and not config.allow_unbalanced:
        raise ValueError(
            f"Scheme 'without_replacement' averages the drawn clients alike, but their weights run from "
            f"{weights.min():.3g} (client '{roster.names[int(np.argmin(weights))]}') to {weights.max():.3g}: its mean "
            "would be biased. Write `scheme='with_replacement'`, `weights='equal'`, or `allow_unbalanced=True`."
        )
    check_batch(config.batch_size, roster)
    if config.clip is not None and roster.dependent:
        raise ModelError(
            f"`clip` is {config.clip}, but the rows of a client depend on each other, as in a Gaussian process: its "
            "gradient is not a sum over rows, each of which could be clipped. Leave `clip` out."
        )
    if config.clip is not None and np.any(roster.num_locals):
        raise ValueError(
            f"`clip` is {config.clip}, but the model has local latents: its gradient in the globals is not a sum over "
            "rows, so clipping rows does not bound it. Leave `clip` out."
        )
