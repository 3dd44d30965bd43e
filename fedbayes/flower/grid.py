"""Requests and answers over Flower's grid."""

import hashlib
import logging
import time
from collections.abc import Iterable, Iterator, Mapping

from flwr.app import Error, Message
from flwr.serverapp import Grid

from fedbayes.errors import UNREADABLE
from fedbayes.flower.codes import NoAnswer
from fedbayes.flower.messages import MESSAGE_TYPE, NUDGE, pack, unpack
from fedbayes.flower.waits import ask_sooner
from fedbayes.network.transport import Failure, NodeKey

logger = logging.getLogger(__name__)


_GRACE = 1.0  # seconds for which Flower still keeps an answer that came just before the deadline

_NUDGE_LIVES = 60.0  # seconds

_SHARE = 0.05  # of the time for which no answer has come
_SELDOM = 1.0  # seconds: the longest pause between two looks

# Flower's codes (flwr.common.constant.ErrorCode is not among its public modules). All others mean that the app failed.
_FAILURES = {
    3: Failure.LATE,  # the message has expired
    4: Failure.LATE,  # the answer has expired
    5: Failure.GONE,  # the node has sent no sign of life
    NoAnswer.TOO_LATE: Failure.LATE,
}


class GridTransport:
    """Carries the requests of a fit to the nodes of a Flower federation, and their answers back.

    It asks for answers itself, and sooner than Flower's ``send_and_receive``, which sleeps for three seconds each time.
    A look costs server and app some hundredths of a second of work, so that where sites compute for long looks are
    rarer: after a twentieth of the time for which no answer has come, but at least every second.

    Parameters
    ----------
    grid
        What Flower gives to a server app.
    keys
        Whether nodes have keys of their own that outlive a restart, so that a site can be bound to its node's key.
        ``None``: those have one that were registered under a name (``flwr supernode register --name``), and no other
        node takes part: it could claim any site. A node that nobody has registered makes a new key whenever it starts,
        and has no name.
    pause
        Seconds between two looks for answers, at first.
    nudge_after
        Seconds after which a node that has not answered is sent a message that asks for nothing. A node whose server
        ended before it had sent an answer goes on with that as its answer to the next message, and then stays one
        behind: it sends an answer only when another message comes (Flower's SuperNode, 1.41).
    """

    def __init__(self, grid: Grid, *, keys: bool | None = None, pause: float = 0.1, nudge_after: float = 30.0) -> None:
        ask_sooner()
        self._grid, self._keys, self._pause, self._nudge_after = grid, keys, pause, nudge_after
        self._nameless: set[int] = set()  # nodes that were told of
        self._one_by_one = False  # since Flower could not read some answer

    def addresses(self) -> Mapping[int, NodeKey | None]:
        """The nodes that may take part and are there now, each with its key; ``None`` where it has no lasting one."""
        nodes = list(self._grid.get_nodes())
        if self._keys is None:
            self._tell_nameless(node.node_id for node in nodes if not node.name)
            nodes = [node for node in nodes if node.name]
        lasting = self._keys is not False
        return {node.node_id: _key(node.public_key, node.name) if lasting else None for node in nodes}

    def _tell_nameless(self, addresses: Iterable[int]) -> None:
        for address in set(addresses) - self._nameless:
            self._nameless.add(address)
            logger.warning(
                "Node %s is registered under no name and takes no part. Register its key under its site's name, "
                '`flwr supernode register KEY server --name SITE`; where nodes have no keys, set node-keys = "no".',
                address,
            )

    def send(self, requests: Mapping[int, bytes], timeout: float) -> Iterator[tuple[int, bytes | Failure]]:
        """Send one request to each node.

        Parameters
        ----------
        requests
            By address.
        timeout
            Seconds after which no answer counts. Flower discards requests and answers that are older.

        Returns
        -------
        Iterator[tuple[int, bytes | Failure]]
            Every address once: with its answer as that comes in, or else with why there is none. Answers to earlier
            requests are never among them.
        """
        deadline = time.monotonic() + timeout
        ttl = timeout + _GRACE
        messages = [Message(pack(request), address, MESSAGE_TYPE, ttl=ttl) for address, request in requests.items()]
        # Flower gives no id to a message that it could not store
        ids = self._grid.push_messages(messages) if messages else []
        waiting = {name: address for name, address in zip(ids, requests, strict=False) if name}
        refused = requests.keys() - waiting.values()
        return self._answers(waiting, sorted(refused), deadline)

    def _answers(
        self, waiting: dict[str, int], refused: list[int], deadline: float
    ) -> Iterator[tuple[int, bytes | Failure]]:
        yield from ((address, Failure.GONE) for address in refused)
        came = time.monotonic()
        nudge_at = came + self._nudge_after
        while waiting:
            if time.monotonic() >= nudge_at:
                self._nudge(waiting.values())
                nudge_at = deadline
            last = time.monotonic() >= deadline
            for name, message in self._pulled(dict(waiting)):
                address = waiting.pop(name, None)
                if address is not None:  # a second answer to one request counts for nothing
                    yield address, _answer(address, message)
                    came = time.monotonic()
            if last:
                break
            if waiting:
                now = time.monotonic()
                pause = max(self._pause, min(_SELDOM, _SHARE * (now - came)))
                time.sleep(min(pause, max(0.0, deadline - now)))
        if waiting:
            here = {node.node_id for node in self._grid.get_nodes()}
            yield from ((address, Failure.LATE if address in here else Failure.GONE) for address in waiting.values())

    def _nudge(self, addresses: Iterable[int]) -> None:
        """Make nodes that are one answer behind send that answer."""
        nudges = [Message(pack(NUDGE), address, MESSAGE_TYPE, ttl=_NUDGE_LIVES) for address in addresses]
        self._grid.push_messages(nudges)

    def _pulled(self, waiting: Mapping[str, int]) -> Iterator[tuple[str, Message | None]]:
        """What has come of the answers that are waited for; ``None`` is content that Flower itself can't read.

        Flower reads all answers of one look together, and loses the others with the one that it can't read. From then
        on each is asked for by itself.
        """
        for names in [[name] for name in waiting] if self._one_by_one else [list(waiting)]:
            try:
                messages = list(self._grid.pull_messages(names))
            except UNREADABLE as error:
                if len(names) == 1:
                    logger.warning("node %s: Flower can't read its answer (%s)", waiting[names[0]], _kind(error))
                    yield names[0], None
                    continue
                logger.warning("Flower can't read some node's answer (%s); each is asked for alone now", _kind(error))
                self._one_by_one = True
                yield from self._pulled(waiting)
                return
            for message in messages:
                about = message.metadata
                # an error comes from Flower itself where a node's answer is lost
                if message.has_error() or about.src_node_id == waiting.get(about.reply_to_message_id):
                    yield about.reply_to_message_id, message


def _kind(error: Exception) -> str:
    return type(error).__name__


def _key(public: bytes, name: str | None) -> NodeKey:
    return NodeKey("SHA256:" + hashlib.sha256(public).hexdigest(), name or "")


def _answer(address: int, message: Message | None) -> bytes | Failure:
    if message is None:
        return Failure.FAILED
    if message.has_error():
        logger.warning("node %s: %s", address, _in_words(message.error))
        return _FAILURES.get(message.error.code, Failure.FAILED)
    try:
        return unpack(message)
    except UNREADABLE as error:
        logger.warning("node %s: %s", address, error)
        return Failure.FAILED


def _in_words(error: Error) -> str:
    """The error without the text that came with it, which may be that of an exception."""
    try:
        return NoAnswer(error.code).meaning
    except ValueError:
        return f"Flower's error {error.code}"
