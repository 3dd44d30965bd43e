"""The client app: Flower starts a new process for every message, and this is what runs there."""

import logging
import sys
from collections.abc import Callable, Sequence
from typing import Protocol

from flwr.app import Context, Error, Message
from flwr.clientapp import ClientApp

from fedbayes.flower.caller import Caller
from fedbayes.flower.codes import SiteError, SiteFailure
from fedbayes.flower.messages import ACTION, pack, unpack
from fedbayes.flower.source import fingerprint, locate
from fedbayes.flower.state import Config, StateFolder

logger = logging.getLogger(__name__)

_IDLE = 3600.0  # seconds


class Answering(Protocol):
    """What answers a site's requests."""

    def answer(self, request: bytes) -> bytes:
        """The answer; it never raises."""


class SiteApp(ClientApp):
    """A client app that has its requests answered by a worker process, which outlives the messages.

    Parameters
    ----------
    open_site
        Makes the site from the node's configuration; called in the worker.
    modules
        Where the site's code is, besides the module that holds the app: when a source file of their packages changes,
        so does the worker.
    """

    def __init__(self, open_site: Callable[[Config], Answering], modules: Sequence[str] = ()) -> None:
        super().__init__()
        self.open_site = open_site
        self._modules = tuple(modules)
        self.query(ACTION)(self._reply)

    def _reply(self, message: Message, context: Context) -> Message:
        try:
            request = unpack(message)
            answer = self._caller(dict(context.node_config)).ask(request, message.metadata.ttl)
            return Message(pack(answer), reply_to=message)
        except SiteFailure as failure:
            logger.error("no answer: %s", failure)
            code = failure.code
        except Exception:
            logger.exception("no answer")
            code = SiteError.BROKEN
        return Message(Error(code, code.meaning), reply_to=message)

    def _caller(self, config: Config) -> Caller:
        state = StateFolder.of(config)
        module, attribute = locate(self)
        facts = {"module": module, "attribute": attribute, "path": sys.path, "config": config}
        mark = fingerprint(facts, (module, *self._modules))
        return Caller(state, module, attribute, config, mark, float(config.get("worker-idle", _IDLE)))
