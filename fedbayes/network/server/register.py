"""Who is there: which node speaks for which holder of data.

Factors belong to a holder of data, never to a node. A node that is restarted may come back under another address; with
its data counted twice the posterior would be too narrow, and nothing would tell.
"""

import logging
import math
import secrets
import time
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from fedbayes.errors import UNREADABLE, FederatedError
from fedbayes.network.charter import Hello, plain_name
from fedbayes.network.messages import LOG, Refusal, pack, plain, unpack
from fedbayes.network.study import Study, difference
from fedbayes.network.transport import Address, Failure, NodeKey, Transport
from fedbayes.owner.rules import Rule

log = logging.getLogger(__name__)

_MOST_FAILURES = 2  # of a node's program, before it has said whose data it holds
_MOST_NAMES = 20  # of columns that are shown
# Where a node has not said whose data it holds.
_WHY = {
    Failure.LATE: "It is still reading its data, or has ended in the last minute and still counts as alive.",
    Failure.GONE: "It has ended; its own log says why.",
    Failure.FAILED: f"Its own log says why, or that of its worker. {LOG}",
}
_PATIENCE = 60.0  # seconds to say whose data a node holds; one that is still reading them is asked again
_AGAIN = 60.0  # seconds after which a node that took no part is asked again


@dataclass
class Register:
    """The nodes that have said whose data they hold.

    Parameters
    ----------
    transport
        To the nodes.
    study
        Which they must have in common with the server.
    timeout
        Seconds in which a node has to say who it is.
    hellos
        What the sites that take part have told of themselves.
    seated
        The node that speaks for each site.
    keys
        The fingerprint of the key to which each site is bound, where nodes have keys.
    refused
        Sites that take no part, each with the reason.
    differing
        Of those among them that have another study: how it differs.
    closed
        Whether the first round has begun: no other site may come then.
    """

    transport: Transport
    study: Study
    timeout: float
    hellos: dict[str, Hello] = field(default_factory=dict)
    seated: dict[str, Address] = field(default_factory=dict)
    keys: dict[str, str] = field(default_factory=dict)
    refused: dict[str, str] = field(default_factory=dict)
    differing: dict[str, str] = field(default_factory=dict)
    _sites: dict[Address, str] = field(default_factory=dict)
    _not_before: dict[Address, float] = field(default_factory=dict)  # when a node that takes no part is greeted again
    _failures: dict[str, int] = field(default_factory=dict)
    _greeting: str = field(default_factory=lambda: secrets.token_hex(8))  # another one for each start of the server
    closed: bool = False

    def look(self) -> Mapping[str, Address]:
        """Greet the nodes that are new, and say who is there now.

        Raises
        ------
        FederatedError
            Two nodes that are there claim the data of one site, or a node with another key claims a site.
        """
        live = self.transport.addresses()
        greeted = {address: key for address, key in live.items() if self._may_be_greeted(address)}
        for address, hello in self._greeted(greeted).items():
            self._seat(address, live[address], hello, live)
        return {site: address for site, address in self.seated.items() if address in live}

    def forget(self, sites: Iterable[str]) -> None:
        """These take no part any more, and who says later on that it speaks for one is not heard."""
        for site in sites:
            self.hellos.pop(site, None)

    def _may_be_greeted(self, address: Address) -> bool:
        return address not in self._sites and self._not_before.get(address, 0.0) <= time.monotonic()

    def _leave_out(self, address: Address, seconds: float = _AGAIN) -> None:
        """Do not greet a node for a while; one that is set right under the same address can come then."""
        self._not_before[address] = time.monotonic() + seconds

    def _greeted(self, addresses: Mapping[Address, NodeKey | None]) -> dict[Address, Hello]:
        """What the nodes tell of themselves; those who do not answer are asked again the next time."""
        if not addresses:
            return {}
        request = pack({"kind": "hello", "study": self.study.digest, "greeting": self._greeting})
        found = {}
        timeout = min(self.timeout, _PATIENCE)
        waited_for = set(addresses)
        for address, answer in self.transport.send(dict.fromkeys(addresses, request), timeout):
            if address not in waited_for:  # a second answer counts for nothing
                continue
            waited_for.remove(address)
            if isinstance(answer, Failure):
                log.warning(
                    "%s %s. %s It is asked again.", _who(address, addresses[address]), answer.value, _WHY[answer]
                )
                self._leave_out(address, _AGAIN if self.closed else 0.0)  # in which no round waits for it
                self._note_failure(addresses[address], answer)
                continue
            hello = self._understood(address, answer, addresses[address])
            if hello is not None:
                found[address] = hello
        return found

    def _note_failure(self, key: NodeKey | None, failure: Failure) -> None:
        """A named node whose program fails twice takes no part: a study that can't be imported there fails for ever."""
        if failure is not Failure.FAILED or key is None or not key.name:
            return
        self._failures[key.name] = self._failures.get(key.name, 0) + 1
        if self._failures[key.name] >= _MOST_FAILURES:
            self.refused[key.name] = Refusal.FAILED.value

    def _understood(self, address: Address, answer: bytes, key: NodeKey | None = None) -> Hello | None:
        try:
            header = unpack(answer).header
            if header["kind"] == "refusal":
                self._explain(header, key)
                self._leave_out(address)
                return None
            return Hello.read(header["told"])
        except UNREADABLE as error:
            log.error(
                "The first message of node %s can't be read; it takes no part: %s: %s",
                address,
                type(error).__name__,
                plain(str(error)),
            )
            self._leave_out(address)
            return None

    def _explain(self, header: Mapping[str, object], key: NodeKey | None) -> None:
        """Why a node takes no part. One whose key has a name refuses for the site of that name, whatever it says."""
        site, reason = plain_name(header["site"]), Refusal[header["reason"]]  # type: ignore[misc]
        if key is not None and key.name:
            site = key.name
        elif site in self.hellos:
            log.error("A node refuses, and says that it speaks for site %s, which has joined; it takes no part.", site)
            return
        self.differing.pop(site, None)
        self.refused[site] = f"{reason.value}{_counts(header)}{_missing(header)}"
        where = f" {LOG}" if "own log" in reason.value else ""
        log.error("Site %s takes no part: it %s.%s", site, self.refused[site], where)
        if reason is Refusal.STUDY:
            told: Any = header["study"]
            theirs = {part: str(told.get(part, "")) for part in self.study.description}
            self.differing[site] = difference(self.study.description, theirs, site)
            log.error("%s", self.differing[site])

    def _seat(
        self, address: Address, key: NodeKey | None, hello: Hello, live: Mapping[Address, NodeKey | None]
    ) -> None:
        site = hello.site
        if key is not None and key.name and key.name != site:
            log.error(
                "A node that was registered as '%s' says that it holds the data of site '%s'; it takes no part. "
                "Register its key under the site's name, or correct its `site-id`.",
                key.name,
                site,
            )
            self.refused[key.name] = f"says that it holds the data of site '{site}'"
            self._leave_out(address)
            return
        if self.closed and site not in self.hellos:
            log.warning(
                "Site %s came after the first round and takes no part in this run. Start the run again to include it.",
                site,
            )
            self._leave_out(address, math.inf)
            return
        if key is not None and self.keys.setdefault(site, key.fingerprint) != key.fingerprint:
            raise FederatedError(
                f"Two nodes with different keys say that they hold the data of site '{site}'. Give each holder of data "
                "a `site-id` of its own, or withdraw the key that is not the site's."
            )
        before = self.seated.get(site)
        if before is not None and before in live and self._answers(before):
            raise FederatedError(
                f"Two nodes that are both there say that they hold the data of site '{site}'. Its data would count "
                "twice. Stop one of them, or give each holder of data a `site-id` of its own."
            )
        if before is not None:
            log.warning("Site %s is back as another node.", site)
            self._sites.pop(before, None)
            self._leave_out(before, math.inf)
        if site in self.hellos and self.hellos[site] != replace(hello, mask_key=self.hellos[site].mask_key):
            raise FederatedError(
                f"Site '{site}' has come back with other data: it had {self.hellos[site].arrays}, and has "
                f"{hello.arrays}. Start a new run, without the checkpoint."
            )
        self.refused.pop(site, None)
        self.hellos.setdefault(site, hello)
        self.seated[site], self._sites[address] = address, site
        if not self.closed:
            log.info("Site %s has joined.", site)

    def _answers(self, address: Address) -> bool:
        """Whether a node is alive, and not only listed."""
        request = pack({"kind": "hello", "study": self.study.digest, "greeting": self._greeting})
        answers = self.transport.send({address: request}, min(self.timeout, _PATIENCE))
        return any(not isinstance(answer, Failure) for _, answer in answers)


def _counts(header: Mapping[str, object]) -> str:
    """How often a site's disclosure rules have found something, by rule; of what it says nothing else is repeated."""
    told = header.get("found")
    found = told if isinstance(told, dict) else {}
    counts = [f"{rule.words} {found[rule.words]}" for rule in Rule if type(found.get(rule.words)) is int]
    return f" ({', '.join(counts)})" if counts else ""


def _missing(header: Mapping[str, object]) -> str:
    """Which columns of the study a site's file lacks."""
    told = header.get("missing")
    names = [plain(each) for each in told[:_MOST_NAMES] if isinstance(each, str)] if isinstance(told, list) else []
    return f" (its file lacks {', '.join(map(repr, names))}, which the study reads)" if names else ""


def _who(address: Address, key: NodeKey | None) -> str:
    """A node in words."""
    return f"The node of site '{key.name}'" if key is not None and key.name else f"Node {address}"
