"""What is asked of whatever a client's own posterior comes from, once the rounds are over."""

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from enum import StrEnum
from types import MappingProxyType
from typing import Any, ClassVar, NamedTuple, Protocol

import numpy as np
from jax import Array
from jaxtyping import Float

from fedbayes.numerics.gaussian import Gaussian

Variables = Mapping[str, tuple[np.ndarray, list[str]]]
Private = Any
GLOBALS = "globals"  # the kind of a client that has no latents of its own


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
        Its name in the message with which a run over a network ends, by which the client's site finds the class.
    by_locals
        Whether a client without locals has the posterior of the globals, and nothing of its own to draw.
    has_cavities
        Whether each client has a cavity: the posterior without its site. Then a Gaussian answer is checked and
        corrected, and a corrected client's posterior is made of weighted draws: :meth:`draws` is not asked.
    others
        These cavities where the server knows them, leading axes replicate and client; else ``None``.
    variables
        What the posterior has beside the program's own variables, ``(chain, draw, ...)``, with their dimensions.
    coords
        Labels of these dimensions.
    """

    kind: ClassVar[str]
    by_locals: ClassVar[bool] = True
    has_cavities: ClassVar[bool] = False
    others: Gaussian | None = None
    variables: Variables = MappingProxyType({})
    coords: Mapping[str, Sequence] = MappingProxyType({})
    kinds: ClassVar[dict[str, "type[LocalsFrom]"]] = {}

    def __init_subclass__(cls) -> None:
        """Make the class known to the sites by its kind; it must be one of its own."""
        if getattr(cls, "kind", GLOBALS) == GLOBALS:
            raise TypeError(f"`{cls.__name__}` needs a `kind` of its own, by which the clients' sites find it.")
        known = LocalsFrom.kinds.setdefault(cls.kind, cls)
        if (known.__module__, known.__qualname__) != (cls.__module__, cls.__qualname__):
            raise TypeError(f"`{cls.__name__}.kind` is {cls.kind!r}, as that of `{known.__name__}`: write another.")

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

    @staticmethod
    @abstractmethod
    def draws_at_site(
        at: AtClient, theta: Float[np.ndarray, "chain draw d"], of: Callable[[Private], np.ndarray]
    ) -> Personal:
        """A client's own posterior, at its own site, where the class is all that is known of the answer.

        Each draw of the globals gets one draw of the client's locals given it and the client's data: together they are
        draws of the joint posterior, ``p(theta | all data) p(z | theta, own data)``.

        Parameters
        ----------
        at
            The client.
        theta
            Draws of the globals from the last message, :meth:`for_sites`.
        of
            The points in a private state, :meth:`fedbayes.contract.algorithm.Method.own_draws`.
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
