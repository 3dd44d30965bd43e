"""What all clients have in common that answer requests: their name and folder, their owner's policy, and their log."""

import logging
from collections.abc import Callable, Mapping
from typing import Any

from fedbayes.correction.recipe import OtherDraws
from fedbayes.errors import ClientDataError, ModelError
from fedbayes.network.client import journal
from fedbayes.network.client.journal import Journal
from fedbayes.network.client.naming import Config, site_folder, site_name
from fedbayes.network.client.policy import Policy, read_policy
from fedbayes.network.client.vault import Vault
from fedbayes.network.messages import HIDDEN, Message, Refusal, Refused, pack, unpack
from fedbayes.network.study import Common
from fedbayes.rounds.wire import arrays_of
from fedbayes.runtime.precision import computing

LoadData = Callable[[Config], Any]
log = logging.getLogger(__name__)

_TOLD = ("round", "after", "sum")  # requests whose answers hold arrays


class AnsweringSite:
    """A client that answers requests about a study that it has in common with the server.

    Parameters
    ----------
    study
        As the server has it.
    load_data
        ``(config) -> data``.
    config
        Of the node, see :class:`~fedbayes.network.site.Site`.
    """

    def __init__(self, study: Common, load_data: LoadData, config: Config) -> None:
        self._common, self.name = study, site_name(config)
        self.vault = Vault(site_folder(config))
        self.vault.claim(self.name)
        self.journal = Journal(self.vault.folder)
        self._load_data, self._config = load_data, config
        self._digest = ""  # of the data that were read last
        self._counted = ("", 0)  # data, and how many numbers about them have left

    def answer(self, request: bytes) -> bytes:
        """The answer to a request; it never raises. What went wrong is said by a code, and explained in the log."""
        counts: dict[str, int] = {}
        missing: tuple[str, ...] = ()
        asked: dict[str, Any] = {}
        try:
            with computing():
                return self._logged(asked, self._answered(request, asked))
        except Refused as refused:
            reason, counts, missing = refused.reason, refused.counts, refused.missing
            log.error("Site %s %s.", self.name, reason.value)
        except OtherDraws as error:
            reason = Refusal.DRAWS
            log.warning("%s", error)
        except (ClientDataError, ModelError) as error:
            reason = Refusal.DATA if isinstance(error, ClientDataError) else Refusal.MODEL
            log.error("%s", error)
        except Exception:
            reason = Refusal.FAILED
            log.exception("A request could not be answered.")
        told = self._common.description if reason is Refusal.STUDY else {}
        refusal = {"kind": "refusal", "site": self.name, "reason": reason.name, "study": told, "found": counts}
        if missing:
            refusal["missing"] = list(missing)
        try:
            self.journal.write(asked, self._digest, 0, reason.name)
        except OSError:  # a refusal says nothing of the data
            log.exception("'%s' can't be written.", self.journal.path)
        return pack(refusal)

    def _logged(self, asked: Mapping[str, Any], answer: bytes) -> bytes:
        """The answer, once the site's log has a line for it: what can't be logged does not leave."""
        message = unpack(answer)
        arrays = arrays_of(message.body) if asked["kind"] in _TOLD else {}
        numbers = sum(len(array) if name == HIDDEN else array.size for name, array in arrays.items())
        noisy = bool(message.header["told"].get("noisy", False))
        if numbers and not noisy:
            self._count(numbers)
        self.journal.write(asked, self._digest, numbers, journal.result_of(hidden=HIDDEN in arrays, noisy=noisy))
        return answer

    def _count(self, numbers: int) -> None:
        """Numbers that are about to leave, beside those about the same data that have left before."""
        most, (data, before) = self._policy().answers.most, self._counted
        if most is None:
            return
        if data != self._digest:
            before = journal.exact_numbers(self.journal.entries(), self._digest)
        if before + numbers > most:
            log.error("%d numbers about these data have left, and %d more are asked for.", before, numbers)
            raise Refused(Refusal.MOST)
        self._counted = self._digest, before + numbers

    def _answered(self, request: bytes, asked: dict[str, Any]) -> bytes:
        try:
            message = unpack(request)
        except ValueError:
            log.exception("A request can't be read.")
            raise Refused(Refusal.FORMAT) from None
        asked.update(message.header)
        if message.header.get("study") != self._common.digest:
            raise Refused(Refusal.STUDY)
        return self._obeyed(message, self._policy())  # before the study's code reads the data

    def _obeyed(self, message: Message, policy: Policy) -> bytes:
        """The answer to a request about this study, within the owner's policy."""
        raise NotImplementedError

    def read_data(self) -> Any:
        """The site's data, as ``load_data`` gives them. They stay with the caller."""
        return self._load_data(self._config)

    def _policy(self) -> Policy:
        try:
            return read_policy(self._config)
        except ClientDataError as error:
            log.error("%s", error)
            raise Refused(Refusal.POLICY) from None

    def _reply(self, header: Mapping[str, Any], told: Mapping[str, Any], body: bytes = b"") -> bytes:
        about = {name: header[name] for name in ("kind", "study", "run", "order") if name in header}
        return pack({**about, "site": self.name, "told": dict(told)}, body)
