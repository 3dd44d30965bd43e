"""With whom a site adds up: the sites that its owner has named or, without names, those of its first secure sum."""

import logging
from collections.abc import Mapping, Sequence

from fedbayes.network.client.masks import fingerprint, public_key
from fedbayes.network.client.policy import SumRules
from fedbayes.network.client.vault import Vault
from fedbayes.network.fixed_point import FEWEST_SITES
from fedbayes.network.messages import Refusal, Refused

log = logging.getLogger(__name__)


def own_key(vault: Vault) -> str:
    """A site's public key for secure sums, made when it is first asked for; empty without ``cryptography``."""
    return public_key(vault.mask_key())


def known_partners(vault: Vault, rules: SumRules) -> Mapping[str, str]:
    """Fingerprints of the other sites' keys, by name: the owner's, or those that the site has seen first."""
    return vault.known_keys() if rules.partners is None else rules.partners


def check_partners(vault: Vault, rules: SumRules, names: Sequence[str], place: int, keys: Sequence[str]) -> None:
    """The sites of a sum have the keys that this one knows, and are as many as its owner wants.

    Parameters
    ----------
    vault, rules
        Of this site.
    names, place
        All sites of the sum, and which of them this one is.
    keys
        Their public keys.

    Raises
    ------
    Refused
        Too few, or strangers.
    """
    known = known_partners(vault, rules)
    fewest = _fewest(rules, known)
    if len(keys) < fewest:
        log.error(_TOO_FEW, len(keys), fewest)
        if rules.fewest is None and known:
            log.error(_ONE_LESS, sorted(known))
        raise Refused(Refusal.FEWEST, {"fewest": fewest, "sites": len(keys)})
    try:
        found, own = (
            {name: fingerprint(key) for name, key in zip(names, keys, strict=True)},
            fingerprint(own_key(vault)),
        )
    except ValueError:
        log.error(
            "The server names a key that is none, or this site has none: %s.", dict(zip(names, keys, strict=True))
        )
        raise Refused(Refusal.PARTNERS) from None
    mine = found.pop(names[place])
    if mine != own or len({mine, *found.values()}) < len(keys):
        log.error("The server gives this site another key than its own, %s, or one key to two sites.", mine)
        raise Refused(Refusal.PARTNERS, {names[place]: 1})
    first = rules.partners is None and not known
    strange = {} if first else {name: key for name, key in found.items() if known.get(name) != key}
    if strange:
        log.error(_NOT_KNOWN, strange, dict(known))
        raise Refused(Refusal.PARTNERS, dict.fromkeys(strange, 1))
    if first:
        log.warning(_FIRST_SEEN, found)
        vault.keep_keys(found)


def _fewest(rules: SumRules, known: Mapping[str, str]) -> int:
    """The fewest sites in a sum: all that this one knows, or the difference of two sums would be a single site's."""
    return max(FEWEST_SITES, 1 + len(known)) if rules.fewest is None else rules.fewest


_TOO_FEW = "The sum is over %d sites, this one among them; its policy wants at least %d."
_ONE_LESS = (
    "This site adds up with all that it knows, %s: the difference of two sums, of which one has a site less, is that "
    "site's term. If one shall be left out, strike it from [sums.partners] of the policy, or by "
    "`fedbayes keys --forget NAME`. `fewest` under [sums] allows sums over fewer."
)
_NOT_KNOWN = (
    "The server names sites with the keys %s, and this site knows %s. Ask their owners for the fingerprints that "
    "`fedbayes keys` shows them. If these are right, write them under [sums.partners] of the policy, or have them "
    "known by `fedbayes keys --trust NAME=FINGERPRINT`, and strike by `--forget NAME` whom they do not know."
)
_FIRST_SEEN = (
    "This is the site's first secure sum. From now on it adds up with these sites alone: %s. Their keys came through "
    "the server. Compare them with what `fedbayes keys` shows there, and write them into the policy, [sums.partners]."
)
