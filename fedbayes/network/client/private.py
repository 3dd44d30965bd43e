"""Rounds whose answers hide single records by noise: whether they may be asked for, what they cost, and their noise."""

import hashlib
import logging
import secrets
from collections.abc import Sequence

from fedbayes.network.client.ledger import Ledger
from fedbayes.network.client.policy import Budget, Policy
from fedbayes.network.messages import Refusal, Refused
from fedbayes.numerics.accounting import Release

log = logging.getLogger(__name__)

_KEYS = "threefry2x32"  # the kind of keys whose streams nobody is known to tell from noise


def check_asked(policy: Policy, *, noisy: bool) -> None:
    """Exact numbers leave a site, or noisy ones within a budget, and never both.

    Raises
    ------
    Refused
        What is asked for is of the other kind; the log says what to write.
    """
    if policy.privacy is not None and not noisy:
        log.error(
            "The server asks for exact numbers, beside which the [privacy] budget of the policy '%s' would be worth "
            "nothing: a site with a budget takes part in studies by methods that are private, and in nothing else.",
            policy.path,
        )
        raise Refused(Refusal.EXACT)
    if policy.privacy is None and noisy:
        log.error(
            "The study has noisy answers, and how much these may tell of one record in all is for this site's owner to "
            "say. Write a table [privacy] into '%s' with two lines, such as `epsilon = 3.0` and `delta = 1e-5`; delta "
            "should be well below one over the number of records.",
            policy.path,
        )
        raise Refused(Refusal.BUDGET)


def charged(ledger: Ledger, releases: Sequence[Release], budget: Budget, secret: str) -> str:
    """Enter an answer in the ledger; a secret for its noise alone, as hexadecimal digits.

    It is made of the site's secret, the number of the answer, which is on the disk by then, and fresh random bits: the
    same request gets other noise, and so it does at a site whose folder was restored from an old copy.

    Raises
    ------
    Refused
        The budget does not suffice, or the account can't be kept.
    """
    try:
        number = ledger.charge(releases, budget)
    except ImportError as error:
        log.error("%s", error)
        raise Refused(Refusal.FAILED) from None
    except (ValueError, TypeError, LookupError) as error:
        log.error("The account of noisy answers, '%s', can't be read: %s.", ledger.path, error)
        raise Refused(Refusal.FAILED) from None
    except Refused:
        log.error(
            "The budget (epsilon %g at delta %g) does not suffice for this answer; '%s' has the account.",
            *budget,
            ledger.path,
        )
        raise
    return hashlib.sha256(f"{secret} {number} {secrets.token_hex(32)}".encode()).hexdigest()


def check_keys(impl: str) -> None:
    """Noise of another generator could be told from noise; which one is used the server says.

    Raises
    ------
    Refused
        It is another.
    """
    if impl != _KEYS:
        log.error("The server wants random numbers of the kind %r; noisy answers need %s.", impl[:80], _KEYS)
        raise Refused(Refusal.FORMAT)
