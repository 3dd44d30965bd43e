"""FedAvg's options, and what can be wrong with them."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any, Literal, Self

import jax
import jax.numpy as jnp
import numpy as np
import optax

from fedbayes.inference.fedavg.fairness import GIFAIR
from fedbayes.inference.options import (
    DENSE_LIMIT,
    HUGE,
    TINY,
    check_choices,
    check_optimizer,
    check_ranges,
    check_start,
    check_weights,
    check_whole,
    given_start,
)
from fedbayes.problem.roster import Roster

Schedule = Callable[[Any], Any]

_CHOICES = {
    "solver": ("steps", "newton"),
    "scheme": ("full", "with_replacement"),
    "locals": ("marginal", "joint"),
}
_LEAST = {"local_steps": 1, "epochs": 1, "batch_size": 1, "num_active": 1, "num_samples": 16, "max_rounds": 1}
_RANGES = {
    "step_size": (TINY, HUGE, "a positive number, or leave it out"),
    "proximal": (0.0, HUGE, "a finite number, zero or more: zero leaves the term out"),
    "tolerance": (TINY, HUGE, "a distance in posterior sds, such as 0.01"),
}
_OPTIONAL = ("local_steps", "epochs", "batch_size", "step_size", "num_active")
_STARTS = ("zero", "random", "prior")


@dataclass(frozen=True, kw_only=True)
class Options:
    """What federated averaging has for options, alone or as a member of an ensemble; ``FedAvg`` documents them."""

    optimizer: optax.GradientTransformation | None = None
    step_size: float | None = None
    schedule: Schedule | None = None
    local_steps: int | None = None
    epochs: int | None = None
    batch_size: int | None = None
    proximal: float = 0.0
    solver: Literal["steps", "newton"] = "steps"
    server_optimizer: optax.GradientTransformation | None = None
    weights: str | Mapping[str, float] = "rows"
    scheme: Literal["full", "with_replacement"] = "full"
    num_active: int | None = None
    fairness: GIFAIR | None = None
    locals: Literal["marginal", "joint"] = "marginal"
    num_samples: int = 64
    init: str | Mapping[str, Any] = "zero"
    tolerance: float = 0.01
    max_rounds: int = 200

    def __post_init__(self) -> None:
        check_choices(self, _CHOICES)
        check_whole(self, _LEAST, _OPTIONAL)
        check_ranges(self, _RANGES, _OPTIONAL)
        check_weights(self.weights)
        check_start(self.init, _STARTS)
        if isinstance(self.fairness, Mapping):  # from the folder of a saved fit
            object.__setattr__(self, "fairness", GIFAIR(**self.fairness))
        if self.fairness is not None and not isinstance(self.fairness, GIFAIR):
            raise ValueError(f"`fairness` is {self.fairness!r}; write `fedbayes.GIFAIR(groups=...)`, or leave it out.")
        if self.fairness is not None and self.weights != "rows":
            raise ValueError(
                f"`weights` is {self.weights!r} with `fairness`, whose losses are means over a client's rows: with "
                "other weights they would rank groups by their sizes. Leave `weights` out."
            )
        for name in ("optimizer", "server_optimizer"):
            check_optimizer(name, getattr(self, name))
        if (self.scheme == "full") != (self.num_active is None):
            raise ValueError(
                f"`scheme` is {self.scheme!r} and `num_active` is {self.num_active}: clients are drawn by "
                "`scheme='with_replacement'` and `num_active=...`, or all take part without either."
            )
        _check_steps(self)

    def for_one_client(self) -> Self:
        """The same method for one client alone: without what names other clients, draws them or groups them."""
        return replace(self, weights="rows", fairness=None, scheme="full", num_active=None)

    @property
    def steps(self) -> int:
        """Local steps of a round, where ``epochs`` doesn't say."""
        return 10 if self.local_steps is None else self.local_steps

    @property
    def takes_local_steps(self) -> bool:
        """Unless there is one gradient step a round, of all rows, and nothing else is told of where it ends.

        True also where clients are drawn: it is the server that says how often each was, which weighs its term.
        """
        plain = self.solver == "steps" and self.optimizer is None and self.batch_size is None and self.fairness is None
        return not plain or self.scheme != "full" or self.epochs is not None or self.steps > 1

    @property
    def needs_rows(self) -> bool:
        """Whether gradients are taken of batches."""
        return self.batch_size is not None

    @property
    def probes(self) -> bool:
        """Whether the clients' curvature at the start is asked for: plain gradient steps need it."""
        return self.solver == "steps" and self.optimizer is None


def _check_steps(config: Options) -> None:
    if config.num_samples & (config.num_samples - 1):
        raise ValueError(f"`num_samples` is {config.num_samples}; write a power of two, such as 64.")
    if config.schedule is not None:
        _check_schedule(config.schedule)
    if config.optimizer is not None and config.step_size is not None:
        raise ValueError(
            f"`step_size` is {config.step_size} beside `optimizer`, which has a step size of its own. Leave one of "
            "them out."
        )
    if config.epochs is not None and config.local_steps is not None:
        raise ValueError(
            f"`epochs` is {config.epochs} and `local_steps` is {config.local_steps}: both say how long a client works "
            "in a round. Leave one of them out."
        )
    if config.epochs is not None and config.batch_size is None:
        raise ValueError(
            f"`epochs` is {config.epochs} without `batch_size`: with all rows in each gradient a pass is one step. "
            f"Write `local_steps={config.epochs}`, or `batch_size=...`."
        )
    if config.solver == "newton":
        _check_newton(config)


def _check_schedule(schedule: Any) -> None:
    hint = "write a function of the round, such as `lambda round: 0.99 ** (round // 10)`, which multiplies the steps"
    if not callable(schedule):
        raise ValueError(f"`schedule` is {schedule!r}; {hint}.")
    try:
        found = jax.eval_shape(lambda at: jnp.asarray(schedule(at), float), jax.ShapeDtypeStruct((), np.float32))
    except Exception as error:
        raise ValueError(
            f"`schedule` can't be compiled ({type(error).__name__}): {hint}. The round is traced: in place of `if` "
            "write `jnp.where(round < 3, 1.0, 0.5)`."
        ) from error
    if found.shape:
        raise ValueError(f"`schedule` returns an array of shape {found.shape}; {hint}.")


def _check_newton(config: Options) -> None:
    for name in ("optimizer", "step_size", "schedule", "local_steps", "epochs", "batch_size"):
        if getattr(config, name) is not None:
            raise ValueError(
                f"`{name}` is {getattr(config, name)!r} with `solver='newton'`, which minimises the client's proximal "
                "loss exactly and takes no gradient steps. Leave it out."
            )
    if config.proximal == 0.0:
        raise ValueError(
            "`proximal` is 0 with `solver='newton'`: each client would go to its own optimum in every round. Write "
            "`proximal=1.0`, the weight of the distance from the server, or `solver='steps'`."
        )


def check_roster(config: Options, roster: Roster) -> None:
    """Refuse options that don't fit the clients and the globals."""
    unfit = {"batch_size": config.batch_size is not None, "solver": config.solver == "newton"}
    for name in (name for name, wrong in unfit.items() if wrong and roster.num_locals.any()):
        raise ValueError(
            f"`{name}` is {getattr(config, name)!r}, but the model has local latents, which are integrated out over "
            "all rows of a client at each gradient step. Leave it out."
        )
    if config.solver == "newton":
        check_dense(config, "solver", roster)
    if isinstance(config.init, Mapping):
        given_start(config.init, roster)
    elif config.init == "prior":
        _check_proper(roster)


def check_dense(config: Options, name: str, roster: Roster) -> None:
    """Refuse an option that asks for matrices where the globals are too many."""
    if roster.size > DENSE_LIMIT:
        raise ValueError(
            f"`{name}` is {getattr(config, name)!r}, but the model has {roster.size} globals, more than the "
            f"{DENSE_LIMIT} for which clients factorise or send matrices. Leave it out."
        )


def _check_proper(roster: Roster) -> None:
    try:
        jax.eval_shape(roster.prior.draw, jax.random.key(0))
    except NotImplementedError as error:
        raise ValueError(
            "`init` is 'prior', but a prior of the globals can't be drawn from. Write 'random', or arrays by global "
            f"site, in unconstrained space. {error}"
        ) from error
