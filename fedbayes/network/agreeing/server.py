"""``agree_over``: the server's side of an agreement, over any transport."""

import logging
import secrets
import time
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import jax
import numpy as np

from fedbayes.contract.algorithm import Reply
from fedbayes.errors import UNREADABLE, FederatedError, usable
from fedbayes.formula.agreed import Agreed
from fedbayes.network.agreeing.everybody import LABELS, AtServer, Layout, nested, size_of
from fedbayes.network.agreeing.study import FormulaStudy
from fedbayes.network.messages import HIDDEN, LOG, Refusal, pack, unpack
from fedbayes.network.server.joining import enrolled
from fedbayes.network.server.register import Register
from fedbayes.network.server.secure import Term, hindrance, total
from fedbayes.network.transport import Failure, Transport
from fedbayes.rounds.wire import arrays_of, encode
from fedbayes.runtime.precision import computing

log = logging.getLogger(__name__)

_SCALES = (0, 40)  # powers of two by which sums are divided: the second where one is too large for a secure sum
_AGAIN = 1.0  # seconds


def agree_over(
    transport: Transport,
    study: FormulaStudy,
    *,
    num_clients: int | None = None,
    sites: Sequence[str] = (),
    join_timeout: float = 600.0,
    timeout: float = 600.0,
    secure_sums: bool = True,
) -> Agreed:
    """Agree on a regression with sites that are other processes, by sums over all of them.

    With secure sums, the server sees of a site masked integers alone; a sum is exact for counts, and within ``2**-68``
    for each site otherwise. A site whose sum exceeds ``2**43`` over the number of sites says so, openly; that sum is
    then divided by ``2**40`` before it is told, and within ``2**-28``.

    Parameters
    ----------
    transport
        To the sites' nodes.
    study
        The formula and the family; the sites have the same.
    num_clients
        The run begins when so many sites have joined.
    sites
        Or when these have.
    join_timeout, timeout
        Seconds to wait for them, and for all of them to answer one request.
    secure_sums
        Whether terms of sums are hidden from the server, where there are at least three sites that can. Other messages
        leave a site only if its owner lets single ones leave.

    Returns
    -------
    Agreed
        ``.save("agreed.json")`` writes it into the study's project, and ``fedbayes.regression(..., agreed=...)`` makes
        the regression of it.

    Raises
    ------
    ClientDataError, FormulaError
        As :func:`fedbayes.regression`, of what the sums say.
    FederatedError
        Too few sites have joined or answered; a site refuses, or answers what can't be read. Levels of text are not
        declared, and there are no secure sums.

    Examples
    --------
    >>> agree_over(transport, FormulaStudy("y ~ age"), num_clients=3)  # doctest: +SKIP
    """
    wanted = num_clients or len(sites)
    if wanted < 1 or (sites and len(set(sites)) != wanted):
        raise ValueError("Write `num_clients`, or the names of all `sites`, each once.")
    with computing():
        # of a study it asks what all kinds of studies have
        register = Register(transport, study, min(timeout, join_timeout))  # type: ignore[arg-type]
        names = [hello.site for hello in enrolled(register, wanted, sites, join_timeout)]
        keys = {name: register.hellos[name].mask_key for name in names}
        obstacle = hindrance(keys) if secure_sums else "Secure sums are switched off."
        if obstacle:
            log.warning("%s", obstacle)
        asking = _Asking(register, study, names, None if obstacle else list(keys.values()), timeout)
        return study.agree(AtServer(study.labelled, study.undeclared, len(names), asking.sum))


class _Answer(NamedTuple):
    """What one site has told: its term, and which numbers it is of."""

    term: Term
    layout: Layout


class _Asking:
    """Asks all sites for one sum after the other."""

    def __init__(
        self, register: Register, study: FormulaStudy, names: list[str], keys: list[str] | None, timeout: float
    ) -> None:
        self._register, self._study, self._names, self._keys = register, study, names, keys
        self._timeout, self._run = timeout, secrets.token_hex(16)
        self._known: dict[str, np.ndarray] = {}

    def sum(self, name: str) -> dict[str, Any]:
        """The sum of a name, over all sites.

        Raises
        ------
        FederatedError
            A site does not answer, refuses, or tells what can't be added up; or no single site may be asked.
        """
        if self._keys is None and name.startswith(LABELS):
            raise FederatedError(
                f"The {name} are not declared, and a site's labels leave in secure sums alone, from three sites on. "
                "Declare the levels in the study, `levels={...}`."
            )
        for scale in _SCALES:
            answers = self._answers(name, scale)
            if any(each.layout != answers[0].layout for each in answers):
                raise FederatedError(f"The sites tell different numbers in '{name}', which can't be added up.")
            if all(bool(np.all(usable(each.term.code))) for each in answers):
                summed = self._added(answers) * 2.0**scale
                self._known[name] = summed
                return nested(answers[0].layout, summed)
            log.warning("A sum of '%s' is too large at some site; it is asked for in larger units.", name)
        raise FederatedError(
            f"A site's sum in '{name}' is not finite, or too large. Write columns in other units, as `I(x / 1000)`."
        )

    def _added(self, answers: Sequence[_Answer]) -> np.ndarray:
        template = Reply(total=jax.ShapeDtypeStruct((len(answers[0].term.words),), np.dtype(np.float64)))
        if self._keys is None:
            return np.sum([each.term.words for each in answers], axis=0)
        found: np.ndarray = total([each.term for each in answers], template)
        return found

    def _answers(self, name: str, scale: int) -> list[_Answer]:
        """Every site's answer to the same request; asked anew, under other masks, while one is away."""
        deadline = time.monotonic() + self._timeout
        while True:
            request, found = self._request(name, scale), {}
            there = {address: site for site, address in self._register.look().items() if site in self._names}
            if len(there) == len(self._names):
                for address, answer in self._register.transport.send(dict.fromkeys(there, request), self._timeout):
                    if address in there and not isinstance(answer, Failure):
                        found[there[address]] = self._read(there[address], answer)
            if len(found) == len(self._names):
                return [found[site] for site in self._names]
            if time.monotonic() > deadline:
                absent = [site for site in self._names if site not in found]
                raise FederatedError(f"After {self._timeout:g} s the sites {absent} have not told '{name}'. {LOG}")
            time.sleep(min(_AGAIN, self._timeout / 10.0))

    def _request(self, name: str, scale: int) -> bytes:
        charter: dict[str, Any] = {"names": self._names}
        header: dict[str, Any] = {
            "kind": "sum", "study": self._study.digest, "run": self._run, "order": len(self._known), "update": name,
            "known": list(self._known), "charter": charter,
        }  # fmt: skip
        if self._keys is not None:
            charter["mask_keys"], header["ticket"] = self._keys, secrets.token_hex(16)
        sums = {str(place): each for place, each in enumerate(self._known.values())}
        return pack(header, encode({"shared": {**sums, "scale": np.asarray(scale)}}))

    def _read(self, site: str, answer: bytes) -> _Answer:
        """One site's answer.

        Raises
        ------
        FederatedError
            It refuses, or its answer can't be read.
        """
        try:
            message = unpack(answer)
            if message.header["kind"] != "refusal":
                return self._understood(message.header["told"], arrays_of(message.body))
            reason = Refusal[message.header["reason"]].value
        except UNREADABLE as error:
            raise FederatedError(f"What site '{site}' tells can't be read ({type(error).__name__}).") from error
        raise FederatedError(f"Site '{site}' {reason}.{f' {LOG}' if 'own log' in reason else ''}")

    def _understood(self, told: Mapping[str, Any], arrays: Mapping[str, np.ndarray]) -> _Answer:
        shapes = [[[str(key) for key in keys], list(shape)] for keys, shape in told["layout"]]
        num, hidden = sum(size_of(shape) for _, shape in shapes), self._keys is not None
        words, code = arrays[HIDDEN if hidden else "total"], arrays["code"]
        shape, kind = ((num, 2), np.uint64) if hidden else ((num,), np.float64)
        fits = words.shape == shape and words.dtype == kind and code.shape == ()
        if not fits or not all(keys for keys, _ in shapes):
            raise ValueError("A site tells other numbers than it says.")
        return _Answer(Term(words, code, bool(told.get("open", False))), shapes)
