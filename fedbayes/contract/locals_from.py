"""What is asked of whatever a client's own posterior comes from, once the rounds are over."""

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from enum import StrEnum
from types import MappingProxyType
from typing import Any, ClassVar, NamedTuple, Protocol

import numpy as np
from jax import Array
from jaxtyping import Float

from fedbayes.numerics.gaussian import Gaussian

Variables = Mapping[str, tuple[np.ndarray, list[str]]]
Private = Any


class Wanted(NamedTuple):
    """Draws of a client's own posterior, asked for once the rounds are over.

    Attributes
    ----------
    mean
        Of the globals, where the search for the mode starts.
    slots
        One for each draw.
    """

    mean: Float[Array | np.ndarray, "*chain d"]
    slots: Float[Array | np.ndarray, "*chain num"]


class Personal(NamedTuple):
    """Draws of one client's own posterior.

    Attributes
    ----------
    draws
        Globals and locals, unconstrained, ``p = d + m`` numbers each.
    attrs
        How they were made.
    """

    draws: Float[np.ndarray, "chain draw p"]
    attrs: dict[str, Any]


class AtClient(Protocol):
    """One client once the rounds are over: in this process, or at its own site."""

    @property
    def update(self) -> str:
        """The update that it ran last."""
        ...

    def reply(self, update: str, shared: Any) -> Any:
        """What an update tells the client itself; at a site ``shared`` is in the message already."""
        ...

    def private(self) -> Private:
        """Its private state at the end of the rounds."""
        ...

    def recorded(self, num: int) -> Float[np.ndarray, "{num} chain m"]:
        """Its own part of the last ``num`` draws."""
        ...


class Question(StrEnum):
    """What not every kind of answer can be asked."""

    CLIENT_POSTERIOR = "client_posterior"
    NEW_CLIENT = "new client"
    EXACT = "exact"
    SENSITIVITY = "sensitivity"
    PRIOR_REPLICATES = "prior replicates"


class LocalsFrom(ABC):
    """Where a client's own posterior comes from.

    Attributes
    ----------
    kind
        Its name in the message with which a run over a network ends.
    has_cavities
        Whether each client has a cavity: the posterior without its site.
    others
        These cavities where the server knows them, leading axes replicate and client; else ``None``.
    variables
        What the posterior has beside the program's own variables, ``(chain, draw, ...)``, with their dimensions.
    coords
        Labels of these dimensions.
    """

    kind: ClassVar[str]
    has_cavities: ClassVar[bool] = False
    others: Gaussian | None = None
    variables: Variables = MappingProxyType({})
    coords: Mapping[str, Sequence] = MappingProxyType({})

    @abstractmethod
    def told(self) -> Any:
        """What each client is told beside the draws of the globals, leading axes client and chain; ``()``: nothing."""

    @abstractmethod
    def draws(self, at: AtClient, theta: Float[np.ndarray, "chain draw d"], num_draws: int) -> Personal:
        """A client's own posterior, in the server's process.

        Parameters
        ----------
        at
            The client.
        theta
            Draws of the globals.
        num_draws
            Draws of a chain, for an answer that is a point.
        """

    def for_sites(self, theta: Float[np.ndarray, "chain draw d"], num_draws: int) -> Float[np.ndarray, "chain place d"]:
        """The draws of the globals for each of which a client at its own site gets one draw of its locals."""
        return theta

    def own_posterior(self, num_locals: int) -> bool:
        """Whether the posterior of a client with so many locals differs from that of the globals."""
        return True

    def refuses(self, question: Question) -> str:
        """Why a question can't be answered, in a sentence for the user; empty if it can."""
        return ""


def check(source: LocalsFrom, question: Question) -> None:
    """Raise the refusal of a question that can't be answered.

    Raises
    ------
    ValueError
        It can't.
    """
    if reason := source.refuses(question):
        raise ValueError(reason)
