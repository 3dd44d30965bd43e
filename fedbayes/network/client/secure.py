"""What leaves a site in a run: its term of a secure sum or, where its owner lets it, a message of its own."""

import logging
import re
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from fedbayes.contract.algorithm import Reply
from fedbayes.errors import ResultCode, usable
from fedbayes.network.client.masks import Masks, fingerprint, public_key
from fedbayes.network.client.policy import SumRules
from fedbayes.network.client.vault import RunVault, Vault
from fedbayes.network.fixed_point import MOST_SITES, fits, largest, to_integers
from fedbayes.network.messages import HIDDEN, Refusal, Refused
from fedbayes.network.replies import plausible
from fedbayes.rounds.exchange import sum_of_used
from fedbayes.rounds.wire import encode

log = logging.getLogger(__name__)

_TICKET = re.compile(r"[0-9a-f]{32}")


class Asked(NamedTuple):
    """In which form an answer is wanted.

    Attributes
    ----------
    ticket
        Names the masks; ``None``: no masks, the answer goes by itself.
    masks
        To hide it.
    """

    ticket: str | None = None
    masks: Masks | None = None


def own_key(vault: Vault) -> str:
    """A site's public key for secure sums, made when it is first asked for; empty without ``cryptography``."""
    return public_key(vault.mask_key())


class Sums:
    """A site's part in the secure sums of a run.

    Parameters
    ----------
    vault, run
        What the site keeps, and what it keeps of this run.
    names
        All sites, in the order of the run.
    place
        Of this one.
    about
        What tells the run from all others.
    """

    def __init__(self, vault: Vault, run: RunVault, names: Sequence[str], place: int, about: Mapping[str, Any]) -> None:
        self._vault, self._run, self._names, self._place, self._about = vault, run, names, place, about
        self._agreed: dict[tuple[str, ...], Masks] = {}

    def asked(self, header: Mapping[str, Any], rules: SumRules) -> Asked:
        """In which form a request wants its answer, if the owner allows that; asked before anything is computed.

        Raises
        ------
        Refused
            The owner lets no single message leave, or not with these sites.
        """
        ticket = header.get("ticket")
        if ticket is None:
            if not rules.single:
                raise Refused(Refusal.SINGLE)
            return Asked()
        keys = tuple(map(str, header["charter"]["mask_keys"]))
        if not _TICKET.fullmatch(str(ticket)) or len(keys) != len(self._names) or len(keys) > MOST_SITES:
            raise Refused(Refusal.FORMAT)
        if len(keys) < rules.fewest:
            log.error("The sum is over %d sites; this site's policy wants %d.", len(keys), rules.fewest)
            raise Refused(Refusal.SINGLE)
        self._check_keys(keys, rules)
        if keys not in self._agreed:
            self._agreed = {keys: self._agree(keys)}
        return Asked(str(ticket), self._agreed[keys])

    def _check_keys(self, keys: Sequence[str], rules: SumRules) -> None:
        """The other sites have the keys that the owner has written down, or those that they have had before."""
        try:
            found = {name: fingerprint(key) for name, key in zip(self._names, keys, strict=True)}
        except ValueError:
            raise Refused(Refusal.PARTNERS) from None
        mine = found.pop(self._names[self._place])
        if mine != fingerprint(own_key(self._vault)) or len({mine, *found.values()}) < len(keys):
            log.error("The server gives this site another key than its own, %s, or one key to two sites.", mine)
            raise Refused(Refusal.PARTNERS)
        known = self._vault.known_keys() if rules.partners is None else rules.partners
        strangers = {name: key for name, key in found.items() if name not in known}
        changed = {name: key for name, key in found.items() if name in known and known[name] != key}
        if changed or (strangers and rules.partners is not None):
            log.error(_NOT_KNOWN, {**changed, **strangers}, {name: known[name] for name in changed})
            raise Refused(Refusal.PARTNERS)
        if strangers:
            log.warning(_FIRST_SEEN, strangers)
            self._vault.keep_keys({**known, **strangers})

    def _agree(self, keys: Sequence[str]) -> Masks:
        try:
            return Masks.agreed(self._vault.mask_key(), self._place, keys, self._about)
        except ValueError:  # a point of low order
            raise Refused(Refusal.PARTNERS) from None

    def sent(self, reply: Reply, asked: Asked, *, known: bool = True) -> bytes:
        """What leaves: the reply, or its term of a sum under masks, beside the result code.

        Parameters
        ----------
        reply
            Of this site.
        asked
            In which form it is wanted.
        known
            Whether a term that is not finite makes the reply useless. After the rounds it does not: a log-likelihood
            may be minus infinity.
        """
        if asked.ticket is None or asked.masks is None:
            return encode(reply)
        if jax.tree.leaves(reply.each):  # no sum would hide it
            raise Refused(Refusal.PRIVATE)
        if known and not plausible(reply, largest(len(self._names))):
            log.warning(
                "A number of this site's answer is not finite, or larger than %.1e: it counts for nothing in this "
                "round. Where this goes on, give the model's arguments units in which its globals are near 1.",
                largest(len(self._names)),
            )
            reply = reply._replace(code=jnp.where(usable(reply.code), int(ResultCode.NOT_FINITE), reply.code))
        term = to_integers(self._numbers(reply))
        if not self._run.use_ticket(asked.ticket):
            log.error("The server asks for masks that it was given before.")
            raise Refused(Refusal.FORMAT)
        return encode({HIDDEN: asked.masks.hide(term, asked.ticket), "code": np.asarray(reply.code)})

    def _numbers(self, reply: Reply) -> np.ndarray:
        """All numbers of the total; zeros where the reply does not count."""
        alone = jax.tree.map(lambda leaf: np.asarray(leaf)[None], (reply.total, reply.code))
        total = sum_of_used(alone[0], usable(alone[1]))
        leaves = [np.asarray(leaf, np.float64).ravel() for leaf in jax.tree.leaves(total)]
        numbers = np.concatenate(leaves)
        outside = np.where(numbers < 0.0, -np.inf, np.nan)  # as a density that is zero, or an overflow
        return np.where(fits(numbers, len(self._names)), numbers, outside)


_NOT_KNOWN = (
    "The server names sites with the keys %s. The policy's [sums.partners], or `known-keys.json` where that has none, "
    "knows them not, or with %s. Ask the sites for the fingerprints that `fedbayes keys` shows them. If a site has a "
    "new key, as after it has lost its state folder, write that down, or remove its line of `known-keys.json`."
)
_FIRST_SEEN = (
    "These sites take part in secure sums for the first time: %s. Their keys came through the server. Compare them "
    "with what `fedbayes keys` shows there, or write them under [sums.partners] of the policy."
)
