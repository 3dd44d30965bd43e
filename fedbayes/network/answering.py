"""What all clients have in common that answer requests: their name and folder, their owner's policy, and their log."""

import logging
from collections.abc import Callable, Iterable, Mapping
from typing import Any, NamedTuple

import numpy as np

from fedbayes.correction.recipe import OtherDraws
from fedbayes.errors import ClientDataError, ModelError
from fedbayes.network.client import journal
from fedbayes.network.client.journal import Journal
from fedbayes.network.client.naming import Config, site_folder, site_name
from fedbayes.network.client.policy import Policy, read_policy
from fedbayes.network.client.reading import digests_of, num_changed
from fedbayes.network.client.vault import Vault
from fedbayes.network.messages import HIDDEN, Message, Refusal, Refused, pack, unpack
from fedbayes.network.study import Common
from fedbayes.owner.rules import Rule
from fedbayes.rounds.wire import arrays_of
from fedbayes.runtime.precision import computing

LoadData = Callable[[Config], Any]
log = logging.getLogger(__name__)

_TOLD = ("round", "after", "sum")  # requests whose answers hold arrays
_CHANGED = (
    "%d of these rows differ from the data %s, about which answers have left: the difference of two sums would be "
    "about them alone. Take part again when at least %d differ, or with the data as they were. The owner sets how "
    "many by `smallest_cell` under [disclosure] of the policy."
)


class Answer(NamedTuple):
    """What may leave a site, and what its log has to know of it.

    Attributes
    ----------
    content
        The message.
    failures
        How many of its numbers and result codes say that something is not finite, too large or improper.
    """

    content: bytes
    failures: int = 0


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
        self._rows = ("", np.zeros(0, np.uint64))  # data that may be told of, and a digest of each of their rows
        self._counted = ("", 0, 0)  # data, how many numbers about them have left, and how many failures

    def answer(self, request: bytes) -> bytes:
        """The answer to a request; it never raises. What went wrong is said by a code, and explained in the log."""
        counts: dict[str, int] = {}
        missing: tuple[str, ...] = ()
        asked: dict[str, Any] = {}
        failures = 0
        try:
            with computing():
                return self._logged(asked, self._answered(request, asked))
        except Refused as refused:
            reason, counts, missing, failures = refused.reason, refused.counts, refused.missing, refused.failures
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
            self.journal.write(asked, self._digest, 0, reason.name, failures)
        except OSError:  # a refusal says nothing of the data, but for this one
            log.exception("'%s' can't be written.", self.journal.path)
            refusal["reason"] = Refusal.FAILED.name if failures else reason.name
        return pack(refusal)

    def _logged(self, asked: Mapping[str, Any], answer: Answer) -> bytes:
        """The answer, once the site's log has a line for it: what can't be logged does not leave."""
        message = unpack(answer.content)
        arrays = arrays_of(message.body) if asked["kind"] in _TOLD else {}
        numbers = sum(len(array) if name == HIDDEN else array.size for name, array in arrays.items())
        noisy = bool(message.header["told"].get("noisy", False))
        failures = 0 if noisy else answer.failures  # noise has an account of its own
        if numbers and not noisy:
            self._count(numbers, failures)
        result = journal.result_of(hidden=HIDDEN in arrays, noisy=noisy)
        self.journal.write(asked, self._digest, numbers, result, failures)
        return answer.content

    def _count(self, numbers: int, failures: int) -> None:
        """What is about to leave, beside what has left about the same data before.

        Raises
        ------
        Refused
            It is too much.
        """
        rules, (data, before, failed) = self._policy().answers, self._counted
        if data != self._digest:
            before = journal.exact_numbers(self.journal.entries(), self._digest)
            failed = journal.failures_told(self.journal.entries(), self._digest)
        if rules.most is not None and before + numbers > rules.most:
            log.error("%d numbers about these data have left, and %d more are asked for.", before, numbers)
            raise Refused(Refusal.MOST)
        self._counted = self._digest, before, failed
        self._check_failures(failures, rules.failures)
        if self._rows[0] == self._digest:
            self.vault.keep_rows(*self._rows)
        self._counted = self._digest, before + numbers, failed + failures

    def _check_changed(self, rows: Iterable[bytes], smallest: int) -> None:
        """That no other data, about which answers have left, have all but a few of these rows, or a few more.

        Parameters
        ----------
        rows
            Of the data.
        smallest
            The owner's smallest cell: so many rows have to differ.

        Raises
        ------
        Refused
            Fewer do: by the difference of two honest fits they would be known.
        """
        now = digests_of(rows, self.vault.secret("rows", ""))
        for data, before in self.vault.rows_before(self._digest):
            near = abs(len(before) - len(now)) < smallest
            if near and 0 < (changed := num_changed(before, now)) < smallest:
                log.error(_CHANGED, changed, data[:12], smallest)
                raise Refused(Refusal.DISCLOSURE, {Rule.CHANGED.words: 1})
        self._rows = self._digest, now

    def _check_failures(self, failures: int, most: int) -> None:
        """Whether so many failures may still be told.

        A refusal tells that they are too many, and counts as one, however many they are: by one request a site in an
        honest fit does not lose the rest. Once the account is used up there are no answers, or each refusal would be
        the next bit.
        """
        data, before, failed = self._counted
        if failed + failures > most:
            told = int(failed <= most)  # later refusals tell nothing
            self._counted = data, before, failed + told
            log.error(
                "%d times these data have made a number not finite or too large, or a density improper, and %d times "
                "they would in this answer. The owner allows %d (`failures` under [answers] of the policy).",
                failed,
                failures,
                most,
            )
            raise Refused(Refusal.FAILURES, failures=told)

    def _answered(self, request: bytes, asked: dict[str, Any]) -> Answer:
        try:
            message = unpack(request)
        except ValueError:
            log.exception("A request can't be read.")
            raise Refused(Refusal.FORMAT) from None
        asked.update(message.header)
        if message.header.get("study") != self._common.digest:
            raise Refused(Refusal.STUDY)
        return self._obeyed(message, self._policy())  # before the study's code reads the data

    def _obeyed(self, message: Message, policy: Policy) -> Answer:
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
