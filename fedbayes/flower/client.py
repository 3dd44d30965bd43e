"""The client app: Flower starts a new process for every message, and this is what runs there."""

import logging
from collections.abc import Callable, Mapping
from typing import Protocol

from flwr.app import Context, Error, Message
from flwr.clientapp import ClientApp

from fedbayes.flower.codes import SiteError
from fedbayes.flower.messages import ACTION, pack, unpack

logger = logging.getLogger(__name__)

Config = Mapping[str, str | int | float | bool]


class Answering(Protocol):
    """What answers a site's requests."""

    def answer(self, request: bytes) -> bytes:
        """The answer; it never raises."""


class SiteApp(ClientApp):
    """A client app that hands each request to its site.

    Parameters
    ----------
    open_site
        Makes the site from the node's configuration.
    """

    def __init__(self, open_site: Callable[[Config], Answering]) -> None:
        super().__init__()
        self.open_site = open_site
        self.query(ACTION)(self._reply)

    def _reply(self, message: Message, context: Context) -> Message:
        try:
            answer = self.open_site(context.node_config).answer(unpack(message))
            return Message(pack(answer), reply_to=message)
        except Exception:
            logger.exception("no answer")
            return Message(Error(SiteError.NO_WORKER, SiteError.NO_WORKER.meaning), reply_to=message)
