"""What an engine must do for a fit over a network: say which nodes there are, and carry bytes to them and back."""

from collections.abc import Iterator, Mapping
from enum import Enum
from typing import NamedTuple, Protocol

Address = int  # of a node, as the engine knows it; a restarted node may have another


class Failure(Enum):
    """Why a node has no answer."""

    LATE = "did not answer before the deadline"
    GONE = "is not there any more"
    FAILED = "has a program that failed"


class NodeKey(NamedTuple):
    """The key by which a node is known.

    Attributes
    ----------
    fingerprint
        Of its public half.
    name
        Under which the server has registered it; empty if under none.
    """

    fingerprint: str
    name: str = ""


class Transport(Protocol):
    """Carries requests to nodes, and their answers back."""

    def addresses(self) -> Mapping[Address, NodeKey | None]:
        """The nodes that are there now, each with its key; ``None`` where nodes have no keys that last."""
        ...

    def send(self, requests: Mapping[Address, bytes], timeout: float) -> Iterator[tuple[Address, bytes | Failure]]:
        """One request to each node; each answer as it comes in, and a failure for each node without one.

        Parameters
        ----------
        requests
            By node.
        timeout
            Seconds after which there are no more answers; later ones are lost.
        """
        ...
