"""What can go wrong: bad input raises before work starts; a failure in a round is data, reported per client."""

from enum import IntEnum
from typing import Any


class ClientDataError(ValueError):
    """The clients' data cannot be used; the message names the client, the argument and the value seen."""


class ModelError(ValueError):
    """The program cannot be fitted by federation; the message names the site and what to write instead."""


class FederatedError(RuntimeError):
    """A fit broke down; the message names the round, the clients and what to try."""


class NotConvergedWarning(UserWarning):
    """A fit stopped at its round limit, or with clients whose messages could not be used."""


class MergeWarning(UserWarning):
    """Clients' posteriors are summed up in another way than asked for, because the draws are too few."""


class ResultCode(IntEnum):
    """Outcome of one client's round. Inside compiled code it is an integer; the edge turns it into words."""

    OK = 0
    INACTIVE = 1
    NOT_FINITE = 2
    IMPROPER = 3
    UNRELIABLE = 4

    @property
    def meaning(self) -> str:
        """The code in words."""
        return _MEANINGS[self]


def usable(codes: Any) -> Any:
    """Whether messages with these codes count: an array of NumPy or JAX in, booleans out."""
    return (codes == ResultCode.OK) | (codes == ResultCode.UNRELIABLE)


_MEANINGS = {
    ResultCode.OK: "used",
    ResultCode.INACTIVE: "did not take part this round; its last message stays",
    ResultCode.NOT_FINITE: "message not finite: dropped, its last message stays",
    ResultCode.IMPROPER: "the tilted density is not proper: dropped, its last message stays",
    ResultCode.UNRELIABLE: "importance weights heavy-tailed (k-hat above 0.7): used, but not to be trusted",
}
