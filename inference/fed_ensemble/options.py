"""Fed-ensemble's options beside those of its members, and what can be wrong with them."""

import warnings
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, Literal, Self

from fedbayes.inference.fedavg import options as member
from fedbayes.inference.options import check_choices, check_whole, client_weights
from fedbayes.problem.roster import Roster

_UNEQUAL = 3.0  # ratio of clients' weights from which teams are worth a warning
_CHOICES = {"assignment": ("latin", "random", "all"), "randomised": (True, False)}
_LEAST = {"num_modes": 1, "num_strata": 1, "clients_per_stratum": 1}


@dataclass(frozen=True, kw_only=True)
class Options(member.Options):
    """The options of :class:`~fedbayes.FedEnsemble`, which documents them."""

    num_modes: int = 5
    assignment: Literal["latin", "random", "all"] = "latin"
    num_strata: int | None = None
    clients_per_stratum: int | None = None
    randomised: bool = False
    init: str | Mapping[str, Any] = "random"

    def __post_init__(self) -> None:
        super().__post_init__()
        check_choices(self, _CHOICES)
        check_whole(self, _LEAST, ("num_strata", "clients_per_stratum"))
        if self.fairness is not None and self.fairness.personalised:
            raise ValueError(
                "`fairness` is personalised, but a client of an ensemble trains several modes and has no point of its "
                "own. Write `fedbayes.GIFAIR(..., personalised=False)`, or `fedbayes.FedAvg(fairness=...)`."
            )
        if self.scheme != "full":
            raise ValueError(
                f"`scheme` is {self.scheme!r}, but an ensemble draws its clients from strata. Write "
                "`clients_per_stratum=...`, or `participation` of `fit_federated`."
            )
        if self.assignment == "all":
            _check_all(self)
        if self.randomised:
            _check_randomised(self)
        if self.randomised and self.assignment != "all":
            raise ValueError(
                f"`randomised` is True with `assignment={self.assignment!r}`: where a mode sees a part of the clients "
                "in a round, it ends in noise that would count as posterior spread. Write `assignment='all'`."
            )
        if self.clients_per_stratum is not None and self.num_strata is None:
            raise ValueError(
                f"`clients_per_stratum` is {self.clients_per_stratum} without `num_strata`: each client is a stratum "
                "of its own then. Write the number of strata too, or `participation` of `fit_federated`."
            )

    @property
    def steps(self) -> int:
        """Local steps of a round; one by default for randomised modes, which more would lead beside the posterior."""
        return 1 if self.randomised and self.local_steps is None else super().steps

    @property
    def takes_local_steps(self) -> bool:
        """True also for randomised modes: their outcomes are drawn at the server's position, and jump as it moves."""
        return self.randomised or super().takes_local_steps

    def for_one_client(self) -> Self:
        """See :meth:`~fedbayes.inference.fedavg.options.Options.for_one_client`: it trains all modes."""
        return replace(super().for_one_client(), assignment="all", num_strata=None, clients_per_stratum=None)


def _check_randomised(config: Options) -> None:
    """Modes are draws of the posterior only where the rounds end at the tilted energies' own minima."""
    plain = {"local_steps": (None, 1), "optimizer": (None,), "batch_size": (None,), "proximal": (0.0,)}
    for name, known in {**plain, "fairness": (None,)}.items():
        if getattr(config, name) not in known:
            raise ValueError(
                f"`{name}` is {getattr(config, name)!r} with `randomised=True`: the rounds would end beside the modes "
                "that are draws of the posterior, or in noise around them. Leave it out; `server_optimizer`, such as "
                "`optax.sgd(1.0, momentum=0.9)`, makes the rounds quicker without that."
            )


def _check_all(config: Options) -> None:
    for name in ("num_strata", "clients_per_stratum"):
        if (value := getattr(config, name)) is not None:
            raise ValueError(
                f"`{name}` is {value} with `assignment='all'`, where every client trains every mode in every round. "
                "Leave one of them out."
            )


def check_roster(config: Options, roster: Roster) -> None:
    """Refuse options that don't fit the clients and the globals; warn of modes that idle."""
    member.check_roster(config, roster)
    num = roster.num_clients
    if config.num_strata is not None and config.num_strata > num:
        raise ValueError(
            f"`num_strata` is {config.num_strata}, but there are {num} clients. Write a number up to {num}, or leave "
            "it out: each client is a stratum of its own then."
        )
    if config.clients_per_stratum is not None and config.clients_per_stratum * (config.num_strata or num) > num:
        raise ValueError(
            f"`clients_per_stratum` is {config.clients_per_stratum}, but the smallest of the {config.num_strata} "
            f"strata has {num // (config.num_strata or num)} of the {num} clients. Write a number up to that, or leave "
            "it out."
        )
    if config.randomised and roster.num_locals.any():
        raise ValueError(
            "`randomised` is True, but the model has local latents, whose outcomes can't be drawn anew for given "
            "globals alone. Leave it out; `method='ep'` has their posterior."
        )
    shares = client_weights(config.weights, roster)
    if config.assignment != "all" and config.num_modes > 1 and shares.max() > _UNEQUAL * shares.min():
        warnings.warn(
            f"The clients' weights differ by a factor of {shares.max() / shares.min():.0f}. In a round a mode moves to "
            "the mean of the few clients that train it, and where a small client is alone it moves the mode as far as "
            "a large one: modes end beside those of the posterior. Write `assignment='all'`, which has no such bias.",
            stacklevel=2,
        )
    busy = num if config.clients_per_stratum is None else config.clients_per_stratum * (config.num_strata or num)
    if config.assignment != "all" and config.num_modes > busy:
        warnings.warn(
            f"`num_modes` is {config.num_modes}, but {busy} clients take part in a round: {config.num_modes - busy} or "
            "more modes idle in each. Write fewer modes, or `assignment='all'`, where each client trains all of them.",
            stacklevel=2,
        )
