"""A network in one process: every message goes through bytes, and clients share nothing with the server.

To try a study before there are nodes, and for tests.
"""

from collections.abc import Iterator, Mapping

from fedbayes.network.answering import AnsweringSite
from fedbayes.network.transport import Address, Failure, NodeKey


class Rehearsal:
    """Sites in this process, each under a number.

    Parameters
    ----------
    sites
        The clients. One that is ``None`` is a node that never answers.
    """

    def __init__(self, *sites: AnsweringSite | None) -> None:
        self.sites: dict[Address, AnsweringSite | None] = dict(enumerate(sites, start=1))
        self.keys: dict[Address, NodeKey] = {}
        self.sent: list[bytes] = []
        self.answered: list[bytes] = []

    def addresses(self) -> Mapping[Address, NodeKey | None]:
        """See :class:`~fedbayes.network.transport.Transport`."""
        return {address: self.keys.get(address) for address in self.sites}

    def send(self, requests: Mapping[Address, bytes], timeout: float) -> Iterator[tuple[Address, bytes | Failure]]:
        """See :class:`~fedbayes.network.transport.Transport`."""
        for address, request in requests.items():
            self.sent.append(request)
            if address not in self.sites:
                yield address, Failure.GONE
                continue
            site = self.sites[address]
            if site is None:
                yield address, Failure.LATE
                continue
            answer = site.answer(request)
            self.answered.append(answer)
            yield address, answer
