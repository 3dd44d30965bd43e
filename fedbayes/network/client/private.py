"""Rounds whose answers hide single records by noise: whether they may be asked for, what they cost, and their noise."""

import hashlib
import logging
import secrets
from collections.abc import Sequence
from functools import lru_cache

import jax
import jax.numpy as jnp

from fedbayes.network.client.ledger import Ledger
from fedbayes.network.client.policy import Budget, Policy
from fedbayes.network.messages import Refusal, Refused
from fedbayes.numerics.accounting import Release
from fedbayes.problem.client import Client
from fedbayes.problem.program.program import Program
from fedbayes.runtime.wide import PLAIN

log = logging.getLogger(__name__)


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
    if impl != PLAIN:
        log.error("The server wants random numbers of the kind %r; noisy answers need %s.", impl[:80], PLAIN)
        raise Refused(Refusal.FORMAT)


def check_rows(client: Client, constants: Sequence[str] = ()) -> None:
    """That the gradient of each row depends on that row alone; which arguments have rows the server has a say in.

    An argument of which it says that it has none is in the gradients of all rows, and clipping these hides none of it:
    the site's owner says which arrays are no rows, and may be known.

    Raises
    ------
    Refused
        A term of the factor has no axis of rows, or an array without rows is none of the owner's ``constants``.
    """
    program = client.program
    shapes = {name: (leaf.shape, str(leaf.dtype)) for name, leaf in client.data.items()}
    others = [name for name, (shape, _) in shapes.items() if shape and name not in (*program.row_arguments, *constants)]
    if found := sorted({*others, *_without_rows(program, tuple(sorted(shapes.items())))}):
        log.error(
            "The gradient of each row depends on all of %s: clipping it hides no entry of these. If they are no "
            "records, and may be known, the site's owner says so by `constants` in [privacy] of the policy; outcomes "
            "can't be.",
            found,
        )
        raise Refused(Refusal.FORMAT)


@lru_cache(maxsize=64)
def _without_rows(program: Program, shapes: tuple[tuple[str, tuple[tuple[int, ...], str]], ...]) -> tuple[str, ...]:
    """The sites of the client's factor whose log-probability has no axis of rows, for arguments of these shapes."""
    data = {name: jax.ShapeDtypeStruct(shape, dtype) for name, (shape, dtype) in shapes}
    at = jnp.zeros(program.globals.size), jnp.zeros(program.locals.size)
    known = {*program.prior_sites, *program.missing, *program.row_axes}
    return tuple(name for name in jax.eval_shape(program.site_log_probs, *at, data) if name not in known)
