"""What leaves a site in a run: its term of a secure sum or, where its owner lets it, a message of its own."""

import hashlib
import json
import logging
import re
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from fedbayes.contract.algorithm import EACH_SEARCH, OPENING, Reply
from fedbayes.errors import ResultCode, usable
from fedbayes.network.client.masks import Masks
from fedbayes.network.client.partners import check_partners
from fedbayes.network.client.policy import SumRules
from fedbayes.network.client.vault import Vault
from fedbayes.network.fixed_point import MOST_SITES, fits, largest, to_integers, unknown
from fedbayes.network.messages import HIDDEN, Message, Refusal, Refused
from fedbayes.network.replies import plausible, searches
from fedbayes.rounds.wire import arrays_of, encode, named_arrays

log = logging.getLogger(__name__)

_TICKET = re.compile(r"[0-9a-f]{32}")
# All that a message tells has to be told to all sites of a sum alike, but for this: by what is addressed to one alone
# its term could be changed, and so be seen. Draws to record, and which states may go, change no term.
_OWN_WORDS = ("ticket", "oldest", "records", "seat")
_OWN_ARRAYS = ("recorded",)
_SEAT = ("kinds", "template")  # as all sites read their data; rows are padded at each in its own way
# Codes that hang on the data where a server chooses what is computed, and say by name at which site it can't be.
_FAILED = (ResultCode.NOT_FINITE, ResultCode.IMPROPER, ResultCode.NO_GRADIENT, ResultCode.IN_PART)


class Hiding(NamedTuple):
    """How an answer is hidden.

    Attributes
    ----------
    masks
        Of this run.
    asked
        What stands for the request.
    """

    masks: Masks
    asked: bytes


class Sent(NamedTuple):
    """An answer that may leave.

    Attributes
    ----------
    told
        For the header.
    body
        The arrays.
    failures
        How many of its numbers and result codes say that something is not finite, too large or improper. It stays at
        the site.
    """

    told: Mapping[str, Any]
    body: bytes
    failures: int = 0


class Sums:
    """A site's part in the secure sums of a run.

    Parameters
    ----------
    vault
        What the site keeps.
    names, place
        All sites, in the order of the run, and which of them this one is.
    about
        What tells the run from all others.
    """

    def __init__(self, vault: Vault, names: Sequence[str], place: int, about: Mapping[str, Any]) -> None:
        self._vault, self._names, self._place, self._about = vault, names, place, about
        self._agreed: dict[tuple[str, ...], Masks] = {}

    def hiding(self, message: Message, rules: SumRules, history: str) -> Hiding | None:
        """How a request wants its answer hidden, if the owner allows that; looked at before anything is computed.

        Parameters
        ----------
        message
            The request.
        rules
            The owner's.
        history
            What stands for all that this site's private state comes from. Masks of sites with another past do not
            cancel either: such a site could be one whose term is known.

        Returns
        -------
        Hiding | None
            ``None``: not at all, and the owner lets single messages leave.

        Raises
        ------
        Refused
            The owner does not, or not with these sites; or the request's masks were used before.
        """
        header = message.header
        ticket = header.get("ticket")
        if ticket is None:
            if not rules.single:
                raise Refused(Refusal.SINGLE)
            return None
        keys = tuple(map(str, header["charter"].get("mask_keys", ())))
        if not _TICKET.fullmatch(str(ticket)) or len(keys) != len(self._names) or len(keys) > MOST_SITES:
            raise Refused(Refusal.FORMAT)
        check_partners(self._vault, rules, self._names, self._place, keys)
        masks = self._masks(keys)
        if not self._vault.use_ticket(f"{self._about['run']} {ticket}"):
            log.error("The server asks for masks that it was given before.")
            raise Refused(Refusal.TICKET)
        return Hiding(masks, _digest(message, f"{ticket} {history}"))

    def _masks(self, keys: tuple[str, ...]) -> Masks:
        if keys not in self._agreed:
            try:
                self._agreed = {keys: Masks.agreed(self._vault.mask_key(), self._place, keys, self._about)}
            except ValueError:  # a point of low order, or a key twice
                raise Refused(Refusal.PARTNERS) from None
        return self._agreed[keys]

    def sent(self, reply: Reply, hiding: Hiding | None, *, finite: bool = True, counted: Reply | None = None) -> Sent:
        """What leaves: the reply, or its term of a sum under masks, beside the result code.

        A reply that holds nothing of the data, since it does not count or the site has lost its state, goes openly.
        Hidden it would be a term that the server knows, and the sum one over fewer sites than it seems; so the others'
        masks stay on, and there is no sum this time.

        Parameters
        ----------
        reply
            Of this site.
        hiding
            How it is wanted.
        finite
            Whether a term that is not finite makes the reply useless. After the rounds it does not: a log-likelihood
            may be minus infinity.
        counted
            The reply whose failures count; ``None``: this one. Some numbers may be as they are whatever the data are.
        """
        counted = reply if counted is None else counted
        if hiding is None:
            return Sent({}, encode(reply), _failures(counted))
        if jax.tree.leaves(reply.each):  # no sum would hide it
            raise Refused(Refusal.PRIVATE)
        reply = self._fitting(reply) if finite else reply
        numbers = self._numbers(reply)
        term, is_open = to_integers(numbers), _holds_nothing(reply, numbers)
        if not is_open:
            term = hiding.masks.hide(unknown(term, numbers, len(self._names)), hiding.asked)
        failures = max(_failed(counted.code), _failures(reply if finite else counted, largest(len(self._names))))
        return Sent({"open": is_open}, encode({HIDDEN: term, "code": np.asarray(reply.code)}), failures)

    def _fitting(self, reply: Reply) -> Reply:
        """The reply if all of it holds something of the data; else what of it does not, and a code for the rest.

        A term is hidden as a whole, or goes openly as a whole: of one with noughts in some replicates the sum would be
        one over fewer sites there.
        """
        limit = largest(len(self._names))
        reply = _searches_within(reply, limit)
        if not plausible(reply, limit):
            log.warning(
                "A number of this site's answer is not finite, or larger than %.1e: it counts for nothing in this "
                "round. Where this goes on, give the model's arguments units in which its globals are near 1.",
                limit,
            )
            return reply._replace(code=jnp.full_like(reply.code, int(ResultCode.NOT_FINITE)))
        in_part = jnp.equal(reply.code, int(ResultCode.IN_PART))  # its noughts are places with one term less
        reply = reply._replace(code=jnp.where(in_part, int(ResultCode.NOT_FINITE), reply.code))
        used, lost = np.asarray(usable(reply.code)), _is_lost(reply)
        if np.all(used) and not np.any(lost):
            return reply
        constant = jax.tree.map(lambda leaf: _kept(lost, leaf), reply.total)
        if not all(np.all(np.isin(leaf, (0.0, 1.0))) for leaf in jax.tree.leaves(constant)):
            constant, lost = jax.tree.map(np.zeros_like, constant), np.zeros_like(lost)
        code = jnp.where(used & ~lost, int(ResultCode.NOT_SUMMED), reply.code)
        return reply._replace(total=constant, code=code)

    def _numbers(self, reply: Reply) -> np.ndarray:
        """All numbers of the total; zeros where the reply does not count."""
        leaves = [np.asarray(leaf, np.float64).ravel() for leaf in jax.tree.leaves(reply.total)]
        numbers = np.concatenate(leaves)
        if not np.any(usable(reply.code)):
            return np.zeros_like(numbers)
        outside = np.where(numbers < 0.0, -np.inf, np.nan)  # as a density that is zero, or an overflow
        return np.where(fits(numbers, len(self._names)), numbers, outside)


def _holds_nothing(reply: Reply, numbers: np.ndarray) -> bool:
    """Whether a reply is the same whatever the data are: noughts, and ones that count what the codes say."""
    is_constant = ~np.asarray(usable(reply.code)) | _is_lost(reply)
    return bool(np.all(is_constant) and np.all(np.isin(numbers, (0.0, 1.0))))


def _is_lost(reply: Reply) -> np.ndarray:
    """Where a reply counts though it holds nothing of the data: the site has lost what it kept."""
    return np.asarray(reply.code) == ResultCode.LOST


def _failed(codes: jax.Array) -> int:
    """How many result codes say that something has failed."""
    return int(np.isin(codes, _FAILED).sum())


def _failures(reply: Reply, limit: float = np.inf) -> int:
    """How many result codes and numbers of a reply say that something is not finite, too large or improper.

    Numbers of a replicate that does not count are what its code says, whatever they are.
    """
    used = np.asarray(usable(reply.code))
    leaves = {name: leaf for name, leaf in named_arrays((reply.total, reply.each)).items() if leaf.dtype.kind == "f"}
    single = [leaf for name, leaf in leaves.items() if EACH_SEARCH not in name.split("/")]
    numbers = [leaf[used] if leaf.shape[:1] == used.shape else leaf for leaf in single]
    beyond = sum(int(np.sum(~(np.abs(each) < limit))) for each in numbers)  # NaN is not smaller
    beyond += int(np.sum(searches(reply.total, limit)[0]))  # each of several answers is there or not, as a whole
    return _failed(reply.code) + (beyond if used.any() else 0)


def _searches_within(reply: Reply, limit: float) -> Reply:
    """With those of several answers that are too large for a sum as such that are not finite."""
    beyond, _ = searches(reply.total, limit)
    if not beyond.any():
        return reply

    def known(path: Any, leaf: jax.Array) -> jax.Array:
        if not any(getattr(step, "name", "") == EACH_SEARCH for step in path):
            return leaf
        return jnp.where(beyond.reshape(beyond.shape + (1,) * (leaf.ndim - 2)), jnp.nan, leaf)

    return reply._replace(total=jax.tree_util.tree_map_with_path(known, reply.total))


def _kept(lost: np.ndarray, leaf: np.ndarray) -> np.ndarray:
    """A leaf's numbers in the replicates that tell of a loss, noughts in the others."""
    leaf = np.asarray(leaf)
    return np.where(lost.reshape(lost.shape + (1,) * (leaf.ndim - lost.ndim)), leaf, 0)


def history_after(message: Message, before: str) -> str:
    """What stands for all that a private state comes from, once a request was answered.

    Where no masks were asked for, what is addressed to this site alone is left out: it may differ.
    """
    own = _OWN_ARRAYS if "ticket" in message.header else (*_OWN_ARRAYS, "personal")
    return _digest(message, before, own).hex()


def _digest(message: Message, about: str, own_arrays: Sequence[str] = _OWN_ARRAYS) -> bytes:
    """What stands for a request: all of it that the sites of a sum are told alike."""
    header = message.header
    own_words = (*_OWN_WORDS, "update") if header["kind"] == "round" else _OWN_WORDS  # each site has its solver
    words = {name: each for name, each in header.items() if name not in own_words}
    words["opening"] = header.get("update") == OPENING  # of one site alone it would change one term of the sum
    seat = [header["seat"][name] for name in _SEAT if "seat" in header]
    found = hashlib.sha256(json.dumps([about, words, seat], sort_keys=True).encode())
    for name, array in sorted(arrays_of(message.body).items()):
        if name.split("/")[0] not in own_arrays:
            found.update(repr((name, array.shape, array.dtype.str)).encode() + array.tobytes())
    return found.digest()
