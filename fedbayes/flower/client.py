"""The client app: Flower starts a new process for every message, and this is what runs there."""

import logging
import sys
from collections.abc import Callable, Sequence
from typing import Any, Protocol

import numpy as np
from flwr.app import Context, Error, Message
from flwr.clientapp import ClientApp

from fedbayes.flower.approval import is_approved, refusal
from fedbayes.flower.codes import NoAnswer, SiteFailure
from fedbayes.flower.messages import ACTION, NUDGE, pack, unpack
from fedbayes.flower.node.caller import Caller
from fedbayes.flower.node.refusals import tell_refusal
from fedbayes.flower.node.source import fingerprint, locate
from fedbayes.flower.node.state import StateFolder
from fedbayes.flower.programs import agreement_of, optional, parts
from fedbayes.network.client.naming import Config

logger = logging.getLogger(__name__)

_IDLE = 3600.0  # seconds


def client_app(
    model: Callable[..., Any] | str,
    method: Any = None,
    load_data: Callable[[Config], Any] | None = None,
    *,
    local: Sequence[str] = (),
    dtype: Any = np.float64,
) -> "SiteApp":
    """The client app of a study, for ``[tool.flwr.app.components]`` of a Flower project.

    Flower starts a new process for every message. The app's own process imports no JAX, if the model is given as the
    name of a module; a worker beside the node does the work and outlives the messages.

    Parameters
    ----------
    model
        One client's NumPyro program; or, as a text, the name of a module that defines ``model``, ``method`` and
        ``load_data``; or, before there is a model, an ``agreement`` and a ``load_data`` that returns a table, see
        :class:`fedbayes.network.agreeing.study.FormulaStudy`. Then only the worker imports that module: messages take
        less time, and an error in it stays at the site, whereas Flower sends the text of an error in the app's own
        module to the server.
    method
        As for :func:`fedbayes.fit_federated`.
    load_data
        From the node's configuration to the data of this client's rows.
    local, dtype
        As for :func:`fedbayes.fit_federated`.

    Returns
    -------
    SiteApp
        The app. It must be a name in its module.

    Notes
    -----
    The node's configuration (``flower-supernode --node-config``) must have ``site-id``, the name of the data holder. It
    may have ``state-dir``, the folder for what the site keeps, ``policy``, its owner's file of rules (by default
    ``policy.toml`` in that folder), and ``worker-idle``, the seconds without a message after which the worker
    ends (3600).

    Examples
    --------
    >>> from fedbayes.flower import client_app
    >>> app = client_app("my_study.program")
    """

    def open_site(config: Config) -> Answering:
        if (agreement := agreement_of(model)) is not None:
            from fedbayes.network.agreeing.site import AgreeingSite

            if (load := optional(model, "load_data", load_data)) is None:
                raise TypeError(f"the module {model!r} does not define load_data, which returns a site's table")
            return AgreeingSite(agreement, load, config)
        from fedbayes.network.site import Site
        from fedbayes.network.study import Study

        program, fitted_by, load = parts(model, method=method, load_data=load_data)
        return Site(Study(program, fitted_by, local=local, dtype=dtype), load, config)

    if not isinstance(model, str):
        parts(model, method=method, load_data=load_data)  # what is missing is said now, not in the worker's log
    return SiteApp(open_site, [model] if isinstance(model, str) else [])


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
            request, config = unpack(message), dict(context.node_config)
            if request == NUDGE:
                return Message(pack(NUDGE), reply_to=message)
            worker = self._caller(config)
            if not is_approved(config, self.modules):
                return Message(pack(refusal(config, request)), reply_to=message)
            answer = worker.ask(request, message.metadata.ttl)
            tell_refusal(answer, worker.state.log)
            return Message(pack(answer), reply_to=message)
        except SiteFailure as failure:
            logger.error("no answer: %s", failure)
            code = failure.code
        except Exception:
            logger.exception("no answer")
            code = NoAnswer.BROKEN
        return Message(Error(code, code.meaning), reply_to=message)

    @property
    def modules(self) -> tuple[str, ...]:
        """The modules in whose packages the study is."""
        module, _ = locate(self)
        return (module, *self._modules)

    def _caller(self, config: Config) -> Caller:
        state = StateFolder.of(config)
        module, attribute = locate(self)
        facts = {"module": module, "attribute": attribute, "path": sys.path, "config": config}
        mark = fingerprint(facts, self.modules)
        return Caller(state, module, attribute, config, mark, float(config.get("worker-idle", _IDLE)))
